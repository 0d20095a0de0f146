// A tile sweeps over the scores of all queries and keys; each row keeps three numbers, and shrinks them when a larger score comes.
(box, data, kit) => {
  const { powers, values, tile } = data, n = powers.length, keys = values.length, across = keys / tile, count = (n / tile) * across;
  const CELL = 34, LEFT = 74, TOP = 62, COLUMNS = [428, 504, 574, 654, 740], W = 760, H = TOP + n * CELL + 34;
  const names = ["largest", "shrink", "total", "mixture", "output"], range = (many) => Array.from({ length: many }, (_, i) => i);
  let at = 1, forget = false;
  kit.handle("tile", range(count).map((k) => k + 1), at, (k) => `${k} of ${count}`, (k) => { at = k; show(); });
  kit.toggle("forget to shrink the mixture", false, (on) => { forget = on; show(); });
  const draw = kit.picture(W, H), middle = { "text-anchor": "middle" }, end = { "text-anchor": "end" };
  kit.svg(draw, "text", { x: 0, y: 14, class: "quiet" }, "e to the score, key by key");
  kit.svg(draw, "text", { x: LEFT - 8, y: TOP - 10, class: "small quiet", ...end }, "value");
  names.forEach((name, k) => kit.svg(draw, "text", { x: COLUMNS[k], y: TOP - 10, class: "quiet", ...end }, name));
  const heads = values.map((v, j) => kit.svg(draw, "text", { x: LEFT + (j + 0.5) * CELL, y: TOP - 10, class: "strong", ...middle }, v));
  const flash = range(n).map((i) => kit.svg(draw, "rect", { x: LEFT + keys * CELL + 8, y: TOP + i * CELL + 2, width: W - LEFT - keys * CELL - 8, height: CELL - 4, rx: 4, fill: "color-mix(in srgb, var(--red) 16%, var(--page))", class: "move" }));
  const rows = range(n).map((i) => ({
    name: kit.svg(draw, "text", { x: LEFT - 8, y: TOP + i * CELL + 22, class: "quiet", ...end }, `query ${i}`),
    cells: range(keys).map((j) => ({
      back: kit.svg(draw, "rect", { x: LEFT + j * CELL + 1, y: TOP + i * CELL + 1, width: CELL - 2, height: CELL - 2, rx: 3, class: "move" }),
      text: kit.svg(draw, "text", { x: LEFT + (j + 0.5) * CELL, y: TOP + i * CELL + 22, class: "strong", ...middle }),
    })),
    kept: names.map((_, k) => kit.svg(draw, "text", { x: COLUMNS[k], y: TOP + i * CELL + 22, ...end })),
  }));
  const frame = kit.svg(draw, "rect", { width: tile * CELL, height: tile * CELL, rx: 4, fill: "none", stroke: "var(--ink)", "stroke-width": 2.5, class: "move" });
  const foot = kit.svg(draw, "text", { x: LEFT, y: H - 8, class: "small quiet" });
  // What a row keeps after so many tiles: exact in fractions of powers.
  const keep = (row, tiles) => {
    let largest = 0, total = 0, mixture = 0, shrink = 1;
    for (let k = 0; k < tiles; k += 1) {
      const some = range(tile).map((j) => k * tile + j), top = Math.max(largest, ...some.map((j) => row[j]));
      shrink = k ? largest / top : 1;
      total = total * shrink + some.reduce((sum, j) => sum + row[j] / top, 0);
      mixture = mixture * (forget ? 1 : shrink) + some.reduce((sum, j) => sum + (row[j] / top) * values[j], 0);
      largest = top;
    }
    return { largest, total, mixture, shrink };
  };
  const span = (from) => (tile === 1 ? from : `${from} ${tile === 2 ? "and" : "to"} ${from + tile - 1}`);
  const show = () => {
    const down = Math.floor((at - 1) / across), right = (at - 1) % across, raised = [], first = down * tile;
    kit.put(frame, { x: LEFT + right * tile * CELL, y: TOP + first * CELL });
    rows.forEach(({ name, cells, kept }, i) => {
      const here = Math.floor(i / tile) === down, done = i < first || (here && right === across - 1), begun = i < first || here;
      const { largest, total, mixture, shrink } = keep(powers[i], i < first ? across : here ? right + 1 : 0);
      name.style.fontWeight = here ? 600 : "";
      cells.forEach(({ back, text }, j) => {
        const inside = here && Math.floor(j / tile) === right, gone = i < first || (here && j < right * tile);
        kit.put(back, { fill: inside ? kit.tint(0.25 + powers[i][j] / 12) : gone ? "var(--faint)" : "var(--page)", stroke: "var(--edge)", "stroke-width": inside || gone ? 0 : 1, "stroke-dasharray": inside || gone ? "none" : "2 3" });
        text.textContent = inside ? powers[i][j] : "";
      });
      const less = here && shrink < 1;
      if (less) raised.push(`query ${i} meets a larger score, and its mixture shrinks to ${kit.fixed(shrink)} of its size`);
      flash[i].style.opacity = less ? 1 : 0;
      const shown = i < first ? ["", "", "", "", kit.fixed(mixture / total)]
        : begun ? [largest === 1 ? "0" : `ln ${largest}`, less ? `× ${kit.fixed(shrink)}` : "", kit.fixed(total), kit.fixed(mixture), done ? kit.fixed(mixture / total) : ""] : ["", "", "", "", ""];
      kept.forEach((text, k) => { text.textContent = shown[k]; text.style.fontWeight = less && k === 1 ? 600 : k === 4 ? 600 : ""; });
    });
    heads.forEach((text, j) => { text.style.opacity = Math.floor(j / tile) === right ? 1 : 0.75; });
    const wrong = forget && keep(powers[0], across).mixture / keep(powers[0], across).total;
    foot.textContent = `Scores that exist now: ${tile * tile} of ${n * keys}. Dotted: not computed yet. Grey: used and discarded.`;
    const now = powers.map((row, i) => keep(row, i < first ? across : Math.floor(i / tile) === down ? right + 1 : 0));
    kit.numbers("when every tile has passed", [["query", range(n)], ["largest power", now.map(({ largest }) => largest)], ["total", now.map(({ total }) => total)], ["mixture", now.map(({ mixture }) => mixture)], ["tiles seen", now.map((_, i) => (i < first ? across : Math.floor(i / tile) === down ? right + 1 : 0))]]);
    kit.say(`Tile ${at} of ${count}: queries ${span(first)} meet keys ${span(right * tile)}. ` + (raised.length ? `${raised.join("; ").replace(/^q/, "Q")}.` : "No row meets a score above its largest.") + (forget ? ` The mixture is not shrunk: query 0 will end with ${kit.fixed(wrong)}.` : ""));
  };
  show();
}
