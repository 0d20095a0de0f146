// Two rows of weights from the same scores: grown by the root of d_k, and divided by it again.
(box, data, kit) => {
  const W = 760, H = 300, BASE = 248, TALL = 190, n = data.scores.length, step = 350 / n, wide = Math.min(step - 8, 40);
  let width = data.start;
  kit.handle("components of a query and a key, dₖ", data.widths, width, (d) => String(d), (d) => { width = d; show(); });
  const draw = kit.picture(W, H);
  const sides = ["raw scores q · k", "divided by √dₖ"].map((title, side) => {
    const x0 = 8 + side * 390, colour = side ? "var(--blue)" : "var(--red)";
    kit.svg(draw, "text", { x: x0, y: 16, class: "strong" }, title);
    const note = kit.svg(draw, "text", { x: x0, y: 35, class: "quiet" });
    kit.svg(draw, "line", { x1: x0, x2: x0 + 350, y1: BASE, y2: BASE, stroke: "var(--edge)" });
    const bars = data.scores.map((_, j) => {
      const x = x0 + j * step, middle = x + step / 2;
      kit.svg(draw, "text", { x: middle, y: BASE + 18, "text-anchor": "middle" }, data.words[j]);
      return {
        bar: kit.svg(draw, "rect", { x: middle - wide / 2, width: wide, rx: 3, fill: colour, class: "move" }),
        weight: kit.svg(draw, "text", { x: middle, "text-anchor": "middle", class: "small move" }),
        score: kit.svg(draw, "text", { x: middle, y: BASE + 38, "text-anchor": "middle", class: "small quiet" }),
      };
    });
    return { note, bars };
  });
  const show = () => {
    const weights = [Math.sqrt(width), 1].map((size, side) => {
      const scores = data.scores.map((z) => z * size), row = kit.softmax(scores);
      sides[side].note.textContent = `scores from ${kit.fixed(Math.min(...scores), 1)} to ${kit.fixed(Math.max(...scores), 1)}`;
      sides[side].bars.forEach(({ bar, weight, score }, j) => {
        const tall = Math.max(TALL * row[j], 1.5);
        kit.put(bar, { y: BASE - tall, height: tall });
        kit.put(weight, { y: BASE - tall - 6 }, kit.fixed(row[j]));
        score.textContent = kit.fixed(scores[j], 1);
      });
      return Math.max(...row);
    });
    const best = data.words[data.scores.indexOf(Math.max(...data.scores))];
    const [raw, divided] = [Math.sqrt(width), 1].map((size) => kit.softmax(data.scores.map((z) => z * size)));
    kit.numbers("", [["key", data.words], [`score at dₖ = ${width}`, data.scores.map((z) => z * Math.sqrt(width))], ["weight, raw", raw], ["score / √dₖ", data.scores], ["weight, divided", divided]]);
    kit.say(`With ${width} ${width === 1 ? "component" : "components"} “${best}” gets a weight of ${kit.fixed(weights[0])} from the raw scores, and ${kit.fixed(weights[1])} if they are divided by √${width} = ${kit.fixed(Math.sqrt(width), Number.isInteger(Math.sqrt(width)) ? 0 : 1)}.`);
  };
  show();
}
