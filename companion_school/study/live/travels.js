// One vector of the stream at a time, lent by another text's pass: how far the answer moves.
(box, data, kit) => {
  const { shares, ways, words } = data, layers = shares[0].length, n = words.length;
  let way = 0, { layer, token } = data;
  kit.choice("What is lent", ways, way, (at) => { way = at; show(); });
  kit.nextRow();
  kit.handle("before layer", shares[0].map((_, i) => i), layer, String, (at) => { layer = at; show(); });
  kit.handle("token", words.map((_, i) => i), token, (i) => `${i}: ${words[i]}`, (at) => { token = at; show(); });
  const LEFT = 62, WIDE = (752 - LEFT) / n, HIGH = 30, TOP = 8, FLOOR = TOP + layers * HIGH;
  const draw = kit.picture(760, FLOOR + 118);
  const cells = shares[0].map((row, l) => row.map((_, i) => {
    const y = TOP + (layers - 1 - l) * HIGH, x = LEFT + i * WIDE;
    kit.svg(draw, "rect", { x, y, width: WIDE - 1, height: HIGH - 2, fill: "var(--faint)" });
    return kit.svg(draw, "rect", { x, width: WIDE - 1, fill: "var(--blue)", class: "move", y, height: 0 });
  }));
  shares[0].forEach((_, l) => kit.svg(draw, "text", { x: LEFT - 6, y: TOP + (layers - l) * HIGH - 11, "text-anchor": "end", class: "small" }, `before ${l}`));
  const names = words.map((word, i) => {
    const x = LEFT + (i + 0.5) * WIDE + 4, y = FLOOR + 8;
    return kit.svg(draw, "text", { x, y, "text-anchor": "end", transform: `rotate(-90 ${x} ${y})`, class: "small" }, word);
  });
  const frame = kit.svg(draw, "rect", { width: WIDE + 2, height: HIGH + 1, fill: "none", stroke: "var(--ink)", "stroke-width": 2.5, class: "move" });
  const bar = kit.svg(draw, "rect", { x: LEFT, y: FLOOR + 92, height: 14, fill: "var(--blue)", class: "move" });
  kit.svg(draw, "rect", { x: LEFT, y: FLOOR + 92, width: 400, height: 14, fill: "none", stroke: "var(--edge)" });
  const said = kit.svg(draw, "text", { x: LEFT + 410, y: FLOOR + 104, class: "small" });
  const show = () => {
    const now = shares[way], cut = (share) => Math.max(0, Math.min(1, share));
    cells.forEach((row, l) => row.forEach((cell, i) => {
      const high = cut(now[l][i]) * (HIGH - 2);
      kit.put(cell, { y: TOP + (layers - l) * HIGH - 2 - high, height: high });
    }));
    names.forEach((name, i) => kit.put(name, { class: i === token ? "strong" : "small" }));
    kit.put(frame, { x: LEFT + token * WIDE - 1.5, y: TOP + (layers - 1 - layer) * HIGH - 1.5 });
    const share = now[layer][token];
    kit.put(bar, { width: 400 * cut(share) });
    kit.put(said, {}, `share ${kit.fixed(share, 2)}`);
    kit.numbers("", [["token", words.map((word, i) => (i === token ? `${word} (chosen)` : word))], ...now.map((row, l) => [`before ${l}${l === layer ? " (chosen)" : ""}`, row])]);
    kit.say(`When the other story lends its vector of token ${token}, ${words[token]}, before layer ${layer}, the gap moves ${kit.fixed(share, 2)} of the way.`);
  };
  show();
}
