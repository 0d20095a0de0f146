// Answers that are pulled towards reward, and held by the model they started from.
(box, data, kit) => {
  const { start, judges, names, words, temperatures } = data, n = words.length;
  let tau = data.tau, judge = 0;
  kit.handle("temperature of the reward", temperatures, tau, (x) => kit.fixed(x, 2), (x) => { tau = x; show(); });
  kit.nextRow();
  kit.choice("Reward:", names, judge, (at) => { judge = at; show(); });
  const draw = kit.picture(760, 262), FLOOR = 200, HIGH = 168, EACH = 760 / n, WIDE = 58;
  const Y = (chance) => FLOOR - chance * HIGH;
  const write = (x, y, text, options = {}) => kit.svg(draw, "text", { x, y, "text-anchor": "middle", ...options }, text);
  kit.svg(draw, "line", { x1: 8, x2: 752, y1: FLOOR, y2: FLOOR, stroke: "var(--edge)" });
  const columns = words.map((word, i) => {
    const middle = EACH * (i + 0.5), left = middle - WIDE - 4, right = middle + 4;
    const rect = (x, options) => kit.svg(draw, "rect", { x, width: WIDE, class: "move", ...options });
    write(middle, FLOOR + 17, word, { class: "strong" });
    rect(left, { y: Y(start[i]), height: FLOOR - Y(start[i]), fill: "var(--page)", stroke: "var(--ink)", "stroke-dasharray": "4 3" });
    write(left + WIDE / 2, Y(start[i]) - 5, kit.fixed(start[i], 2), { class: "small quiet halo" });
    return {
      bar: rect(right, { fill: "var(--blue)" }),
      said: write(right + WIDE / 2, 0, "", { class: "small halo" }),
      reward: write(middle, FLOOR + 34, "", { class: "small quiet" }),
    };
  });
  write(380, FLOOR + 56, "dashed box: the start; blue: the maximum of reward minus temperature times divergence", { class: "small quiet" });
  const show = () => {
    const rewards = judges[judge], now = kit.softmax(start.map((p, i) => Math.log(p) + rewards[i] / tau));
    columns.forEach((column, i) => {
      kit.put(column.bar, { y: Y(now[i]), height: FLOOR - Y(now[i]) });
      kit.put(column.said, { y: Y(now[i]) - 5 }, kit.fixed(now[i], 2));
      kit.put(column.reward, {}, `reward ${kit.fixed(rewards[i], 1)}`);
    });
    const mean = now.reduce((sum, p, i) => sum + p * rewards[i], 0);
    const far = now.reduce((sum, p, i) => sum + (p > 1e-12 ? p * Math.log(p / start[i]) : 0), 0);
    kit.numbers("", [["answer", words], ["the start", start], ["reward", rewards], [`at temperature ${kit.fixed(tau, 2)}`, now]]);
    kit.say(`At temperature ${kit.fixed(tau, 2)} the mean reward is ${kit.fixed(mean, 2)}, ${kit.fixed(far, 2)} nats from the start. Probabilities: ${words.map((word, i) => `${word} ${kit.fixed(now[i], 2)}`).join(", ")}.`);
  };
  show();
}
