// GPT-2 becomes LLaMA, and then Mixtral: one edit a step, and what each does to the counts.
(box, data, kit) => {
  const last = data.sizes[0].steps.length - 1, commas = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");
  let at = 0, size = 0;
  const handle = kit.handle("edits made", Array.from({ length: last + 1 }, (_, i) => i), 0, String, (x) => { at = x; show(); });
  kit.button("▶ next edit", () => { at = at < last ? at + 1 : 0; handle.value = at; show(); });
  kit.nextRow();
  kit.choice("Sizes of", data.sizes.map(({ name }) => name), 0, (x) => { size = x; show(); });
  const draw = kit.picture(760, 428), STREAM = 28, LEFT = 132, RIGHT = 404, parts = {};
  const write = (x, y, text, options = {}) => kit.svg(draw, "text", { x, y, ...options }, text);
  const line = (d) => kit.svg(draw, "path", { d, fill: "none", stroke: "var(--edge)", "stroke-width": 1.5 });
  // a box of a part: its edge turns blue in the step that changes the part
  const brick = (part, x, y, width, height, color = "var(--faint)") => {
    const rect = kit.svg(draw, "rect", { x, y, width, height, rx: 4, fill: color, stroke: "var(--edge)", class: "move" });
    (parts[part] ||= []).push(rect);
    return rect;
  };
  const pale = (color) => `color-mix(in srgb, var(--${color}) 24%, var(--page))`;
  kit.svg(draw, "rect", { x: 8, y: 92, width: RIGHT + 40, height: 268, rx: 10, fill: "none", stroke: "var(--edge)", "stroke-dasharray": "5 4" });
  const times = write(RIGHT + 38, 112, "", { class: "strong", "text-anchor": "end" }), MIDDLE = LEFT + 100;
  line(`M${STREAM} 394 H${LEFT} M${STREAM} 394 V77 H${LEFT}`);
  for (const [low, high, top] of [[344, 232, 242], [206, 112, 138]]) { // from the stream, and back to it
    line(`M${STREAM} ${low} H${LEFT} M${MIDDLE} ${top} V${high} H${STREAM}`);
    kit.svg(draw, "circle", { cx: STREAM, cy: high, r: 9, fill: "var(--page)", stroke: "var(--edge)" });
    write(STREAM, high + 5, "+", { "text-anchor": "middle", class: "strong" });
  }
  line(`M${MIDDLE} 46 V66 M${MIDDLE} 182 V196`);
  const out = brick("head", LEFT, 14, 200, 32, pale("orange")), outText = write(MIDDLE, 35, "", { "text-anchor": "middle" });
  const norms = [66, 334, 196].map((y) => {
    brick("norm", LEFT, y, 200, 22);
    return write(MIDDLE, y + 15, "", { "text-anchor": "middle", class: "small" });
  });
  brick("table", LEFT, 378, 200, 32, pale("orange"));
  write(MIDDLE, 399, "token embedding", { "text-anchor": "middle" });
  const places = kit.svg(draw, "g", { class: "move" }), table = brick("positions", LEFT + 214, 378, 92, 32, pale("orange"));
  const placesText = write(LEFT + 260, 399, "positions", { "text-anchor": "middle" });
  places.append(table, placesText);
  // attention: six heads stand for all
  const cell = (i) => LEFT + 34 * i, rows = ["queries", "keys", "values"].map((name, row) => {
    const y = 306 - 32 * row;
    write(LEFT - 10, y + 16, name, { "text-anchor": "end", class: "quiet" });
    return Array.from({ length: 6 }, (_, i) => brick(row ? "keys" : "heads", cell(i), y, 30, 24, pale("blue")));
  });
  const clock = kit.svg(draw, "g", { class: "move" });
  (parts.positions ||= []).push(kit.svg(clock, "circle", { cx: 357, cy: 314, r: 13, fill: "var(--page)", stroke: "var(--ink)" }));
  kit.svg(clock, "path", { d: "M357 314 L365 305", stroke: "var(--ink)", "stroke-width": 2 });
  kit.svg(clock, "text", { x: 377, y: 319, class: "small" }, "rotated");
  const heads = [251, 266].map((y) => write(LEFT + 212, y, "", { class: "small quiet" }));
  // network: matrices as wide as they have hidden numbers; experts stand behind one another
  const behind = [3, 2, 1].map((k) => brick("experts", LEFT + 5 * k, 138 - 5 * k, 200, 44, "var(--page)"));
  const matrices = ["in", "gate", "out"].map((name) => ({ rect: brick("network", LEFT, 138, 60, 44, pale("green")), text: write(0, 165, name, { "text-anchor": "middle" }) }));
  const router = write(MIDDLE + 10, 112, "", { class: "small" }), biases = [290, 165].map((y) => write(LEFT + 212, y, "+ biases", { class: "small" }));
  // the counts
  const AT = 470, WIDE = 140;
  const name = write(AT, 30, "", { class: "strong" }), counts = ["parameters", "active parameters", "KV cache per token"].map((what, i) => {
    write(AT, 64 + 50 * i, what, { class: "quiet" });
    return write(AT, 84 + 50 * i, "", { class: "strong" });
  });
  write(AT, 236, "by part (millions)", { class: "quiet" });
  const bars = [["tables", "orange"], ["attention", "blue"], ["networks", "green"]].map(([what, color], i) => {
    write(AT, 266 + 36 * i, what);
    return { bar: kit.svg(draw, "rect", { x: AT + 72, y: 252 + 36 * i, height: 20, rx: 3, fill: `var(--${color})`, class: "move" }), said: write(0, 266 + 36 * i, "", { class: "strong move" }) };
  });
  const rest = write(AT, 374, "", { class: "small quiet" });
  const NOTES = {
    positions: "No table is added any more; queries and keys are rotated by their position.",
    norm: "The norms keep their gains and lose the mean and the bias.",
    biases: "No matrix adds a bias any more.",
    network: "The network gets a gate, a third matrix, and is narrower, so that three matrices have as many parameters as two had.",
    head: "The output head gets its own table.",
    keys: "Several query heads share a key and value head, and the cache shrinks.",
    hidden: "The hidden width changes, too.",
    experts: "There are many networks, and a router sends each token to a few of them.",
  };
  const show = () => {
    const { steps } = data.sizes[size], now = steps[at], before = steps[Math.max(at - 1, 0)], most = Math.max(...steps.flatMap(({ where }) => where));
    const touched = new Set(now.changed.map((part) => (part === "hidden" ? "network" : part)));
    if (touched.has("biases")) for (const part of ["heads", "keys", "network"]) touched.add(part);
    for (const [part, rects] of Object.entries(parts)) for (const rect of rects) {
      kit.put(rect, { stroke: touched.has(part) ? "var(--blue)" : "var(--edge)", "stroke-width": touched.has(part) ? 3 : 1 });
    }
    kit.put(out, { "stroke-dasharray": now.tied ? "5 4" : "none" });
    outText.textContent = now.tied ? "output head: tied" : "output head: its own table";
    for (const text of norms) text.textContent = now.rms ? "RMSNorm: gain" : "LayerNorm: gain, bias";
    times.textContent = `× ${now.layers}`;
    kit.put(places, { opacity: now.rotary ? 0 : 1, visibility: now.rotary ? "hidden" : "visible" });
    kit.put(clock, { visibility: now.rotary ? "visible" : "hidden" });
    const group = now.kv < now.heads ? 3 : 1;
    rows.slice(1).forEach((row) => row.forEach((rect, i) => kit.put(rect, { width: 34 * (group - (i % group)) - 4, opacity: i % group ? 0 : 1 })));
    heads[0].textContent = `${now.heads} query heads`;
    heads[1].textContent = `${now.kv} key heads`;
    let x = LEFT;
    matrices.forEach(({ rect, text }, i) => {
      const there = i !== 1 || now.gate, width = there ? (23 * now.hidden) / now.width : 0;
      kit.put(rect, { x, width, opacity: there ? 1 : 0 });
      kit.put(text, { x: x + width / 2, visibility: there ? "visible" : "hidden" });
      x += width + (there ? 4 : 0);
    });
    behind.forEach((rect) => kit.put(rect, { width: x - LEFT - 4, visibility: now.experts > 1 ? "visible" : "hidden" }));
    router.textContent = now.experts > 1 ? `a router: ${now.visited} of ${now.experts}` : "";
    for (const text of biases) kit.put(text, { visibility: now.bias ? "visible" : "hidden" });
    name.textContent = now.name || "in between";
    counts[0].textContent = commas(now.total);
    counts[1].textContent = now.active === now.total ? "all" : commas(now.active);
    counts[2].textContent = `${commas(now.cache)} elements`;
    bars.forEach(({ bar, said }, i) => {
      const wide = Math.max((WIDE * now.where[i]) / most, 2), millions = now.where[i] / 1e6;
      kit.put(bar, { width: wide });
      kit.put(said, { x: AT + 80 + wide }, millions < 1000 ? kit.fixed(millions, 1) : commas(Math.round(millions)));
    });
    rest.textContent = `and ${commas(now.where[3])} in norms${now.experts > 1 ? " and routers" : ""}`;
    const more = now.total - before.total, change = more ? `${commas(Math.abs(more))} parameters ${more > 0 ? "more" : "fewer"}` : "As many parameters as before";
    kit.numbers("after every edit", [["edit", at], ["parameters", commas(now.total)], ["active parameters", commas(now.active)], ["KV cache per token", commas(now.cache)]]);
    kit.say(at ? `Edit ${at} of ${last}. ${now.changed.map((part) => NOTES[part]).join(" ")} ${change}.` : `${now.name}, before the first edit: ${commas(now.total)} parameters.`);
  };
  show();
}
