// The explorer's page: what is chosen, what the model makes of it, and how each part is shown.

const MODELS = {
  story: { title: "Stories", text: "One windy day Mila the mole went to the pond. Mila had", label: "Text" },
  experts: { title: "Stories, with experts", text: "One windy day Mila the mole went to the pond. Mila had", label: "Text" },
  translator: { title: "Number names", text: "einundzwanzigtausenddreihundertvier", label: "A number, in German" },
};
const BARS = { chance: 1, weight: 1 }; // columns that have a bar beside the number
const LIKELIEST = 8, LENS = 3, LONGEST = 40; // shown of the next token, by the lens, and written of a translation

const percent = (p) => (p >= 0.0995 || p === 0 ? `${(100 * p).toFixed(0)} %` : p < 0.0005 ? "< 0.1 %" : `${(100 * p).toFixed(1)} %`);
const best = (values, count) => [...values.keys()].sort((a, b) => values[b] - values[a]).slice(0, count);
const length = (row) => Math.sqrt(row.reduce((total, x) => total + x * x, 0));

// What is drawn from, after the temperature: the fewest tokens that have `topP` together.
const drawnFrom = (logits, temperature, topP) => {
  const p = softmax(logits.map((z) => z / temperature)), kept = new Float32Array(p.length);
  let total = 0;
  for (const token of best(p, p.length)) {
    if (total >= topP) break;
    total += p[token];
    kept[token] = p[token];
  }
  return kept.map((x) => x / total);
};

const explore = (box) => {
  const kit = makeKit(box), { html } = kit, made = {};
  const given = new URLSearchParams(location.hash.slice(1)), first = MODELS[given.get("model")] ? given.get("model") : "story";
  const state = {
    model: first, text: given.get("text") ?? MODELS[first].text, at: Number(given.get("at") ?? -1), from: 0,
    head: given.get("head") ?? "", off: new Set((given.get("off") ?? "").split(" ").filter(Boolean)),
    temperature: Number(given.get("temperature") ?? 1), topP: Number(given.get("top-p") ?? 1),
  };
  let now = null; // the engine, the words, the pass, and the pass with nothing switched off

  const keepLink = () => {
    const link = new URLSearchParams({ model: state.model, text: state.text, at: state.at, head: state.head, temperature: state.temperature, "top-p": state.topP });
    if (state.off.size) link.set("off", [...state.off].join(" "));
    history.replaceState(null, "", `#${link}`);
  };

  // A model's file is a script that lies beside the page, as a page opened from a folder may not fetch files.
  const open = async (name) => {
    if (made[name]) return made[name];
    await new Promise((done, failed) => {
      const script = Object.assign(document.createElement("script"), { src: box.dataset[name], onload: done, onerror: () => failed(new Error(`${name}: the model's file is not there`)) });
      document.head.append(script);
    });
    const bytes = Uint8Array.from(atob(window.explorerModels[name]), (letter) => letter.charCodeAt(0));
    delete window.explorerModels[name];
    const model = readModel(bytes);
    return (made[name] = { engine: makeEngine(model), words: makeWords(model), config: model.config, made: model.made_of });
  };

  const read = ({ engine }, source, off, tokens) => {
    const pass = engine.begin({ source, off });
    engine.read(pass, tokens);
    return pass;
  };
  const translation = ({ engine, words }, source) => {
    const pass = engine.begin({ source, off: state.off }), tokens = [...words.start];
    while (tokens.length < LONGEST) {
      const [token] = best(engine.read(pass, tokens.slice(-1)), 1);
      if (token === words.stop) break;
      tokens.push(token);
    }
    return tokens;
  };
  // Reads the text anew, in full.
  const compute = async () => {
    try {
      const model = await open(state.model), { words, config } = model;
      const source = state.model === "translator" ? words.encode(state.text) : null;
      const tokens = source ? translation(model, source) : [...words.start, ...words.encode(state.text)];
      if (tokens.length > config.context) throw new Error(`${tokens.length} tokens; the model has read at most ${config.context} at once`);
      const pass = read(model, source, state.off, tokens);
      now = { ...model, pass, plain: state.off.size ? read(model, source, new Set(), tokens) : pass };
      fault.textContent = "";
      show();
    } catch (error) {
      fault.textContent = `${error.message}.`;
    }
  };
  // Draws the next token, and reads it alone: what was read before is kept.
  const write = () => {
    if (!now || state.model === "translator" || now.pass.tokens.decoder.length >= now.config.context) return;
    const p = drawnFrom(now.pass.seen.logits.at(-1), state.temperature, state.topP);
    let left = Math.random();
    const token = [...p.keys()].find((id) => (left -= p[id]) < 0) ?? best(p, 1)[0];
    if (token === now.words.stop) { say("The story has ended: the next token is the sign between two stories."); return; }
    now.engine.read(now.pass, [token]);
    if (now.plain !== now.pass) now.engine.read(now.plain, [token]);
    state.at = -1;
    state.text = input.value = now.words.decode(now.pass.tokens.decoder);
    show();
  };

  const say = (text) => { sentence.textContent = text; };
  const section = (title, text) => {
    const part = html(box, "section", { class: "ex-part" });
    html(part, "h2", { class: "ex-title" }, title);
    html(part, "p", { class: "ex-about" }, text);
    return html(part, "div", { class: "ex-shown" });
  };
  const table = (parent, caption, heads) => {
    const made = html(html(parent, "div", { class: "ex-scrolls", tabindex: 0, role: "region", "aria-label": caption }), "table");
    html(made, "caption", {}, caption);
    const row = html(html(made, "thead"), "tr");
    for (const head of heads) html(row, "th", { scope: "col", colspan: head in BARS ? 2 : 1 }, head);
    return html(made, "tbody");
  };
  // Numbers as cells on a canvas, `colour(x)` each: the name of a colour of the page, and how much of it.
  const paint = (canvas, rows, columns, cell, colour) => {
    const pen = canvas.getContext("2d"), style = getComputedStyle(box), size = cell * devicePixelRatio;
    Object.assign(canvas, { width: columns * size, height: rows.length * size });
    canvas.style.aspectRatio = `${columns} / ${rows.length}`;
    rows.forEach((row, y) => row.forEach((x, i) => {
      const [name, share] = colour(x);
      pen.fillStyle = style.getPropertyValue(`--${name}`);
      pen.globalAlpha = share;
      pen.fillRect(i * size, y * size, size, size);
    }));
  };

  const place = (stack = "decoder") => {
    const count = now.pass.tokens[stack].length, chosen = stack === "decoder" ? state.at : state.from;
    return chosen < 0 || chosen >= count ? count - 1 : chosen;
  };
  // A token as it can be seen: blanks as dots, and what is no whole character by its number.
  const label = (id) => {
    const piece = now.words.piece(id);
    return /[\p{Cc}\ufffd]/u.test(piece) && piece !== "\n" ? `#${id}` : piece.replaceAll(" ", "·").replaceAll("\n", "↵");
  };
  const choose = (stack, at) => { if (stack === "decoder") state.at = at; else state.from = at; show(); };
  // What is drawn anew has the focus that it had.
  const keepingFocus = (draw) => {
    const key = document.activeElement?.dataset.key;
    draw();
    if (key) box.querySelector(`[data-key="${key}"]`)?.focus();
  };
  const arrows = (event) => {
    const step = { ArrowLeft: "previousElementSibling", ArrowRight: "nextElementSibling" }[event.key], next = step && document.activeElement[step];
    if (next?.dataset.key && box.contains(next)) { next.focus(); next.click(); event.preventDefault(); }
  };
  // The tokens as buttons, shaded by what the pinned head gives them.
  const showTokens = () => {
    const { name, stack, keys } = pinned(), weights = weightsOf(name, place(stack));
    tokensBox.replaceChildren();
    for (const kind of now.pass.tokens.encoder.length ? ["encoder", "decoder"] : ["decoder"]) {
      const line = html(tokensBox, "div", { class: "ex-tokens", role: "group", "aria-label": kind === "encoder" ? "tokens of the source" : "tokens" });
      now.pass.tokens[kind].forEach((id, i) => {
        const share = kind === keys ? weights[i] ?? 0 : 0;
        const chip = html(line, "button", { type: "button", "data-key": `${kind} ${i}`, "aria-pressed": kind === stack && i === place(kind), style: `--share:${Math.round(share * 50)}%` }, label(id));
        chip.title = `token ${id}${share ? `, weight ${percent(share)}` : ""}`;
        chip.addEventListener("click", () => choose(kind, i));
      });
    }
  };

  const attentions = () => Object.keys(now.pass.seen).filter((name) => name.endsWith(".weights") && !name.includes("feed_forward")).map((name) => name.slice(0, -8));
  const titleOf = (name) => {
    const [stack, , layer, kind] = name.split("."), where = `layer ${Number(layer) + 1}`;
    return kind === "cross" ? `${where}, at the source` : stack === "encoder" ? `${where} of the encoder` : where;
  };
  const pinned = () => {
    const names = attentions(), [name, head] = state.head.split(":");
    const found = names.includes(name) && head < now.engine.heads ? name : names.find((one) => one.startsWith("decoder"));
    const stack = found.split(".")[0];
    return { name: found, head: found === name ? Number(head) : 0, stack, keys: found.includes("cross") ? "encoder" : stack };
  };
  const weightsOf = (name, query, head = pinned().head, part = "weights") => {
    const row = now.pass.seen[`${name}.${part}`][query], keys = row.length / now.engine.heads;
    return row.slice(head * keys, (head + 1) * keys);
  };

  const showNext = () => {
    const at = place(), logits = now.pass.seen.logits[at], p = drawnFrom(logits, state.temperature, state.topP);
    const plain = softmax(logits.map((z) => z / state.temperature)), before = drawnFrom(now.plain.seen.logits[at], state.temperature, state.topP);
    const changed = now.plain !== now.pass;
    const rows = table(replaced(nextBox), `After “${label(now.pass.tokens.decoder[at])}” comes`, ["token", "chance", "logit", ...(changed ? ["with all on"] : [])]);
    for (const token of best(plain, LIKELIEST)) {
      const row = html(rows, "tr", p[token] ? {} : { class: "ex-cut" });
      html(row, "th", { scope: "row" }, label(token));
      const bar = html(html(row, "td", { class: "ex-bar" }), "span", { style: `--share:${100 * (p[token] || plain[token])}%` });
      if (changed) html(bar.parentElement, "i", { style: `--share:${100 * before[token]}%` });
      html(row, "td", {}, p[token] ? percent(p[token]) : "cut off");
      html(row, "td", {}, kit.fixed(logits[token], 1));
      if (changed) html(row, "td", {}, percent(before[token]));
    }
  };
  const replaced = (parent) => { parent.replaceChildren(); return parent; };

  // The stream of the chosen token, a state below the other, with what the last norm and the table would say of it.
  const showStream = () => {
    const at = place(), states = [["embedding", "decoder.embedding"], ...Array.from({ length: now.engine.layers }, (_, i) => [`after layer ${i + 1}`, `decoder.blocks.${i}`])];
    const rows = table(replaced(streamBox), `The stream at “${label(now.pass.tokens.decoder[at])}”`, ["state", "its numbers", "length", "what it would say already"]);
    for (const [title, name] of states) {
      const values = now.pass.seen[name][at], row = html(rows, "tr"), p = softmax(now.engine.lens(values)), size = length(values) / Math.sqrt(values.length);
      html(row, "th", { scope: "row" }, title);
      const canvas = html(html(row, "td"), "canvas", { class: "ex-strip", role: "img", "aria-label": `${values.length} numbers, from ${kit.fixed(Math.min(...values))} to ${kit.fixed(Math.max(...values))}` });
      paint(canvas, [0, 1, 2, 3].map((part) => values.subarray((part * values.length) / 4, ((part + 1) * values.length) / 4)), values.length / 4, 6, (x) => [x < 0 ? "orange" : "blue", Math.min(1, Math.abs(x) / (3 * size))]);
      html(row, "td", {}, kit.fixed(length(values), 1));
      html(row, "td", { class: "ex-says" }, best(p, LENS).map((token) => `${label(token)} ${percent(p[token])}`).join(", "));
    }
  };

  const isOff = (name) => state.off.has(name);
  const switchOff = (name) => { if (!state.off.delete(name)) state.off.add(name); compute(); };
  const pin = (name, head) => { state.head = `${name}:${head}`; show(); };
  const showHeads = () => {
    const chosen = pinned();
    replaced(headsBox);
    for (const name of attentions()) {
      const line = html(headsBox, "div", { class: "ex-heads", role: "group", "aria-label": `Heads of ${titleOf(name)}` });
      html(line, "span", {}, titleOf(name));
      for (let head = 0; head < now.engine.heads; head++) showMap(line, name, head, chosen);
    }
    showHead(chosen);
  };
  const showMap = (line, name, head, chosen) => {
    const on = chosen.name === name && chosen.head === head, rows = now.pass.seen[`${name}.weights`].map((_, i) => [...weightsOf(name, i, head)]);
    const button = html(line, "button", { type: "button", "aria-pressed": on, "data-key": `${name}:${head}`, class: isOff(`${name}.${head}`) ? "ex-off" : "", "aria-label": `Head ${head + 1} of ${titleOf(name)}${isOff(`${name}.${head}`) ? ", switched off" : ""}` });
    const canvas = html(button, "canvas", { "aria-hidden": true });
    paint(canvas, rows, Math.max(...rows.map((row) => row.length)), 4, (x) => ["blue", x]);
    button.addEventListener("click", () => pin(name, head));
    button.addEventListener("mouseenter", () => showHead({ ...chosen, name, head, ...axesOf(name) }));
    button.addEventListener("mouseleave", () => showHead(pinned()));
  };
  const axesOf = (name) => ({ stack: name.split(".")[0], keys: name.includes("cross") ? "encoder" : name.split(".")[0] });

  // One head, of the chosen token: to whom it looks, and why.
  const showHead = ({ name, head, stack, keys }) => {
    const at = place(stack), weights = weightsOf(name, at, head), scores = weightsOf(name, at, head, "scores"), off = isOff(`${name}.${head}`);
    const rows = table(replaced(headBox), `Head ${head + 1} of ${titleOf(name)}: from “${label(now.pass.tokens[stack][at])}” to`, ["token", "weight", "score q·k / √d"]);
    for (const key of best(weights, LIKELIEST)) {
      const row = html(rows, "tr");
      html(row, "th", { scope: "row" }, `${label(now.pass.tokens[keys][key])} (${key})`);
      html(html(row, "td", { class: "ex-bar" }), "span", { style: `--share:${100 * weights[key]}%` });
      html(row, "td", {}, percent(weights[key]));
      html(row, "td", {}, kit.fixed(scores[key]));
    }
    const button = html(html(headBox, "div", { class: "ext-row" }), "button", { type: "button", "data-key": "off", "aria-pressed": off }, off ? "This head is off: switch it on" : "Switch this head off");
    button.addEventListener("click", () => switchOff(`${name}.${head}`));
  };

  const showExperts = () => {
    expertsBox.parentElement.hidden = !now.engine.experts;
    if (!now.engine.experts) return;
    const at = place(), rows = table(replaced(expertsBox), `Which experts answer “${label(now.pass.tokens.decoder[at])}”, and their shares in %`, ["layer", ...Array.from({ length: now.engine.experts }, (_, i) => i + 1)]);
    for (let layer = 0; layer < now.engine.layers; layer++) {
      const name = `decoder.blocks.${layer}.feed_forward`, row = html(rows, "tr"), chosen = [...now.pass.seen[`${name}.experts`][at]];
      html(row, "th", { scope: "row" }, layer + 1);
      for (let expert = 0; expert < now.engine.experts; expert++) {
        const share = now.pass.seen[`${name}.weights`][at][chosen.indexOf(expert)] ?? 0, off = isOff(`${name}.${expert}`);
        const button = html(html(row, "td"), "button", { type: "button", "data-key": `${name}.${expert}`, "aria-pressed": off, class: off ? "ex-off" : "", style: `--share:${Math.round(share * 50)}%`, "aria-label": `Expert ${expert + 1} of layer ${layer + 1}, ${off ? "switched off" : share ? percent(share) : "not chosen"}` }, off ? "off" : share ? (100 * share).toFixed(0) : "–");
        button.addEventListener("click", () => switchOff(`${name}.${expert}`));
      }
    }
  };

  const showCache = () => {
    const kept = Object.entries(now.pass.kept).filter(([name]) => name.startsWith("decoder"));
    const numbers = kept.reduce((total, [, { keys, values }]) => total + [...keys, ...values].reduce((sum, row) => sum + row.length, 0), 0);
    replaced(cacheBox);
    const canvas = html(cacheBox, "canvas", { class: "ex-cache", role: "img", "aria-label": "Keys and values of every layer, a column for each token" });
    const tall = kept.flatMap(([, { keys, values }]) => [keys, values]), wide = Math.max(...tall.map((rows) => rows.length));
    paint(canvas, tall.map((rows) => Array.from({ length: wide }, (_, i) => rows[i] ? Math.min(1, length(rows[i]) / (2 * Math.sqrt(rows[i].length))) : 0)), wide, 8, (x) => ["green", x]);
    canvas.style.width = `min(100%, ${wide * 12}px)`;
    html(cacheBox, "p", {}, `${wide} tokens: ${numbers.toLocaleString("en")} numbers are kept, ${(numbers * 4 / 1024).toFixed(0)} KiB in single precision. Each token that is written reads them all and adds a column.`);
  };

  const show = () => {
    keepingFocus(() => [showTokens, showNext, showStream, showHeads, showExperts, showCache].forEach((draw) => draw()));
    box.querySelector(".ex-write").hidden = state.model === "translator";
    const [likeliest] = best(now.pass.seen.logits[place()], 1), off = state.off.size;
    say(`${now.pass.tokens.decoder.length} tokens. After “${label(now.pass.tokens.decoder[place()])}” the likeliest is “${label(likeliest)}”${off ? `, with ${off} switched off` : ""}.`);
    keepLink();
  };

  // From here on the page as it stands.
  const names = Object.keys(MODELS);
  kit.choice("Model", names.map((name) => MODELS[name].title), names.indexOf(state.model), (at) => {
    Object.assign(state, { model: names[at], at: -1, from: 0, head: "", off: new Set() });
    if (MODELS[names[at]].label !== caption.textContent) state.text = MODELS[names[at]].text;
    caption.textContent = MODELS[names[at]].label;
    input.value = state.text;
    compute();
  });
  const field = html(box, "label", { class: "ex-field" }), caption = html(field, "span", {}, MODELS[state.model].label);
  const input = html(field, "textarea", { rows: 2, spellcheck: false });
  input.value = state.text;
  let waiting = 0; // a long text is read when the hand rests
  input.addEventListener("input", () => {
    Object.assign(state, { text: input.value, at: -1 });
    clearTimeout(waiting);
    waiting = setTimeout(compute, input.value.length > 200 ? 250 : 0);
  });
  const fault = html(box, "p", { class: "ex-fault", role: "alert" });
  kit.nextRow();
  const buttons = box.lastElementChild;
  buttons.classList.add("ex-write");
  kit.button("Write a token", write);
  kit.button("Write twenty", () => { for (let i = 0; i < 20; i++) setTimeout(write, 60 * i); });
  kit.nextRow();
  const tokensBox = html(box, "div");
  box.addEventListener("keydown", arrows);
  const sentence = html(box, "p", { class: "ext-say", role: "status" });
  const nextBox = section("The next token", "The logits of the chosen token, through a softmax. What top-p cuts off is not drawn.");
  const temperatures = Array.from({ length: 20 }, (_, i) => (i + 1) / 10), shares = Array.from({ length: 20 }, (_, i) => (i + 1) / 20);
  const handles = box.querySelector(":scope > .ext-row:empty");
  nextBox.before(handles);
  kit.handle("Temperature", temperatures, temperatures.includes(state.temperature) ? state.temperature : 1, (x) => x.toFixed(1), (x) => { state.temperature = x; showNext(); keepLink(); });
  kit.handle("top-p", shares, shares.includes(state.topP) ? state.topP : 1, (x) => x.toFixed(2), (x) => { state.topP = x; showNext(); keepLink(); });
  const headsBox = section("Attention", "A picture for each head: a row for each token that looks, a column for each that is looked at. Point at one to read it, click to keep it.");
  const headBox = html(headsBox.parentElement, "div", {});
  const streamBox = section("The stream, layer by layer", "What each block has made of the chosen token, and the words that the last norm and the table would make of that state already (the logit lens).");
  streamBox.classList.add("ex-stream");
  const expertsBox = section("Experts", "The share of each expert in the answer. A click switches one off; the router then takes the next best.");
  const cacheBox = section("The cache", "Keys and values, two lines for each layer, a column for each token; the greener, the longer the vector.");
  compute();
  const again = () => now && show();
  new MutationObserver(again).observe(document.body, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
};
