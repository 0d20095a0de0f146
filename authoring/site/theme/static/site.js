// Progress stored in this browser, keyboard access to scrolling parts, and links to cells.
(() => {
  "use strict";
  const keep = {
    read(key) { try { return JSON.parse(localStorage.getItem(key)); } catch { return null; } },
    write(key, value) { try { localStorage.setItem(key, JSON.stringify(value)); } catch { /* private window */ } },
  };
  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };

  // How many of a lesson's questions are answered.
  const count = () => {
    for (const place of document.querySelectorAll("[data-questions]")) {
      const keys = place.dataset.questions.split(" "), done = keys.filter((key) => keep.read("ext:" + key)).length;
      const said = done ? `${done} of ${keys.length} questions answered` : `${keys.length} questions`;
      place.replaceChildren(...(done ? [make("progress", { max: keys.length, value: done, "aria-hidden": "true" })] : []), said);
    }
  };
  count();
  addEventListener("pageshow", count);
  addEventListener("storage", count);
  document.addEventListener("submit", () => setTimeout(count, 300));

  // The reader's position: the last heading scrolled past.
  const root = document.documentElement.dataset.content_root ?? "./";
  const headings = [...document.querySelectorAll("article section[id] > :is(h2, h3)")];
  const lesson = document.querySelector("#page-kind[data-kind=lesson]");
  if (lesson) {
    const note = () => {
      const passed = headings.filter((heading) => heading.getBoundingClientRect().top < innerHeight / 2).at(-1);
      const anchor = passed?.parentElement.id;
      const title = document.querySelector("h1").firstChild.textContent.trim();
      keep.write("ext-page:last", { page: location.pathname.split("/").at(-1), anchor, title, at: passed?.firstChild.textContent.trim() });
    };
    let waiting = 0;
    addEventListener("scroll", () => { clearTimeout(waiting); waiting = setTimeout(note, 400); }, { passive: true });
  }
  // The button to start, or to continue for a reader who has started.
  const on = document.getElementById("go-on"), last = keep.read("ext-page:last");
  if (on && last?.page) {
    on.href = root + last.page + (last.anchor ? "#" + last.anchor : "");
    on.textContent = `Go on: ${[last.title, last.at].filter(Boolean).join(", ")}`;
  }

  // A part that scrolls sideways can be scrolled with the arrow keys.
  const reach = () => {
    for (const box of document.querySelectorAll(".formula, pre, .table-wrapper, .ext-numbers, .ext-figure, p:has(> img), .toc-scroll, .sidebar-scroll")) {
      const scrolls = box.scrollWidth > box.clientWidth || (box.matches(".toc-scroll, .sidebar-scroll") && box.scrollHeight > box.clientHeight + 1);
      if (scrolls) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  reach();
  addEventListener("load", reach);
  document.fonts.ready.then(reach); // formulas are wider then, or narrower
  addEventListener("resize", reach);
  document.addEventListener("toggle", reach, true);

  // The glossary can be filtered, and has letters to jump to.
  const terms = document.querySelector("#glossary .table-wrapper");
  if (terms) {
    const rows = [...terms.querySelectorAll("tbody tr")], letters = make("nav", { class: "letters", "aria-label": "Letters" }), seen = new Set();
    const field = make("input", { id: "term", type: "search", autocomplete: "off" }), said = make("p", { role: "status" });
    for (const row of rows) {
      const letter = row.textContent.trim()[0].toUpperCase();
      if (!/[A-Z]/.test(letter) || seen.has(letter)) continue;
      seen.add(letter);
      row.id = `letter-${letter}`;
      letters.append(make("a", { href: `#letter-${letter}` }, letter));
    }
    field.addEventListener("input", () => {
      const wanted = field.value.trim().toLowerCase();
      for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
      const found = rows.filter((row) => !row.hidden).length;
      said.textContent = wanted ? `${found} ${found === 1 ? "term" : "terms"}` : "";
      letters.hidden = Boolean(wanted);
    });
    const form = make("div", { class: "site-search" });
    form.append(make("label", { for: "term" }, "Show the terms that contain"), field);
    terms.before(form, letters, said);
  }

  // Code can be copied, and each figure can be linked to.
  for (const code of document.querySelectorAll("article .highlight")) {
    if (code.closest(".printed")) continue;
    const copy = make("button", { type: "button", class: "copy", "aria-label": "Copy this code" }, "Copy");
    const said = (word) => { copy.textContent = word; setTimeout(() => { copy.textContent = "Copy"; }, 1500); };
    copy.addEventListener("click", () => {
      navigator.clipboard.writeText(code.querySelector("pre").textContent).then(() => said("Copied"), () => said("Not allowed"));
    });
    code.append(copy);
  }
  let cell = ""; // the one that drew it
  for (const place of document.querySelectorAll("article [id^=cell-], article .ext-figure")) {
    if (place.matches("[id^=cell-]")) cell = place.id;
    if (!place.matches(".ext-figure") || !cell) continue;
    const link = make("a", { class: "headerlink", href: "#" + cell, title: "A link to this figure" }, "#");
    (place.querySelector("figcaption") ?? place).append(" ", link);
  }

  // Load all pictures before printing.
  addEventListener("beforeprint", () => {
    for (const picture of document.querySelectorAll("img[loading=lazy]")) picture.loading = "eager";
  });
  // Paper is white: figures are printed in the colours of the light theme.
  let theme;
  addEventListener("beforeprint", () => { theme = document.body.dataset.theme; document.body.dataset.theme = "light"; });
  addEventListener("afterprint", () => { document.body.dataset.theme = theme; });

  // Link each cell to its runnable version.
  const badges = [...document.querySelectorAll(".badge[data-opens]")];
  for (const cell of badges.length ? document.querySelectorAll(".cell[id^=cell-]") : []) {
    const id = cell.id.slice("cell-".length), line = make("p", { class: "opens" });
    for (const badge of badges) line.append(make("a", { href: badge.dataset.opens + id }, badge.textContent.replace("Open in ", "")));
    cell.append(line);
  }
})();
