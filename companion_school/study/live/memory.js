// What a model needs to be held, to write and to be trained, beside the memory of some cards.
(box, data, kit) => {
  const { models, cards } = data, LEFT = 118, RIGHT = 736, TOP = 40, ROW = 52, low = 0, high = 4.3;
  const large = (x) => (x >= 1024 ? `${x / 1024}k` : String(x)), commas = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");
  let which = data.start, size = 2, texts = data.texts[0], tokens = data.tokens[0];
  kit.choice("Model", models.map(({ name }) => name), which, (at) => { which = at; show(); });
  kit.nextRow();
  kit.handle("texts at once", data.texts, texts, String, (x) => { texts = x; show(); });
  kit.handle("tokens of each", data.tokens, tokens, large, (x) => { tokens = x; show(); });
  kit.nextRow();
  kit.choice("Bytes per number", ["4", "2", "1"], 1, (at) => { size = [4, 2, 1][at]; show(); });
  const draw = kit.picture(760, TOP + 3 * ROW + 40), X = (gb) => LEFT + ((Math.log10(gb) - low) / (high - low)) * (RIGHT - LEFT);
  const write = (x, y, text, options = {}) => kit.svg(draw, "text", { x, y, ...options }, text);
  const base = TOP + 3 * ROW;
  kit.svg(draw, "path", { d: `M${LEFT} ${TOP} V${base} H${RIGHT}`, fill: "none", stroke: "var(--edge)" });
  for (const gb of [1, 10, 100, 1000, 10000]) {
    kit.svg(draw, "line", { x1: X(gb), x2: X(gb), y1: base, y2: base + 5, stroke: "var(--edge)" });
    write(X(gb), base + 18, commas(gb), { "text-anchor": "middle", class: "small quiet" });
  }
  write((LEFT + RIGHT) / 2, base + 35, "gigabytes: each mark is ten times the one before", { "text-anchor": "middle", class: "small quiet" });
  cards.forEach(({ name, gb }, i) => {
    const left = cards.length - 1 - i, side = ["start", "end"][left] || "middle", x = X(gb) + ([-6, 6][left] || 0); // the last two may be close
    kit.svg(draw, "line", { x1: X(gb), x2: X(gb), y1: TOP - 6, y2: base, stroke: "var(--ink)", "stroke-width": 1.5, "stroke-dasharray": "5 4" });
    write(x, 14, name, { "text-anchor": side, class: "small" });
    write(x, 29, `${gb} GB`, { "text-anchor": side, class: "small" });
  });
  const rows = [["hold", "blue"], ["write", "green"], ["train", "red"]].map(([name, color], i) => {
    const y = TOP + ROW * i + ROW / 2;
    write(LEFT - 14, y + 5, name, { "text-anchor": "end", class: "strong" });
    return { line: kit.svg(draw, "line", { x1: LEFT, y1: y, y2: y, stroke: `var(--${color})`, "stroke-width": 3, class: "move" }), dot: kit.svg(draw, "circle", { cy: y, r: 8, fill: `var(--${color})`, class: "move" }), said: write(0, y - 12, "", { class: "strong halo move", "text-anchor": "middle" }) };
  });
  const gigabytes = (gb) => `${gb >= 100 ? commas(Math.round(gb)) : kit.fixed(gb, gb < 1 ? 2 : 1)} GB`;
  const show = () => {
    const { name, millions, each } = models[which], hold = (millions * size) / 1e3, cache = (texts * tokens * each * size) / 1e9;
    const needs = [hold, hold + cache, (16 * millions) / 1e3], big = cards[cards.length - 1];
    rows.forEach(({ line, dot, said }, i) => {
      const x = Math.min(Math.max(X(needs[i]), LEFT), RIGHT);
      kit.put(line, { x2: x });
      kit.put(dot, { cx: x });
      kit.put(said, { x: Math.min(Math.max(x, LEFT + 30), RIGHT - 20) }, gigabytes(needs[i]));
    });
    const fits = cards.filter(({ gb }) => gb >= needs[1]).map((card) => card.name);
    kit.numbers("for every model", [["model", name], ["texts", texts], ["tokens of each", commas(tokens)], ["GB to hold", needs[0]], ["GB to write", needs[1]], ["GB to train", needs[2]]]);
    kit.say(`${name} has ${gigabytes(hold)} of weights, and needs ${gigabytes(cache)} of caches for ${texts} ${texts > 1 ? "texts" : "text"} of ${commas(tokens)} tokens. ${fits.length ? `For generation it fits on the ${fits.join(" and the ")}` : `For generation it needs ${Math.ceil(needs[1] / big.gb)} cards of ${big.gb} GB`}. Training takes ${gigabytes(needs[2])}${needs[2] > big.gb ? `, at least ${Math.ceil(needs[2] / big.gb)} such cards` : ""}, at any precision.`);
  };
  show();
}
