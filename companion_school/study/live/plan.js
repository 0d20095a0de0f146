// Hours on a machine: the line of all models that they can train, one of them, what it costs, and published runs.
(box, data, kit) => {
  const LEFT = 62, RIGHT = 744, TOP = 22, BASE = 300, lg = Math.log10;
  let { machine, hours, price, ratio } = data.start;
  const money = (value) => (value === 0 ? "0" : value < 1 ? value.toFixed(2) : value.toLocaleString("en-US"));
  kit.choice("machine", data.machines.map(([name]) => name), machine, (i) => { machine = i; show(); });
  kit.nextRow();
  kit.handle("hours", data.hours, hours, String, (value) => { hours = value; show(); });
  kit.handle("tokens for each parameter", data.ratios, ratio, (value) => value.toLocaleString("en-US"), (value) => { ratio = value; show(); });
  kit.handle("dollars an hour", data.prices, price, money, (value) => { price = value; show(); });
  const draw = kit.picture(760, 350);
  const x = (size) => LEFT + ((RIGHT - LEFT) * lg(size / data.sizes[0])) / lg(data.sizes[1] / data.sizes[0]);
  const y = (tokens) => BASE - ((BASE - TOP) * lg(tokens / data.tokens[0])) / lg(data.tokens[1] / data.tokens[0]);
  const write = (left, up, text, options = {}) => kit.svg(draw, "text", { x: left, y: up, class: "small quiet", ...options }, text);
  const named = (power) => { const [word, of] = power >= 12 ? ["trillion", 12] : power >= 9 ? ["billion", 9] : power >= 6 ? ["million", 6] : ["thousand", 3]; return `${10 ** (power - of)} ${word}`; };
  for (let power = lg(data.sizes[0]); power <= lg(data.sizes[1]); power += 2) {
    kit.svg(draw, "line", { x1: x(10 ** power), x2: x(10 ** power), y1: BASE, y2: BASE + 5, stroke: "var(--edge)" });
    write(x(10 ** power), BASE + 20, named(power), { "text-anchor": power === lg(data.sizes[1]) ? "end" : "middle" });
  }
  for (let power = lg(data.tokens[0]); power <= lg(data.tokens[1]); power += 2) {
    kit.svg(draw, "line", { x1: LEFT - 5, x2: LEFT, y1: y(10 ** power), y2: y(10 ** power), stroke: "var(--edge)" });
    write(LEFT - 8, y(10 ** power) + 4, `10^${power}`, { "text-anchor": "end" });
  }
  write(0, 12, "tokens");
  write((LEFT + RIGHT) / 2, BASE + 42, "parameters", { "text-anchor": "middle" });
  kit.svg(draw, "path", { d: `M${LEFT} ${TOP} V${BASE} H${RIGHT}`, fill: "none", stroke: "var(--edge)" });
  const line = kit.svg(draw, "line", { stroke: "var(--blue)", "stroke-width": 2 });
  data.known.forEach(([name, size, tokens]) => {
    const late = x(size) > RIGHT - 160;
    kit.svg(draw, "rect", { x: x(size) - 5, y: y(tokens) - 5, width: 10, height: 10, fill: "none", stroke: "var(--ink)", "stroke-width": 2 });
    kit.svg(draw, "text", { x: x(size) + (late ? 5 : 15), y: y(tokens) + (late ? -10 : 4), class: "small", "text-anchor": late ? "end" : "start" }, name);
  });
  const dot = kit.svg(draw, "circle", { r: 7, fill: "var(--red)", stroke: "var(--page)", "stroke-width": 2 });
  const many = (value) => {
    const [word, of] = value >= 1e12 ? [" trillion", 1e12] : value >= 1e9 ? [" billion", 1e9] : value >= 1e6 ? [" million", 1e6] : value >= 1e3 ? [" thousand", 1e3] : ["", 1];
    return Number((value / of).toPrecision(2)).toLocaleString("en-US") + word;
  };
  const inside = (value, [low, high]) => Math.min(Math.max(value, low), high);
  const show = () => {
    const [name, peak, share, watts] = data.machines[machine], operations = hours * 3600 * peak * share;
    const size = Math.sqrt(operations / 6 / ratio), tokens = ratio * size, energy = (watts * hours) / 1000;
    const first = inside(operations / 6 / data.tokens[1], data.sizes), last = inside(operations / 6 / data.tokens[0], data.sizes);
    kit.put(line, { x1: x(first), y1: y(operations / 6 / first), x2: x(last), y2: y(operations / 6 / last) });
    kit.put(dot, { cx: x(inside(size, data.sizes)), cy: y(inside(tokens, data.tokens)) });
    kit.numbers("", [["operations", operations], ["parameters", size], ["tokens", tokens], ["kilowatt-hours", energy], ["dollars", price * hours]], [["model", data.known.map((one) => one[0])], ["parameters", data.known.map((one) => one[1])], ["tokens", data.known.map((one) => one[2])]]);
    kit.say(`${name} for ${hours} ${hours > 1 ? "hours" : "hour"}, at ${kit.fixed(share, 1)} of its peak: ${operations.toExponential(1).replace("e+", " times 10 to the ")} operations. With ${ratio.toLocaleString("en-US")} ${ratio === 1 ? "token" : "tokens"} for each parameter that is a model of ${many(size)} parameters, which reads ${many(tokens)} tokens. It takes ${Number(energy.toPrecision(2))} kilowatt-hours and costs ${money(Number((price * hours).toPrecision(3)))} dollars.`);
  };
  show();
}
