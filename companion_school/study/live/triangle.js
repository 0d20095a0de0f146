// The triangle of causal attention while a text grows: what a step computes, what it finds kept, what nobody needs again.
(box, data, kit) => {
  const words = data.words, n = words.length, S = Math.min(34, 240 / n), LEFT = 150, TOP = 74, BARS = LEFT + n * S + 60;
  const range = (count) => Array.from({ length: count }, (_, i) => i), rows = [(t) => t, (t) => (t * (t + 1)) / 2], most = rows[1](n);
  let read = data.start, again = 0;
  kit.handle("words read", range(n).map((i) => i + 1), read, String, (x) => { read = x; show(); });
  kit.nextRow();
  kit.choice("A step computes:", ["the new row", "everything again"], again, (at) => { again = at; show(); });
  const draw = kit.picture(760, TOP + n * S + 12);
  const write = (x, y, text, options = {}) => kit.svg(draw, "text", { x, y, ...options }, text);
  const cell = (x, y, wide, high, text) => {
    const group = kit.svg(draw, "g", { class: "move" });
    const back = kit.svg(group, "rect", { x: x + 1.5, y: y + 1.5, width: wide - 3, height: high - 3, rx: 3, class: "move" });
    if (text) kit.svg(group, "text", { x: x + wide / 2, y: y + high / 2 + 4, "text-anchor": "middle", class: "small" }, text);
    return (state) => {
      const [fill, stroke, dash] = { now: ["color-mix(in srgb, var(--blue) 40%, var(--page))", "var(--blue)", "none"], kept: ["color-mix(in srgb, var(--green) 18%, var(--page))", "var(--edge)", "none"], gone: ["var(--page)", "var(--edge)", "3 3"] }[state] || ["none", "none", "none"];
      kit.put(group, { visibility: state === "later" ? "hidden" : "visible" });
      kit.put(back, { fill, stroke, "stroke-width": state === "now" ? 2.5 : 1, "stroke-dasharray": dash });
    };
  };
  const column = (j) => LEFT + j * S, line = (i) => TOP + i * S;
  write(LEFT - 12, 24, "keys", { "text-anchor": "end", class: "quiet" });
  write(LEFT - 12, 52, "values", { "text-anchor": "end", class: "quiet" });
  const keys = range(n).map((j) => cell(column(j), 6, S, 28, `k${j}`)), values = range(n).map((j) => cell(column(j), 34, S, 28, `v${j}`));
  const names = words.map((word, i) => write(LEFT - 48, line(i) + S / 2 + 4, word, { "text-anchor": "end", class: "strong" }));
  const queries = range(n).map((i) => cell(LEFT - 42, line(i), 34, S, `q${i}`));
  const scores = range(n).map((i) => range(i + 1).map((j) => cell(column(j), line(i), S, S)));
  write(BARS, TOP - 14, "rows computed so far", { class: "strong" });
  const wide = 730 - BARS;
  const bars = ["the new row", "everything again"].map((name, at) => {
    const y = TOP + 8 + 62 * at;
    write(BARS, y + 10, name, { class: "quiet" });
    const bar = kit.svg(draw, "rect", { x: BARS, y: y + 18, height: 18, rx: 3, fill: at ? "var(--orange)" : "var(--blue)", class: "move" });
    return { bar, said: write(BARS, y + 32, "", { class: "strong move" }) };
  });
  const show = () => {
    range(n).forEach((i) => {
      const newest = i === read - 1, state = i >= read ? "later" : again || newest ? "now" : "kept";
      for (const put of [keys[i], values[i]]) put(state);
      queries[i](state === "kept" ? "gone" : state);
      for (const put of scores[i]) put(state === "kept" ? "gone" : state);
      kit.put(names[i], { visibility: i >= read ? "hidden" : "visible" });
    });
    bars.forEach(({ bar, said }, at) => {
      const count = rows[at](read), long = (wide * count) / most;
      kit.put(bar, { width: Math.max(long, 2) });
      kit.put(said, { x: BARS + long + 8 }, String(count));
    });
    const old = read - 1, many = (count) => `${count} ${count === 1 ? "row" : "rows"}`;
    kit.numbers("after every word", [["words read", read], ["rows so far, the new one each time", rows[0](read)], ["rows so far, everything again", rows[1](read)], ["computed in this step", again ? read : 1]]);
    kit.say(again ? `“${words[old]}” has come, and ${old ? `all ${read} rows are computed: ${old} of them for the second time or more` : "its row is computed"}. So far ${many(rows[1](read))}.`
      : `“${words[old]}” has come. One row is computed: its query looks at ${old ? `${old} cached ${old > 1 ? "keys" : "key"} and its own` : "its own key"}. The dashed rows are older; their queries are not needed again. So far ${many(rows[0](read))}.`);
  };
  show();
}
