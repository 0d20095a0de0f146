// A group of answers to one question: their advantages, and what each of their tokens is pushed by.
(box, data, kit) => {
  const { size, right, wrong } = data, DIVIDED = ["mean subtracted", "and divided by the deviation"], SHARED = ["its answer's length", "the longest possible length"];
  let count = data.count, divided = 1, shared = 0;
  kit.handle("right answers in the group", [...Array(size + 1).keys()], count, String, (x) => { count = x; show(); });
  kit.nextRow();
  kit.choice("Reward with", DIVIDED, divided, (at) => { divided = at; show(); });
  kit.nextRow();
  kit.choice("Divide each token's push by", SHARED, shared, (at) => { shared = at; show(); });
  const draw = kit.picture(760, 306), EACH = 700 / size, LEFT = 54, MID = [80, 222], HIGH = 60;
  const write = (x, y, text, options = {}) => kit.svg(draw, "text", { x, y, "text-anchor": "middle", ...options }, text);
  write(4, MID[0] - 62, "advantage of an answer", { "text-anchor": "start", class: "small quiet" });
  write(4, MID[1] - 62, "push of each of its tokens", { "text-anchor": "start", class: "small quiet" });
  for (const y of MID) kit.svg(draw, "line", { x1: LEFT - 10, x2: 756, y1: y, y2: y, stroke: "var(--edge)" });
  const columns = [...Array(size).keys()].map((i) => {
    const x = LEFT + EACH * (i + 0.5);
    const bar = () => kit.svg(draw, "rect", { x: x - 20, width: 40, class: "move" });
    return { x, bars: [bar(), bar()], said: [write(x, 0, "", { class: "small halo" }), write(x, 0, "", { class: "small halo" })], name: write(x, 298, "", { class: "small" }) };
  });
  const place = (column, at, value, full) => {
    const y = MID[at], tall = Math.min(Math.abs(value) / full, 1) * HIGH, color = value < 0 ? "var(--orange)" : "var(--blue)";
    kit.put(column.bars[at], { y: value < 0 ? y : y - tall, height: tall, fill: color });
    kit.put(column.said[at], { y: value < 0 ? y + tall + 13 : y - tall - 4 }, kit.fixed(value, at ? 3 : 2));
  };
  const show = () => {
    const share = count / size, off = Math.sqrt(share * (1 - share)), longest = Math.max(right, ...wrong);
    const gain = (won) => (off === 0 ? 0 : (won - share) / (divided ? off : 1));
    let sum = 0;
    const told = [];
    columns.forEach((column, i) => {
      const won = i < count ? 1 : 0, long = won ? right : wrong[i % wrong.length], value = gain(won), token = value / (shared ? longest : long);
      sum += Math.abs(value);
      told.push([won ? "right" : "wrong", long, value, token]);
      place(column, 0, value, 2.7);
      place(column, 1, token, 2.7 / Math.min(right, ...wrong));
      kit.put(column.name, {}, `${won ? "right" : "wrong"}, ${long}`);
    });
    kit.numbers("", ["answer", "tokens", "advantage", "push of each token"].map((name, c) => [name, told.map((row) => row[c])]));
    kit.say(`${count} of ${size} ${count === 1 ? "is" : "are"} right: a right answer's advantage is ${kit.fixed(count ? gain(1) : 0, 2)}, a wrong one's ${kit.fixed(count < size ? gain(0) : 0, 2)}; all pushes of the group together ${kit.fixed(sum, 2)}.`);
  };
  show();
}
