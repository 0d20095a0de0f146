// One row of scores while queries and keys grow: as they are, normed, capped, and with a sink beside the keys.
(box, data, kit) => {
  const W = 760, H = 306, BASE = 250, TALL = 186, n = data.words.length, step = 740 / (n + 1), wide = Math.min(step - 18, 74);
  const names = ["as in LLaMA", "normed", "capped", "with a sink"];
  let size = data.start, edit = 0;
  kit.handle("size of queries and keys", data.sizes, size, (s) => `${s} times`, (s) => { size = s; show(); });
  kit.nextRow();
  kit.choice("the row", names, edit, (k) => { edit = k; show(); });
  const draw = kit.picture(W, H);
  const note = kit.svg(draw, "text", { x: 8, y: 18, class: "strong" });
  kit.svg(draw, "line", { x1: 8, x2: 750, y1: BASE, y2: BASE, stroke: "var(--edge)" });
  const bars = [...data.words, "nobody"].map((word, j) => {
    const middle = 10 + (j + 0.5) * step, sink = j === n;
    const name = kit.svg(draw, "text", { x: middle, y: BASE + 19, "text-anchor": "middle" }, word);
    const bar = kit.svg(draw, "rect", { x: middle - wide / 2, width: wide, rx: 3, class: "move", fill: sink ? "var(--page)" : "var(--blue)" });
    if (sink) kit.put(bar, { stroke: "var(--ink)", "stroke-dasharray": "5 4" });
    return {
      name, bar,
      weight: kit.svg(draw, "text", { x: middle, "text-anchor": "middle", class: "small move" }),
      score: kit.svg(draw, "text", { x: middle, y: BASE + 39, "text-anchor": "middle", class: "small quiet" }),
    };
  });
  const scores = () => {
    const plain = data.scores.map((z) => z * size * size);
    if (edit === 1) return data.normed;
    if (edit === 2) return plain.map((z) => data.cap * Math.tanh(z / data.cap));
    return edit === 3 ? [...plain, data.sink] : plain;
  };
  const show = () => {
    const z = scores(), row = kit.softmax(z), most = Math.max(...row.slice(0, n)), best = row.indexOf(most);
    bars.forEach(({ name, bar, weight, score }, j) => {
      const here = j < row.length, tall = here ? Math.max(TALL * row[j], 1.5) : 0;
      kit.put(bar, { y: BASE - tall, height: tall });
      kit.put(weight, { y: BASE - tall - 6 }, here ? kit.fixed(row[j], 3) : "");
      score.textContent = here ? kit.fixed(z[j], 1) : "";
      name.textContent = here ? [...data.words, "nobody"][j] : "";
    });
    note.textContent = `${names[edit]}: scores from ${kit.fixed(Math.min(...z), 1)} to ${kit.fixed(Math.max(...z), 1)}`;
    const slope = most * (1 - most), ends = edit === 2 ? slope * (1 - (z[best] / data.cap) ** 2) : slope;
    const nobody = edit === 3 ? ` The sink gets ${kit.fixed(row[n], 3)}.` : "";
    kit.numbers("", [["key", z.map((_, j) => data.words[j] ?? "sink")], ["score", z], ["weight", row]]);
    kit.say(`Queries and keys ${size} times as large, ${names[edit]}: “${data.words[best]}” gets a weight of ${kit.fixed(most, 3)}, which changes by ${kit.fixed(ends, 4)} for each unit of its score.${nobody}`);
  };
  show();
}
