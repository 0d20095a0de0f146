// Steps down a long, narrow valley, plain or by Adam: what a learning rate, a bad batch and clipping do.
(box, data, kit) => {
  const { flat, steep, start, steps, bad, push } = data, SCALE = 122, W = 760, H = 372, NAMES = ["plain descent", "Adam"];
  const x = (first) => 12 + (Math.min(Math.max(first, -4.6), 1.4) + 4.6) * SCALE, y = (second) => H / 2 - Math.min(Math.max(second, -1.5), 1.5) * SCALE;
  let rate = data.rate, method = 0, kick = false, clip = false;
  kit.choice("Method:", NAMES, 0, (to) => { method = to; show(); });
  kit.handle("learning rate", data.rates, rate, String, (value) => { rate = value; show(); });
  kit.nextRow();
  kit.toggle(`a bad batch at step ${bad}`, kick, (on) => { kick = on; show(); });
  kit.toggle("clip gradients to length 1", clip, (on) => { clip = on; show(); });
  const draw = kit.picture(W, H);
  kit.svg(draw, "rect", { x: x(-4.6), y: y(1.5), width: 6 * SCALE, height: 3 * SCALE, fill: "var(--page)", stroke: "var(--edge)" });
  for (const level of [0.02, 0.1, 0.3, 0.7, 1.25]) {
    const points = Array.from({ length: 181 }, (_, i) => { const turn = (i * Math.PI) / 90; return `${x(Math.sqrt((2 * level) / flat) * Math.cos(turn))} ${y(Math.sqrt((2 * level) / steep) * Math.sin(turn))}`; });
    kit.svg(draw, "path", { d: `M${points.join(" L")}`, fill: "none", stroke: "var(--edge)" });
  }
  const path = kit.svg(draw, "path", { fill: "none", stroke: "var(--blue)", "stroke-width": 2 });
  const dots = Array.from({ length: steps + 1 }, () => kit.svg(draw, "circle", { r: 3.5, fill: "var(--blue)", class: "move" }));
  const thrown = kit.svg(draw, "circle", { r: 8, fill: "none", stroke: "var(--red)", "stroke-width": 2.5, "stroke-dasharray": "4 3" });
  kit.svg(draw, "path", { d: `M${x(0) - 8} ${y(0)} H${x(0) + 8} M${x(0)} ${y(0) - 8} V${y(0) + 8}`, stroke: "var(--red)", "stroke-width": 3 });
  kit.svg(draw, "text", { x: x(0) + 11, y: y(0) - 9, class: "small halo" }, "lowest");
  kit.svg(draw, "text", { x: x(-4.6) + 8, y: y(-1.5) - 9, class: "small quiet halo" }, "across: the first weight; up: the second. Dots: the weights after each step");
  const show = () => {
    const at = [[...start]], mean = [0, 0], square = [0, 0];
    let longest = 0, gone = 0;
    for (let step = 1; step <= steps; step += 1) {
      const now = at[step - 1];
      let gradient = kick && step === bad ? push : [flat * now[0], steep * now[1]];
      const length = Math.hypot(...gradient);
      if (clip && length > 1) gradient = gradient.map((g) => g / length);
      const move = gradient.map((g, i) => {
        mean[i] = 0.9 * mean[i] + 0.1 * g;
        square[i] = 0.95 * square[i] + 0.05 * g * g;
        return method === 0 ? rate * g : (rate * (mean[i] / (1 - 0.9 ** step))) / (Math.sqrt(square[i] / (1 - 0.95 ** step)) + 1e-8);
      });
      longest = Math.max(longest, Math.hypot(...move));
      at.push(now.map((place, i) => place - move[i]));
      if (!gone && Math.abs(at[step][1]) > 1.5) gone = step;
    }
    kit.put(path, { d: `M${at.map(([first, second]) => `${x(first)} ${y(second)}`).join(" L")}` });
    dots.forEach((dot, i) => kit.put(dot, { cx: x(at[i][0]), cy: y(at[i][1]) }));
    kit.put(thrown, { cx: x(at[bad][0]), cy: y(at[bad][1]), opacity: kick ? 1 : 0 });
    const loss = 0.5 * (flat * at[steps][0] ** 2 + steep * at[steps][1] ** 2), first = 0.5 * (flat * start[0] ** 2 + steep * start[1] ** 2);
    const shown = loss > 1000 ? "more than 1000" : kit.fixed(loss, 4);
    kit.numbers("", [["step", at.map((_, i) => i)], ["first weight", at.map(([x]) => x)], ["second weight", at.map(([, y]) => y)], ["loss", at.map(([x, y]) => 0.5 * (flat * x * x + steep * y * y))]]);
    kit.say(`With ${NAMES[method]} and rate ${rate}, the loss goes from ${kit.fixed(first)} to ${shown} in ${steps} steps; the longest step is ${longest > 1000 ? "more than 1000" : kit.fixed(longest)}.${gone ? ` It leaves the picture at step ${gone}.` : ""}`);
  };
  show();
}
