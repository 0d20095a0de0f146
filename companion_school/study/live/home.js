// How large a gradient still is on its way home along the stream: post-norm, a norm after every write; pre-norm, one.
(box, data, kit) => {
  const W = 760, LEFT = 96, RIGHT = 740, TALL = 74, most = data.depths[data.depths.length - 1];
  let depth = data.start, write = data.write, small = false;
  kit.handle("depth", data.depths, depth, (k) => `${k} writes`, (k) => { depth = k; show(); });
  kit.handle("size of a write", data.writes, write, (w) => kit.fixed(w), (w) => { write = w; show(); });
  kit.toggle("divide every write by √depth", false, (on) => { small = on; show(); });
  const draw = kit.picture(W, 316);
  kit.svg(draw, "text", { x: 8, y: 14, class: "quiet" }, "← home: the embedding");
  kit.svg(draw, "text", { x: RIGHT, y: 14, "text-anchor": "end", class: "quiet" }, "the gradient leaves here, with size 1");
  const lanes = ["post-norm", "pre-norm"].map((name, at) => {
    const y = 124 + at * 146;
    kit.svg(draw, "text", { x: 8, y: y - 66, class: "strong" }, name);
    kit.svg(draw, "line", { x1: LEFT - 6, x2: RIGHT, y1: y, y2: y, stroke: "var(--blue)", "stroke-width": 3 });
    const slots = Array.from({ length: most }, () => ({
      bar: kit.svg(draw, "rect", { rx: 1, fill: at ? "var(--green)" : "var(--red)", class: "move" }),
      norm: kit.svg(draw, "rect", { rx: 1.5, fill: "var(--orange)", stroke: "var(--ink)", "stroke-width": 0.6 }),
    }));
    return {
      y, slots,
      last: kit.svg(draw, "rect", { x: RIGHT - 6, width: 6, y: y - 9, height: 18, rx: 1.5, fill: "var(--orange)", stroke: "var(--ink)", "stroke-width": at ? 0.6 : 0, opacity: at }),
      arrives: kit.svg(draw, "text", { x: 8, y: y - 40, class: "strong" }),
      part: kit.svg(draw, "text", { x: 8, y: y - 22, class: "small quiet" }),
      note: kit.svg(draw, "text", { x: LEFT, y: y + 34, class: "small quiet" }),
    };
  });
  const number = (x) => x >= 0.01 ? kit.fixed(x, 3) : x >= 1e-6 ? kit.fixed(x, 7) : "under 10⁻⁶";
  const show = () => {
    const square = small ? write * write / depth : write * write, each = Math.sqrt(1 + square), all = Math.sqrt(1 + depth * square);
    const step = (RIGHT - 10 - LEFT) / depth;
    const home = lanes.map(({ y, slots, arrives, part, note }, at) => {
      slots.forEach(({ bar, norm }, k) => {
        const there = k < depth, size = at ? 1 / all : each ** -(depth - k), tall = Math.max(TALL * size, 0.8), x = LEFT + k * step;
        kit.put(bar, there ? { x: x + step * 0.12, width: step * 0.7, y: y - 4 - tall, height: tall, opacity: 1 } : { width: 0, opacity: 0 });
        // post-norm: the norm stands on the line; pre-norm: on the branch, below it
        kit.put(norm, there ? { x: x + step * 0.84, width: Math.min(step * 0.2, 6), y: at ? y + 7 : y - 9, height: at ? 9 : 18, opacity: 1 } : { width: 0, opacity: 0 });
      });
      const size = at ? 1 / all : each ** -depth;
      arrives.textContent = number(size);
      part.textContent = size > 0.5 ? "arrives" : `1 in ${Math.round(1 / size).toLocaleString("en-US")}`;
      note.textContent = at
        ? `one norm on the line, the last: it divides by ${kit.fixed(all)}. The others are on branches, below.`
        : `${depth} ${depth === 1 ? "norm" : "norms"} on the line: each divides by ${kit.fixed(each)}.`;
      return size;
    });
    const each_ = lanes.map((_, at) => Array.from({ length: depth }, (_, k) => (at ? 1 / all : each ** -(depth - k))));
    kit.numbers("", [["write, from home", each_[0].map((_, k) => k + 1)], ["post-norm", each_[0]], ["pre-norm", each_[1]], ["size of a write", each_[0].map(() => Math.sqrt(square))]]);
    kit.say(`After ${depth} ${depth === 1 ? "write" : "writes"} of size ${kit.fixed(small ? write / Math.sqrt(depth) : write)}, the gradient that comes home along the line has size ${number(home[0])} in post-norm and ${number(home[1])} in pre-norm.`);
  };
  show();
}
