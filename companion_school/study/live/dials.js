// A whole head: each pair of components is a dial with a speed of its own, and the score is the sum over the dials.
(box, data, kit) => {
  const n = data.speeds.length, R = Math.min(74, 330 / n), step = 760 / n, deg = 180 / Math.PI, far = data.places - 1, near = data.distances - 1;
  const range = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => from + i);
  const polar = (v) => range(0, n - 1).map((j) => ({ length: Math.hypot(v[2 * j], v[2 * j + 1]), angle: Math.atan2(v[2 * j + 1], v[2 * j]) }));
  const hands = [polar(data.query), polar(data.key)], colours = ["var(--blue)", "var(--red)"];
  const longest = Math.max(...hands.flat().map((h) => h.length));
  const part = (j, d) => hands[0][j].length * hands[1][j].length * Math.cos(hands[0][j].angle - hands[1][j].angle + d * data.speeds[j]);
  const total = (d) => range(0, n - 1).reduce((sum, j) => sum + part(j, d), 0);
  let place = data.start, apart = data.apart;
  kit.handle("position of the query, i", range(near, far), place, String, (i) => { place = i; show(); });
  kit.nextRow();
  kit.handle("distance to the key, D", range(0, near), apart, String, (d) => { apart = d; show(); });
  const TOP = 46, Y = TOP + R + 14, CURVE = Y + R + 74, HIGH = 120, draw = kit.picture(760, CURVE + HIGH + 42);
  const dials = range(0, n - 1).map((j) => {
    const x = step * (j + 0.5), centre = kit.svg(draw, "g", { transform: `translate(${x} ${Y})` });
    const write = (y, options, text) => kit.svg(draw, "text", { x, y, "text-anchor": "middle", ...options }, text);
    write(38, { class: "strong" }, `clock ${j}: ${kit.fixed(data.speeds[j], data.speeds[j] < 0.1 ? 3 : 2)} rad/position`);
    kit.svg(centre, "circle", { r: R, fill: "none", stroke: "var(--edge)" });
    const sector = kit.svg(centre, "path", { fill: "var(--green)", "fill-opacity": 0.35, stroke: "var(--green)", class: "move" });
    const lines = [0, 1].map((i) => {
      const turning = kit.svg(centre, "g", { class: "move" }), end = ((R - 6) * hands[i][j].length) / longest;
      kit.svg(turning, "line", { x1: 0, y1: 0, x2: end - 8, y2: 0, stroke: colours[i], "stroke-width": 3.5, "stroke-linecap": "round", "stroke-dasharray": i ? "6 6" : "none" });
      kit.svg(turning, "path", { d: `M${end} 0 l-11 -5 v10 z`, fill: colours[i] });
      return turning;
    });
    return { sector, lines, between: write(Y + R + 20, {}), part: write(Y + R + 38, { class: "quiet" }) };
  });
  ["query", "key"].forEach((name, i) => {
    const x = 300 + 100 * i;
    kit.svg(draw, "line", { x1: x, x2: x + 34, y1: 10, y2: 10, stroke: colours[i], "stroke-width": 3.5, "stroke-dasharray": i ? "6 6" : "none" });
    kit.svg(draw, "text", { x: x + 42, y: 14 }, name);
  });
  // The score against the distance, which the place of the query does not touch.
  const curve = range(0, near * 8).map((i) => i / 8), most = Math.max(...curve.map((d) => Math.abs(total(d))), 0.1);
  const X = (d) => 60 + (d / near) * 680, YS = (s) => CURVE + HIGH / 2 - (s / most) * (HIGH / 2 - 6);
  kit.svg(draw, "line", { x1: X(0), x2: X(near), y1: YS(0), y2: YS(0), stroke: "var(--edge)" });
  kit.svg(draw, "text", { x: 0, y: YS(0) + 4, class: "quiet" }, "score");
  range(0, near).filter((d) => d % Math.ceil(near / 10) === 0).forEach((d) => kit.svg(draw, "text", { x: X(d), y: CURVE + HIGH + 16, "text-anchor": "middle", class: "small quiet" }, String(d)));
  kit.svg(draw, "text", { x: X(near / 2), y: CURVE + HIGH + 34, "text-anchor": "middle", class: "quiet" }, "distance D from the query back to the key");
  kit.svg(draw, "path", { d: "M" + curve.map((d) => `${X(d).toFixed(1)} ${YS(total(d)).toFixed(1)}`).join("L"), fill: "none", stroke: "var(--green)", "stroke-width": 2.5 });
  const dot = kit.svg(draw, "circle", { r: 7, fill: "var(--green)", stroke: "var(--page)", "stroke-width": 2, class: "move" });
  const value = kit.svg(draw, "text", { "text-anchor": "middle", class: "strong halo move" });
  const turn = (element, radians) => { element.style.transform = `rotate(${-radians * deg}deg)`; };
  const show = () => {
    dials.forEach(({ sector, lines, between, part: said }, j) => {
      const angles = [place, place - apart].map((at, i) => hands[i][j].angle + at * data.speeds[j]);
      const gap = angles[0] - angles[1], small = gap - 2 * Math.PI * Math.round(gap / (2 * Math.PI)), r = R * 0.5;
      lines.forEach((line, i) => turn(line, angles[i]));
      sector.setAttribute("d", `M0 0 L${r} 0 A${r} ${r} 0 0 ${small > 0 ? 0 : 1} ${r * Math.cos(small)} ${-r * Math.sin(small)} Z`);
      turn(sector, angles[1]);
      between.textContent = `between: ${kit.fixed(small)} rad`;
      said.textContent = `adds ${kit.fixed(part(j, apart))}`;
    });
    const score = total(apart);
    kit.put(dot, { cx: X(apart), cy: YS(score) });
    kit.put(value, { x: Math.max(X(apart), 82), y: YS(score) + (score < 0 ? -14 : 22) }, kit.fixed(score));
    const pairs = range(0, n - 1), at = [place, place - apart].map((m, i) => pairs.map((j) => hands[i][j].angle + m * data.speeds[j]));
    kit.numbers("at every distance", [["clock", pairs], [`query at ${place}, rad`, at[0]], [`key at ${place - apart}, rad`, at[1]], ["between, rad", at[0].map((a, j) => a - at[1][j])], ["adds", pairs.map((j) => part(j, apart))]]);
    kit.say(`Query at ${place}, key at ${place - apart}: ${range(0, n - 1).map((j) => kit.fixed(part(j, apart))).join(" + ").replaceAll("+ \u2212", "\u2212 ")} = ${kit.fixed(score)}. Moving both changes neither the angles nor the score.`);
  };
  show();
}
