// Tokens in the queues of the experts that a router chose for them, while it is trained.
(box, data, kit) => {
  const { tokens, runs, steps, experts, wide } = data, n = tokens.length, even = n / experts;
  const range = (many) => Array.from({ length: many }, (_, i) => i);
  const chosen = runs.map((run) => run.experts.map((moment) => [...moment].map(Number)));
  const count = (moment) => range(experts).map((e) => moment.filter((chose) => chose === e).length);
  const longest = Math.max(...chosen.flat().map((moment) => Math.max(...count(moment))));
  const STEP = 760 / experts, CELL = Math.min(21, (STEP - 8) / wide), LINE = 17, TOP = 12, DOOR = 46;
  const floor = TOP + Math.max(Math.ceil(longest / wide), 3) * LINE, H = floor + DOOR + 6;
  let at = data.start, which = 0;
  kit.handle("training step", range(steps.length), at, (k) => String(steps[k]), (k) => { at = k; show(); });
  if (runs.length > 1) {
    kit.nextRow();
    kit.choice("the router", runs.map((run) => run.name), which, (k) => { which = k; show(); });
  }
  const draw = kit.picture(760, H), middle = { "text-anchor": "middle" };
  const level = floor - (even / wide) * LINE;
  kit.svg(draw, "line", { x1: 0, x2: 760, y1: level, y2: level, stroke: "var(--ink)", "stroke-dasharray": "6 5" });
  const doors = range(experts).map((e) => {
    const x = e * STEP;
    const frame = kit.svg(draw, "rect", { x: x + 3, y: floor + 4, width: STEP - 6, height: DOOR - 4, rx: 5, class: "move" });
    kit.svg(draw, "text", { x: x + STEP / 2, y: floor + 21, ...middle, class: "small" }, `expert ${e}`);
    return { frame, said: kit.svg(draw, "text", { x: x + STEP / 2, y: floor + 39, ...middle, class: "strong" }) };
  });
  const letters = tokens.map((sign) => {
    const group = kit.svg(draw, "g", { class: "move" });
    const back = kit.svg(group, "rect", { x: 1, y: 1, width: CELL - 2, height: LINE - 2, rx: 3, class: "move" });
    kit.svg(group, "text", { x: CELL / 2, y: LINE - 4.5, ...middle, class: "small" }, sign);
    return { group, back };
  });
  kit.svg(draw, "text", { x: 758, y: level - 5, "text-anchor": "end", class: "small halo" }, `even: ${kit.fixed(even, even % 1 ? 1 : 0)} each`);
  const show = () => {
    const now = chosen[which][at], before = at ? chosen[which][at - 1] : now, counts = count(now), seen = counts.map(() => 0);
    letters.forEach(({ group, back }, t) => {
      const e = now[t], rank = seen[e], moved = now[t] !== before[t];
      seen[e] += 1;
      const x = e * STEP + (STEP - wide * CELL) / 2 + (rank % wide) * CELL, y = floor - (Math.floor(rank / wide) + 1) * LINE;
      group.style.transform = `translate(${x}px, ${y}px)`;
      kit.put(back, { fill: kit.tint(moved ? 0.45 : 0.2), stroke: moved ? "var(--blue)" : "none", "stroke-width": 1.5 });
    });
    doors.forEach(({ frame, said }, e) => {
      const dark = counts[e] < even / 4;
      kit.put(frame, { fill: dark ? "var(--page)" : kit.tint(-0.5), stroke: "var(--edge)", "stroke-dasharray": dark ? "4 4" : "none" });
      said.textContent = dark ? `${counts[e]}, dark` : counts[e];
    });
    const share = counts.map((c) => c / n), entropy = -share.reduce((sum, f) => sum + (f ? f * Math.log(f) : 0), 0);
    const most = Math.max(...counts), dark = counts.filter((c) => c < even / 4).length, moves = now.filter((e, t) => e !== before[t]).length;
    kit.numbers("at the first and the last step", [["expert", range(experts)], [`letters at step ${steps[at]}`, counts]]);
    kit.say(`At step ${steps[at]}${runs.length > 1 ? `, ${runs[which].name}` : ""}, the longest queue, at expert ${counts.indexOf(most)}, has ${most} of ${n} letters; ${dark || "no"} ${dark === 1 ? "expert is" : "experts are"} dark. The queues are as even as ${kit.fixed(Math.exp(entropy), 1)} equal ones.${at ? ` ${moves} ${moves === 1 ? "letter has" : "letters have"} changed queues.` : ""}`);
  };
  show();
}
