// What the scripts of all figures use. One `kit` belongs to one figure: its controls, its picture, its sentence.
const makeKit = (box) => {
  const SVG = "http://www.w3.org/2000/svg";
  const put = (element, attributes, text) => {
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const html = (parent, tag, attributes = {}, text) => {
    const element = put(document.createElement(tag), attributes, text);
    parent.append(element);
    return element;
  };
  const svg = (parent, tag, attributes = {}, text) => {
    const element = put(document.createElementNS(SVG, tag), attributes, text);
    parent.append(element);
    return element;
  };
  let row = html(box, "div", { class: "ext-row" });
  let screen, sentence;

  // The picture under the controls: (width, height) in units of which 760 fill the column.
  const picture = (width, height) => {
    screen = svg(box, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
    sentence = html(box, "p", { class: "ext-say", role: "status" });
    return screen;
  };
  // What the picture shows now, in a sentence: read under the picture, and by a screen reader when it changes.
  const say = (text) => { sentence.textContent = text; screen.setAttribute("aria-label", text); };

  // The numbers behind the picture as it is now, in the fold under it: tables of [name, column] pairs, a column of one
  // number as it is. What the fold held before stays below with the title `rest`; without a title it held only for the
  // start, and goes.
  const fold = box.closest("figure")?.querySelector(".ext-numbers"), stored = [...fold?.querySelectorAll("table") ?? []];
  const written = (x) => (typeof x === "number" ? `${Number.isInteger(x) ? x : Number(x.toPrecision(3))}`.replace("-", "\u2212") : x ?? "");
  let drawn = stored;
  const numbers = (rest, ...tables) => {
    const now = tables.map((columns) => {
      const table = html(fold, "table"), head = html(html(table, "thead"), "tr"), body = html(table, "tbody");
      for (const [name] of columns) html(head, "th", { scope: "col" }, name);
      [].concat(columns[0][1]).forEach((_, i) => { const line = html(body, "tr"); for (const [, column] of columns) html(line, "td", {}, written([].concat(column)[i])); });
      return table;
    });
    drawn[0].before(...now);
    if (rest && drawn === stored) for (const table of stored) table.createCaption().textContent = [rest, table.caption.textContent].filter(Boolean).join(": ");
    else for (const table of drawn) table.remove();
    drawn = now;
  };
  // One of several words, chosen from a list.
  const list = (label, names, start, change) => {
    const frame = html(row, "label");
    html(frame, "span", {}, label);
    const select = html(frame, "select");
    names.forEach((name, i) => html(select, "option", { value: i }, name));
    select.value = start;
    select.addEventListener("change", () => change(Number(select.value)));
  };
  // A handle that runs through `values`; `show(value)` is its text. Arrow keys, Home, End and the mouse move it.
  const handle = (label, values, start, show, change) => {
    const frame = html(row, "label", { class: "wide" });
    html(frame, "span", {}, label);
    const range = html(frame, "input", { type: "range", min: 0, max: values.length - 1, step: 1 });
    range.value = values.indexOf(start);
    const out = html(frame, "output");
    const tell = () => { out.textContent = show(values[range.value]); range.setAttribute("aria-valuetext", `${label} ${out.textContent}`); };
    tell();
    range.addEventListener("input", () => { tell(); change(values[range.value]); });
    return {
      get value() { return values[range.value]; },
      set value(value) { range.value = values.indexOf(value); tell(); },
    };
  };
  // Buttons of which one is pressed. Tab and Space, or the mouse; with `hover` the mouse need not press.
  const choice = (label, names, start, change, hover = false) => {
    const group = html(row, "div", { class: "ext-row", role: "group", "aria-label": label, style: "margin:0" });
    html(group, "span", {}, label);
    const press = (at) => { buttons.forEach((button, i) => button.setAttribute("aria-pressed", i === at)); change(at); };
    const buttons = names.map((name, i) => {
      const button = html(group, "button", { type: "button", "aria-pressed": i === start }, name);
      button.addEventListener("click", () => press(i));
      if (hover) { button.addEventListener("mouseenter", () => press(i)); button.addEventListener("focus", () => press(i)); }
      return button;
    });
    return press;
  };
  // A button that is on or off.
  const toggle = (label, on, change) => {
    const button = html(row, "button", { type: "button", "aria-pressed": on }, label);
    button.addEventListener("click", () => {
      const now = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", now);
      change(now);
    });
  };
  // A button that does something once.
  const button = (label, act) => html(row, "button", { type: "button" }, label).addEventListener("click", act);
  const nextRow = () => { row = html(box, "div", { class: "ext-row" }); };

  const softmax = (scores) => {
    const most = Math.max(...scores), powers = scores.map((z) => Math.exp(z - most));
    const total = powers.reduce((a, b) => a + b, 0);
    return powers.map((p) => p / total);
  };
  const fixed = (x, digits = 2) => x.toFixed(digits).replace(/^-(?=[0.]*$)/, "").replace("-", "\u2212");
  // A value in -1 ... 1 as a colour: orange below zero, blue above, the page at zero.
  const tint = (x) => `color-mix(in srgb, var(--${x < 0 ? "orange" : "blue"}) ${Math.round(Math.min(Math.abs(x), 1) * 54)}%, var(--page))`;
  return { html, svg, put, picture, say, numbers, handle, list, choice, toggle, button, nextRow, softmax, fixed, tint };
};
