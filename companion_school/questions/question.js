// Interactive questions for mouse, keyboard and screen reader, without a kernel, a network or a library.
// Answers are stored in this browser and, if there is a kernel, in the reader's progress. From there they are restored
// after a restart, in another browser, or if the lab has another port (see asking.py).
const keep = {
  read(key) { try { return JSON.parse(localStorage.getItem("ext:" + key)) } catch { return null } },
  write(key, value) { try { localStorage.setItem("ext:" + key, JSON.stringify(value)) } catch { /* private window */ } },
};
// Numbers as people write them. numbers.py reads them in the same way, and a test compares the two.
const FUNCTIONS = { sqrt: Math.sqrt, ln: Math.log, log: Math.log, log2: Math.log2, log10: Math.log10, exp: Math.exp, sin: Math.sin, cos: Math.cos };
const number = (text) => {
  let t = text.trim().toLowerCase();
  if (t.length > 60) return NaN;
  if (t.endsWith("%")) return number(t.slice(0, -1)) / 100;
  const signs = { "\u2212": "-", "\u00b7": "*", "\u00d7": "*", "\u00f7": "/", "\u221a": " sqrt ", "\u03c0": " pi ", _: "" };
  t = t.replace(/[\u2212\u00b7\u00d7\u00f7\u221a\u03c0_]/g, (sign) => signs[sign]).replaceAll("**", "^").replace(/(\d)\s+(?=\d)/g, "$1");
  t = t.replace(/(^|[^\d.,])(\d{1,3}(?:,\d{3})+)(?![\d,])/g, (_, before, found) => before + found.replace(/,/g, "")).replace(/,/g, ".");
  const tokens = t.match(/(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|[a-z]+\d*|\S/g) ?? [], finite = (x) => (Number.isFinite(x) ? x : NaN);
  let at = 0;
  const next = (sign) => tokens[at] === sign && (at += 1) > 0;
  const plain = () => { const token = tokens[at++] ?? ""; return { e: Math.E, pi: Math.PI }[token] ?? (/^[.\d]/.test(token) ? Number(token) : NaN) };
  const inside = () => { const x = sum(); return next(")") ? x : NaN };
  const atom = () => {
    if (next("(")) return inside();
    if (!Object.hasOwn(FUNCTIONS, tokens[at] ?? "")) return plain();
    const of = FUNCTIONS[tokens[at++]];
    return finite(of(next("(") ? inside() : plain()));
  };
  const power = () => { const x = atom(); return next("^") ? finite(x ** signed()) : x };
  const signed = () => (next("-") ? -signed() : next("+") ? signed() : power());
  const product = () => {
    let x = signed();
    for (;;) if (next("*")) x *= signed(); else if (next("/")) { const by = signed(); x = by ? x / by : NaN } else return x;
  };
  const sum = () => { let x = product(); for (;;) if (next("+")) x += product(); else if (next("-")) x -= product(); else return x };
  const found = sum();
  return at === tokens.length ? finite(found) : NaN;
};
const LETTERS = "abcdefghijklmnopqrstuvwxyz";
const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};
// The copy of a link lacks JupyterLab's listener, so a click on the copy clicks the original.
const copied = (node) => {
  const copy = node.cloneNode(true), all = (one) => (one.querySelectorAll ? [...one.querySelectorAll("a"), ...(one.matches("a") ? [one] : [])] : []);
  const links = all(node);
  all(copy).forEach((link, at) => link.addEventListener("click", (event) => {
    if (event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    links[at].click();
  }));
  return copy;
};
// `make lab` exposes JupyterLab to the page; elsewhere the answers stay in the browser.
const contextOf = (question) =>
  [...(window.jupyterapp?.shell?.widgets?.("main") ?? [])].find((w) => w.node.contains(question))?.sessionContext;
const hand = async (question, given, own) => {
  const kernel = contextOf(question)?.session?.kernel;
  if (!kernel || kernel.status === "dead") return false;
  const call = [question.dataset.question, given].map((text) => JSON.stringify(text)).join(", ");
  const judged = own === undefined ? "" : `, as_expected=${own ? "True" : "False"}`;
  const code = `from companion_school.questions.asking import keep as _keep; _keep(${call}${judged})`;
  try {
    const reply = await kernel.requestExecute({ code, silent: true, store_history: false, stop_on_error: false }).done;
    return reply.content.status === "ok";
  } catch { return false }
};
// The latest answers in the reader's progress, requested from a kernel once for all questions of its notebook.
const handed = (window.extHanded ??= new Map());
const ask = async (kernel) => {
  const answers = "__import__('companion_school.questions.asking', fromlist=['given']).given()";
  try {
    const content = { code: "", silent: true, store_history: false, user_expressions: { answers } };
    const reply = await kernel.requestExecute(content).done;
    return reply.content.user_expressions.answers.data["application/json"];
  } catch { return {} }
};
const handedBack = async (question) => {
  const context = contextOf(question);
  await context?.ready;
  const kernel = context?.session?.kernel;
  if (!kernel) return null;
  if (!handed.has(kernel.id)) handed.set(kernel.id, ask(kernel));
  const found = (await handed.get(kernel.id))?.[question.dataset.lesson + "/" + question.dataset.name];
  return found ? { given: found[0], own: found[1] ?? undefined, kept: true } : null;
};
const alive = (question) => {
  const { kind, name, lesson } = question.dataset, key = lesson + "/" + name;
  const before = "anew" in question.dataset ? null : keep.read(key); // a review does not show the earlier answer
  const answers = [...question.querySelectorAll(".ext-answers > li")];
  const form = make("form", { class: "ext-form" }), said = make("div", { role: "status", class: "ext-said" });
  const button = make("button", { type: "submit" }, kind === "predict" ? "Save my prediction" : "Answer");
  const field = make("fieldset"), legend = make("legend");
  legend.append(...question.querySelector(".ext-ask").childNodes);
  field.append(legend);
  const where = make("small", { class: "ext-kept" });
  said.append(where);
  const show = (right, head, nodes) => {
    question.dataset.answered = right === null ? "own" : right ? "right" : "wrong";
    said.replaceChildren(make("strong", {}, head), " ", ...nodes.map(copied), where);
  };
  const settle = async (given, own) => {
    const kept = await hand(question, given, own);
    keep.write(key, { given, own, kept });
    where.textContent = kept ? " Saved in your progress." : " Saved in this browser.";
  };
  const reason = (item) => [...item.querySelector(".ext-why").childNodes];
  // After two wrong answers: a hint, and a button that shows the answer and its reason.
  const right = answers.find((item) => item.hasAttribute("data-right")), wrong = [];
  const letter = (item) => LETTERS[answers.indexOf(item)];
  const hint = () => {
    if (kind === "choice") {
      const left = answers.filter((item) => item === right || !wrong.includes(letter(item))), other = left.find((item) => item !== right);
      return left.length > 2 ? `It is ${[letter(right), letter(other)].sort().join(" or ")}.` : "";
    }
    const value = Number(right.dataset.value), size = Math.abs(value);
    if (!value) return "It is close to 0.";
    const step = 10 ** Math.floor(Math.log10(size / 2)), ends = [Math.floor((0.7 * size) / step) * step, Math.ceil((1.4 * size) / step) * step];
    const said = (value > 0 ? ends : ends.reverse().map((end) => -end)).map((end) => String(Number(end.toPrecision(6))).replace("-", "\u2212"));
    return `It lies between ${said.join(" and ")}.`;
  };
  const wayOut = () => {
    const more = hint(), row = make("p", { class: "ext-out" }), show = make("button", { type: "button" }, "Show the answer");
    if (more) row.append(make("strong", {}, "A hint."), ` ${more} `);
    show.addEventListener("click", () => {
      const words = right.querySelector("summary").cloneNode(true);
      if (kind === "number") words.textContent = words.textContent.replace(/\?$/, "");
      const answer = make("p", { class: "ext-out", tabindex: "-1" }, make("strong", {}, "The answer:"), " ", ...(kind === "choice" ? [`${letter(right)}. `] : []));
      answer.append(...words.childNodes, ". ", ...reason(right).map(copied));
      row.replaceWith(answer);
      answer.focus();
    });
    row.append(show);
    said.append(row);
  };
  let judge, fill;
  if (kind === "choice") {
    const list = make("ol", { type: "a", class: "ext-choices" }), group = "q" + Math.random().toString(36).slice(2);
    answers.forEach((item, at) => {
      const radio = make("input", { type: "radio", name: group, value: LETTERS[at] });
      if (item.dataset.words) radio.setAttribute("aria-label", item.dataset.words);
      const label = make("label", {}, radio, " ");
      label.append(...item.querySelector("summary").childNodes);
      list.append(make("li", item.hasAttribute("data-right") ? { "data-right": "" } : {}, label));
    });
    field.append(list);
    judge = () => {
      const radio = list.querySelector("input:checked");
      if (!radio) return null;
      const item = answers[[...list.querySelectorAll("input")].indexOf(radio)], right = item.hasAttribute("data-right");
      return { given: radio.value, right, head: right ? "Yes." : "Not quite.", nodes: () => reason(item) };
    };
    fill = (given) => { const radio = list.querySelector(`input[value="${given}"]`); if (radio) radio.checked = true };
  } else if (kind === "number") {
    const input = make("input", { type: "text", inputmode: "decimal", size: "12", autocomplete: "off" });
    field.append(make("label", {}, "Your number: ", input));
    judge = () => {
      const value = number(input.value);
      if (!input.value.trim()) return null;
      if (Number.isNaN(value)) return { fault: "Enter a number, such as 0.25, 1/4 or e^2." };
      const near = (item) => Math.abs(value - number(item.dataset.value)) <=
        Math.max(parseFloat(item.dataset.tolerance), 1e-9 * Math.max(Math.abs(value), Math.abs(number(item.dataset.value))));
      const item = answers.find((a) => "value" in a.dataset && near(a)) ?? answers.find((a) => "otherwise" in a.dataset);
      const right = item?.hasAttribute("data-right") ?? false;
      return { given: input.value.trim(), right, head: right ? "Yes." : "Not that.", nodes: () => item ? reason(item) : [] };
    };
    fill = (given) => { input.value = given };
  } else {
    const text = make("textarea", { rows: "2", cols: "60" });
    field.append(make("label", {}, "What do you expect? ", text));
    judge = () => text.value.trim() ? { given: text.value.trim(), right: null, head: "What happens:", nodes: () => reason(answers[0]) } : null;
    fill = (given) => { text.value = given };
  }
  field.append(button);
  form.append(field, said);
  const expected = (own) => own ? " As you expected." : " Good to know.";
  const askWhether = (given) => {
    const row = make("span", { class: "ext-own", tabindex: "-1" }, " Did you expect that? ");
    for (const [word, own] of [["Yes", true], ["No", false]]) {
      const choice = make("button", { type: "button" }, word);
      choice.addEventListener("click", () => {
        row.focus(); // the button disappears; the focus stays here
        row.replaceChildren(expected(own));
        settle(given, own);
      });
      row.append(choice, " ");
    }
    said.append(row);
  };
  let formulas; // observes the reasons until their formulas are typeset
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    formulas?.disconnect();
    const found = judge();
    if (!found) { said.textContent = "Answer first; even a guess helps."; return }
    if (found.fault) { said.textContent = found.fault; return }
    show(found.right, found.head, found.nodes());
    if (found.right === false && wrong.push(found.given) > 1) wayOut();
    if (kind === "predict") askWhether(found.given); else settle(found.given);
  });
  question.addEventListener("keydown", (event) => event.stopPropagation());
  const list = answers[0]?.parentElement;
  if (list) list.hidden = true; // not removed, because its formulas are still to be typeset
  question.append(form);
  const restore = (before) => {
    fill(before.given);
    const found = judge();
    const recall = () => {
      show(found.right, found.head, found.nodes());
      if (before.own !== undefined) where.before(expected(before.own));
    };
    where.textContent = " You answered this before.";
    if (!found?.nodes) return; // the question has changed
    recall();
    formulas?.disconnect();
    formulas = new MutationObserver(recall);
    formulas.observe(list, { childList: true, subtree: true });
  };
  let touched = false; // from then on what was answered before stays away
  for (const event of ["input", "submit"]) form.addEventListener(event, () => { touched = true });
  if (before) restore(before);
  if (before && !before.kept) hand(question, before.given, before.own).then((kept) => kept && keep.write(key, { ...before, kept }));
  else if (!("anew" in question.dataset)) handedBack(question).then((last) => {
    if (!last || touched || (last.given === before?.given && last.own === before?.own)) return;
    restore(last);
    keep.write(key, last);
  });
};
for (const question of document.querySelectorAll("section.ext-question:not([data-alive])")) {
  question.dataset.alive = "yes";
  alive(question);
}
