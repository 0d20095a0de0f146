// Larger tiles of queries: fewer bytes moved, up the slope of the roof, until they no longer fit beside the arithmetic.
(box, data, kit) => {
  const { chip, tokens, widths, tiles, keys } = data, W = 760, LEFT = 60, RIGHT = 500, TOP = 16, BASE = 226, BAR = 548, WIDE = 190;
  let tile = data.start, width = data.width;
  kit.handle("queries in a tile", tiles, tile, String, (value) => { tile = value; show(); });
  kit.choice("Width of a head:", widths.map(String), widths.indexOf(width), (at) => { width = widths[at]; show(); });
  const draw = kit.picture(W, 268), low = 4, high = 1024, floor = 8, roof = 500;
  const x = (intensity) => LEFT + ((RIGHT - LEFT) * Math.log(intensity / low)) / Math.log(high / low);
  const y = (rate) => BASE - ((BASE - TOP) * Math.log(rate / floor)) / Math.log(roof / floor);
  const balance = (chip.flops / chip.bandwidth) * 1000, reach = (intensity) => Math.min(chip.flops, (intensity * chip.bandwidth) / 1000);
  const write = (at, up, text, options = {}) => kit.svg(draw, "text", { x: at, y: up, class: "small quiet", ...options }, text);
  for (const tick of [4, 16, 64, 256, 1024]) write(x(tick), BASE + 16, tick, { "text-anchor": "middle" });
  for (const tick of [10, 100]) write(LEFT - 8, y(tick) + 4, tick, { "text-anchor": "end" });
  write((LEFT + RIGHT) / 2, BASE + 34, "operations for each byte moved", { "text-anchor": "middle" });
  write(4, TOP - 2, "highest rate (10¹² operations per second)");
  kit.svg(draw, "path", { d: `M${LEFT} ${TOP} V${BASE} H${RIGHT}`, fill: "none", stroke: "var(--edge)" });
  kit.svg(draw, "path", { d: `M${x(low)} ${y(reach(low))} L${x(balance)} ${y(chip.flops)} H${RIGHT}`, fill: "none", stroke: "var(--ink)", "stroke-width": 2 });
  kit.svg(draw, "line", { x1: x(balance), x2: x(balance), y1: y(chip.flops), y2: BASE, stroke: "var(--edge)", "stroke-dasharray": "3 4" });
  write(x(balance) + 6, BASE - 8, `balance: ${kit.fixed(balance, 0)}`);
  const plain = kit.svg(draw, "rect", { width: 11, height: 11, fill: "var(--red)", class: "move" });
  const plainName = write(0, 0, "the formula", { class: "small halo move" });
  const dot = kit.svg(draw, "circle", { r: 8, fill: "var(--blue)", stroke: "var(--page)", "stroke-width": 1.5, class: "move" });
  const dotName = write(0, 0, "in tiles", { class: "strong halo move", "text-anchor": "end" });
  const bar = (up, title) => {
    kit.svg(draw, "text", { x: BAR, y: up, class: "strong" }, title);
    kit.svg(draw, "rect", { x: BAR, y: up + 10, width: WIDE, height: 20, rx: 3, fill: "var(--faint)", stroke: "var(--edge)" });
    return { fill: kit.svg(draw, "rect", { x: BAR, y: up + 10, height: 20, rx: 3, class: "move" }), text: kit.svg(draw, "text", { x: BAR, y: up + 48, class: "small" }) };
  };
  const bench = bar(46, "the bench"), carried = bar(140, "bytes moved, for one head");
  const show = () => {
    const formula = (2 * (4 * tokens * tokens + 4 * tokens * width)) / 1e6, moved = (2 * (2 * tokens * width + (tokens / tile) * 2 * tokens * width)) / 1e6;
    const flops = (4 * tokens * tokens * width) / 1e6, intensity = flops / moved, one = flops / formula;
    const used = (2 * (2 * tile * width + 2 * keys * width + tile * keys)) / 1024, fits = used <= chip.bench;
    kit.put(plain, { x: x(one) - 5.5, y: y(reach(one)) - 5.5 });
    kit.put(plainName, { x: x(one) + 12, y: y(reach(one)) + 14 });
    kit.put(dot, { cx: x(intensity), cy: y(reach(intensity)), fill: fits ? "var(--blue)" : "var(--page)", stroke: fits ? "var(--page)" : "var(--red)", "stroke-width": fits ? 1.5 : 3, "stroke-dasharray": fits ? "none" : "3 2" });
    kit.put(dotName, { x: x(intensity) - 12, y: y(reach(intensity)) - 8 }, fits ? "in tiles" : "does not fit");
    kit.put(bench.fill, { width: WIDE * Math.min(1, used / chip.bench), fill: fits ? "var(--blue)" : "var(--red)" });
    bench.text.textContent = `${kit.fixed(used, 0)} of ${chip.bench} KiB${fits ? "" : ": it overflows"}`;
    kit.put(carried.fill, { width: WIDE * Math.min(1, moved / formula), fill: moved > formula ? "var(--red)" : "var(--blue)" });
    carried.text.textContent = `${kit.fixed(moved, 0)} MB; the formula: ${kit.fixed(formula, 0)} MB`;
    const limit = intensity < balance ? "Memory traffic is the limit" : "Arithmetic is the limit";
    kit.numbers("", [["queries in a tile", tile], ["width of a head", width], ["KiB on the bench", used], ["MB moved", moved], ["operations per byte", intensity], ["operations per byte, by the formula", one]]);
    kit.say(`With ${tile} queries in a tile there are ${kit.fixed(intensity, 0)} operations for each byte. ` + (fits ? `${limit}: at most ${kit.fixed(reach(intensity), 0)} of ${chip.flops} × 10¹² operations per second.` : `But the tile does not fit on the bench: it needs ${kit.fixed(used, 0)} KiB, and there are ${chip.bench}.`));
  };
  show();
}
