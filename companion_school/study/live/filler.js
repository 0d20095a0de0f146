// How padding affects three real words: their outputs are averages of values, with the padding's value among them or not.
(box, data, kit) => {
  const X0 = 30, Y0 = 300, UNIT = 260 / data.most, n = data.words.length, F = n;
  const names = ["nothing", "the padding's columns", "the padding's rows"];
  let count = data.start, hidden = 0;
  kit.handle("padding tokens", data.counts, count, String, (c) => { count = c; show(); });
  kit.choice("hide", names, hidden, (at) => { hidden = at; show(); });
  const draw = kit.picture(760, 330);
  const at = ([x, y]) => [X0 + x * UNIT, Y0 - y * UNIT];
  kit.svg(draw, "line", { x1: X0, x2: X0 + 280, y1: Y0, y2: Y0, stroke: "var(--edge)" });
  kit.svg(draw, "line", { x1: X0, x2: X0, y1: Y0, y2: Y0 - 280, stroke: "var(--edge)" });
  const mark = ([x, y], word, filler) => {
    kit.svg(draw, "rect", { x: x - 6, y: y - 6, width: 12, height: 12, fill: filler ? "var(--orange)" : "none", stroke: filler ? "var(--ink)" : "var(--blue)", "stroke-width": 2 });
    kit.svg(draw, "text", { x: x + 12, y: y - 8, class: "small halo" }, word);
  };
  data.values.forEach((value, j) => mark(at(value), j < n ? `hands over: ${data.words[j]}` : "padding", j === F));
  const outs = data.words.map(() => ({
    line: kit.svg(draw, "line", { stroke: "var(--red)", "stroke-width": 1.2, "stroke-dasharray": "4 3", class: "move" }),
    dot: kit.svg(draw, "circle", { r: 6, fill: "var(--red)", class: "move" }),
  }));
  kit.svg(draw, "text", { x: 440, y: 30, class: "strong" }, "weight that each row gives to the padding");
  const rows = [...data.words, "padding"].map((word, i) => {
    const y = 66 + i * 44;
    kit.svg(draw, "text", { x: 440, y: y + 5, class: "small" }, word);
    kit.svg(draw, "rect", { x: 510, y: y - 11, width: 180, height: 22, rx: 3, fill: "var(--faint)" });
    return {
      bar: kit.svg(draw, "rect", { x: 510, y: y - 11, height: 22, rx: 3, fill: "var(--orange)", class: "move" }),
      text: kit.svg(draw, "text", { x: 698, y: y + 5, class: "small" }),
    };
  });
  const away = kit.svg(draw, "text", { x: 440, y: 262, class: "strong" });
  const rowOf = (i, fillers) => {
    const scores = [...data.scores[i].slice(0, n), ...Array(fillers).fill(data.scores[i][n])], weights = kit.softmax(scores);
    const kept = weights.slice(0, n), rest = weights.slice(n).reduce((a, b) => a + b, 0);
    const out = [0, 1].map((c) => kept.reduce((sum, w, j) => sum + w * data.values[j][c], rest * data.values[F][c]));
    return { rest, out };
  };
  const show = () => {
    let most = 0;
    rows.forEach(({ bar, text }, i) => {
      const blank = i === n && (hidden === 2 || count === 0), { rest } = rowOf(i, hidden === 1 ? 0 : count);
      kit.put(bar, { width: blank ? 0 : Math.max(180 * rest, 0.5) });
      text.textContent = i === n && count === 0 ? "none" : blank ? "0/0" : kit.fixed(rest);
    });
    outs.forEach(({ line, dot }, i) => {
      const alone = at(rowOf(i, 0).out), now = rowOf(i, hidden === 1 ? 0 : count).out, [x, y] = at(now);
      kit.put(dot, { cx: x, cy: y });
      kit.put(line, { x1: alone[0], y1: alone[1], x2: x, y2: y });
      most = Math.max(most, Math.hypot(x - alone[0], y - alone[1]) / UNIT);
    });
    away.textContent = `farthest from where it should be: ${kit.fixed(most)}`;
    const filler = hidden === 2 && count ? " The padding's own rows are 0/0." : "";
    const rowsNow = outs.map((_, i) => rowOf(i, hidden === 1 ? 0 : count));
    kit.numbers("by padding tokens, with nothing hidden", [["row", data.words], ["weight on padding", rowsNow.map(({ rest }) => rest)], ["output, first", rowsNow.map(({ out }) => out[0])], ["output, second", rowsNow.map(({ out }) => out[1])]]);
    kit.say(`With ${count} padding ${count === 1 ? "token" : "tokens"} and ${names[hidden]} hidden, the real rows ${most < 0.005 ? "stand still" : `have moved by up to ${kit.fixed(most)}`}.${filler}`);
  };
  show();
}
