// A timetable of a server: a row for each seat, a box for each step of a text, orange while its prompt is read.
(box, data, kit) => {
  const { ways, seats, apart, tokens, texts } = data;
  const read = (step) => { const letters = step.match(/^[a-zA-Z.]+?(?=[0-9]|$)/)[0]; return [Number(step.slice(letters.length) || 1), letters]; };
  const tables = Object.fromEntries(Object.entries(data.tables).map(([name, { steps, told }]) => [name, { told, steps: steps.split(" ").map(read) }]));
  let way = 0, count = seats[seats.length - 1], gap = 1;
  kit.choice("Batching", ways, way, (at) => { way = at; show(); });
  kit.nextRow();
  kit.handle("seats", seats, count, String, (x) => { count = x; show(); });
  kit.handle("texts arrive", apart, gap, (x) => ["all at once", "one by one", "", "slowly"][x], (x) => { gap = x; show(); });
  const LEFT = 46, WIDE = 706, ROW = 38, most = seats[seats.length - 1], draw = kit.picture(760, 40 + ROW * most + 34);
  const boxes = [];
  const need = Math.max(...Object.values(tables).map(({ steps }) => steps.reduce((sum, [, letters]) => sum + [...letters].filter((x) => x !== ".").length, 0)));
  const rows = [...Array(most)].map((_, seat) => ({
    line: kit.svg(draw, "rect", { x: LEFT, y: 8 + ROW * seat, width: WIDE, height: ROW - 6, fill: "var(--faint)" }),
    name: kit.svg(draw, "text", { x: LEFT - 8, y: 29 + ROW * seat, "text-anchor": "end", class: "small" }, `seat ${seat}`),
  }));
  for (let i = 0; i < need; i++) {
    const rect = kit.svg(draw, "rect", { height: ROW - 10, stroke: "var(--ink)", "stroke-width": 0.6 });
    boxes.push({ rect, letter: kit.svg(draw, "text", { "text-anchor": "middle", class: "small" }) });
  }
  const floor = 8 + ROW * most + 14;
  const last = kit.svg(draw, "text", { y: floor, "text-anchor": "end", class: "small" });
  kit.svg(draw, "text", { x: LEFT, y: floor + 22, class: "small quiet" }, "orange: a prompt is read; blue: a token is written; each letter is a text");
  const show = () => {
    const { steps, told } = tables[`${ways[way]} ${count} ${gap}`], [done, first, longest] = told;
    const scale = WIDE / Math.max(done, 40), shown = {};
    let at = 0, used = 0, time = 0;
    rows.forEach(({ line, name }, seat) => [line, name].forEach((part) => kit.put(part, { opacity: seat < count ? 1 : 0 })));
    for (const [took, letters] of steps) {
      [...letters].forEach((letter, seat) => {
        if (letter === ".") return;
        const { rect, letter: text } = boxes[at], reads = letter === letter.toLowerCase(), x = LEFT + scale * time, name = letter.toUpperCase();
        kit.put(rect, { x, y: 10 + ROW * seat, width: scale * took, opacity: 1, fill: reads ? "color-mix(in srgb, var(--orange) 42%, var(--page))" : "color-mix(in srgb, var(--blue) 25%, var(--page))" });
        kit.put(text, { x: x + (scale * took) / 2, y: 29 + ROW * seat, opacity: shown[name] && scale * took < 12 ? 0 : 1 }, name);
        shown[name] = true;
        used += took;
        at += 1;
      });
      time += took;
    }
    boxes.slice(at).forEach(({ rect, letter }) => [rect, letter].forEach((part) => kit.put(part, { opacity: 0, x: LEFT, width: 0 }, part === letter ? "" : undefined)));
    kit.put(last, { x: Math.min(LEFT + scale * done, 752) }, `all done after ${kit.fixed(done, 0)}`);
    kit.numbers("", [["way", ways[way]], ["seats", count], ["all done after", done], ["mean time to first token", first], ["longest gap between tokens", longest]]);
    kit.say(`${ways[way]}, ${count} ${count === 1 ? "seat" : "seats"}: ${texts} texts are done after ${kit.fixed(done, 1)} passes over the weights, ${kit.fixed(tokens / done, 2)} tokens per pass, with seats in use ${Math.round((100 * used) / (count * done))}\u00a0%. The first token comes after ${kit.fixed(first, 1)} on average, and the longest gap between two tokens is ${kit.fixed(longest, 1)}.`);
  };
  show();
}
