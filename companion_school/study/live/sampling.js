// What may be written next: temperature bends the row, top-k and top-p cut it, and what is left adds up to one again.
(box, data, kit) => {
  const n = data.words.length, BASE = 236, TALL = 176, left = 8, step = 744 / n, wide = Math.min(step - 16, 92);
  let temperature = 1, k = n, p = 1;
  kit.handle("temperature", data.temperatures, 1, (t) => kit.fixed(t, 1), (t) => { temperature = t; show(); });
  kit.nextRow();
  kit.handle("top-k: at most", Array.from({ length: n }, (_, i) => i + 1), n, (x) => `${x} words`, (x) => { k = x; show(); });
  kit.handle("top-p: at least", data.shares, 1, (x) => kit.fixed(x), (x) => { p = x; show(); });
  const draw = kit.picture(760, 282);
  kit.svg(draw, "line", { x1: left, x2: 752, y1: BASE, y2: BASE, stroke: "var(--edge)" });
  const bars = data.words.map((word, j) => {
    const x = left + (j + 0.5) * step;
    kit.svg(draw, "text", { x, y: BASE + 19, "text-anchor": "middle", class: "strong" }, word);
    kit.svg(draw, "text", { x, y: BASE + 38, "text-anchor": "middle", class: "small quiet" }, `logit ${kit.fixed(data.logits[j], 1)}`);
    return {
      after: kit.svg(draw, "rect", { x: x - wide / 2, width: wide, rx: 3, fill: "var(--blue)", class: "move" }),
      before: kit.svg(draw, "rect", { x: x - wide / 2, width: wide, rx: 3, fill: "none", stroke: "var(--edge)", "stroke-dasharray": "4 4", class: "move" }),
      share: kit.svg(draw, "text", { x, "text-anchor": "middle", class: "strong halo move" }),
    };
  });
  const order = data.logits.map((_, j) => j).sort((a, b) => data.logits[b] - data.logits[a]);
  const show = () => {
    const row = kit.softmax(data.logits.map((z) => z / temperature)), kept = new Set();
    let total = 0;
    for (const j of order.slice(0, k)) {  // a word is kept as long as those before it do not reach p
      if (kept.size && total >= p * order.slice(0, k).reduce((sum, i) => sum + row[i], 0) - 1e-12) break;
      kept.add(j);
      total += row[j];
    }
    bars.forEach(({ before, after, share }, j) => {
      const out = kept.has(j) ? row[j] / total : 0, tall = [row[j], out].map((x) => Math.max(TALL * x, 1));
      kit.put(before, { y: BASE - tall[0], height: tall[0] });
      kit.put(after, { y: BASE - tall[1], height: tall[1] });
      kit.put(share, { y: BASE - Math.max(...tall) - 7 }, kept.has(j) ? kit.fixed(out) : "cut");
    });
    const best = order[0], few = kept.size < n ? `${kept.size} of ${n} words are left. Their probabilities, ${kit.fixed(total)} together, are scaled up to a sum of 1.` : "Every word is left.";
    kit.numbers("at three temperatures", [["word", data.words], ["logit", data.logits], [`at temperature ${kit.fixed(temperature, 1)}`, row], [`after top-k ${k} and top-p ${kit.fixed(p)}`, row.map((x, j) => (kept.has(j) ? x / total : 0))]]);
    kit.say(`At temperature ${kit.fixed(temperature, 1)}, top-k ${k} and top-p ${kit.fixed(p)} “${data.words[best]}” has probability ${kit.fixed(row[best] / total)}. ${few} Dashed boxes show the probabilities before the cut.`);
  };
  show();
}
