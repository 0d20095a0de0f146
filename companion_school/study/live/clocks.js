// A position in a text as a row of clocks, and the wave that each hand draws. The base sets how slow the slow hands are.
(box, data, kit) => {
  const n = data.pairs, last = data.places - 1, step = 760 / n, R = Math.min(46, step / 2 - 10), LEFT = 92, ROW = 30;
  const range = (count) => Array.from({ length: count }, (_, i) => i), count = (x) => x.toLocaleString("en-US");
  let t = data.start, base = data.base;
  kit.handle("position t", range(data.places), t, String, (at) => { t = at; show(); });
  kit.nextRow();
  kit.handle("base", data.bases, base, count, (value) => { base = value; show(); });
  const TOP = 2 * R + 62, draw = kit.picture(760, TOP + n * ROW + 34);
  const speed = (c) => base ** (-c / n), X = (place) => LEFT + (place / last) * (760 - LEFT);
  const clocks = range(n).map((c) => {
    const x = step * (c + 0.5), y = R + 24, write = (at, options) => kit.svg(draw, "text", { x, y: at, "text-anchor": "middle", ...options });
    kit.put(write(14, { class: "strong" }), {}, `pair ${c}`);
    kit.svg(draw, "circle", { cx: x, cy: y, r: R, fill: "none", stroke: "var(--edge)" });
    kit.svg(draw, "line", { x1: x, x2: x, y1: y - R, y2: y - R + 7, stroke: "var(--edge)", "stroke-width": 2 });
    const hand = kit.svg(kit.svg(draw, "g", { transform: `translate(${x} ${y})` }), "g", { class: "move" });
    kit.svg(hand, "line", { x1: 0, y1: 0, x2: 0, y2: 14 - R, stroke: "var(--blue)", "stroke-width": 3.5, "stroke-linecap": "round" });
    kit.svg(hand, "path", { d: `M0 ${4 - R} l-5 11 h10 z`, fill: "var(--blue)" });
    const Y = TOP + c * ROW + ROW / 2;
    kit.svg(draw, "text", { x: 0, y: Y + 4, class: "quiet" }, `sine of pair ${c}`);
    kit.svg(draw, "line", { x1: LEFT, x2: 760, y1: Y, y2: Y, stroke: "var(--edge)", "stroke-width": 0.6 });
    const wave = kit.svg(draw, "path", { fill: "none", stroke: "var(--blue)", "stroke-width": 1.5 });
    const dot = kit.svg(draw, "circle", { r: 4.5, fill: "var(--red)", stroke: "var(--page)" });
    return { hand, wave, dot, Y, turn: write(2 * R + 42, { class: "small quiet" }) };
  });
  const mark = kit.svg(draw, "line", { y1: TOP, y2: TOP + n * ROW, stroke: "var(--red)", "stroke-dasharray": "4 3" });
  range(5).forEach((i) => {
    const place = Math.round((i * last) / 4);
    kit.svg(draw, "text", { x: X(place), y: TOP + n * ROW + 18, "text-anchor": i === 4 ? "end" : "middle", class: "small quiet" }, String(place));
  });
  const show = () => {
    clocks.forEach(({ hand, wave, dot, Y, turn }, c) => {
      const w = speed(c), points = range(3 * last + 1).map((i) => i / 3), full = (2 * Math.PI) / w;
      hand.style.transform = `rotate(${(t * w * 180) / Math.PI}deg)`;
      kit.put(wave, { d: "M" + points.map((s) => `${X(s).toFixed(1)} ${(Y - 11 * Math.sin(w * s)).toFixed(1)}`).join("L") });
      kit.put(dot, { cx: X(t), cy: Y - 11 * Math.sin(w * t) });
      turn.textContent = `a turn: ${count(Number(kit.fixed(full, full < 100 ? 1 : 0)))}`;
    });
    kit.put(mark, { x1: X(t), x2: X(t) });
    const turns = range(n).map((c) => (t * speed(c)) / (2 * Math.PI)), hands = (found) => (found.length ? `${found.length} of ${n} hands ${found.length === 1 ? "has" : "have"}` : "no hand has");
    kit.numbers("", [["pair", range(n)], ["radians per position", range(n).map(speed)], ["positions per turn", range(n).map((c) => (2 * Math.PI) / speed(c))], [`turns at position ${t}`, turns], ["sine", range(n).map((c) => Math.sin(t * speed(c)))]]);
    kit.say(`At position ${t} with base ${count(base)}, ${hands(turns.filter((x) => x >= 1))} gone round at least once, and ${hands(turns.filter((x) => x < 0.01))} moved by less than a hundredth of a turn. The slowest takes ${count(Math.round((2 * Math.PI) / speed(n - 1)))} positions for a turn.`);
  };
  show();
}
