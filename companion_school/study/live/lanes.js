// One decoder that looks at the last piece only, in two lanes: reading what is right, and reading what it said itself.
(box, data, kit) => {
  const { target, reads, slots } = data, n = target.length, LEFT = 108, step = (760 - LEFT) / slots, WIDE = Math.min(step - 26, 82), HIGH = 26;
  const says = [...data.says], rows = { target: 42, forced: [112, 162], free: [242, 292] };
  let seen = data.start;
  kit.handle("slots", Array.from({ length: slots }, (_, i) => i + 1), seen, String, (count) => { seen = count; show(); });
  reads.forEach((piece, at) => {
    kit.nextRow();
    kit.choice(`after ${piece} it says`, target, target.indexOf(says[at]), (to) => { says[at] = target[to]; show(); });
  });
  const draw = kit.picture(760, 328), middle = (slot) => LEFT + (slot + 0.5) * step;
  const band = kit.svg(draw, "rect", { y: 2, width: step - 6, height: 324, rx: 6, fill: "var(--faint)", stroke: "var(--edge)", class: "move" });
  const label = (y, text, kind) => kit.svg(draw, "text", { x: 0, y: y + 5, class: kind }, text);
  const line = (x1, y1, x2, y2, dashes) => {
    const group = kit.svg(draw, "g", { class: "move" }), long = Math.hypot(x2 - x1, y2 - y1), [u, v] = [(x2 - x1) / long, (y2 - y1) / long];
    kit.svg(group, "line", { x1, y1, x2: x2 - 5 * u, y2: y2 - 5 * v, stroke: "var(--ink)", "stroke-width": 1.3, "stroke-dasharray": dashes });
    kit.svg(group, "path", { d: `M${x2} ${y2} L${x2 - 8 * u - 4 * v} ${y2 - 8 * v + 4 * u} L${x2 - 8 * u + 4 * v} ${y2 - 8 * v - 4 * u} Z`, fill: "var(--ink)" });
    return group;
  };
  const piece = (slot, y, fill) => {
    const group = kit.svg(draw, "g", { class: "move" });
    const frame = kit.svg(group, "rect", { x: middle(slot) - WIDE / 2, y: y - HIGH / 2, width: WIDE, height: HIGH, rx: 5, fill, stroke: "var(--edge)" });
    return { group, frame, text: kit.svg(group, "text", { x: middle(slot), y: y + 5, "text-anchor": "middle" }) };
  };
  label(rows.target, "should say", "strong");
  for (let slot = 0; slot < slots; slot += 1) kit.svg(draw, "text", { x: middle(slot), y: 18, "text-anchor": "middle", class: "small quiet" }, `slot ${slot}`);
  target.forEach((word, slot) => kit.put(piece(slot, rows.target, "var(--page)").text, {}, word));
  const lanes = ["forced", "free"].map((name) => {
    const [up, down] = rows[name];
    label(up - 27, name === "forced" ? "forced" : "free", "strong");
    label(up, "reads", "quiet");
    label(down, "says", "quiet");
    return Array.from({ length: name === "forced" ? n : slots }, (_, slot) => ({
      in: piece(slot, up, "var(--page)"),
      out: piece(slot, down, "var(--page)"),
      down: line(middle(slot), up + HIGH / 2, middle(slot), down - HIGH / 2, "none"),
      from: slot === 0 ? null : name === "forced" ? line(middle(slot - 1) + 14, rows.target + HIGH / 2, middle(slot) - 14, up - HIGH / 2, "4 3") : line(middle(slot - 1) + WIDE / 2, down - 4, middle(slot) - WIDE / 2, up + 4, "4 3"),
    }));
  });
  const run = (forced) => {
    const out = [];
    for (let slot = 0; slot < (forced ? n : slots); slot += 1) {
      if (!forced && slot && out[slot - 1].said === target[n - 1]) break;
      const read = slot === 0 ? reads[0] : forced ? target[slot - 1] : out[slot - 1].said;
      const said = says[reads.indexOf(read)];
      out.push({ read, said, right: said === target[slot] });
    }
    return out;
  };
  const show = () => {
    const both = [run(true), run(false)].map((lane) => lane.slice(0, seen));
    lanes.forEach((lane, which) => lane.forEach((slot, at) => {
      const now = both[which][at];
      [slot.in.group, slot.out.group, slot.down, slot.from].forEach((part) => part && kit.put(part, { opacity: now ? 1 : 0 }));
      if (!now) return;
      kit.put(slot.in.text, {}, now.read);
      kit.put(slot.out.text, { "font-weight": now.right ? 400 : 600 }, now.right ? now.said : `${now.said} ✗`);
      kit.put(slot.out.frame, now.right ? { stroke: "var(--edge)", "stroke-width": 1, "stroke-dasharray": "none" } : { stroke: "var(--red)", "stroke-width": 2.5, "stroke-dasharray": "5 3" });
    }));
    const firsts = both.map((lane) => lane.findIndex((slot) => !slot.right)), first = firsts[0];
    kit.put(band, { x: LEFT + Math.max(first, 0) * step + 3, opacity: first < 0 ? 0 : 1 });
    const due = Math.min(seen, n), right = both.map((lane) => lane.filter((slot) => slot.right).length);
    const stops = both[1][both[1].length - 1].said === target[n - 1], on = seen >= n && !stops ? ", and it has not stopped" : "";
    const longest = both.reduce((a, b) => (a.length > b.length ? a : b));
    kit.numbers("", [["slot", longest.map((_, i) => i)], ["should say", longest.map((_, i) => target[i])], ...both.flatMap((lane, i) => ["read", "said"].map((what) => [`${i ? "free" : "forced"}, ${what}`, lane.map((slot) => slot[what])]))]);
    kit.say(first < 0 ? `No mistake: ${due} of ${due} right in both lanes.`
      : `Forced: ${right[0]} of ${due} right. Free: ${right[1]} of ${due} right${on}. The first mistake: forced in slot ${firsts[0]}, free in slot ${firsts[1]}.`);
  };
  show();
}
