// Weights on the levels of a format: where each is rounded to, while the last of them grows, with one scale or two.
(box, data, kit) => {
  const { weights, formats, group, sizes } = data, SCALES = ["one for all", `one for every ${group}`];
  let size = data.start, format = 1, shared = 0;
  kit.choice("the format", formats.map((f) => f.name), format, (at) => { format = at; show(); });
  kit.nextRow();
  kit.choice("scales", SCALES, shared, (at) => { shared = at; show(); });
  kit.handle("the last weight", sizes, size, (s) => `${s} times as large`, (s) => { size = s; show(); });
  const lanes = weights.length / group, TALL = 112, draw = kit.picture(760, 14 + TALL * lanes), VIEW = 1.15, X = (w) => 380 + (w / VIEW) * 356;
  const parts = [...Array(lanes)].map((_, lane) => {
    const line = 72 + TALL * lane, ticks = kit.svg(draw, "path", { stroke: "var(--ink)", "stroke-width": 1.2, fill: "none" });
    kit.svg(draw, "line", { x1: 8, x2: 752, y1: line, y2: line, stroke: "var(--edge)", "stroke-width": 1.5 });
    const title = kit.svg(draw, "text", { x: 8, y: line - 44, class: "small strong halo" });
    const out = kit.svg(draw, "text", { x: 752, y: line - 44, "text-anchor": "end", class: "small halo" });
    const dots = [...Array(group)].map(() => ({
      way: kit.svg(draw, "line", { stroke: "var(--blue)", "stroke-width": 1.5, class: "move" }),
      from: kit.svg(draw, "circle", { r: 5, cy: line - 24, fill: "var(--blue)", class: "move" }),
      to: kit.svg(draw, "rect", { width: 9, height: 9, y: line + 13, fill: "var(--page)", stroke: "var(--ink)", "stroke-width": 1.5, class: "move" }),
    }));
    return { line, ticks, title, out, dots };
  });
  kit.svg(draw, "text", { x: 380, y: 14, "text-anchor": "middle", class: "small quiet" }, "discs: weights; ticks: levels of the format; squares: rounded weights");
  const nearest = (value, levels) => levels.reduce((best, x) => (Math.abs(x - value) < Math.abs(best - value) ? x : best), levels[0]);
  const scaleOf = (most, f) => (f.power === null ? most / f.levels.at(-1) : 2 ** (Math.floor(Math.log2(most)) - f.power));
  const show = () => {
    const f = formats[format], now = weights.map((w, i) => (i === weights.length - 1 ? w * size : w));
    const both = [...f.levels.slice(1).map((x) => -x).reverse(), ...f.levels];
    let lost = 0, zeros = 0;
    const told = [];
    parts.forEach(({ line, ticks, title, out, dots }, lane) => {
      const own = now.slice(lane * group, (lane + 1) * group), scale = scaleOf(Math.max(...(shared ? own : now).map(Math.abs)), f);
      const seen = both.map((x) => x * scale).filter((x) => Math.abs(x) <= VIEW);
      ticks.setAttribute("d", seen.map((x) => `M${X(x).toFixed(1)} ${line - 7}V${line + 7}`).join(""));
      title.textContent = `weights ${lane * group + 1} to ${(lane + 1) * group}: ${seen.length} levels in sight`;
      out.textContent = own.some((w) => Math.abs(w) > VIEW) ? `one weight at ${kit.fixed(own.find((w) => Math.abs(w) > VIEW), 1)} →` : "";
      dots.forEach(({ way, from, to }, i) => {
        const w = own[i], kept = nearest(w / scale, both) * scale, here = Math.abs(w) <= VIEW && Math.abs(kept) <= VIEW ? 1 : 0;
        told.push(kept);
        kit.put(from, { cx: X(w), opacity: here });
        kit.put(to, { x: X(kept) - 4.5, opacity: here });
        kit.put(way, { x1: X(w), y1: line - 24, x2: X(kept), y2: line + 13, opacity: here });
        if (lane * group + i < weights.length - 1) { lost += (kept - w) ** 2; zeros += kept === 0; }
      });
    });
    const root = Math.sqrt(lost / (weights.length - 1));
    kit.numbers("for every format", [["weight", now], [`stored in ${f.name}, scales: ${SCALES[shared]}`, told]]);
    kit.say(`In ${f.name}, with scales ${SCALES[shared]} and the last weight ${size} times as large, the other ${weights.length - 1} are off by ${kit.fixed(root, 3)} (root mean square), and ${zeros} of them ${zeros === 1 ? "becomes" : "become"} 0.`);
  };
  show();
}
