// One query and all keys: products of components, their sum, the root, the weight; arcs over the words show the weights.
(box, data, kit) => {
  const n = data.words.length, d = data.queries[0].length, left = 128, step = (760 - left) / n, CELL = 24;
  const ARC = 104, WORDS = ARC + 24, TOP = WORDS + 22, SUM = TOP + d * CELL + 22, ROOT = SUM + 24, BASE = ROOT + 102, H = BASE + 22;
  const middle = (j) => left + (j + 0.5) * step;
  const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
  const digits = data.queries.concat(data.keys).flat().every(Number.isInteger) ? 0 : 1;
  const most = Math.max(...data.queries.flatMap((q) => data.keys.flatMap((k) => q.map((x, i) => Math.abs(x * k[i])))));
  const part = (x) => (x < 0 ? `(${kit.fixed(x, digits)})` : kit.fixed(x, digits));
  const formula = (a, b) => `${part(a)} · ${part(b)} = ${kit.fixed(a * b, digits)}`;
  const longest = Math.max(...data.queries.flatMap((q) => data.keys.flatMap((k) => q.map((x, i) => formula(x, k[i]).length))));
  const whole = longest * 6.4 < step - 10, cell = whole ? Math.max(longest * 6.4, 80) : Math.min(step - 14, 96);
  let row = data.start;
  const press = kit.choice("The word that looks:", data.words, row, (at) => { row = at; show(); }, true);
  const draw = kit.picture(760, H);
  const label = (y, text) => kit.svg(draw, "text", { x: 0, y, class: "quiet" }, text);
  const arcs = data.words.map(() => kit.svg(draw, "path", { fill: "none", stroke: "var(--blue)", "stroke-linecap": "round" }));
  const words = data.words.map((word, j) => {
    const text = kit.svg(draw, "text", { x: middle(j), y: WORDS, "text-anchor": "middle", class: "strong hot", style: "font-size:16px" }, word);
    text.addEventListener("mouseenter", () => press(j));
    text.addEventListener("click", () => press(j));
    return text;
  });
  label(TOP + d * CELL / 2 - 3, "query × key,");
  label(TOP + d * CELL / 2 + 14, "part by part");
  const products = data.words.map((_, j) => data.queries[0].map((_, i) => ({
    back: kit.svg(draw, "rect", { x: middle(j) - cell / 2, y: TOP + i * CELL, width: cell, height: CELL - 3, rx: 3, class: "move" }),
    text: kit.svg(draw, "text", { x: middle(j), y: TOP + i * CELL + 15, "text-anchor": "middle", class: "small" }),
  })));
  label(SUM, "sum: score q · k");
  label(ROOT, `÷ √dₖ = √${d}`);
  label(BASE - 34, "softmax: weight");
  kit.svg(draw, "line", { x1: left, x2: 760, y1: BASE, y2: BASE, stroke: "var(--edge)" });
  const columns = data.words.map((_, j) => ({
    score: kit.svg(draw, "text", { x: middle(j), y: SUM, "text-anchor": "middle", class: "strong" }),
    scaled: kit.svg(draw, "text", { x: middle(j), y: ROOT, "text-anchor": "middle" }),
    bar: kit.svg(draw, "rect", { x: middle(j) - cell / 2, width: cell, rx: 3, fill: "var(--blue)", class: "move" }),
    weight: kit.svg(draw, "text", { x: middle(j), "text-anchor": "middle", class: "strong move" }),
  }));
  const show = () => {
    const q = data.queries[row], scores = data.keys.map((k) => dot(q, k)), scaled = scores.map((s) => s / Math.sqrt(d)), weights = kit.softmax(scaled);
    data.keys.forEach((k, j) => {
      products[j].forEach(({ back, text }, i) => {
        back.setAttribute("fill", kit.tint((q[i] * k[i]) / most));
        text.textContent = whole ? formula(q[i], k[i]) : kit.fixed(q[i] * k[i], digits);
      });
      const { score, scaled: under, bar, weight } = columns[j], tall = Math.max(62 * weights[j], 1.5);
      score.textContent = kit.fixed(scores[j], digits);
      under.textContent = kit.fixed(scaled[j]);
      kit.put(bar, { y: BASE - tall, height: tall });
      kit.put(weight, { y: BASE - tall - 6 }, kit.fixed(weights[j]));
      const from = middle(row), to = middle(j), high = Math.min(96, 34 + Math.abs(to - from) / 5);
      const path = j === row ? `M${from - 9} ${ARC + 4} C${from - 34} ${ARC - 44} ${from + 34} ${ARC - 44} ${from + 9} ${ARC + 4}` : `M${from} ${ARC + 4} C${from} ${ARC - high} ${to} ${ARC - high} ${to} ${ARC + 4}`;
      kit.put(arcs[j], { d: path, "stroke-width": 1.5 + 13 * weights[j], "stroke-opacity": 0.75 + 0.25 * weights[j] });
      words[j].style.fill = j === row ? "var(--blue)" : "";
    });
    const best = weights.indexOf(Math.max(...weights));
    const order = weights.map((_, j) => j).sort((a, b) => weights[b] - weights[a]).slice(0, 3);
    const share = order.map((j) => `${kit.fixed(weights[j])} of “${data.words[j]}”`).join(", ") + (n > 3 ? " …" : "");
    kit.numbers("weights of all queries", [[`“${data.words[row]}” looks at`, data.words], ["score", scores], ["score / √dₖ", scaled], ["weight", weights]]);
    kit.say(`“${data.words[row]}” looks most at “${data.words[best]}”, with a score of ${kit.fixed(scores[best], digits)}. It takes ${share}${n > 3 ? "" : "."}`);
  };
  show();
}
