// A pipeline over time: which micro-batch each stage runs when, in one of two orders, and how much of the time is bubble.
(box, data, kit) => {
  const LEFT = 56, TOP = 14, FORWARD = 1, BACKWARD = 2;
  let { stages, micro } = data, early = 0;
  const upTo = (most) => Array.from({ length: most }, (_, i) => i + 1);
  kit.handle("stages", upTo(data.most[0]), stages, String, (value) => { stages = value; show(); });
  kit.handle("micro-batches", upTo(data.most[1]), micro, String, (value) => { micro = value; show(); });
  kit.nextRow();
  kit.choice("order", ["all forward first", "1F1B"], early, (at) => { early = at; show(); });
  const draw = kit.picture(760, TOP + 34 * data.most[0] + 34), chart = kit.svg(draw, "g");
  // What a stage does, one after the other; with 1F1B it goes backward as early as it can.
  const ahead = (stage) => (early ? Math.min(micro, stages - stage) : micro);
  const order = (stage) => {
    const todo = [];
    for (let i = 0; i < ahead(stage); i += 1) todo.push(["F", i]);
    for (let i = 0; i < micro; i += 1) {
      todo.push(["B", i]);
      if (ahead(stage) + i < micro) todo.push(["F", ahead(stage) + i]);
    }
    return todo;
  };
  const simulate = () => {
    const ends = {}, clock = Array(stages).fill(0), tasks = [], todo = clock.map((_, stage) => order(stage));
    while (todo.some((list) => list.length)) {
      for (let stage = 0; stage < stages; stage += 1) {
        while (todo[stage].length) {
          const [kind, i] = todo[stage][0], from = kind === "F" ? stage - 1 : stage + 1, before = ends[`${kind} ${i} ${from}`];
          if (before === undefined && from >= 0 && from < stages) break;
          const start = Math.max(clock[stage], before ?? 0), length = kind === "F" ? FORWARD : BACKWARD;
          tasks.push({ kind, i, stage, start, length });
          clock[stage] = ends[`${kind} ${i} ${stage}`] = start + length;
          todo[stage].shift();
        }
      }
    }
    return { tasks, end: Math.max(...clock) };
  };
  const show = () => {
    // On a phone the picture is narrower (phone.js), and the last line takes two.
    const { tasks, end } = simulate(), { width } = draw.viewBox.baseVal, right = width - 8, unit = (right - LEFT) / end, tall = 30, low = TOP + 34 * stages + 16, lowest = width < 500 ? low + 18 : low;
    chart.replaceChildren();
    draw.setAttribute("viewBox", `0 0 ${width} ${lowest + 10}`);
    for (let stage = 0; stage < stages; stage += 1) {
      kit.svg(chart, "text", { x: 0, y: TOP + 34 * stage + 20, class: "small" }, `stage ${stage}`);
      kit.svg(chart, "rect", { x: LEFT, y: TOP + 34 * stage, width: right - LEFT, height: tall, fill: "var(--faint)" });
    }
    for (const { kind, i, stage, start, length } of tasks) {
      const x = LEFT + unit * start, y = TOP + 34 * stage, wide = unit * length;
      kit.svg(chart, "rect", { x, y, width: wide, height: tall, fill: kind === "F" ? "var(--page)" : "var(--blue)", stroke: "var(--edge)" });
      if (wide > 8 * String(i).length) kit.svg(chart, "text", { x: x + wide / 2, y: y + 20, "text-anchor": "middle", class: "small", style: kind === "F" ? "fill: var(--ink)" : "fill: var(--page)" }, String(i));
    }
    kit.svg(chart, "text", { x: LEFT, y: low, class: "small quiet" }, "light: forward; dark: backward; grey: bubble");
    kit.svg(chart, "text", { x: right, y: lowest, "text-anchor": "end", class: "small quiet" }, `time: ${end} units`);
    const bubble = 100 * (1 - (micro * (FORWARD + BACKWARD)) / end), most = ahead(0);
    kit.numbers("", [["stages", stages], ["micro-batches", micro], ["units of time", end], ["bubble, in percent", bubble], ["most micro-batches stored", most]]);
    kit.say(`${stages} ${stages === 1 ? "stage" : "stages"}, ${micro} ${micro === 1 ? "micro-batch" : "micro-batches"}, ${early ? "1F1B" : "all forward first"}: ${kit.fixed(bubble, 0)} % of the time is bubble, and the first stage stores up to ${most} ${most === 1 ? "micro-batch" : "micro-batches"}.`);
  };
  show();
}
