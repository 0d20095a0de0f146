// A budget of compute spent on models of every size: what a scaling law says of each, the best one, and measured runs.
(box, data, kit) => {
  const LEFT = 54, RIGHT = 744, TOP = 18, BASE = 250, FEWEST = 3, MOST = 7, [LOW, HIGH] = data.range;
  let compute = data.start, floor = data.law;
  const times = (factor) => (factor < 1 ? `1/${Math.round(1 / factor)}` : factor.toLocaleString("en-US"));
  kit.handle("compute, in nights", data.factors, compute, times, (value) => { compute = value; show(); });
  kit.nextRow();
  kit.choice("floor of the law", data.laws.map((law) => String(law.floor)), floor, (i) => { floor = i; show(); });
  const draw = kit.picture(760, 304);
  const x = (size) => LEFT + ((RIGHT - LEFT) * (Math.log10(size) - FEWEST)) / (MOST - FEWEST);
  const y = (bits) => BASE - ((BASE - TOP) * (Math.min(bits, HIGH) - LOW)) / (HIGH - LOW);
  const write = (left, up, text, options = {}) => kit.svg(draw, "text", { x: left, y: up, class: "small quiet", ...options }, text);
  for (let power = FEWEST; power <= MOST; power += 1) {
    kit.svg(draw, "line", { x1: x(10 ** power), x2: x(10 ** power), y1: BASE, y2: BASE + 5, stroke: "var(--edge)" });
    write(x(10 ** power), BASE + 19, ["1,000", "10,000", "100,000", "1 million", "10 million"][power - FEWEST], { "text-anchor": power === MOST ? "end" : power === FEWEST ? "start" : "middle" });
  }
  for (let tick = Math.ceil(2 * LOW) / 2; tick <= HIGH; tick += 0.5) {
    kit.svg(draw, "line", { x1: LEFT - 5, x2: LEFT, y1: y(tick), y2: y(tick), stroke: "var(--edge)" });
    write(LEFT - 8, y(tick) + 4, tick.toFixed(1), { "text-anchor": "end" });
  }
  write(0, 10, "bits per byte");
  write((LEFT + RIGHT) / 2, BASE + 40, "parameters of the model", { "text-anchor": "middle" });
  kit.svg(draw, "path", { d: `M${LEFT} ${TOP} V${BASE} H${RIGHT}`, fill: "none", stroke: "var(--edge)" });
  const line = kit.svg(draw, "path", { fill: "none", stroke: "var(--blue)", "stroke-width": 2 });
  const down = kit.svg(draw, "line", { stroke: "var(--red)", "stroke-dasharray": "5 4" });
  const dot = kit.svg(draw, "circle", { r: 7, fill: "var(--red)", stroke: "var(--page)", "stroke-width": 2 });
  const runs = kit.svg(draw, "g");
  const says = (law, size, tokens) => law.floor + law.factors[0] / size ** law.exponents[0] + law.factors[1] / tokens ** law.exponents[1];
  const show = () => {
    const law = data.laws[floor], operations = compute * data.compute, tokens = (size) => operations / 6 / size;
    const sizes = Array.from({ length: 241 }, (_, i) => 10 ** (FEWEST + ((MOST - FEWEST) * i) / 240));
    const shown = sizes.filter((size) => says(law, size, tokens(size)) <= HIGH);
    line.setAttribute("d", "M" + shown.map((size) => `${x(size).toFixed(1)} ${y(says(law, size, tokens(size))).toFixed(1)}`).join(" L"));
    const best = sizes.reduce((a, b) => (says(law, b, tokens(b)) < says(law, a, tokens(a)) ? b : a)), least = says(law, best, tokens(best));
    kit.put(dot, { cx: x(best), cy: y(least) });
    kit.put(down, { x1: x(best), x2: x(best), y1: y(least), y2: BASE });
    runs.replaceChildren();
    const measured = data.runs.filter((run) => run.compute === compute);
    measured.forEach((run) => kit.svg(runs, "rect", { x: x(run.size) - 5, y: y(run.bits) - 5, width: 10, height: 10, fill: "none", stroke: "var(--ink)", "stroke-width": 2 }));
    const round = (value) => Number(value.toPrecision(2)).toLocaleString("en-US");
    const listed = measured.length ? measured.map((run) => run.size) : [...new Set([1e3, 1e4, 1e5, 1e6, 1e7, best])].sort((a, b) => a - b);
    const columns = [["parameters", listed.map(Math.round)], ["tokens", listed.map((size) => Math.round(tokens(size)))], ["predicted", listed.map((size) => says(law, size, tokens(size)))]];
    if (measured.length) columns.push(["measured", measured.map((run) => run.bits)]);
    kit.numbers("", columns);
    kit.say(`With a floor of ${law.floor} and ${times(compute)} ${compute > 1 ? "nights" : "night"} of compute, the law recommends about ${round(best)} parameters and ${round(tokens(best))} tokens (${round(tokens(best) / best)} for each parameter) and predicts ${kit.fixed(least)} bits per byte.${measured.length ? " The squares are measured runs." : ""}`);
  };
  show();
}
