// A model while it learns: the curve of its score with a dot at one moment, and what it writes then.
(box, data, kit) => {
  const { updates, bits, rows, marks } = data, LEFT = 52, RIGHT = 744, TOP = 22, BASE = 196, FIRST = 266, STEP = 21;
  let at = data.start;
  kit.handle("update", updates.map((_, i) => i), at, (i) => String(updates[i]), (i) => { at = i; show(); });
  const most = Math.max(...rows.map((lines) => lines.length)), draw = kit.picture(760, FIRST + STEP * most);
  const all = [...bits, ...marks.map((mark) => mark.bits)], low = 0.9 * Math.min(...all), high = 1.1 * Math.max(...all);
  const x = (i) => LEFT + ((RIGHT - LEFT) * i) / (updates.length - 1);  // a step for each moment, and scores on a logarithmic axis
  const y = (score) => BASE - ((BASE - TOP) * Math.log(score / low)) / Math.log(high / low);
  const write = (left, up, text, options = {}) => kit.svg(draw, "text", { x: left, y: up, class: "small quiet", ...options }, text);
  write(0, 11, "bits per byte of text that it has never seen");
  for (const tick of [0.05, 0.1, 0.2, 0.5, 1, 2, 5].filter((tick) => tick >= low && tick <= high)) {
    kit.svg(draw, "line", { x1: LEFT - 5, x2: LEFT, y1: y(tick), y2: y(tick), stroke: "var(--edge)" });
    write(LEFT - 8, y(tick) + 4, tick, { "text-anchor": "end" });
  }
  kit.svg(draw, "path", { d: `M${LEFT} ${TOP} V${BASE} H${RIGHT}`, fill: "none", stroke: "var(--edge)" });
  updates.forEach((update, i) => write(x(i), BASE + 17, update, { "text-anchor": "middle" }));
  kit.svg(draw, "path", { d: "M" + updates.map((_, i) => `${x(i)} ${y(bits[i])}`).join(" L"), fill: "none", stroke: "var(--blue)", "stroke-width": 2 });
  updates.forEach((_, i) => kit.svg(draw, "circle", { cx: x(i), cy: y(bits[i]), r: 3.5, fill: "var(--blue)" }));
  marks.forEach((mark, i) => {  // near ones would write over each other, so each name is at another position
    kit.svg(draw, "line", { x1: LEFT, x2: RIGHT, y1: y(mark.bits), y2: y(mark.bits), stroke: "var(--ink)", "stroke-dasharray": "5 4" });
    write(RIGHT - 150 * i, y(mark.bits) - 5, `${mark.name}: ${kit.fixed(mark.bits)}`, { "text-anchor": "end", class: "small halo" });
  });
  const dot = kit.svg(draw, "circle", { r: 8, fill: "var(--red)", stroke: "var(--page)", "stroke-width": 2, class: "move" });
  kit.svg(draw, "text", { x: 0, y: FIRST - 26, class: "strong" }, "it writes:");
  const lines = Array.from({ length: most }, (_, i) => kit.svg(draw, "text", { x: 0, y: FIRST + STEP * i, style: "font-family:var(--jp-code-font-family,monospace);white-space:pre" }));
  const show = () => {
    kit.put(dot, { cx: x(at), cy: y(bits[at]) });
    lines.forEach((line, i) => {
      line.replaceChildren();
      (rows[at][i] ?? []).forEach((piece, nth) => kit.svg(line, "tspan", nth % 2 ? { style: "fill:var(--red);text-decoration:underline" } : {}, piece));
    });
    const beaten = marks.filter((mark) => bits[at] < mark.bits).length;
    kit.numbers("at every update", [["update", updates[at]], ["bits per byte", bits[at]], ["it writes", rows[at].map((pieces) => pieces.join("")).join(" ")]]);
    kit.say(`After ${updates[at]} updates: ${kit.fixed(bits[at])} bits per byte, better than ${beaten} of ${marks.length} baselines. Words that hardly occur in the training text are underlined.`);
  };
  show();
}
