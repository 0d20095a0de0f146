// Singular values that go through a polynomial again and again: the curve with the values on it, and bars of all.
(box, data, kit) => {
  const { values, polynomials, most } = data;
  let products = data.start, which = 0;
  kit.handle("rounds", [...Array(most + 1).keys()], products, String, (n) => { products = n; show(); });
  kit.nextRow();
  kit.choice("the polynomial", polynomials.map((p) => p.name), which, (at) => { which = at; show(); });
  const draw = kit.picture(760, 300), SIDE = 236, LEFT = 44, FLOOR = 262, TOP = 1.25;
  const X = (x) => LEFT + (x / TOP) * SIDE, Y = (y) => FLOOR - (y / TOP) * SIDE;
  const write = (x, y, text, options = {}) => kit.svg(draw, "text", { x, y, ...options }, text);
  const line = (x1, y1, x2, y2, options = {}) => kit.svg(draw, "line", { x1, y1, x2, y2, stroke: "var(--edge)", ...options });
  for (const at of [0, 0.5, 1]) {
    write(X(at), FLOOR + 18, String(at), { "text-anchor": "middle", class: "small quiet" });
    write(LEFT - 8, Y(at) + 4, String(at), { "text-anchor": "end", class: "small quiet" });
  }
  line(X(0), FLOOR, X(TOP), FLOOR); line(X(0), FLOOR, X(0), Y(TOP));
  line(X(0), Y(0), X(TOP), Y(TOP), { "stroke-dasharray": "3 4" });
  write(X(TOP / 2), FLOOR + 36, "a singular value, before", { "text-anchor": "middle", class: "small" });
  write(LEFT, 18, "and after one more round", { class: "small" });
  const curve = kit.svg(draw, "path", { fill: "none", stroke: "var(--blue)", "stroke-width": 2 });
  const dots = values.map(() => kit.svg(draw, "circle", { r: 5.5, fill: "var(--orange)", stroke: "var(--ink)", class: "move" }));
  const from = 350, each = (752 - from) / values.length;
  write(from, 18, "all singular values now", { class: "small" });
  line(from, FLOOR, 752, FLOOR);
  line(from, Y(1), 752, Y(1), { "stroke-dasharray": "6 4", stroke: "var(--ink)" });
  const bars = values.map((_, i) => ({
    bar: kit.svg(draw, "rect", { x: from + each * i + 5, width: each - 10, fill: "var(--blue)", class: "move" }),
    number: write(from + each * (i + 0.5), 0, "", { "text-anchor": "middle", class: "small halo" }),
  }));
  const of = (x, [a, b, c]) => a * x + b * x ** 3 + c * x ** 5;
  const show = () => {
    const { name, at } = polynomials[which];
    let now = values;
    for (let i = 0; i < products; i++) now = now.map((x) => of(x, at));
    curve.setAttribute("d", [...Array(101).keys()].map((i) => { const x = (i / 100) * TOP; return `${i ? "L" : "M"}${X(x).toFixed(1)} ${Y(Math.max(Math.min(of(x, at), TOP), 0)).toFixed(1)}`; }).join(""));
    dots.forEach((dot, i) => kit.put(dot, { cx: X(now[i]), cy: Y(Math.min(Math.max(of(now[i], at), 0), TOP)) }));
    bars.forEach(({ bar, number }, i) => {
      kit.put(bar, { y: Y(now[i]), height: Math.max(FLOOR - Y(now[i]), 0) });
      kit.put(number, { y: Y(now[i]) - 6 }, kit.fixed(now[i], 2));
    });
    kit.numbers("after 5 rounds", [["before", values], [`${name}, ${products} ${products === 1 ? "round" : "rounds"}`, now]]);
    kit.say(`${name}, ${products} ${products === 1 ? "round" : "rounds"}: the smallest singular value is ${kit.fixed(Math.min(...now), 3)}, the largest ${kit.fixed(Math.max(...now), 3)}.`);
  };
  show();
}
