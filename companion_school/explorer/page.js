// The explorer's page: the reader's choices, the model's passes, and how each part is displayed.

const BARS = { probability: 1, weight: 1 }; // columns that have a bar beside the number
const LIKELIEST = 8, LENS = 3, OTHERS = 5, LONGEST = 40; // how many tokens are shown as next, by the lens and for swapping; the longest translation
const AT_ONCE = 10; // milliseconds of computing between two drawings of the page

const percent = (p) => (p >= 0.0995 || p === 0 ? `${(100 * p).toFixed(0)}\u00a0%` : p < 0.0005 ? "<\u00a00.1\u00a0%" : `${(100 * p).toFixed(1)}\u00a0%`);
const length = (row) => Math.sqrt(row.reduce((total, x) => total + x * x, 0));
const silu = (x) => x / (1 + Math.exp(-x));

// The distribution after temperature and top-p: the fewest tokens whose probabilities add up to `topP`.
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
  const kit = makeKit(box), { html } = kit, made = {}, models = JSON.parse(box.dataset.models), opened = new Set();
  const given = new URLSearchParams(location.hash.slice(1)), first = models.find(({ name }) => name === given.get("model")) ?? models[0];
  const number = (name, otherwise) => (Number.isFinite(parseFloat(given.get(name))) ? parseFloat(given.get(name)) : otherwise);
  const state = {
    model: first, text: given.get("text") ?? first.text, at: number("at", -1), from: number("from", 0), stack: "decoder",
    head: given.get("head") ?? "", beside: given.get("beside") ?? "", key: number("key", -1),
    off: new Set((given.get("off") ?? "").split(" ").filter(Boolean)), swap: swapOf(given.get("swap")),
    temperature: number("temperature", 1), topP: number("top-p", 1), each: given.has("each"),
  };
  let now = null; // the engine, the words and the pass, with the passes without anything switched off and with a swapped token
  let shows = given.get("show"); // the part that the link leads to

  function swapOf(text) {
    const [, stack, at, token] = /^(encoder|decoder) (\d+) (\d+)$/.exec(text ?? "") ?? [];
    return stack ? { stack, at: Number(at), token: Number(token) } : null;
  }
  const keepLink = () => {
    if (location.protocol === "about:") return; // in a notebook, a page has no address
    const { model, text, at, from, head, beside, key, off, swap, temperature, topP, each } = state;
    const all = { model: model.name, text, at, from, head, beside, key, off: [...off].join(" "), swap: swap ? `${swap.stack} ${swap.at} ${swap.token}` : "", temperature, "top-p": topP, each: each ? 1 : "" };
    const plain = { at: -1, from: 0, key: -1, temperature: 1, "top-p": 1 };
    const said = Object.entries(all).filter(([name, value]) => value !== "" && value !== plain[name]);
    history.replaceState(null, "", `#${new URLSearchParams(said)}`);
  };

  // A model is a script beside the page or inside it, because a page opened from a folder may not fetch files.
  const open = async ({ name, script }) => {
    if (made[name]) return made[name];
    if (script) {
      await new Promise((done, failed) => {
        const onerror = () => failed(new Error(`${name}: the model's file is missing`));
        document.head.append(Object.assign(document.createElement("script"), { src: script, async: true, onload: done, onerror }));
      });
    }
    const bytes = Uint8Array.from(atob(window.explorerModels[name]), (letter) => letter.charCodeAt(0));
    delete window.explorerModels[name];
    const model = readModel(bytes), { served } = box.dataset, record = model.recorded && makeRecord(model);
    const engine = record ? (served ? makeServed(model, served) : record) : makeEngine(model);
    return (made[name] = { engine, record, words: makeWords(model), config: model.config });
  };

  const translates = () => now.pass.tokens.encoder.length > 0;
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
  // The tokens of the source, if the model translates, and of the text.
  const tokensOf = (model) => {
    const source = model.config.stack === "encoder_decoder" ? model.words.encode(state.text) : null;
    const tokens = source ? translation(model, source) : [...model.words.start, ...model.words.encode(state.text)];
    const most = model.config.context, count = Math.max(tokens.length, source?.length ?? 0);
    if (count > most) throw new Error(`The text has ${count} tokens, and the model can read at most ${most}.`);
    return { source, tokens };
  };
  const readText = (model) => {
    if (model.engine.asks) return model.engine.readText(state.text, new Set(state.off));
    const { source, tokens } = tokensOf(model);
    return read(model, source, state.off, tokens);
  };
  const readTokens = (model, source, off, tokens) => (model.engine.asks ? model.engine.readTokens(source, tokens, new Set(off)) : read(model, source, off, tokens));
  const swapped = (model, source, tokens) => {
    if (!state.swap) return null;
    const given = { encoder: source && [...source], decoder: [...tokens] }, { stack, at, token } = state.swap;
    if (!given[stack] || at >= given[stack].length || !model.words.piece(token)) return (state.swap = null);
    given[stack][at] = token;
    return readTokens(model, given.encoder, state.off, given.decoder);
  };
  const passes = async (model) => {
    if (model.engine.fixed) return { pass: model.engine.pass(), plain: model.engine.pass(), swapped: null };
    const pass = await readText(model), { encoder, decoder } = pass.tokens, source = encoder.length ? encoder : null;
    const plain = state.off.size ? await readTokens(model, source, new Set(), decoder) : pass;
    return { pass, plain, swapped: await swapped(model, source, decoder) };
  };
  const showing = async (model) => {
    now = { ...model, ...(await passes(model)), carried: null, without: null };
    fault.textContent = "";
    show();
  };
  // Until Python answers, or if it cannot be reached, the page shows the text that came with it.
  const showRecord = (model) => {
    Object.assign(state, { text: state.model.text, off: new Set(), swap: null });
    input.value = state.text;
    return showing(Object.assign(model, { engine: model.record }));
  };
  const readAnew = async () => {
    const model = await open(state.model);
    try {
      if (model.engine.asks && !now) await showing({ ...model, engine: model.record });
      await showing(model);
    } catch (error) {
      if (!error.unreached || now?.engine.asks) throw error;
      await showRecord(model);
    }
  };
  // Slow actions run one at a time; of those requested meanwhile only the last one runs.
  let busy = false, next = null;
  const inTurn = async (act) => {
    if (busy) return void (next = act);
    busy = true;
    for (let doing = act; doing; [doing, next] = [next, null]) await doing().catch((error) => { fault.textContent = `${error.message.replace(/\.$/, "")}.`; });
    busy = false;
  };
  // Read the whole text again.
  const compute = () => inTurn(readAnew);
  const draw = ({ logits }) => {
    const p = drawnFrom(logits.at(-1), state.temperature, state.topP);
    let left = Math.random();
    return [...p.keys()].find((id) => (left -= p[id]) < 0) ?? best(p, 1)[0];
  };
  // Append one token. An engine in the page has a cache, so it reads only this token.
  const longer = async (pass, token) => {
    const { encoder, decoder } = pass.tokens;
    if (now.engine.asks) return readTokens(now, encoder, pass.off, [...decoder, token]);
    now.engine.read(pass, [token]);
    return pass;
  };
  // Draw the next token. Return whether there was one.
  const write = async () => {
    if (!now || translates() || now.pass.tokens.decoder.length >= now.config.context) return false;
    const token = draw(now.pass.seen);
    if (token === now.words.stop) {
      say("The story has ended: the next token is the separator between two stories.");
      return false;
    }
    const { pass, plain, swapped } = now, grown = new Map();
    for (const one of new Set([pass, plain, swapped])) if (one) grown.set(one, await longer(one, token));
    Object.assign(now, { pass: grown.get(pass), plain: grown.get(plain), swapped: grown.get(swapped) ?? null, carried: null, without: null });
    Object.assign(state, { at: -1, text: now.pass.text ?? now.words.decode(now.pass.tokens.decoder) });
    input.value = state.text;
    show();
    return true;
  };
  const writeMany = async (count) => {
    for (let i = 0; i < count && !next && (await write()); i++) await new Promise((drawn) => setTimeout(drawn, 60));
  };

  const say = (text) => { sentence.textContent = text; };
  const replaced = (parent) => { parent.replaceChildren(); return parent; };
  const section = (name, title, text, change) => {
    const part = html(parts, "section", { class: "ex-part", id: `ex-${name}` });
    html(part, "h2", { class: "ex-title" }, title);
    const about = html(part, "p", { class: "ex-about" }, text);
    if (change) html(about, "span", { class: "ex-change" }, ` ${change}`);
    return html(part, "div", { class: `ex-${name}` });
  };
  const table = (parent, caption, heads) => {
    const made = html(html(parent, "div", { class: "ex-scrolls", tabindex: 0, role: "region", "aria-label": caption }), "table");
    html(made, "caption", {}, caption);
    const row = html(html(made, "thead"), "tr");
    for (const head of heads) html(row, "th", { scope: "col", colspan: head in BARS ? 2 : 1 }, head);
    return html(made, "tbody");
  };
  const rowOf = (rows, head, cells) => {
    const row = html(rows, "tr");
    html(row, "th", { scope: "row" }, head);
    for (const cell of cells) html(row, "td", {}, cell);
    return row;
  };
  // A table of shares whose cells are darker for larger numbers, and orange below zero. Each row is [head, numbers].
  const shades = (parent, caption, heads, rows) => {
    const body = table(parent, caption, heads);
    for (const [head, values] of rows) {
      const cells = rowOf(body, head, values.map((x) => (x === null ? "…" : kit.fixed(100 * x, 0)))).querySelectorAll("td");
      cells.forEach((cell, i) => { if (values[i] !== null) cell.style.background = kit.tint(values[i]); });
    }
    body.parentElement.classList.add("ex-shades");
  };
  // Details behind a picture: created when opened, and still open after the picture is drawn again.
  const fold = (parent, key, title, make) => {
    const part = html(parent, "details", { class: "ex-fold" });
    html(part, "summary", { "data-key": `fold ${key}` }, title);
    part.addEventListener("toggle", () => {
      if (part.open && part.children.length === 1) make(part);
      opened[part.open ? "add" : "delete"](key);
    });
    if (opened.has(key)) part.open = true;
  };
  // Numbers as cells on a canvas; `colour(x)` returns the name of one of the page's colours and its opacity.
  const paint = (canvas, rows, columns, cell, colour) => {
    const pen = canvas.getContext("2d"), style = getComputedStyle(box), size = Math.round(cell * devicePixelRatio);
    Object.assign(canvas, { width: columns * size, height: rows.length * size });
    canvas.style.aspectRatio = `${columns} / ${rows.length}`;
    rows.forEach((row, y) => row.forEach((x, i) => {
      const [name, share] = colour(x);
      pen.fillStyle = style.getPropertyValue(`--${name}`);
      pen.globalAlpha = share;
      pen.fillRect(i * size, y * size, size, size);
    }));
  };
  // A vector as four lines of cells, deeper for numbers that are larger than the others.
  const strip = (parent, values) => {
    const wide = Math.ceil(values.length / 4), size = 3 * length(values) / Math.sqrt(values.length);
    const canvas = html(parent, "canvas", { class: "ex-strip", role: "img", "aria-label": `${values.length} numbers, from ${kit.fixed(Math.min(...values))} to ${kit.fixed(Math.max(...values))}` });
    paint(canvas, [0, 1, 2, 3].map((part) => values.subarray(part * wide, (part + 1) * wide)), wide, 6, (x) => [x < 0 ? "orange" : "blue", Math.min(1, Math.abs(x) / size)]);
  };
  const vectors = (parent, caption, rows) => {
    const body = table(parent, caption, ["number", ...rows.map(([title]) => title)]);
    for (let i = 0; i < rows[0][1].length; i++) rowOf(body, i, rows.map(([, values]) => kit.fixed(values[i], 3)));
  };

  const place = (stack = "decoder") => {
    const count = now.pass.tokens[stack].length, chosen = stack === "decoder" ? state.at : state.from;
    return chosen < 0 || chosen >= count ? count - 1 : chosen;
  };
  // A token in visible characters: spaces as dots, and an incomplete character as its id.
  const label = (id) => {
    const piece = now.words.piece(id);
    return piece === undefined || /[\p{Cc}\ufffd]/u.test(piece.replaceAll("\n", "")) ? `#${id}` : piece.replaceAll(" ", "·").replaceAll("\n", "↵");
  };
  const tokenAt = (stack, at) => label(now.pass.tokens[stack][at]);
  const choose = (stack, at) => { Object.assign(state, { stack, key: -1, [stack === "decoder" ? "at" : "from"]: at }); show(); };
  // Restore the focus after drawing.
  const keepingFocus = (draw) => {
    const key = document.activeElement?.dataset.key;
    draw();
    if (key) box.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
  };
  // In a row of buttons, Tab reaches one, and the arrow keys reach the others and other rows of heads.
  const arrows = (event) => {
    const from = document.activeElement, line = from.parentElement, own = [...line.children].indexOf(from);
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step || !line.matches(".ex-tokens, .ex-heads")) return;
    const rows = [...line.parentElement.children], next = rows[rows.indexOf(line) + step[0]]?.children[own + step[1]];
    if (!next?.dataset.key) return;
    next.focus();
    next.click();
    event.preventDefault();
  };
  // The tokens as buttons.
  const showTokens = () => {
    const chosen = headOf(state.head);
    replaced(tokensBox);
    for (const kind of translates() ? ["encoder", "decoder"] : ["decoder"]) {
      const line = html(tokensBox, "div", { class: "ex-tokens", role: "group", "aria-label": kind === "encoder" ? "tokens of the source" : "tokens" });
      now.pass.tokens[kind].forEach((id, i) => {
        const other = state.swap?.stack === kind && state.swap.at === i;
        const chip = html(line, "button", { type: "button", "data-key": `${kind} ${i}`, class: other ? "ex-other" : "", tabindex: i === place(kind) ? 0 : -1, "aria-pressed": kind === (chosen?.stack ?? "decoder") && i === place(kind) }, label(id));
        chip.dataset.title = `position ${i}, token ${id}${other ? `, swapped for ${label(state.swap.token)}` : ""}`;
        chip.addEventListener("click", () => choose(kind, i));
      });
    }
    shadeTokens(chosen);
  };
  // Shade each token by the weight that a head gives it.
  const shadeTokens = (head) => {
    const weights = head ? weightsOf(head, place(head.stack)) : [];
    for (const chip of tokensBox.querySelectorAll("button")) {
      const [kind, i] = chip.dataset.key.split(" "), share = kind === head?.keys ? weights[i] ?? 0 : 0;
      chip.style.setProperty("--share", `${Math.round(share * 50)}%`);
      chip.title = `${chip.dataset.title}${share ? `, weight ${percent(share)}` : ""}`;
    }
    shaded.textContent = head ? `The darker a token, the larger the weight that head ${nameOf(head)} gives it from “${tokenAt(head.stack, place(head.stack))}”.` : "";
  };

  const attentions = () => Object.keys(now.pass.seen).filter((name) => name.endsWith(".weights") && !name.includes("feed_forward")).map((name) => name.slice(0, -8));
  const titleOf = (name) => {
    const [stack, , layer, kind] = name.split("."), where = `layer ${layer}`;
    return kind === "cross" ? `${where}, at the source` : stack === "encoder" ? `${where} of the encoder` : where;
  };
  // The name of a head in the lessons: 2.1 is head 1 of layer 2.
  const nameOf = ({ name, head }) => {
    const [stack, , layer, kind] = name.split(".");
    return `${layer}.${head}${kind === "cross" ? " at the source" : stack === "encoder" ? " of the encoder" : ""}`;
  };
  // The head with the name "decoder.blocks.0.attention:2", with the stacks of its queries and keys. Without a head of
  // that name, the first head, or none if the model has none.
  const headOf = (text, otherwise = true) => {
    const names = attentions(), [name, head] = text.split(":"), there = names.includes(name) && head < now.engine.heads;
    const found = there ? name : otherwise ? names.find((one) => one.startsWith("decoder")) : undefined;
    if (found === undefined) return null;
    const stack = found.split(".")[0];
    return { name: found, head: there ? Number(head) : 0, stack, keys: found.includes("cross") ? "encoder" : stack };
  };
  const weightsOf = ({ name, head }, query, part = "weights") => {
    const row = now.pass.seen[`${name}.${part}`][query], keys = row.length / now.engine.heads;
    return row.slice(head * keys, (head + 1) * keys);
  };

  const showNext = () => {
    const at = place(), logits = now.pass.seen.logits[at], p = drawnFrom(logits, state.temperature, state.topP);
    const plain = softmax(logits.map((z) => z / state.temperature));
    const beside = [["nothing off", now.plain !== now.pass && now.plain], ["with the swap", now.swapped]].filter(([, pass]) => pass)
      .map(([title, pass]) => [title, drawnFrom(pass.seen.logits[at], state.temperature, state.topP)]);
    const rows = table(replaced(nextBox), `Next token after “${tokenAt("decoder", at)}”`, ["token", "probability", "logit", ...beside.map(([title]) => title)]);
    for (const token of best(plain, LIKELIEST)) {
      const row = html(rows, "tr", p[token] ? {} : { class: "ex-cut" });
      html(row, "th", { scope: "row" }, label(token));
      const bar = html(html(row, "td", { class: "ex-bar" }), "span", { style: `--share:${100 * (p[token] || plain[token])}%` });
      for (const [, other] of beside) html(bar.parentElement, "i", { style: `--share:${100 * other[token]}%` });
      for (const cell of [p[token] ? percent(p[token]) : "cut off", kit.fixed(logits[token], 1), ...beside.map(([, other]) => percent(other[token]))]) html(row, "td", {}, cell);
    }
  };

  // The stream of a token, layer by layer, with the predictions of the last norm and the table.
  const states = (stack) => [["embedding", `${stack}.embedding`], ...Array.from({ length: now.engine.layers }, (_, i) => [`after layer ${i}`, `${stack}.blocks.${i}`])];
  const showStream = () => {
    const at = place(), caption = `The stream at “${tokenAt("decoder", at)}”`;
    const rows = table(replaced(streamBox), caption, ["state", "components", "length", "prediction from here"]);
    for (const [title, name] of states("decoder")) {
      const values = now.pass.seen[name][at], row = html(rows, "tr");
      html(row, "th", { scope: "row" }, title);
      strip(html(row, "td"), values);
      html(row, "td", {}, kit.fixed(length(values), 1));
      html(row, "td", { class: "ex-says" }, now.engine.lens(now.pass, name, at, LENS).map(([token, p]) => `${label(token)} ${percent(p)}`).join(", "));
    }
    fold(streamBox, "stream", "All components", (part) => vectors(part, caption, states("decoder").map(([title, name]) => [title, now.pass.seen[name][at]])));
  };

  const isOff = (name) => state.off.has(name);
  const switchOff = (name) => { if (!state.off.delete(name)) state.off.add(name); compute(); };
  const showHeads = () => {
    const chosen = headOf(state.head);
    replaced(headsBox);
    headsBox.parentElement.hidden = !chosen;
    if (!chosen) return;
    for (const name of attentions()) {
      const line = html(headsBox, "div", { class: "ex-heads", role: "group", "aria-label": `Heads of ${titleOf(name)}` });
      html(line, "span", {}, titleOf(name));
      for (let head = 0; head < now.engine.heads; head++) showMap(line, headOf(`${name}:${head}`), chosen);
    }
    showEach();
    showCards(chosen);
  };
  // The probability of the likeliest token when one more head is off: below each picture, and in a sentence. The likeliest
  // token is that of the pass without anything switched off.
  const showEach = () => {
    eachBox.hidden = Boolean(now.engine.fixed);
    each.setAttribute("aria-pressed", state.each);
    replaced(eachSays);
    if (!state.each || now.engine.fixed) return;
    const at = place(), was = softmax(now.pass.seen.logits[at]), [token] = best(now.plain.seen.logits[at], 1), names = attentions();
    if (now.without?.at !== at) now.without = { at, rows: names.map(() => Array(now.engine.heads).fill(null)) };
    const { rows } = now.without, shown = html(eachSays, "p", { role: "status" });
    const draw = () => {
      names.forEach((name, i) => rows[i].forEach((p, head) => {
        const says = headsBox.querySelector(`[data-key="${name}:${head}"] .ex-without`);
        says.textContent = p === null ? "…" : percent(p);
        says.style.background = p === null ? "" : kit.tint(p - was[token]);
      }));
      if (rows.flat().includes(null)) return;
      const [first, second] = names.flatMap((name, i) => rows[i].map((p, head) => ({ name, head, p }))).sort((a, b) => a.p - b.p), { stack, keys } = headOf(`${first.name}:${first.head}`);
      const weights = weightsOf(first, stack === "encoder" ? 0 : at), [most] = best(weights, 1);
      const looks = stack === "encoder" ? "" : `, which looks mostly at “${tokenAt(keys, most)}” (${most}; ${percent(weights[most])}),`;
      const missed = ({ p }) => p < was[token] - 0.005, others = missed(second) ? `Of the others, ${nameOf(second)} matters most: without it the probability is ${percent(second.p)}.` : "No other head matters.";
      const has = `“${label(token)}” has a probability of ${percent(was[token])} after “${tokenAt("decoder", at)}”${state.off.size ? `, with ${state.off.size} off` : ""}.`;
      shown.textContent = missed(first) ? `${has} Without head ${nameOf(first)}${looks} it has ${percent(first.p)}. ${others}` : `${has} No single head matters.`;
    };
    draw();
    const filled = { carried: rows, shown, draw };
    if (now.engine.asks) carryRows(filled, now.engine.without(now.pass, at, token));
    else carry(filled, (row, head) => softmax(now.engine.without(now.pass, names[row], head, at))[token]);
  };
  const mapOf = (canvas, head) => {
    const rows = now.pass.seen[`${head.name}.weights`].map((_, i) => [...weightsOf(head, i)]);
    paint(canvas, rows, Math.max(...rows.map((row) => row.length)), 4, (x) => ["blue", x]);
  };
  const showMap = (line, one, chosen) => {
    const { name, head } = one, key = `${name}:${head}`, off = isOff(`${name}.${head}`), on = chosen.name === name && chosen.head === head;
    const button = html(line, "button", { type: "button", "aria-pressed": on, "data-key": key, class: off ? "ex-off" : "", tabindex: on ? 0 : -1, "aria-label": `Head ${nameOf(one)}${off ? ", switched off" : ""}` });
    mapOf(html(button, "canvas", { "aria-hidden": true }), one);
    const under = html(button, "span", { class: "ex-under" });
    html(under, "span", {}, off ? "off" : `${name.split(".")[2]}.${head}`);
    if (state.each) html(under, "span", { class: "ex-without" });
    const look = (head) => { showCards(head); shadeTokens(head); };
    button.addEventListener("click", () => { state.head = key; show(); });
    button.addEventListener("mouseenter", () => look(one));
    button.addEventListener("mouseleave", () => look(headOf(state.head)));
  };
  const showCards = (chosen) => {
    const beside = headOf(state.beside, false);
    replaced(cardsBox).className = beside ? "ex-cards ex-two" : "ex-cards";
    showCard(html(cardsBox, "div", { class: "ex-card" }), chosen, beside, false);
    if (beside) showCard(html(cardsBox, "div", { class: "ex-card" }), beside, beside, true);
  };
  // One head at the chosen token: its weights, and the scores behind them.
  const showCard = (card, one, beside, second) => {
    const { name, head, stack, keys } = one, at = place(stack), weights = weightsOf(one, at), scores = weightsOf(one, at, "scores"), id = `${name}:${head}`;
    const line = html(card, "div", { class: "ext-row" }), button = (key, text, act, on) => html(line, "button", { type: "button", "data-key": `${key} ${second}`, ...(on === undefined ? {} : { "aria-pressed": on }) }, text).addEventListener("click", act);
    const off = isOff(`${name}.${head}`);
    if (!now.engine.fixed) button("off", off ? "This head is off: switch it on" : "Switch this head off", () => switchOff(`${name}.${head}`), off);
    if (second) button("beside", "Remove", () => { state.beside = ""; show(); });
    else if (!beside) button("beside", "Compare with another head", () => { state.beside = id; show(); });
    const rows = table(card, `Head ${nameOf(one)}: from “${tokenAt(stack, at)}” to`, ["token", "weight", "score"]);
    for (const key of best(weights, LIKELIEST).filter((key) => weights[key])) { // a window leaves some out
      const row = html(rows, "tr"), title = `${tokenAt(keys, key)} (${key})`;
      const button = html(html(row, "th", { scope: "row" }), "button", { type: "button", "data-key": `key ${second} ${key}`, "aria-pressed": key === state.key, "aria-label": `${title}: show the sum` }, title);
      button.addEventListener("click", () => { state.key = key === state.key ? -1 : key; show(); });
      html(html(row, "td", { class: "ex-bar" }), "span", { style: `--share:${100 * weights[key]}%` });
      html(row, "td", {}, percent(weights[key]));
      html(row, "td", {}, kit.fixed(scores[key]));
    }
    if (state.key >= 0 && state.key < weights.length) pencil(card, one, at, state.key);
    fold(card, `head ${second}`, "All weights, in %", (part) => shades(part, `Head ${nameOf(one)}: one row per query`, ["", ...now.pass.tokens[keys].map(label)],
      now.pass.tokens[stack].map((token, i) => [label(token), [...weightsOf(one, i)]])));
  };
  // The sum behind one score, as computed with a pencil.
  const pencil = (card, one, at, key) => {
    const { name, head, stack, keys } = one, { heads } = now.engine, rowsOf = (part) => now.pass.seen[`${name}.turned_${part}`] ?? now.pass.seen[`${name}.${part}`];
    const query = rowsOf("query")[at], wide = query.length / heads, row = rowsOf("key")[key], kv = Math.floor((head * row.length) / wide / heads);
    const q = query.subarray(head * wide, (head + 1) * wide), k = row.subarray(kv * wide, (kv + 1) * wide);
    const turned = `${name}.turned_query` in now.pass.seen ? ", both rotated by their positions" : "";
    const body = table(card, `q of “${tokenAt(stack, at)}” times k of “${tokenAt(keys, key)}”${turned}`, ["i", "q", "k", "q k"]);
    let total = 0;
    for (let i = 0; i < wide; i++) { total += q[i] * k[i]; rowOf(body, i, [kit.fixed(q[i], 3), kit.fixed(k[i], 3), kit.fixed(q[i] * k[i], 3)]); }
    rowOf(body, "sum", ["", "", kit.fixed(total, 3)]);
    const score = weightsOf(one, at, "scores")[key], says = now.engine.fixed ? "the score" : `divided by √${wide} = ${kit.fixed(Math.sqrt(wide), 3)}`;
    html(card, "p", {}, `The sum is ${kit.fixed(total, 3)}; ${says}: ${kit.fixed(score, 3)}. The softmax over all scores gives this one a weight of ${percent(weightsOf(one, at)[key])}.`);
  };

  const showGate = () => {
    const at = place(), nameOf = (layer) => `decoder.blocks.${layer}.feed_forward`, there = Array.from({ length: now.engine.layers }, (_, i) => i).filter((i) => now.pass.seen[`${nameOf(i)}.hidden`]);
    gateBox.parentElement.hidden = !there.length;
    if (!there.length) return;
    const caption = `The networks at “${tokenAt("decoder", at)}”`, rows = table(replaced(gateBox), caption, ["layer", "hidden units", "open", "largest"]);
    for (const layer of there) {
      const [hidden, gate, inner] = ["hidden", "gate", "inner"].map((part) => now.pass.seen[`${nameOf(layer)}.${part}`]?.[at]), row = html(rows, "tr");
      const [most] = best(hidden.map(Math.abs), 1), doors = gate ?? hidden;
      html(row, "th", { scope: "row" }, layer);
      strip(html(row, "td"), hidden);
      html(row, "td", {}, `${doors.reduce((count, x) => count + (x > 0), 0)} of ${doors.length}`);
      html(row, "td", {}, `no. ${most}: ${gate && inner ? `${kit.fixed(silu(gate[most]))} × ${kit.fixed(inner[most])} = ` : ""}${kit.fixed(hidden[most])}`);
    }
    fold(gateBox, "gate", "All hidden units", (part) => vectors(part, caption, there.map((layer) => [`layer ${layer}`, now.pass.seen[`${nameOf(layer)}.hidden`][at]])));
  };

  const showExperts = () => {
    const nameOf = (layer) => `decoder.blocks.${layer}.feed_forward`, there = Array.from({ length: now.engine.layers }, (_, i) => i).filter((i) => now.pass.seen[`${nameOf(i)}.experts`]);
    expertsBox.parentElement.hidden = !there.length;
    if (!there.length) return;
    const at = place(), rows = table(replaced(expertsBox), `Experts chosen for “${tokenAt("decoder", at)}”, with their weights in %`, ["layer", ...Array.from({ length: now.engine.experts }, (_, i) => i)]);
    for (const layer of there) {
      const name = nameOf(layer), row = html(rows, "tr"), chosen = [...now.pass.seen[`${name}.experts`][at]];
      html(row, "th", { scope: "row" }, layer);
      for (let expert = 0; expert < now.engine.experts; expert++) {
        const share = now.pass.seen[`${name}.weights`][at][chosen.indexOf(expert)] ?? 0, off = isOff(`${name}.${expert}`), says = off ? "off" : share ? (100 * share).toFixed(0) : "–";
        const button = html(html(row, "td"), "button", { type: "button", "data-key": `${name}.${expert}`, "aria-pressed": off, class: off ? "ex-off" : "", style: `--share:${Math.round(share * 50)}%`, "aria-label": `Expert ${expert} of layer ${layer}, ${off ? "switched off" : share ? percent(share) : "not chosen"}` }, says);
        button.disabled = Boolean(now.engine.fixed);
        button.addEventListener("click", () => switchOff(`${name}.${expert}`));
      }
    }
  };

  // Swap one token: how the states change, and which of the changes decide the prediction.
  const showSwap = () => {
    swapBox.parentElement.hidden = Boolean(now.engine.fixed);
    if (now.engine.fixed) return;
    const stack = translates() ? state.stack : "decoder", at = place(stack), old = now.pass.tokens[stack][at];
    const line = html(replaced(swapBox), "form", { class: "ext-row" });
    html(line, "span", {}, `Replace “${label(old)}” by`);
    const swap = (token) => { state.swap = { stack, at, token }; compute(); };
    const likely = stack === "decoder" && at ? best(now.pass.seen.logits[at - 1], OTHERS + 1).filter((token) => token !== old).slice(0, OTHERS) : [];
    for (const token of likely) html(line, "button", { type: "button", "data-key": `swap ${token}` }, label(token)).addEventListener("click", () => swap(token));
    const other = html(line, "input", { "aria-label": "another token", placeholder: "another", size: 10, "data-key": "swap" });
    html(line, "button", { "data-key": "swap in" }, "Swap");
    line.addEventListener("submit", (event) => {
      event.preventDefault();
      const token = now.words.token(other.value, old);
      if (token !== undefined) swap(token);
      else html(swapBox, "p", { class: "ex-fault", role: "alert" }, `“${other.value}” is not a single token of this model.`);
    });
    if (now.swapped) showSwapped(now, swapBox);
  };
  const showSwapped = ({ pass, swapped, engine }, parent) => {
    const { stack, at, token } = state.swap, end = stack === "decoder" && place() <= at ? pass.tokens.decoder.length - 1 : place();
    const [was, is] = [pass, swapped].map((one) => one.seen.logits[end]), [p, q] = [was, is].map(softmax);
    const [[a], [b]] = [p.map((x, i) => x - q[i]), q.map((x, i) => x - p[i])].map((gain) => best(gain, 1)), [[x], [y]] = [p, q].map((chances) => best(chances, 1));
    const told = html(parent, "p", { role: "status" }, `Token ${at} is now “${label(token)}” instead of “${tokenAt(stack, at)}”. After “${tokenAt("decoder", end)}” (${end}) the likeliest token was “${label(x)}” (${percent(p[x])}), and now it is “${label(y)}” (${percent(q[y])}). “${label(a)}” loses the most, from ${percent(p[a])} to ${percent(q[a])}; “${label(b)}” gains the most, from ${percent(p[b])} to ${percent(q[b])}. `);
    html(told, "button", { type: "button", class: "ex-back", "data-key": "back" }, "Undo the swap").addEventListener("click", () => { state.swap = null; compute(); });
    for (const kind of stack === "encoder" ? ["encoder", "decoder"] : ["decoder"]) {
      const from = kind === stack && kind === "decoder" ? at : 0, there = pass.tokens[kind].slice(from);
      const moved = (name) => there.map((_, i) => { const [x, y] = [pass, swapped].map((one) => one.seen[name][from + i]); return Math.min(1, length(x.map((value, j) => value - y[j])) / length(x)); });
      shades(parent, `Change of the stream${kind === "encoder" ? " of the encoder" : ""}, in % of its length (100 means at least 100)`, ["state", ...there.map(label)], states(kind).map(([title, name]) => [title, moved(name)]));
    }
    const from = stack === "decoder" ? at : 0, columns = pass.tokens.decoder.slice(from, end + 1);
    const margin = (logits) => logits[a] - logits[b], whole = margin(is) - margin(was);
    if (now.carried?.end !== end) now.carried = { end, rows: states("decoder").map(() => columns.map(() => null)) };
    const carried = now.carried.rows, shown = html(parent, "div");
    const draw = () => shades(replaced(shown), `Effect of copying one state of the swapped text into the text, in % of the whole change. The logit of “${label(a)}” minus that of “${label(b)}” changes from ${kit.fixed(margin(was))} to ${kit.fixed(margin(is))}`, ["state", ...columns.map(label)], states("decoder").map(([title], i) => [title, carried[i]]));
    draw();
    if (engine.asks) {
      const share = ([x, y]) => (x - y - margin(was)) / whole;
      carryRows({ carried, shown, draw }, engine.carried(pass, swapped, from, end, [a, b]), share);
      return;
    }
    carry({ carried, shown, draw }, (layer, column) => (margin(engine.patched(pass, layer, from + column, swapped.seen[states("decoder")[layer][1]][from + column], end)) - margin(was)) / whole);
  };
  // Compute the missing cells, a few at a time, and draw in between.
  const carry = ({ carried, shown, draw }, cell) => {
    const left = carried.flatMap((row, layer) => row.flatMap((x, column) => (x === null ? [[layer, column]] : [])));
    if (!left.length) return;
    const step = () => {
      if (!shown.isConnected) return;
      const [[row]] = left;
      for (const began = performance.now(); left.length && performance.now() - began < AT_ONCE;) {
        const [layer, column] = left.shift();
        carried[layer][column] = cell(layer, column);
      }
      if (left[0]?.[0] !== row) draw();
      if (left.length) requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  };

  // The same with rows that Python computes, which arrive one by one until the picture changes.
  const carryRows = async ({ carried, shown, draw }, rows, of = (x) => x) => {
    if (!carried.flat().includes(null)) return;
    let row = 0;
    try {
      for await (const values of rows) {
        if (!shown.isConnected) return;
        carried[row++] = values.map(of);
        draw();
      }
    } catch (error) {
      fault.textContent = `${error.message.replace(/\.$/, "")}.`;
    }
  };

  const showCache = () => {
    const kept = Object.entries(now.pass.kept).filter(([name]) => name.startsWith("decoder"));
    cacheBox.parentElement.hidden = !kept.length;
    if (!kept.length) return;
    const numbers = kept.reduce((total, [, { keys, values }]) => total + [...keys, ...values].reduce((sum, row) => sum + row.length, 0), 0);
    const tall = kept.flatMap(([name, { keys, values }]) => [[`${titleOf(name)}, keys`, keys], [`${titleOf(name)}, values`, values]]).filter(([, rows]) => rows[0].length);
    const wide = Math.max(...tall.map(([, rows]) => rows.length)), own = kept.filter(([name]) => !name.includes("cross")), { length: tokens } = now.pass.tokens.decoder;
    const canvas = html(replaced(cacheBox), "canvas", { class: "ex-kept", role: "img", "aria-label": `Keys and values of every layer, a column for each of ${wide} tokens` });
    paint(canvas, tall.map(([, rows]) => Array.from({ length: wide }, (_, i) => (rows[i] ? Math.min(1, length(rows[i]) / (2 * Math.sqrt(rows[i].length))) : 0))), wide, 8, (x) => ["green", x]);
    canvas.style.width = `min(100%, ${wide * 12}px)`;
    const each = own.reduce((total, [, { keys, values }]) => total + keys[0].length + values[0].length, 0);
    html(cacheBox, "p", {}, `${tokens} tokens: ${numbers.toLocaleString("en")} numbers are cached, ${(numbers * 4 / 1024).toFixed(0)} KiB in single precision. Each new token reads them all and adds a column of ${each.toLocaleString("en")}.`);
    fold(cacheBox, "cache", "Length of each vector", (part) => {
      const rows = table(part, "Lengths of keys and values, all heads together", ["", ...Array.from({ length: wide }, (_, i) => i)]);
      for (const [title, kept] of tall) rowOf(rows, title, kept.map((row) => kit.fixed(length(row), 1)));
    });
  };

  // Tab stops only at tables that scroll.
  const reached = () => {
    for (const frame of box.querySelectorAll(".ex-scrolls")) frame.tabIndex = frame.scrollWidth > frame.clientWidth || frame.scrollHeight > frame.clientHeight ? 0 : -1;
  };
  const show = () => {
    keepingFocus(() => [showTokens, showNext, showHeads, showGate, showStream, showExperts, showSwap, showCache].forEach((draw) => draw()));
    buttons.hidden = Boolean(now.engine.fixed) || translates();
    box.classList.toggle("ex-fixed", Boolean(now.engine.fixed));
    const chances = softmax(now.pass.seen.logits[place()]), [likeliest] = best(chances, 1), off = state.off.size, fixed = now.engine.fixed ? " Python computed these numbers, for this text only." : now.engine.asks ? " Python computes." : "";
    say(`${now.pass.tokens.decoder.length} tokens. After “${tokenAt("decoder", place())}” the likeliest is “${label(likeliest)}”, with a probability of ${percent(chances[likeliest])}${off ? `, with ${off} switched off` : ""}.${fixed}`);
    input.readOnly = Boolean(now.engine.fixed);
    reached();
    keepLink();
    document.getElementById(`ex-${shows}`)?.scrollIntoView();
    shows = null;
  };

  // The elements of the page.
  if (models.length > 1) {
    kit.choice("Model", models.map(({ title }) => title), models.indexOf(state.model), (at) => {
      const same = models[at].label === state.model.label;
      Object.assign(state, { model: models[at], at: -1, from: 0, key: -1, head: "", beside: "", stack: "decoder", off: new Set(), swap: null, text: same ? state.text : models[at].text });
      caption.textContent = state.model.label;
      input.value = state.text;
      compute();
    });
  }
  const field = html(box, "label", { class: "ex-field" }), caption = html(field, "span", {}, state.model.label);
  const input = html(field, "textarea", { rows: 2, spellcheck: false });
  input.value = state.text;
  let waiting = 0; // a long text is read when the typing pauses
  input.addEventListener("input", () => {
    Object.assign(state, { text: input.value, at: -1, key: -1, swap: null });
    clearTimeout(waiting);
    waiting = setTimeout(compute, input.value.length > 200 || now?.engine.asks ? 250 : 0);
  });
  const fault = html(box, "p", { class: "ex-fault", role: "alert" });
  kit.nextRow();
  const buttons = box.lastElementChild;
  buttons.classList.add("ex-write");
  kit.button("Write a token", () => inTurn(write));
  kit.button("Write twenty", () => inTurn(() => writeMany(20)));
  const tokensBox = html(box, "div", { class: "ex-line" });
  box.addEventListener("keydown", arrows);
  const sentence = html(box, "p", { class: "ext-say", role: "status" });
  const legend = html(box, "p", { class: "ex-about" }, "Click a token or select it with the arrow keys; everything below is about this token. A dot is a space, and ⏎ begins a text. Layers, heads and positions are counted from 0. ");
  const shaded = html(legend, "span");
  const parts = html(box, "div", { class: "ex-parts" });
  const nextBox = section("next", "The next token", "The softmax of the chosen token's logits. Tokens that top-p cuts off are never generated.");
  kit.nextRow();
  const handles = box.lastElementChild;
  nextBox.before(handles);
  const temperatures = Array.from({ length: 20 }, (_, i) => (i + 1) / 10), shares = Array.from({ length: 20 }, (_, i) => (i + 1) / 20);
  for (const [title, key, values, digits] of [["Temperature", "temperature", temperatures, 1], ["top-p", "topP", shares, 2]]) {
    kit.handle(title, values, values.includes(state[key]) ? state[key] : (state[key] = 1), (x) => x.toFixed(digits), (x) => { state[key] = x; if (now) { showNext(); keepLink(); } });
  }
  const headsBox = section("attention", "Attention", "There is a picture for each head, with a row for each query and a column for each key. Head 2.1 is head 1 of layer 2. Point at a head to read its weights, and click to select it. A click on a token in the table shows how the score is computed.");
  const eachBox = html(headsBox.parentElement, "div", { class: "ext-row ex-change" });
  headsBox.before(eachBox);
  const each = html(eachBox, "button", { type: "button", "data-key": "each" }, "Switch off each head in turn");
  html(eachBox, "span", {}, "Which heads does the next token need?");
  each.addEventListener("click", () => { state.each = !state.each; show(); });
  const eachSays = html(headsBox.parentElement, "div", { class: "ex-each" });
  const cardsBox = html(headsBox.parentElement, "div");
  const gateBox = section("gate", "The gates", "In each layer, the network computes many hidden units from the chosen token's state, and multiplies each by its gate. “Open” counts the gates above zero.");
  const streamBox = section("stream", "The stream, layer by layer", "The chosen token's state after each layer, and what the model would predict if it ended there (the logit lens).");
  const expertsBox = section("experts", "Experts", "The weight of each expert in the output.", "A click switches an expert off, and the router takes the next best one.");
  const swapBox = section("swap", "Swap a token", "Click a token above, such as a name, and replace it here. The first table shows how much each state changes. For the second table, one state at a time is copied from the swapped text into yours (patching); a large number means that this state carries the information that decides the prediction. Click a later token to see what decides there.");
  const cacheBox = section("cache", "The cache", "The keys and values that later tokens read. Each token has a column, and each layer has a row of keys and a row of values. Longer vectors are greener.");
  compute();
  const again = () => now && show();
  addEventListener("resize", reached);
  new MutationObserver(again).observe(document.body, { attributeFilter: ["data-theme", "data-jp-theme-light"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
};
