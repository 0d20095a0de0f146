// A decoder writes: each word looks at what is written, then at the source, and then the next word is chosen.
(box, data, kit) => {
  const { source, inputs, words, own, cross, chances } = data, m = inputs.length, LAST = 3 * m - 1;
  const NOTES = 96, SOURCE = 330, WORDS = 556, TOP = 62, ROW = 46, WIDE = 118, HIGH = 30;
  let step = 0;
  const handle = kit.handle("step", Array.from({ length: LAST + 1 }, (_, s) => s), 0, (s) => `${s + 1} of ${LAST + 1}`, (s) => { step = s; show(); });
  kit.button("▶ next step", () => { step = step < LAST ? step + 1 : 0; handle.value = step; show(); });
  const draw = kit.picture(760, TOP + ROW * Math.max(source.length, m, words.length * 0.75) + 14);
  const Y = (at) => TOP + at * ROW + HIGH / 2;
  const titles = [["1. the notes", NOTES], ["2. the source", SOURCE], ["3. the next word", WORDS]].map(([name, x]) => ({
    bar: kit.svg(draw, "rect", { x: x - 6, y: 30, height: 4, rx: 2, width: WIDE + 12, class: "move" }),
    text: kit.svg(draw, "text", { x, y: 20 }, name),
  }));
  const card = (x, at, word) => {
    const group = kit.svg(draw, "g", { class: "move" });
    const back = kit.svg(group, "rect", { x, y: Y(at) - HIGH / 2, width: WIDE, height: HIGH, rx: 5, fill: "var(--faint)", stroke: "var(--edge)", class: "move" });
    kit.svg(group, "text", { x: x + WIDE / 2, y: Y(at) + 5, "text-anchor": "middle" }, word);
    return { group, back };
  };
  const over = source.map(() => kit.svg(draw, "line", { x1: NOTES + WIDE + 4, x2: SOURCE - 4, stroke: "var(--red)", class: "move" }));
  const heard = source.map((word, j) => {
    card(SOURCE, j, word);
    kit.put(over[j], { y2: Y(j) });
    return kit.svg(draw, "text", { x: SOURCE + WIDE + 10, y: Y(j) + 5, class: "strong" });
  });
  const notes = inputs.map((word, j) => ({
    ...card(NOTES, j, word),
    arc: kit.svg(draw, "path", { fill: "none", stroke: "var(--blue)", class: "move" }),
    weight: kit.svg(draw, "text", { x: 0, y: Y(j) + 5, class: "strong" }),
  }));
  const bars = words.map((word, at) => {
    const y = TOP + 12 + at * 0.75 * ROW;
    const name = kit.svg(draw, "text", { x: WORDS + 64, y: y + 5, "text-anchor": "end" }, word);
    kit.svg(draw, "rect", { x: WORDS + 72, y: y - 10, width: 80, height: 20, rx: 3, fill: "var(--faint)" });
    const bar = kit.svg(draw, "rect", { x: WORDS + 72, y: y - 10, height: 20, rx: 3, fill: "var(--green)", class: "move" });
    return { name, bar, share: kit.svg(draw, "text", { x: WORDS + 158, y: y + 5, class: "small" }) };
  });
  const best = (row) => row.indexOf(Math.max(...row));
  const show = () => {
    const slot = Math.floor(step / 3), now = step % 3;
    titles.forEach(({ bar, text }, at) => {
      kit.put(text, { class: at === now ? "strong" : "quiet" });
      kit.put(bar, { fill: at === now ? "var(--ink)" : "var(--faint)" });
    });
    notes.forEach(({ group, back, arc, weight }, j) => {
      const self = j === slot, bow = NOTES - 30 - (self ? 10 : (66 / m) * (slot - j));
      kit.put(group, { opacity: j <= slot ? 1 : 0 });
      kit.put(back, { stroke: j === slot ? "var(--ink)" : "var(--edge)", "stroke-width": j === slot ? 2.5 : 1 });
      const side = NOTES - 3, [from, to] = self ? [Y(j) - 9, Y(j) + 9] : [Y(slot), Y(j)], pull = self ? 8 : 0;
      kit.put(arc, { d: `M${side} ${from}C${bow} ${from - pull} ${bow} ${to + pull} ${side} ${to}`, "stroke-width": j <= slot ? 1 + 6 * own[slot][j] : 0, "stroke-opacity": j <= slot ? 1 : 0 });
      weight.textContent = j <= slot ? kit.fixed(own[slot][j]) : "";
    });
    over.forEach((line, j) => {
      kit.put(line, { y1: Y(slot), "stroke-width": now ? 1 + 9 * cross[slot][j] : 0, "stroke-opacity": now ? 1 : 0 });
      heard[j].textContent = now ? kit.fixed(cross[slot][j]) : "";
    });
    const first = best(chances[slot]);
    bars.forEach(({ name, bar, share }, at) => {
      kit.put(name, { class: now === 2 && at === first ? "strong" : "quiet" });
      kit.put(bar, { width: now === 2 ? Math.max(80 * chances[slot][at], 0.5) : 0 });
      share.textContent = now === 2 ? kit.fixed(chances[slot][at]) : "";
    });
    const reads = `Slot ${slot} has read “${inputs[slot]}”.`, from = best(cross[slot]), word = words[first];
    kit.numbers("at every slot", [
      [[`slot ${slot} looks at its notes`, inputs.slice(0, slot + 1)], ["weight", own[slot]]],
      [[`slot ${slot} looks at the source`, source], ["weight", cross[slot]]],
      [[`slot ${slot}, the next word`, words], ["probability", chances[slot]]],
    ][now]);
    kit.say([
      `${reads} It looks at the notes: ${inputs.slice(0, slot + 1).map((w, j) => `“${w}” ${kit.fixed(own[slot][j])}`).join(", ")}.`,
      `${reads} It asks the source. “${source[from]}” answers, with a weight of ${kit.fixed(cross[slot][from])}.`,
      `${reads} It says “${word}”, with a probability of ${kit.fixed(chances[slot][first])}. ${step < LAST ? "The word is added to the notes." : "The text is finished."}`,
    ][now]);
  };
  show();
}
