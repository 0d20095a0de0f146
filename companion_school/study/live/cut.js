// A text box: what is typed is cut into tokens by merges that travel with the figure; a handle plays the merges.
(box, data, kit) => {
  const printable = [...Array(94).keys()].map((k) => k + 33).concat([...Array(12).keys()].map((k) => k + 161), [...Array(82).keys()].map((k) => k + 174));
  const order = printable.concat([...Array(256).keys()].filter((byte) => !printable.includes(byte)));
  // The bytes of every token by its id: 0 is the separator, then 256 bytes, then one for each merge, in order.
  const bytes = [[], ...order.map((byte) => [byte])], rank = new Map();
  for (let at = 0; at < data.merges.length; at += 6) {
    const pair = [data.merges.slice(at, at + 3), data.merges.slice(at + 3, at + 6)].map((digits) => parseInt(digits, 36));
    rank.set(pair.join(), bytes.length);
    bytes.push([...bytes[pair[0]], ...bytes[pair[1]]]);
  }
  const id = new Map(order.map((byte, k) => [byte, k + 1])), PIECE = /'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;
  const cut = (text, most) => (text.match(PIECE) || []).flatMap((piece) => {
    const ids = [...new TextEncoder().encode(piece)].map((byte) => id.get(byte));
    for (;;) {
      let first = 257 + most, where = -1;
      for (let i = 0; i + 1 < ids.length; i++) {
        const made = rank.get(`${ids[i]},${ids[i + 1]}`);
        if (made !== undefined && made < first) { first = made; where = i; }
      }
      if (where < 0) return ids;
      for (let i = where; i + 1 < ids.length; i++) if (rank.get(`${ids[i]},${ids[i + 1]}`) === first) ids.splice(i, 2, first);
    }
  });
  const write = (token) => {
    try { return new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(bytes[token])).replaceAll(" ", "\u2423").replaceAll("\n", "\u23ce"); }
    catch { return bytes[token].map((byte) => (byte < 128 ? String.fromCharCode(byte) : `\\x${byte.toString(16)}`)).join(""); }
  };
  const all = rank.size, steps = [0, 10, 20, 50, 100, 200, 300, 500, 700, 1000, 1300, 1600, 2000, 3000].filter((k) => k < all).concat(all);
  let text = data.text, most = all;
  const row = kit.html(box.firstChild, "label", { class: "wide" });
  kit.html(row, "span", {}, "your text:");
  const field = kit.html(row, "input", { type: "text", maxlength: 60, spellcheck: false, autocomplete: "off", style: "flex:1;font:16px monospace;min-height:26px;color:var(--ink);background:var(--page);border:1px solid var(--edge);border-radius:5px;padding:.1em .5em" });
  field.value = text;
  field.addEventListener("input", () => { text = field.value; show(); });
  kit.nextRow();
  kit.handle("merges used", steps, all, String, (k) => { most = k; show(); });
  const draw = kit.picture(760, 172), group = kit.svg(draw, "g"), colours = ["blue", "orange", "green", "purple", "sky"];
  const show = () => {
    group.replaceChildren();
    const tokens = cut(text, most);
    let x = 2, y = 4;
    tokens.forEach((token, k) => {
      const said = write(token), wide = Math.max([...said].reduce((sum, sign) => sum + (sign.codePointAt(0) > 0x2e7f ? 18 : 10), 0) + 12, 34);
      if (x + wide > draw.viewBox.baseVal.width - 2) { x = 2; y += 56; }
      if (y < draw.viewBox.baseVal.height - 22) {
        kit.svg(group, "rect", { x, y, width: wide, height: 30, rx: 5, fill: `color-mix(in srgb, var(--${colours[k % 5]}) 24%, var(--page))`, stroke: "var(--edge)" });
        kit.svg(group, "text", { x: x + wide / 2, y: y + 20, "text-anchor": "middle", style: "font:16px monospace" }, said);
        kit.svg(group, "text", { x: x + wide / 2, y: y + 45, "text-anchor": "middle", class: "small quiet" }, String(token));
      }
      x += wide + 5;
    });
    const letters = [...text].length, size = new TextEncoder().encode(text).length;
    kit.numbers("", [["token", tokens.map(write)], ["id", tokens.map(String)]], [["merges", most], ["characters", letters], ["bytes", size], ["tokens", tokens.length]]);
    kit.say(`With ${most} merges, ${letters} characters (${size} bytes) become ${tokens.length} ${tokens.length === 1 ? "token" : "tokens"}. The model gets ${tokens.length ? tokens.join(", ") : "nothing"}.`);
  };
  show();
}
