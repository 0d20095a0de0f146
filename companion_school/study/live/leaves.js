// What a layer keeps of a token: a box for each head, for each group, for all, or a latent of which keys are made.
(box, data, kit) => {
  const { kinds, heads, layers, card } = data, DOTS = 32, LEFT = 24, STEP = 22.6, commas = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");
  let which = 0, tokens = data.tokens[data.tokens.length - 1];
  kit.choice("A layer caches", kinds.map(({ name }) => name), which, (at) => { which = at; show(); });
  kit.nextRow();
  kit.handle("tokens of the text", data.tokens, tokens, commas, (x) => { tokens = x; show(); });
  const draw = kit.picture(760, 272), X = (at) => LEFT + STEP * (at + 0.5);
  const write = (x, y, text, options = {}) => kit.svg(draw, "text", { x, y, ...options }, text);
  write(LEFT, 15, `${heads} query heads${heads > DOTS ? `, a dot for ${heads / DOTS} of them` : ""}`, { class: "small quiet" });
  const lines = [...Array(DOTS)].map(() => kit.svg(draw, "line", { stroke: "var(--edge)", "stroke-width": 1.2, class: "move" }));
  for (let i = 0; i < DOTS; i++) kit.svg(draw, "circle", { cx: X(i), cy: 34, r: 5.5, fill: "var(--orange)", stroke: "var(--ink)", "stroke-width": 0.8 });
  const made = [...Array(DOTS)].map((_, i) => kit.svg(draw, "rect", { x: X(i) - 7, y: 70, width: 14, height: 16, fill: "none", stroke: "var(--ink)", "stroke-dasharray": "3 2" }));
  const below = [...Array(DOTS)].map((_, i) => kit.svg(draw, "line", { x1: X(i), y1: 86, y2: 112, stroke: "var(--edge)", "stroke-width": 1.2 }));
  const boxes = [...Array(DOTS)].map(() => kit.svg(draw, "rect", { y: 112, height: 26, rx: 2, fill: "var(--blue)", stroke: "var(--ink)", class: "move" }));
  const told = write(380, 160, "", { "text-anchor": "middle", class: "strong" });
  const low = -2, high = 3, from = 90, to = 736, G = (gb) => from + ((Math.min(Math.max(Math.log10(gb), low), high) - low) / (high - low)) * (to - from);
  kit.svg(draw, "line", { x1: from, x2: to, y1: 232, y2: 232, stroke: "var(--edge)" });
  for (const gb of [0.01, 0.1, 1, 10, 100, 1000]) write(G(gb), 248, gb < 1 ? String(gb) : commas(gb), { "text-anchor": "middle", class: "small quiet" });
  write((from + to) / 2, 266, "gigabytes: each mark is ten times the one before", { "text-anchor": "middle", class: "small quiet" });
  kit.svg(draw, "line", { x1: G(card), x2: G(card), y1: 190, y2: 232, stroke: "var(--ink)", "stroke-width": 1.5, "stroke-dasharray": "5 4" });
  write(G(card), 184, `a card of ${card} GB`, { "text-anchor": "middle", class: "small" });
  write(from - 12, 217, "the text", { "text-anchor": "end", class: "strong" });
  const bar = kit.svg(draw, "rect", { x: from, y: 202, height: 20, fill: "var(--green)", class: "move" });
  const show = () => {
    const { name, boxes: count, numbers, said } = kinds[which], latent = name === "MLA", per = DOTS / count;
    boxes.forEach((one, i) => {
      const at = Math.min(i, count - 1), wide = latent ? 90 : 15, middle = (X(at * per) + X((at + 1) * per - 1)) / 2;
      kit.put(one, { x: middle - wide / 2, width: wide, opacity: i < count ? 1 : 0 });
    });
    lines.forEach((line, i) => {
      const at = Math.floor(i / per), end = latent ? X(i) : (X(at * per) + X((at + 1) * per - 1)) / 2;
      kit.put(line, { x1: X(i), y1: 40, x2: end, y2: latent ? 70 : 112 });
    });
    made.forEach((one) => kit.put(one, { opacity: latent ? 1 : 0 }));
    below.forEach((one, i) => kit.put(one, { opacity: latent ? 1 : 0, x2: 380 + (X(i) - 380) * 0.11 }));
    const gb = (2 * layers * numbers * tokens) / 1e9, size = gb >= 100 ? commas(Math.round(gb)) : kit.fixed(gb, gb < 1 ? 2 : 1);
    kit.put(told, {}, `${commas(numbers)} elements per token`);
    kit.put(bar, { width: Math.max(G(gb) - from, 1) });
    kit.numbers("for every kind", [["cached by a layer", name], ["elements per token", commas(numbers)], ["tokens", commas(tokens)], ["GB", gb]]);
    kit.say(`${name} caches ${said}, ${commas(numbers)} elements in each of ${layers} layers. ${commas(tokens)} tokens take ${size} gigabytes${gb > card ? `, more than a card of ${card} GB has` : ""}.${latent ? " The dashed keys are computed from the latent, one for each head." : ""}`);
  };
  show();
}
