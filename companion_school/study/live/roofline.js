// A decode step on the roofline: more texts at once climb the slope, longer ones stop climbing.
(box, data, kit) => {
  const LEFT = 74, TOP = 16, WIDE = 650, HIGH = 236, x0 = Math.log2(data.low), x1 = Math.log2(data.high), top = Math.log10(data.flops) + 0.5;
  const bottom = Math.log10(data.low * data.bandwidth) - 0.1, balance = data.flops / data.bandwidth;
  const X = (i) => LEFT + ((Math.log2(i) - x0) / (x1 - x0)) * WIDE, Y = (rate) => TOP + ((top - Math.log10(rate)) / (top - bottom)) * HIGH;
  const large = (x) => (x >= 1024 && x % 1024 === 0 ? `${x / 1024}k` : String(x));
  let texts = data.texts[0], kept = data.kept[0], share = 0;
  kit.handle("texts at once", data.texts, texts, String, (x) => { texts = x; show(); });
  kit.nextRow();
  kit.handle("tokens cached for each", data.kept, kept, large, (x) => { kept = x; show(); });
  kit.choice("key heads:", data.heads.map(String), share, (at) => { share = at; show(); });
  const draw = kit.picture(760, TOP + HIGH + 46);
  const write = (x, y, text, options = {}) => kit.svg(draw, "text", { x, y, ...options }, text);
  for (let p = Math.ceil(x0); p <= x1; p += 2) {
    kit.svg(draw, "line", { x1: X(2 ** p), x2: X(2 ** p), y1: TOP + HIGH - 5, y2: TOP + HIGH, stroke: "var(--edge)" });
    write(X(2 ** p), TOP + HIGH + 17, p < 0 ? `1/${2 ** -p}` : String(2 ** p), { "text-anchor": "middle", class: "small quiet" });
  }
  kit.svg(draw, "path", { d: `M${LEFT} ${TOP} V${TOP + HIGH} H${LEFT + WIDE}`, fill: "none", stroke: "var(--edge)" });
  for (let p = Math.ceil(bottom); p <= top; p += 1) write(LEFT - 8, Y(10 ** p) + 4, `10${[...String(p)].map((c) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]).join("")}`, { "text-anchor": "end", class: "small quiet" });
  write(LEFT + WIDE / 2, TOP + HIGH + 38, "operations per byte read", { "text-anchor": "middle", class: "quiet" });
  write(LEFT + 6, TOP + 10, "operations per second", { class: "quiet" });
  kit.svg(draw, "path", { d: `M${X(data.low)} ${Y(data.low * data.bandwidth)} L${X(balance)} ${Y(data.flops)} L${X(data.high)} ${Y(data.flops)}`, fill: "none", stroke: "var(--ink)", "stroke-width": 2.5 });
  write(X(balance) + 10, Y(data.flops) - 8, "arithmetic is the limit", { class: "small quiet" });
  write(X(balance / 14), Y(data.flops / 14) - 16, "memory is the limit", { "text-anchor": "end", class: "small quiet" });
  const drop = kit.svg(draw, "line", { stroke: "var(--blue)", "stroke-dasharray": "4 4", class: "move" });
  const dot = kit.svg(draw, "circle", { r: 8, fill: "var(--blue)", stroke: "var(--page)", "stroke-width": 2, class: "move" });
  const said = write(0, 0, "", { class: "strong halo move" });
  const show = () => {
    const { weights, width, layers, size } = data, part = data.heads[share] / data.heads[0];
    const matrices = weights[share], work = texts * (2 * matrices + 4 * kept * width), stored = size * texts * 2 * kept * width * part, bytes = size * matrices + stored;
    const intensity = work / bytes, rate = Math.min(data.flops, intensity * data.bandwidth), seconds = (layers * work) / rate;
    const speed = 1 / seconds, digits = intensity < 10 ? 1 : 0;
    kit.put(dot, { cx: X(intensity), cy: Y(rate) });
    kit.put(drop, { x1: X(intensity), x2: X(intensity), y1: Y(rate), y2: TOP + HIGH });
    kit.put(said, { x: X(intensity) + 14, y: Y(rate) + 22 }, kit.fixed(intensity, digits));
    kit.numbers(`with ${data.heads[0]} key heads`, [["texts at once", texts], ["tokens cached", kept], ["key heads", data.heads[share]], ["operations per byte", intensity], ["tokens per second, each", speed]]);
    kit.say(`${texts} ${texts > 1 ? "texts" : "text"}, ${large(kept)} cached tokens for each and ${data.heads[share]} key heads give ${kit.fixed(intensity, digits)} operations per byte, so ${intensity < balance ? "memory" : "arithmetic"} is the limit. The caches take ${kit.fixed(layers * stored / 1e9, layers * stored < 1e10 ? 1 : 0)} GB, ${kit.fixed((100 * stored) / bytes, 0)} % of what is read. At best each text gets ${kit.fixed(speed, 0)} tokens per second, and all together get ${kit.fixed(speed * texts, 0)}.`);
  };
  show();
}
