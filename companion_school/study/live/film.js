// A model while it learns: curves of how often it is right, and the maps of two of its heads at one moment.
(box, data, kit) => {
  const { updates, curves, heads, tokens, maps } = data, n = tokens.length, LEFT = 44, RIGHT = 744, TOP = 16, BASE = 150;
  const CELL = Math.min(Math.floor(300 / n), 18), MAPS = BASE + 92, side = CELL * n;
  let at = data.start;
  kit.handle("update", updates.map((_, i) => i), at, (i) => String(updates[i]), (i) => { at = i; show(); });
  const draw = kit.picture(760, MAPS + side + 10);
  const x = (update) => LEFT + ((RIGHT - LEFT) * update) / updates[updates.length - 1], y = (share) => BASE - (BASE - TOP) * share;
  const write = (left, up, text, options = {}) => kit.svg(draw, "text", { x: left, y: up, class: "small quiet", ...options }, text);
  write(0, 10, "right, of 100");
  [0, 0.5, 1].forEach((tick) => write(LEFT - 8, y(tick) + 4, 100 * tick, { "text-anchor": "end" }));
  kit.svg(draw, "path", { d: `M${LEFT} ${TOP} V${BASE} H${RIGHT}`, fill: "none", stroke: "var(--edge)" });
  updates.forEach((update, i) => { if (i % 2 === 0) write(x(update), BASE + 17, update, { "text-anchor": "middle" }); });
  curves.forEach(({ name, right }, nth) => {
    kit.svg(draw, "path", { d: "M" + updates.map((update, i) => `${x(update)} ${y(right[i])}`).join(" L"), fill: "none", stroke: `var(--${nth ? "red" : "blue"})`, "stroke-width": 2, "stroke-dasharray": nth ? "6 4" : "none" });
    write(RIGHT, y(right[right.length - 1]) + (nth ? 18 : 16), name, { "text-anchor": "end", class: "small halo" });
  });
  const dots = curves.map((_, nth) => kit.svg(draw, "circle", { r: 7, fill: `var(--${nth ? "red" : "blue"})`, stroke: "var(--page)", "stroke-width": 2, class: "move" }));
  const grids = heads.map((name, which) => {
    const x0 = 60 + which * 380;
    kit.svg(draw, "text", { x: x0, y: MAPS - 34, class: "strong" }, name);
    tokens.forEach((token, j) => {
      write(x0 + (j + 0.5) * CELL, MAPS - 6, token, { "text-anchor": "middle" });
      write(x0 - 6, MAPS + (j + 0.75) * CELL, token, { "text-anchor": "end" });
    });
    return tokens.map((_, i) => tokens.slice(0, i + 1).map((_, j) => kit.svg(draw, "rect", { x: x0 + j * CELL + 0.5, y: MAPS + i * CELL + 0.5, width: CELL - 1, height: CELL - 1, fill: "var(--blue)", stroke: "var(--edge)", "stroke-width": 0.6, class: "move" })));
  });
  const show = () => {
    dots.forEach((dot, nth) => kit.put(dot, { cx: x(updates[at]), cy: y(curves[nth].right[at]) }));
    grids.forEach((rows, which) => rows.forEach((row, i) => row.forEach((cell, j) => kit.put(cell, { "fill-opacity": parseInt(maps[at][which][(i * (i + 1)) / 2 + j], 36) / 35 }))));
    const said = curves.map(({ name, right }) => `${name} ${kit.fixed(100 * right[at], 0)}`).join(", ");
    kit.numbers("at every update", [["update", updates[at]], ...curves.map(({ name, right }) => [`right, ${name}`, right[at]])]);
    kit.say(`Of 100 answers, right after ${updates[at]} updates: ${said}. The darker a cell, the more weight the token of its row gives to the token of its column.`);
  };
  show();
}
