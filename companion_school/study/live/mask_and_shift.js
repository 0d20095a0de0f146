// What each slot of a decoder has seen, and how low its loss can get, with a mask and a shift of one's choice.
(box, data, kit) => {
  const { seen, losses, texts, top } = data, m = seen[0][0].length, CELL = 34, LEFT = 196, TOP = 52, BAR = 500, WIDE = 190;
  let mask = 1, shift = 1, text = 0;
  kit.choice("mask", ["strict", "inclusive", "one too wide"], mask, (at) => { mask = at; show(); });
  kit.choice("inputs", ["not shifted", "shifted", "shifted twice"], shift, (at) => { shift = at; show(); });
  kit.nextRow();
  kit.choice("text", texts, text, (at) => { text = at; show(); });
  const bottom = TOP + m * CELL, draw = kit.picture(760, bottom + 56);
  kit.svg(draw, "text", { x: LEFT, y: 16, class: "strong" }, "target that is seen");
  kit.svg(draw, "text", { x: 20, y: 16, class: "strong" }, "slot");
  kit.svg(draw, "text", { x: 62, y: 16, class: "strong" }, "reads");
  kit.svg(draw, "text", { x: BAR, y: 16, class: "strong" }, "lowest loss that it can reach");
  const rows = seen[0][0].map((_, i) => {
    const y = TOP + (i + 0.5) * CELL;
    kit.svg(draw, "text", { x: LEFT + (i + 0.5) * CELL, y: TOP - 10, "text-anchor": "middle", class: "quiet" }, i);
    kit.svg(draw, "text", { x: 32, y: y + 5, "text-anchor": "middle" }, i);
    const reads = kit.svg(draw, "text", { x: 62, y: y + 5, class: "quiet" });
    const cells = seen[0][0].map((_, k) => {
      const x = LEFT + k * CELL;
      return {
        cell: kit.svg(draw, "rect", { x: x + 2, y: y - CELL / 2 + 2, width: CELL - 4, height: CELL - 4, rx: 4, stroke: "var(--edge)", class: "move" }),
        sign: kit.svg(draw, "text", { x: x + CELL / 2, y: y + 5, "text-anchor": "middle", class: "strong" }),
      };
    });
    kit.svg(draw, "rect", { x: LEFT + i * CELL, y: y - CELL / 2, width: CELL, height: CELL, rx: 4, fill: "none", stroke: "var(--ink)", "stroke-width": 2 });
    kit.svg(draw, "rect", { x: BAR, y: y - 10, width: WIDE, height: 20, rx: 3, fill: "var(--faint)" });
    return { reads, cells, bar: kit.svg(draw, "rect", { x: BAR, y: y - 10, height: 20, rx: 3, class: "move" }), loss: kit.svg(draw, "text", { x: BAR + WIDE + 8, y: y + 5 }) };
  });
  const mean = kit.svg(draw, "text", { x: BAR, y: bottom + 26, class: "strong" });
  kit.svg(draw, "text", { x: LEFT, y: bottom + 26, class: "small quiet" }, "• seen; ! seen but forbidden; ? lost");
  kit.svg(draw, "text", { x: LEFT, y: bottom + 44, class: "small quiet" }, "framed: the slot's own answer");
  const average = (list) => list.reduce((sum, x) => sum + x, 0) / list.length;
  const show = () => {
    const table = seen[shift][mask], loss = losses[text][shift][mask];
    let leaks = 0, lost = 0;
    rows.forEach(({ reads, cells, bar, loss: out }, i) => {
      reads.textContent = i < shift ? "start" : `target ${i - shift}`;
      cells.forEach(({ cell, sign }, k) => {
        const on = table[i][k] === "1", bad = on && k >= i, gone = !on && k < i;
        leaks += bad; lost += gone;
        kit.put(cell, { fill: bad ? "var(--red)" : on ? "var(--blue)" : "var(--faint)", "stroke-dasharray": gone ? "4 3" : "none" });
        kit.put(sign, { style: `fill:var(--${gone ? "ink" : "page"})` }, bad ? "!" : on ? "•" : gone ? "?" : "");
      });
      kit.put(bar, { width: Math.max(WIDE * loss[i] / top, 0.5), fill: table[i][i] === "1" ? "var(--red)" : "var(--blue)" });
      out.textContent = kit.fixed(loss[i]);
    });
    const now = average(loss), fair = average(losses[text][1][1]);
    mean.textContent = `mean ${kit.fixed(now)}; honest: ${kit.fixed(fair)}`;
    const first = mask === 0 ? " Slot 0 may look at no input at all: its softmax is 0/0." : "";
    const counted = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
    const verdict = leaks ? `The table has ${counted(leaks, "leak")}. The loss can fall to ${kit.fixed(now)}; an honest reader of this text cannot get below ${kit.fixed(fair)}.`
      : lost ? `Nothing leaks, but ${counted(lost, "target")} ${lost === 1 ? "is" : "are"} lost. ${now - fair < 0.005 ? "On this text the loss does not reveal it." : `The loss cannot get below ${kit.fixed(now)}; with all of them ${kit.fixed(fair)} is possible.`}`
      : `Each slot has seen the targets before its own, and no others. The loss can fall to ${kit.fixed(now)}.`;
    kit.numbers("with every mask and shift", [["slot", rows.map((_, i) => i)], ["targets seen", rows.map((_, i) => [...table[i]].flatMap((on, k) => (on === "1" ? k : [])).join(", ") || "none")], ["lowest loss", loss]]);
    kit.say(verdict + first);
  };
  show();
}
