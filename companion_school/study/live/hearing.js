// Who has heard of whom after some rounds: a recurrent network, an encoder, a decoder; a row for each word that listens.
(box, data, kit) => {
  const words = data.words, n = words.length, CELL = Math.min(200 / n, 30), TOP = 98, side = CELL * n;
  const kinds = [
    ["recurrent network", "each hears its left neighbour", (i, j, r) => j <= i && j >= i - r],
    ["encoder", "each hears all words", (i, j, r) => i === j || r > 0],
    ["decoder", "each hears all words to its left", (i, j, r) => i === j || (r > 0 && j < i)],
  ];
  let rounds = data.start, who = data.who;
  kit.handle("rounds", Array.from({ length: n + 1 }, (_, r) => r), rounds, String, (r) => { rounds = r; show(); });
  kit.choice("the row of", words, who, (i) => { who = i; show(); });
  const draw = kit.picture(760, TOP + side + 20);
  const grids = kinds.map(([name, how, heard], at) => {
    const x0 = 20 + at * 250;
    kit.svg(draw, "text", { x: x0, y: 16, class: "strong" }, name);
    kit.svg(draw, "text", { x: x0, y: 34, class: "small quiet" }, how);
    words.forEach((word, j) => kit.svg(draw, "text", { x: x0 + (j + 0.5) * CELL, y: TOP - 8, class: "small quiet", transform: `rotate(-42 ${x0 + (j + 0.5) * CELL} ${TOP - 8})` }, word));
    const cells = words.map((_, i) => words.map((_, j) => ({
      cell: kit.svg(draw, "rect", { x: x0 + j * CELL + 1, y: TOP + i * CELL + 1, width: CELL - 2, height: CELL - 2, rx: 3, stroke: "var(--edge)", "stroke-width": 0.8, class: "move" }),
      dot: kit.svg(draw, "circle", { cx: x0 + (j + 0.5) * CELL, cy: TOP + (i + 0.5) * CELL, r: 3, fill: "var(--page)" }),
    })));
    const frame = kit.svg(draw, "rect", { x: x0 - 2, width: side + 4, height: CELL + 4, y: 0, rx: 4, fill: "none", stroke: "var(--ink)", "stroke-width": 2, class: "move" });
    return { heard, cells, frame };
  });
  const list = (heard) => {
    const names = words.filter((_, j) => heard(who, j, rounds));
    return names.length === n ? "all words" : names.length === 1 ? "only itself" : `${names.length} of ${n} words`;
  };
  const show = () => {
    grids.forEach(({ heard, cells, frame }) => {
      cells.forEach((row, i) => row.forEach(({ cell, dot }, j) => {
        const on = heard(i, j, rounds);
        kit.put(cell, { fill: on ? "var(--blue)" : "var(--faint)" });
        kit.put(dot, { opacity: on ? 1 : 0 });
      }));
      kit.put(frame, { y: TOP + who * CELL - 2 });
    });
    const [recurrent, encoder, decoder] = kinds.map(([, , heard]) => list(heard));
    kit.numbers("heard by the last row", [[`after ${rounds} rounds, “${words[who]}” has heard`, words], ...kinds.map(([name, , heard]) => [name, words.map((_, j) => (heard(who, j, rounds) ? "yes" : "no"))])]);
    kit.say(`After ${rounds} ${rounds === 1 ? "round" : "rounds"} the row of “${words[who]}” depends on ${recurrent} in the recurrent network, on ${encoder} in the encoder, and on ${decoder} in the decoder.`);
  };
  show();
}
