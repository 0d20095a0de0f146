// A whole model that fits on a page: choose three words, and see the state, who looks at whom, and the next word.
(box, data, kit) => {
  const V = data.vocabulary, names = data.models.map((m) => m.name), at = data.start.map((word) => V.indexOf(word));
  const times = (x, W) => W[0].map((_, c) => x.reduce((sum, value, r) => sum + value * W[r][c], 0));
  const add = (a, b) => a.map((x, i) => x + b[i]), dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
  const size = (x, gain) => { const root = Math.sqrt(dot(x, x) / x.length + data.eps); return x.map((v, i) => (v / root) * gain[i]); };
  const turn = ([a, b], m) => [a * Math.cos(m) - b * Math.sin(m), a * Math.sin(m) + b * Math.cos(m)];
  // The model, one word after the other: the same sums as in the lesson.
  const run = (w, ids) => {
    const X = ids.map((id) => w.E[id].map((v) => v * Math.sqrt(w.E[id].length)));
    const heads = w.Wq.map((_, h) => {
      const Q = X.map((x, i) => turn(times(x, w.Wq[h]), i)), K = X.map((x, j) => turn(times(x, w.Wk[h]), j)), U = X.map((x) => times(x, w.Wv[h]));
      const A = Q.map((q, i) => kit.softmax(K.slice(0, i + 1).map((k) => dot(q, k) / Math.sqrt(q.length))));
      return { A, O: A.map((row) => row.reduce((sum, a, j) => add(sum, U[j].map((v) => a * v)), [0, 0])) };
    });
    const added = X.map((x, i) => add(x, times(heads.flatMap((head) => head.O[i]), w.Wo)));
    const Y = added.map((x) => size(x, w.g1));
    const after = Y.map((y) => add(y, times(times(y, w.W1).map((v) => Math.max(v, 0)), w.W2)));
    const end = after.map((x) => size(x, w.g2));
    return { states: [X, added, Y, after, end], A: heads.map((head) => head.A), p: kit.softmax(w.E.map((row) => dot(row, end[ids.length - 1]))) };
  };
  const STATIONS = ["rows of the table", "attention added", "brought to size", "network added", "brought to size"];
  let station = 0, model = names.length - 1;
  at.forEach((id, i) => kit.list(`word ${i}`, V.slice(1), id - 1, (word) => { at[i] = word + 1; show(); }));
  kit.list("the state, after", STATIONS.map((name, i) => `${i + 1}: ${name}`), 0, (i) => { station = i; show(); });
  kit.nextRow();
  if (data.film) kit.handle(data.film, names.map((_, m) => m), model, (m) => names[m], (m) => { model = m; show(); });
  else if (names.length > 1) kit.choice("weights:", names, model, (m) => { model = m; show(); });
  const draw = kit.picture(760, 276), title = (x, text) => kit.svg(draw, "text", { x, y: 16, class: "strong" }, text);
  const Y0 = (i) => 62 + i * 64, CW = 54;
  title(0, "the state");
  const cells = at.map((_, i) => {
    const word = kit.svg(draw, "text", { x: 0, y: Y0(i) + 23, class: i === at.length - 1 ? "strong" : "" });
    return { word, numbers: [0, 1, 2, 3].map((c) => ({
      back: kit.svg(draw, "rect", { x: 52 + c * CW, y: Y0(i), width: CW - 4, height: 36, rx: 4, stroke: "var(--edge)", class: "move" }),
      text: kit.svg(draw, "text", { x: 52 + c * CW + CW / 2 - 2, y: Y0(i) + 23, "text-anchor": "middle" }),
    })) };
  });
  title(306, "attention");
  const looks = [0, 1].map((h) => {
    const left = 348 + h * 108, right = left + 56, from = at.length - 1;
    kit.svg(draw, "text", { x: left - 8, y: 40, class: "small quiet" }, `head ${h}`);
    const lines = at.map((_, i) => at.slice(0, i + 1).map((_, j) => kit.svg(draw, "line", { x1: left, y1: Y0(i) + 18, x2: right, y2: Y0(j) + 18, stroke: i === from ? "var(--blue)" : "var(--edge)", class: "move" })));
    at.forEach((_, i) => [left, right].forEach((x) => kit.svg(draw, "circle", { cx: x, cy: Y0(i) + 18, r: 4, fill: "var(--ink)" })));
    return { lines, weights: at.map((_, j) => kit.svg(draw, "text", { x: right + 8, y: Y0(j) + 22, class: "small halo" })) };
  });
  title(574, "the next word");
  const bars = V.map((word, k) => {
    const y = 27 + k * 24;
    kit.svg(draw, "text", { x: 622, y: y + 16, "text-anchor": "end" }, word);
    return { bar: kit.svg(draw, "rect", { x: 630, y: y + 3, height: 17, rx: 3, class: "move" }), text: kit.svg(draw, "text", { y: y + 16, class: "small move" }) };
  });
  const show = () => {
    const { states, A, p } = run(data.models[model], at), last = at.length - 1, best = p.indexOf(Math.max(...p));
    cells.forEach(({ word, numbers }, i) => {
      word.textContent = V[at[i]];
      numbers.forEach(({ back, text }, c) => {
        back.setAttribute("fill", kit.tint(states[station][i][c] / 3));
        text.textContent = kit.fixed(states[station][i][c]);
      });
    });
    looks.forEach(({ lines, weights }, h) => {
      lines.forEach((row, i) => row.forEach((line, j) => kit.put(line, { "stroke-width": 0.5 + 9 * A[h][i][j] })));
      weights.forEach((text, j) => { text.textContent = kit.fixed(A[h][last][j]); });
    });
    bars.forEach(({ bar, text }, k) => {
      const wide = Math.max(88 * p[k], 1);
      kit.put(bar, { width: wide, fill: k === best ? "var(--blue)" : "var(--edge)" });
      kit.put(text, { x: 634 + wide }, kit.fixed(p[k]));
    });
    kit.numbers("",
      [["next word", V], [`probability after “${at.map((id) => V[id]).join(" ")}”`, p]],
      [["word", at.map((id) => V[id])], ...[0, 1, 2, 3].map((c) => [`component ${c}`, states[station].map((row) => row[c])]), ...A.map((rows, h) => [`head ${h}, the last word looks at`, rows[last]])]);
    kit.say(`The row of “${V[at[last]]}”, ${STATIONS[station]}: ${states[station][last].map((v) => kit.fixed(v)).join(", ")}. After “${at.map((id) => V[id]).join(" ")}” the model says “${V[best]}”, with a probability of ${kit.fixed(p[best])}.`);
  };
  show();
}
