// The flow of a text through the model, part by part down the page, in lanes of tokens, laid out for phones first. The page
// has the text between the parts; this script adds the pictures and numbers, and walks through them.

const SHORT = 11, LANE = 52, PAUSE = 2600; // letters of a token that fit; pixels of a lane; milliseconds that a step is shown
const percent = (p) => (p >= 0.0995 || p === 0 ? `${(100 * p).toFixed(0)}\u00a0%` : p < 0.0005 ? "<\u00a00.1\u00a0%" : `${(100 * p).toFixed(1)}\u00a0%`);

const flow = async (box) => {
  const kit = makeKit(box), { html, svg } = kit, calm = matchMedia("(prefers-reduced-motion: reduce)");
  const state = { text: "One windy day Mila the mole lost her kite. She was sad", at: -1, layer: 1, head: 1, temperature: 1 };
  const places = Object.fromEntries([...document.querySelectorAll(".flow-part")].map((part) => [part.dataset.part, part]));
  const steps = Object.values(places).map((part) => ({ part, section: part.closest("section") }));
  steps.forEach(({ section }) => section.classList.add("flow-step"));
  let model, pass, playing = 0, step = -1;

  // The controls: the text, the walk, and a sentence about the current step.
  const field = html(box, "label", { class: "flow-field" });
  html(field, "span", {}, "The text");
  const input = html(field, "textarea", { rows: 2, maxlength: 300, spellcheck: "false" });
  input.value = state.text;
  const walk = html(box, "div", { class: "flow-walk" }), bar = html(walk, "div", { class: "ext-row flow-bar" });
  const play = html(bar, "button", { type: "button", class: "flow-play" }, "▶ Play");
  const back = html(bar, "button", { type: "button", "aria-label": "One step back" }, "‹");
  const on = html(bar, "button", { type: "button", "aria-label": "One step on" }, "›");
  const sentence = html(walk, "p", { class: "ext-say flow-say", role: "status" }, "Loading the model …");

  const label = (id) => (id === model.words.stop ? "⏎" : model.words.piece(id).replaceAll(" ", "·"));
  const short = (text) => (text.length > SHORT ? `${text.slice(0, SHORT - 1)}…` : text);
  const tokens = () => pass.tokens.decoder;
  const seen = (name, at) => pass.seen[name][at];
  const of = (values, head, wide) => values.slice(head * wide, (head + 1) * wide);
  const block = () => `decoder.blocks.${state.layer}`;

  // Tokens with their own lane: the chosen one and as many before it as fit. The rest share the first lane.
  const lanes = () => {
    const wide = places.tokens.clientWidth || 340, most = Math.max(4, Math.min(12, Math.floor(wide / LANE))), first = Math.max(0, state.at + 1 - most);
    const own = Array.from({ length: state.at + 1 - first }, (_, i) => first + i);
    return first ? { hidden: Array.from({ length: first + 1 }, (_, i) => i), own: own.slice(1) } : { hidden: [], own };
  };
  const row = (part, kind, cells) => {
    const line = html(part, "div", { class: `flow-row ${kind}`, style: `--lanes:${cells.length}` });
    cells.forEach(([text, options = {}]) => {
      const cell = html(line, options.tag ?? "div", { class: `flow-cell ${options.class ?? ""}`, ...(options.attributes ?? {}) }, typeof text === "string" ? text : undefined);
      if (typeof text === "function") text(cell);
    });
    return line;
  };
  // A vector as cells: blue above zero, orange below, deeper for larger values.
  const strip = (values, columns) => (cell) => {
    const lines = Math.ceil(values.length / columns), size = 6, canvas = html(cell, "canvas", { class: "flow-strip", width: columns * size, height: lines * size, "aria-hidden": "true" });
    const pen = canvas.getContext("2d"), style = getComputedStyle(box), most = 2.5 * Math.sqrt(values.reduce((a, x) => a + x * x, 0) / values.length) || 1;
    values.forEach((x, i) => {
      pen.fillStyle = style.getPropertyValue(x < 0 ? "--orange" : "--blue");
      pen.globalAlpha = Math.min(1, Math.abs(x) / most);
      pen.fillRect((i % columns) * size, Math.floor(i / columns) * size, size - 1, size - 1);
    });
  };
  const note = (part, text) => html(part, "p", { class: "flow-note" }, text);
  const names = ({ hidden, own }) => [...(hidden.length ? [[`${hidden.length} before`, { class: "flow-more" }]] : []), ...own.map((i) => [short(label(tokens()[i])), { class: i === state.at ? "flow-own" : "" }])];
  const perLane = ({ hidden, own }, make) => [...(hidden.length ? [["…", { class: "flow-more" }]] : []), ...own.map((i) => make(i))];
  const weights = (head = state.head) => of(seen(`${block()}.attention.weights`, state.at), head, state.at + 1);
  const shares = ({ hidden, own }, values) => [...(hidden.length ? [hidden.reduce((sum, i) => sum + values[i], 0)] : []), ...own.map((i) => values[i])];
  // A row of buttons, one of which is pressed.
  const choose = (part, title, texts, at, change) => {
    const line = html(part, "div", { class: "ext-row flow-choice", role: "group", "aria-label": title });
    html(line, "span", {}, title);
    texts.forEach((text, i) => html(line, "button", { type: "button", "aria-pressed": String(i === at), "data-key": `${title} ${i}` }, text).addEventListener("click", () => { change(i); show(); }));
  };

  const draw = {
    tokens(part) {
      const line = html(part, "div", { class: "flow-chips", role: "group", "aria-label": "Tokens; the page follows the chosen one" });
      tokens().forEach((id, i) => {
        const chip = html(line, "button", { type: "button", "aria-pressed": String(i === state.at), "data-key": `token ${i}` });
        html(chip, "b", {}, label(id));
        html(chip, "small", {}, String(id));
        chip.addEventListener("click", () => { state.at = i; show(); });
      });
      note(part, `${tokens().length} tokens. This page follows “${label(tokens()[state.at])}”; click another to follow it.`);
      return `The text has ${tokens().length} tokens. The page follows “${label(tokens()[state.at])}”, token ${tokens()[state.at]} of ${model.config.vocab}.`;
    },
    vectors(part) {
      const shown = lanes();
      row(part, "flow-names", names(shown));
      row(part, "", perLane(shown, (i) => [strip(seen("decoder.embedding", i), 8), { class: i === state.at ? "flow-own" : "" }]));
      const own = seen("decoder.embedding", state.at);
      note(part, `“${label(tokens()[state.at])}”: ${[...own.slice(0, 4)].map((x) => kit.fixed(x)).join(", ")}, … ${own.length} numbers.`);
      return `“${label(tokens()[state.at])}” is now a column of ${own.length} numbers.`;
    },
    scores(part) {
      const shown = lanes(), { heads, dHead } = model.engine, w = weights(), scores = of(seen(`${block()}.attention.scores`, state.at), state.head, state.at + 1);
      choose(part, "Layer", Array.from({ length: model.engine.layers }, (_, i) => String(i)), state.layer, (i) => { state.layer = i; });
      choose(part, "Head", Array.from({ length: heads }, (_, i) => String(i)), state.head, (i) => { state.head = i; });
      row(part, "flow-names", names(shown));
      row(part, "", perLane(shown, (i) => [strip(of(seen(`${block()}.attention.turned_key`, i), state.head, dHead), 4), { class: "flow-key" }]));
      note(part, "Above: the keys. Below: the query of the chosen token, and its score with each key.");
      row(part, "flow-query", [[strip(of(seen(`${block()}.attention.turned_query`, state.at), state.head, dHead), 12)]]);
      row(part, "flow-numbers", perLane(shown, (i) => [kit.fixed(scores[i], 1), { class: i === state.at ? "flow-own" : "" }]));
      row(part, "flow-bars", shares(shown, w).map((p) => [percent(p), { attributes: { style: `--share:${p}` } }]));
      const most = best(w, 1)[0];
      return `In head ${state.head} of layer ${state.layer}, the query of “${label(tokens()[state.at])}” matches the key of “${label(tokens()[most])}” best, with a weight of ${percent(w[most])}.`;
    },
    attention(part) {
      const shown = lanes(), cells = names(shown), count = cells.length, wide = 100 * count, to = 100 * count - 50;
      row(part, "flow-names", cells);
      const picture = svg(part, "svg", { viewBox: `0 0 ${wide} 130`, preserveAspectRatio: "none", class: "flow-arcs", "aria-hidden": "true" });
      [...Array(model.engine.heads).keys()].sort((a, b) => (a === state.head) - (b === state.head)).forEach((head) => shares(shown, weights(head)).forEach((p, j) => {
        if (p < 0.02) return;
        const from = 100 * j + 50, own = head === state.head;
        svg(picture, "path", { d: `M${from} 0 C${from} 90 ${to} 40 ${to} 130`, fill: "none", stroke: own ? "var(--blue)" : "var(--edge)", "stroke-width": (own ? 2 : 1) + 12 * p, "stroke-opacity": own ? 0.9 : 0.35, "vector-effect": "non-scaling-stroke", class: "flow-line" });
      }));
      row(part, "flow-query", [[short(label(tokens()[state.at])), { class: "flow-own" }]]);
      note(part, `Blue: head ${state.head} of layer ${state.layer}. Grey: the other heads.`);
      const read = best(weights(), 2).filter((i) => weights()[i] >= 0.02).map((i) => `${percent(weights()[i])} of “${label(tokens()[i])}”`);
      return `Head ${state.head} of layer ${state.layer} adds ${read.join(" and ")} to “${label(tokens()[state.at])}”.`;
    },
    added(part) {
      const before = seen(state.layer ? `decoder.blocks.${state.layer - 1}` : "decoder.embedding", state.at), after = seen(`${block()}.after_attention`, state.at), wrote = seen(`${block()}.attention.output`, state.at);
      sum3(part, before, wrote, after, "before", "attention output", "the stream now");
      return `Attention in layer ${state.layer} writes a vector of length ${kit.fixed(size(wrote), 1)} to a stream of length ${kit.fixed(size(before), 1)}.`;
    },
    network(part) {
      const hidden = seen(`${block()}.feed_forward.hidden`, state.at), most = Math.max(...hidden.map(Math.abs)), busy = hidden.filter((x) => Math.abs(x) > most / 10).length;
      row(part, "flow-query", [[strip(hidden, 32)]]);
      note(part, `${hidden.length} hidden units, ${busy} of them above a tenth of the largest.`);
      sum3(part, seen(`${block()}.after_attention`, state.at), seen(`${block()}.feed_forward`, state.at), seen(block(), state.at), "before", "network output", "the stream now");
      return `The network of layer ${state.layer} uses ${busy} of its ${hidden.length} hidden units for “${label(tokens()[state.at])}”, and adds its output.`;
    },
    layers(part) {
      const name = (i) => (i ? `decoder.blocks.${i - 1}` : "decoder.embedding"), list = html(part, "ol", { class: "flow-layers" });
      const guesses = Array.from({ length: model.engine.layers + 1 }, (_, i) => model.engine.lens(pass, name(i), state.at, 1)[0]);
      guesses.forEach(([token, p], i) => {
        const item = html(list, "li");
        html(item, "span", {}, i ? `after layer ${i - 1}` : "the embedding");
        strip(seen(name(i), state.at), 24)(item);
        html(item, "span", {}, `“${label(token)}” ${percent(p)}`);
      });
      return `After each layer, the logit lens predicts ${guesses.map(([token]) => `“${label(token)}”`).join(", then ")}.`;
    },
    chances(part) {
      const logits = seen("logits", state.at), p = softmax(logits), list = html(part, "ol", { class: "flow-chances" }), first = best(p, 6);
      first.forEach((token) => {
        const item = html(list, "li", { style: `--share:${p[token]}` });
        html(item, "b", {}, label(token));
        html(item, "i");
        html(item, "span", {}, percent(p[token]));
      });
      note(part, `and ${model.config.vocab - first.length} others, together ${percent(1 - first.reduce((sum, token) => sum + p[token], 0))}.`);
      return `After “${label(tokens()[state.at])}” the model expects “${label(first[0])}” with a probability of ${percent(p[first[0]])}.`;
    },
    choice(part) {
      choose(part, "Temperature", ["0", "0.5", "1", "2"], [0, 0.5, 1, 2].indexOf(state.temperature), (i) => { state.temperature = [0, 0.5, 1, 2][i]; });
      const line = html(part, "div", { class: "ext-row" }), full = tokens().length >= model.config.context;
      const next = html(line, "button", { type: "button", class: "flow-play", "data-key": "next" }, state.temperature ? "Draw the next token" : "Take the likeliest token");
      next.disabled = full;
      next.addEventListener("click", write);
      note(part, full ? `The text has ${tokens().length} tokens, which is all that this model can read.` : "The text grows by one token, whose column is then computed from the top of this page.");
      return "One token is chosen and appended, and everything starts again with a text that is one token longer.";
    },
  };
  const size = (x) => Math.sqrt(x.reduce((total, value) => total + value * value, 0));
  const sum3 = (part, ...all) => {
    const line = html(part, "div", { class: "flow-sum", "aria-hidden": "true" });
    all.slice(0, 3).forEach((values, i) => {
      const cell = html(line, "div");
      strip(values, 12)(cell);
      html(cell, "span", {}, all[i + 3]);
      if (i < 2) html(line, "b", {}, i ? "=" : "+");
    });
  };

  let said = {};
  const show = () => {
    const key = document.activeElement?.dataset.key;
    for (const { part } of steps) {
      part.replaceChildren();
      said[part.dataset.part] = draw[part.dataset.part](part);
    }
    if (key) document.querySelector(`.flow-part [data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
    sentence.textContent = step < 0 ? said.chances : said[steps[step].part.dataset.part];
  };
  const read = () => {
    const ids = [...model.words.start, ...model.words.encode(state.text)];
    if (ids.length > model.config.context) { sentence.textContent = `The text has ${ids.length} tokens, and this model reads at most ${model.config.context}.`; return; }
    pass = model.engine.begin();
    model.engine.read(pass, ids);
    state.at = ids.length - 1;
    show();
  };
  const write = () => {
    const logits = pass.seen.logits.at(-1), p = state.temperature ? softmax(logits.map((z) => z / state.temperature)) : null;
    let left = Math.random();
    const token = (p && [...p.keys()].find((id) => (left -= p[id]) < 0)) ?? best(logits, 1)[0];
    if (token === model.words.stop) { sentence.textContent = "The model has ended the story: the next token is the separator between two stories. Change the text to start another."; stop(); return false; }
    model.engine.read(pass, [token]);
    state.at = tokens().length - 1;
    state.text = model.words.decode(tokens());
    input.value = state.text;
    show();
    return true;
  };

  // The walk through the steps: the page highlights a step, scrolls to it and describes it.
  const go = (to) => {
    step = Math.max(0, Math.min(steps.length - 1, to));
    steps.forEach(({ section }, i) => section.classList.toggle("flow-now", i === step));
    sentence.textContent = said[steps[step].part.dataset.part];
    steps[step].section.scrollIntoView({ block: "start", behavior: calm.matches ? "auto" : "smooth" });
  };
  const stop = () => {
    clearTimeout(playing);
    playing = 0;
    play.textContent = "▶ Play";
  };
  const tick = () => {
    if (step === steps.length - 1) {
      if (tokens().length >= model.config.context || !write()) return stop();
      go(0);
    } else go(step + 1);
    playing = setTimeout(tick, PAUSE);
  };
  play.addEventListener("click", () => {
    if (playing) return stop();
    play.textContent = "❚❚ Pause";
    tick();
  });
  back.addEventListener("click", () => { stop(); go(step - 1); });
  on.addEventListener("click", () => { stop(); go(step + 1); });
  let waiting = 0;
  input.addEventListener("input", () => {
    stop();
    clearTimeout(waiting);
    waiting = setTimeout(() => { state.text = input.value; read(); }, 150);
  });
  let wide = 0;
  addEventListener("resize", () => { if (model && places.tokens.clientWidth !== wide) { wide = places.tokens.clientWidth; show(); } });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => model && show());
  new MutationObserver(() => model && show()).observe(document.body, { attributes: true, attributeFilter: ["data-theme"] });
  try {
    model = await openModel(box.dataset.model);
    read();
  } catch (error) {
    sentence.textContent = `${error.message}.`;
  }
};

flow(document.getElementById("flow"));
