// The heads' parts of all tokens as bricks: how view and transpose sort them, and how a direct view does.
(box, data, kit) => {
  const n = data.tokens, h = data.heads, all = n * h, LEFT = 84, TOP = 46, ROW = 36, wide = Math.min(96, 760 / all - 5, 660 / Math.max(n, h) - 8);
  const steps = ["1: from the product", "2: in memory", "3: for attention"], ways = ["view, then transpose", "direct view"];
  const colours = ["blue", "orange", "purple", "green"], range = (count) => Array.from({ length: count }, (_, i) => i);
  let way = 0, step = 0;
  kit.choice("Method:", ways, way, (at) => { way = at; show(); });
  kit.nextRow();
  kit.handle("step", [0, 1, 2], step, (at) => steps[at], (at) => { step = at; show(); });
  const draw = kit.picture(760, TOP + Math.max(n, h) * ROW + 6);
  const write = (x, y, text, options = {}) => kit.svg(draw, "text", { x, y, class: "quiet move", ...options }, text);
  const column = (at) => LEFT + at * (wide + 8), line = (at) => TOP + at * ROW;
  const side = range(Math.max(n, h)).map((at) => write(0, line(at) + 20, ""));
  const above = range(Math.max(n, h)).map((at) => write(column(at) + wide / 2, TOP - 10, "", { "text-anchor": "middle" }));
  const lying = write(0, TOP - 10, "");
  const bricks = range(all).map((b) => {
    const token = Math.floor(b / h), head = b % h, brick = kit.svg(draw, "g", { class: "move" });
    const back = kit.svg(brick, "rect", { width: wide, height: ROW - 8, rx: 4, fill: `color-mix(in srgb, var(--${colours[head]}) 30%, var(--page))`, class: "move" });
    kit.svg(brick, "text", { x: wide / 2, y: 18, "text-anchor": "middle", class: "small strong" }, `t${token} h${head}`);
    return { brick, back, token, head };
  });
  const places = [
    (b) => [column(b % h), line(Math.floor(b / h))],
    (b) => [(b * 760) / all, line(0)],
    (b) => (way ? [column(b % n), line(Math.floor(b / n))] : [column(Math.floor(b / h)), line(b % h)]),
  ];
  const show = () => {
    let wrong = 0;
    bricks.forEach(({ brick, back, token, head }, b) => {
      const [x, y] = places[step](b), fits = step < 2 || (x === column(token) && y === line(head));
      brick.style.transform = `translate(${x}px, ${y}px)`;
      kit.put(back, fits ? { stroke: "var(--edge)", "stroke-width": 1, "stroke-dasharray": "none" } : { stroke: "var(--red)", "stroke-width": 2.5, "stroke-dasharray": "5 3" });
      wrong += fits ? 0 : 1;
    });
    side.forEach((text, at) => { text.textContent = step === 0 && at < n ? `token ${at}` : step === 2 && at < h ? `head ${at}` : ""; });
    above.forEach((text, at) => { text.textContent = step === 0 && at < h ? `head ${at}` : step === 2 && at < n ? `token ${at}` : ""; });
    lying.textContent = step === 1 ? "one long row of numbers" : "";
    const first = range(n).map((s) => (way ? Math.floor(s / h) : s)).join(", ");
    const name = (b) => `t${Math.floor(b / h)} h${b % h}`;
    kit.numbers("", [
      [["token", range(n)], ...range(h).map((u) => [`head ${u}`, range(n).map((t) => name(t * h + u))])],
      [["in memory", range(all)], ["brick", range(all).map(name)]],
      [["head", range(h)], ...range(n).map((s) => [`slot ${s}`, range(h).map((u) => name(way ? u * n + s : s * h + u))])],
    ][step]);
    kit.say([
      `The product gives every token one row, which contains its ${h} heads side by side. A brick is one head’s part of one token.`,
      `In memory the rows follow one another: token 0 with all its heads, then token 1, and so on. No step changes that.`,
      way ? `The direct view cuts the row into ${h} pieces. Its head 0 contains parts of the tokens ${first}, and ${wrong} of the ${all} bricks are in the wrong place (dashed).`
        : `Each head has its own part of the tokens ${first}, in order. ${wrong} of the ${all} bricks are in the wrong place.`,
    ][step]);
  };
  show();
}
