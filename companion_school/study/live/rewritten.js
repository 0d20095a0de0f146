// A table that pairs of a name and a value are written into: the table, and what every name reads, by four rules.
(box, data, kit) => {
  const { names, values, writes, rules } = data, colors = ["var(--red)", "var(--blue)", "var(--green)", "var(--orange)"];
  let done = writes.length, rule = 0;
  kit.choice("a write", rules, rule, (at) => { rule = at; show(); });
  kit.nextRow();
  kit.handle("pairs written", [...Array(writes.length + 1).keys()], done, String, (n) => { done = n; show(); });
  const draw = kit.picture(760, 300), write = (x, y, text, options = {}) => kit.svg(draw, "text", { x, y, ...options }, text);
  write(10, 18, "written in this order", { class: "strong" });
  const lines = writes.map(([key, value], i) => write(26, 46 + 28 * i, `${key} → ${value}`, { class: "move" }));
  const dot = kit.svg(draw, "circle", { cx: 14, r: 5, fill: "var(--ink)", class: "move" });
  const left = 196, cell = 50, rows = data.states[0][0].length;
  write(left, 18, "the table", { class: "strong" });
  values.forEach((value, j) => write(left + cell * (j + 0.5), 42, value, { "text-anchor": "middle", class: "small" }));
  const cells = [...Array(rows)].map((_, i) => values.map((_, j) => ({
    square: kit.svg(draw, "rect", { x: left + cell * j, y: 50 + cell * i, width: cell - 3, height: cell - 3, stroke: "var(--edge)", class: "move" }),
    number: write(left + cell * (j + 0.5) - 1, 50 + cell * (i + 0.58), "", { "text-anchor": "middle", class: "small" }),
  })));
  const from = left + cell * values.length + 50, each = (750 - from) / names.length, base = 196, tall = 62, wide = Math.min((each - 20) / values.length, 30);
  write(from, 18, "what each name reads; dashed: written last", { class: "strong" });
  kit.svg(draw, "line", { x1: from, x2: 750, y1: base, y2: base, stroke: "var(--edge)" });
  const bars = names.map((name, i) => {
    const start = from + each * i + (each - wide * values.length) / 2;
    write(from + each * (i + 0.5), 268, name, { "text-anchor": "middle", class: "strong" });
    const wanted = kit.svg(draw, "rect", { y: base - tall, width: wide, height: tall, fill: "none", stroke: "var(--ink)", "stroke-dasharray": "4 3", "stroke-width": 1.5, class: "move" });
    values.forEach((value, j) => write(start + wide * (j + 0.5), 250, value[0], { "text-anchor": "middle", class: "small quiet" }));
    return { start, wanted, values: values.map((_, j) => ({
      bar: kit.svg(draw, "rect", { x: start + wide * j + 2, width: wide - 4, fill: colors[j], class: "move" }),
      number: write(start + wide * (j + 0.5), base, "", { "text-anchor": "middle", class: "small move", "font-size": 11 }),
    })) };
  });
  const show = () => {
    const state = data.states[rule][done], read = data.reads[rule][done], last = data.last[done];
    lines.forEach((line, i) => kit.put(line, { opacity: i < done ? 1 : 0.72, "font-weight": i === done - 1 ? 700 : 400 }));
    kit.put(dot, { cy: 41 + 28 * Math.max(done - 1, 0), opacity: done ? 1 : 0 });
    cells.forEach((row, i) => row.forEach(({ square, number }, j) => {
      kit.put(square, { fill: kit.tint(state[i][j]) });
      number.textContent = kit.fixed(state[i][j], 2);
    }));
    bars.forEach(({ start, wanted, values: some }, i) => {
      kit.put(wanted, { x: start + wide * Math.max(last[i], 0), opacity: last[i] < 0 ? 0 : 1 });
      some.forEach(({ bar, number }, j) => {
        const high = tall * read[i][j];
        kit.put(bar, { y: base - Math.max(high, 0), height: Math.max(Math.abs(high), 1) });
        kit.put(number, { y: high < 0 ? base - high + 13 : base - high - 5 }, Math.abs(read[i][j]) < 0.005 ? "" : kit.fixed(read[i][j], 2));
      });
    });
    kit.numbers("after the last pair, by every rule", [["name", names], ["written last", last.map((j) => values[j] ?? "nothing")], ...values.map((value, j) => [`reads ${value}`, read.map((row) => row[j])])]);
    if (!done) return kit.say(`${rules[rule]}: nothing is written yet, and every name reads zeros.`);
    const [key, value] = writes[done - 1], own = read[names.indexOf(key)];
    const wrong = names.filter((_, i) => last[i] >= 0 && read[i].some((x, j) => Math.abs(x - (j === last[i])) > 0.005));
    kit.say(`${rules[rule]}: ${key} → ${value} is written. ${key} reads ${values.map((name, j) => `${name} ${kit.fixed(own[j], 2)}`).join(", ")}. ${wrong.length ? `${wrong.join(" and ")} ${wrong.length > 1 ? "do" : "does"} not read what was written last.` : "Every name reads what was written last."}`);
  };
  show();
}
