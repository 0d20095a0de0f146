// Looks through all sections (sections.js) for words, and for phrases in quotes. No network, no index: a megabyte of text
// is read in a few milliseconds.
(() => {
  "use strict";
  const field = document.getElementById("search-for"), said = document.getElementById("search-said"), list = document.getElementById("search-found");
  const MOST = 40, KINDS = { term: 1.6, lesson: 1, start: 0.8, deeper: 0.6, beside: 0.6, reference: 0.5, exercises: 0.5, question: 0.4 };
  // Words that every section has; a phrase in quotes keeps them.
  const SMALL = new Set("a an and are as at be by can do does for from how i in is it its of on or the to was what when where which who why with you".split(" "));
  const plain = (text) => text.toLowerCase().normalize("NFKD").replace(/[\u0300-\u036f]/g, "").replace(/[\u2018\u2019]/g, "'");
  const all = window.courseSections.map(([page, anchor, kind, title, headings, text]) => (
    { page, anchor, kind, title, headings, text, name: plain(title + " " + headings), words: plain(text).replace(/\u221a/g, "\u221a root ") }));
  const escape = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  // A word is found where a word begins with it, in one number or the other.
  const pattern = (word) => new RegExp("(?<![\\p{L}\\p{N}])" + escape(/[^s]s$/.test(word) && word.length > 4 ? word.slice(0, -1) : word), "gu");
  const parsed = (query) => {
    const phrases = [];
    const rest = plain(query).replace(/"([^"]+)"/g, (_, phrase) => { phrases.push(phrase.trim()); return " "; });
    const words = rest.replace(/[",;?!()]/g, " ").split(/\s+/).filter(Boolean), telling = words.filter((word) => !SMALL.has(word));
    return [...phrases, ...(telling.length || phrases.length ? telling : words)];
  };
  const times = (text, found) => (text.match(found) ?? []).length;
  const find = (query) => {
    const parts = parsed(query), patterns = parts.map(pattern), whole = plain(query).replace(/"/g, "").trim();
    if (!parts.length) return [];
    const found = [];
    for (const section of all) {
      let score = 0;
      const fits = patterns.every((one) => {
        const inName = times(section.name, one), inText = times(section.words, one);
        score += 12 * Math.min(inName, 2) + Math.min(inText, 6);
        return inName + inText;
      });
      if (!fits) continue;
      if (parts.length > 1 && section.name.includes(whole)) score += 40;
      if (parts.length > 1 && section.words.includes(whole)) score += 25;
      if (plain(section.headings.split(" › ").at(-1) || section.title) === whole) score += 40;
      found.push({ section, score: score * (KINDS[section.kind] ?? 0.5) });
    }
    return found.sort((a, b) => b.score - a.score || a.section.page.localeCompare(b.section.page));
  };
  const around = (section, query) => {
    const whole = plain(query).replace(/"/g, "").trim(), parts = parsed(query), marks = [whole, ...parts];
    // `words` is as long as `text` but for accents and roots; close enough to cut out the place.
    const at = marks.map((mark) => section.words.search(new RegExp(pattern(mark).source, "u"))).find((place) => place >= 0) ?? 0;
    const from = Math.max(0, section.text.lastIndexOf(" ", Math.max(at - 70, 0))), cut = section.text.slice(from, at + 150).trim();
    const line = document.createElement("small"), shown = new RegExp(`(${marks.map(escape).sort((a, b) => b.length - a.length).join("|")})`, "giu");
    line.append(from ? "… " : "");
    cut.split(shown).forEach((piece, i) => {
      if (i % 2 === 0) { line.append(piece); return; }
      const mark = document.createElement("mark");
      mark.textContent = piece;
      line.append(mark);
    });
    line.append(" …");
    return line;
  };
  const show = (query) => {
    const found = find(query);
    list.replaceChildren(...found.slice(0, MOST).map(({ section }) => {
      const item = document.createElement("li"), link = document.createElement("a");
      link.href = section.page + ".html" + (section.anchor ? "#" + section.anchor : "");
      link.textContent = [section.title, section.headings].filter(Boolean).join(" › ");
      item.append(link, around(section, query));
      return item;
    }));
    const many = found.length === 1 ? "One place" : `${found.length} places`;
    said.textContent = !query.trim() ? "" : !found.length ? "Nothing has all of these words." : found.length > MOST ? `${many}; the best ${MOST}:` : `${many}:`;
  };
  field.value = new URLSearchParams(location.search).get("q") ?? "";
  document.title = field.value ? `${field.value} · ${document.title}` : document.title;
  field.addEventListener("input", () => show(field.value));
  field.form.addEventListener("submit", (event) => { event.preventDefault(); show(field.value); });
  field.focus();
  show(field.value);
})();
