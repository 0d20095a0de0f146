// Guesses of a draft: what is accepted, what is rejected, and what is resampled, word by word.
(box, data, kit) => {
  const { p, q, words } = data, n = words.length, RULES = ["the residual, max(0, p − q)", "the model's own probabilities"];
  let agree = 0, rule = 0;
  kit.handle("how far the draft agrees with the model", [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1], agree, (x) => kit.fixed(x, 1), (x) => { agree = x; show(); });
  kit.nextRow();
  kit.choice("A rejected guess is resampled from", RULES, rule, (at) => { rule = at; show(); });
  const draw = kit.picture(760, 252), FLOOR = 196, HIGH = 165, most = 1.15 * Math.max(...p, ...q), EACH = 760 / n, WIDE = 62;
  const Y = (chance) => FLOOR - (chance / most) * HIGH;
  const write = (x, y, text, options = {}) => kit.svg(draw, "text", { x, y, "text-anchor": "middle", ...options }, text);
  kit.svg(draw, "line", { x1: 8, x2: 752, y1: FLOOR, y2: FLOOR, stroke: "var(--edge)" });
  const columns = words.map((word, i) => {
    const middle = EACH * (i + 0.5), left = middle - WIDE - 8, right = middle + 8;
    const rect = (x, options) => kit.svg(draw, "rect", { x, width: WIDE, class: "move", ...options });
    write(middle, FLOOR + 36, word, { class: "strong" });
    write(left + WIDE / 2, FLOOR + 17, "guessed", { class: "small quiet" });
    write(right + WIDE / 2, FLOOR + 17, "written", { class: "small quiet" });
    return {
      stays: rect(left, { fill: "var(--blue)" }),
      refused: rect(left, { fill: "var(--page)", stroke: "var(--ink)", "stroke-dasharray": "4 3" }),
      kept: rect(right, { fill: "var(--blue)" }),
      mended: rect(right, { fill: "var(--orange)", stroke: "var(--ink)", "stroke-width": 0.8 }),
      wanted: kit.svg(draw, "line", { x1: left - 10, x2: right + WIDE + 10, y1: Y(p[i]), y2: Y(p[i]), stroke: "var(--ink)", "stroke-width": 2, "stroke-dasharray": "6 4" }),
      said: write(right + WIDE / 2, 0, "", { class: "small halo" }),
    };
  });
  write(380, FLOOR + 54, "blue: accepted; dashed box: rejected; orange: resampled; dashed line: the model's probability", { class: "small quiet" });
  const bar = (rect, from, to) => kit.put(rect, { y: Y(to), height: Math.max(Y(from) - Y(to), 0), opacity: to - from > 1e-9 ? 1 : 0 });
  const show = () => {
    const now = q.map((x, i) => x + agree * (p[i] - x)), stays = now.map((x, i) => Math.min(x, p[i])), rate = stays.reduce((a, b) => a + b, 0);
    const mended = p.map((x, i) => (rule ? (1 - rate) * x : x - stays[i])), out = stays.map((x, i) => x + mended[i]);
    columns.forEach((column, i) => {
      bar(column.stays, 0, stays[i]);
      bar(column.refused, stays[i], now[i]);
      bar(column.kept, 0, stays[i]);
      bar(column.mended, stays[i], out[i]);
      kit.put(column.said, { y: Y(Math.max(out[i], p[i])) - 6 }, kit.fixed(out[i], 2));
    });
    const off = Math.max(...out.map((x, i) => Math.abs(x - p[i])));
    kit.numbers("", [["word", words], ["the model's probability", p], ["the draft's probability", now], ["accepted", stays], ["resampled", mended], ["written", out]]);
    kit.say(`${kit.fixed(rate, 2)} of the guesses are accepted. With rejected guesses resampled from ${RULES[rule]}, the text has ${words.map((word, i) => `${word} ${kit.fixed(out[i], 2)}`).join(", ")}: ${off < 1e-9 ? "the model's probabilities" : `off by up to ${kit.fixed(off, 2)}`}.`);
  };
  show();
}
