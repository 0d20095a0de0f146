// The heads of a trained model as switches, and how often the model is right with those that are on.
(box, data, kit) => {
  const layers = data.does.length, heads = data.does[0].length, BOX = 172, HIGH = 62, GAP = 10, LEFT = 66;
  let off = 0;
  [...data.does.keys()].reverse().forEach((layer, at) => { // the first layer is the lowest, as in the picture
    if (at) kit.nextRow();
    data.does[layer].forEach((_, head) => kit.toggle(`layer ${layer}, head ${head}`, true, (on) => {
      const bit = 1 << (layer * heads + head);
      off = on ? off & ~bit : off | bit;
      show();
    }));
  });
  const BASE = layers * (HIGH + GAP) + 46, draw = kit.picture(760, BASE + 54), step = (760 - LEFT) / heads, wide = Math.min(BOX, step - GAP);
  const boxes = data.does.flatMap((row, layer) => {
    const y = (layers - 1 - layer) * (HIGH + GAP) + 2; // the first layer is the lowest
    kit.svg(draw, "text", { x: 0, y: y + HIGH / 2 + 4, class: "quiet" }, `layer ${layer}`);
    return row.map((does, head) => {
      const x = LEFT + head * step, group = kit.svg(draw, "g", { class: "move" });
      const back = kit.svg(group, "rect", { x, y, width: wide, height: HIGH, rx: 6, stroke: "var(--edge)", class: "move" });
      kit.svg(group, "text", { x: x + wide / 2, y: y + 24, "text-anchor": "middle", class: "strong" }, `head ${head}`);
      kit.svg(group, "text", { x: x + wide / 2, y: y + 45, "text-anchor": "middle", class: "small" }, does);
      return { back, strike: kit.svg(draw, "line", { x1: x + 8, y1: y + HIGH - 8, x2: x + wide - 8, y2: y + 8, stroke: "var(--red)", "stroke-width": 3, class: "move" }) };
    });
  });
  const X = (share) => LEFT + share * (760 - LEFT);
  kit.svg(draw, "text", { x: 0, y: BASE + 5, class: "quiet" }, "right");
  kit.svg(draw, "rect", { x: LEFT, y: BASE - 13, width: 760 - LEFT, height: 26, rx: 4, fill: "var(--faint)" });
  const bar = kit.svg(draw, "rect", { x: LEFT, y: BASE - 13, height: 26, rx: 4, fill: "var(--blue)", class: "move" });
  const share = kit.svg(draw, "text", { y: BASE + 5 });
  data.marks.forEach(([name, value], i) => {
    kit.svg(draw, "line", { x1: X(value), x2: X(value), y1: BASE - 18, y2: BASE + 18, stroke: "var(--ink)", "stroke-width": 1.5, "stroke-dasharray": "4 3" });
    kit.svg(draw, "text", { x: X(value), y: BASE + 34 + 15 * (i % 2), "text-anchor": "middle", class: "small quiet" }, name);
  });
  const show = () => {
    const right = data.percent[off] / 100, dead = [];
    boxes.forEach(({ back, strike }, at) => {
      const gone = (off >> at) & 1;
      if (gone) dead.push(`head ${at % heads} of layer ${Math.floor(at / heads)}`);
      kit.put(back, { fill: gone ? "var(--faint)" : "color-mix(in srgb, var(--blue) 18%, var(--page))" });
      kit.put(strike, { "stroke-opacity": gone });
    });
    kit.put(bar, { width: Math.max(X(right) - LEFT, 2) });
    const inside = right > 0.85; // on the bar as on a pressed button, else beside it
    kit.put(share, { x: inside ? X(right) - 52 : X(right) + 8, class: inside ? "strong" : "strong halo", style: inside ? "fill:var(--page)" : "" }, `${kit.fixed(100 * right, 0)} %`);
    kit.numbers("for some sets of heads", [["switched off", dead.join(", ") || "none"], ["right", right]]);
    const last = dead.pop();
    kit.say(`${last ? `Off: ${dead.length ? `${dead.join(", ")} and ` : ""}${last}.` : "All heads are on."} The model is right in ${kit.fixed(100 * right, 0)}\u00a0% of the cases.`);
  };
  show();
}
