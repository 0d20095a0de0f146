// Two models on the same questions: their scores with intervals, and the unpaired and the paired interval of the difference.
(box, data, kit) => {
  let [questions, points, differ] = data.start;
  const Z = 1.96, many = (n) => n.toLocaleString("en-US");
  kit.handle("questions", data.questions, questions, many, (value) => { questions = value; show(); });
  kit.handle("lead of the second model, in points", data.points, points, String, (value) => { points = value; show(); });
  kit.nextRow();
  kit.handle("questions that only one gets right", data.differ, differ, (value) => `${value} %`, (value) => { differ = value; show(); });
  const draw = kit.picture(760, 268), LEFT = 150, RIGHT = 740;
  const write = (x, y, text, more = {}) => kit.svg(draw, "text", { x, y, class: "small", ...more }, text);
  const axis = (y, from, to, each, name) => {
    const at = (value) => LEFT + ((RIGHT - LEFT) * (value - from)) / (to - from);
    kit.svg(draw, "line", { x1: LEFT, x2: RIGHT, y1: y, y2: y, stroke: "var(--edge)" });
    for (let value = from; value <= to; value += each) {
      kit.svg(draw, "line", { x1: at(value), x2: at(value), y1: y, y2: y + 5, stroke: "var(--edge)" });
      write(at(value), y + 18, `${value}`.replace("-", "\u2212"), { "text-anchor": "middle", class: "small quiet" });
    }
    write(0, y + 18, name, { class: "small quiet" });
    return (value) => at(Math.max(from, Math.min(to, value)));
  };
  const score = axis(90, 40, 90, 10, "% right"), gap = axis(224, -20, 30, 10, "difference in points");
  const bar = (y, name, color, square) => {
    write(0, y + 4, name);
    const whisker = kit.svg(draw, "line", { y1: y, y2: y, stroke: color, "stroke-width": 3, class: "move" });
    const ends = [0, 1].map(() => kit.svg(draw, "line", { y1: y - 8, y2: y + 8, stroke: color, "stroke-width": 3, class: "move" }));
    const dot = square ? kit.svg(draw, "rect", { y: y - 6, width: 12, height: 12, fill: color, class: "move" }) : kit.svg(draw, "circle", { cy: y, r: 6, fill: color, class: "move" });
    return (x, middle, low, high) => {
      kit.put(whisker, { x1: x(low), x2: x(high) });
      ends.forEach((end, at) => kit.put(end, { x1: x([low, high][at]), x2: x([low, high][at]) }));
      kit.put(dot, square ? { x: x(middle) - 6 } : { cx: x(middle) });
    };
  };
  const bars = [bar(26, "first model", "var(--blue)"), bar(62, "second model", "var(--blue)"), bar(152, "unpaired", "var(--red)", true), bar(192, "paired", "var(--red)", true)];
  kit.svg(draw, "line", { x1: gap(0), x2: gap(0), y1: 130, y2: 224, stroke: "var(--ink)", "stroke-dasharray": "4 4" });
  const show = () => {
    const p = data.first, q = p + points / 100, d = Math.max(differ, points) / 100;
    const unpaired = p * (1 - p) + q * (1 - q), paired = d - (points / 100) ** 2;
    const half = (variance) => 100 * Z * Math.sqrt(variance / questions);
    const rows = [[100 * p, half(p * (1 - p))], [100 * q, half(q * (1 - q))], [points, half(unpaired)], [points, half(paired)]];
    rows.forEach(([middle, wide], at) => bars[at](at < 2 ? score : gap, middle, middle - wide, middle + wide));
    // enough for the interval to miss zero in four of five repetitions
    const needed = (variance) => Math.ceil((variance * 2.8 ** 2) / (points / 100) ** 2);
    const verdict = ([middle, wide]) => (middle - wide > 0 ? "misses 0" : "contains 0");
    kit.numbers("", [["interval", ["first model", "second model", "unpaired difference", "paired difference"]], ["low", rows.map(([middle, wide]) => middle - wide)], ["high", rows.map(([middle, wide]) => middle + wide)]]);
    kit.say(`With ${many(questions)} questions the unpaired interval ${verdict(rows[2])} and the paired one ${verdict(rows[3])}. To detect a lead of ${points} ${points === 1 ? "point" : "points"} in four of five repetitions, an unpaired comparison needs ${many(needed(unpaired))} questions for each model and a paired one ${many(needed(paired))}.`);
  };
  show();
}
