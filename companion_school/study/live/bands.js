// MinHash in bands: how likely a pair of texts is linked, by its similarity, and how many pairs of a crawl that is.
(box, data, kit) => {
  const LEFT = 54, RIGHT = 744, TOP = 18, BASE = 240, most = Math.max(...data.pairs);
  let bands = data.start[0], rows = data.start[1];
  kit.handle("bands", data.bands, bands, String, (value) => { bands = value; show(); });
  kit.handle("rows in a band", data.rows, rows, String, (value) => { rows = value; show(); });
  const draw = kit.picture(760, 294);
  const x = (similarity) => LEFT + (RIGHT - LEFT) * similarity, y = (share) => BASE - (BASE - TOP) * share;
  const write = (left, up, text, options = {}) => kit.svg(draw, "text", { x: left, y: up, class: "small quiet", ...options }, text);
  const bin = 1 / data.pairs.length;
  data.pairs.forEach((count, i) => kit.svg(draw, "rect", { x: x(i * bin) + 2, width: (RIGHT - LEFT) * bin - 4, y: y(count / most), height: BASE - y(count / most), fill: "var(--faint)", stroke: "var(--edge)" }));
  const caught = data.pairs.map((_, i) => kit.svg(draw, "rect", { x: x(i * bin) + 2, width: (RIGHT - LEFT) * bin - 4, y: BASE, height: 0, fill: "var(--sky)", stroke: "var(--blue)", class: "move" }));
  for (let tick = 0; tick <= 10; tick += 2) {
    kit.svg(draw, "line", { x1: x(tick / 10), x2: x(tick / 10), y1: BASE, y2: BASE + 5, stroke: "var(--edge)" });
    write(x(tick / 10), BASE + 19, (tick / 10).toFixed(1), { "text-anchor": tick === 10 ? "end" : "middle" });
  }
  for (const share of [0, 0.5, 1]) {
    kit.svg(draw, "line", { x1: LEFT - 5, x2: LEFT, y1: y(share), y2: y(share), stroke: "var(--edge)" });
    write(LEFT - 8, y(share) + 4, share.toFixed(1), { "text-anchor": "end" });
  }
  write(0, 10, "probability of a link");
  write((LEFT + RIGHT) / 2, BASE + 40, "Jaccard similarity of a pair", { "text-anchor": "middle" });
  kit.svg(draw, "path", { d: `M${LEFT} ${TOP} V${BASE} H${RIGHT}`, fill: "none", stroke: "var(--edge)" });
  const down = kit.svg(draw, "line", { y1: y(0.5), y2: BASE, stroke: "var(--red)", "stroke-dasharray": "5 4" });
  const line = kit.svg(draw, "path", { fill: "none", stroke: "var(--ink)", "stroke-width": 2.5 });
  const dot = kit.svg(draw, "circle", { r: 7, fill: "var(--red)", stroke: "var(--page)", "stroke-width": 2 });
  const linked = (similarity) => 1 - (1 - similarity ** rows) ** bands;
  const show = () => {
    const points = Array.from({ length: 201 }, (_, i) => `${x(i / 200).toFixed(1)} ${y(linked(i / 200)).toFixed(1)}`);
    line.setAttribute("d", "M" + points.join(" L"));
    const half = (1 - 0.5 ** (1 / bands)) ** (1 / rows);
    kit.put(dot, { cx: x(half), cy: y(0.5) });
    kit.put(down, { x1: x(half), x2: x(half) });
    const found = data.pairs.map((count, i) => count * linked((i + 0.5) * bin));
    found.forEach((count, i) => kit.put(caught[i], { y: y(count / most), height: BASE - y(count / most) }));
    const sum = (list) => list.reduce((a, b) => a + b, 0);
    kit.numbers("", [["similarity", data.pairs.map((_, i) => (i + 0.5) * bin)], ["pairs", data.pairs], ["probability", data.pairs.map((_, i) => linked((i + 0.5) * bin))]]);
    kit.say(`${bands} ${bands === 1 ? "band" : "bands"} of ${rows} ${rows === 1 ? "row" : "rows"} need${bands === 1 ? "s" : ""} ${bands * rows} ${bands * rows === 1 ? "hash" : "hashes"}. Half of the pairs with similarity ${kit.fixed(half)} are linked, ${Math.round(100 * linked(0.9))} % of those with 0.90 and ${Math.round(100 * linked(0.3))} % of those with 0.30. Of the ${sum(data.pairs)} pairs in the bars about ${Math.round(sum(found))} are linked.`);
  };
  show();
}
