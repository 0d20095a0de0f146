// Search all sections (sections.js) for words and quoted phrases. It needs no network and no index: two megabytes of text
// are searched in a few milliseconds.
(() => {
  "use strict";
  const field = document.getElementById("search-for"), said = document.getElementById("search-said"), list = document.getElementById("search-found");
  const MOST = 40, FROM_ONE_PAGE = 4, KINDS = { term: 1.6, lesson: 1, start: 0.8, deeper: 0.6, beside: 0.6, reference: 0.5, exercises: 0.5, question: 0.4 };
  // Words that are ignored, except in quoted phrases.
  const SMALL = new Set("a an and are as at be by can do does for from how i in is it its of on or the to was what when where which who why with you".split(" "));
  const plain = (text) => text.toLowerCase().normalize("NFKD").replace(/[\u0300-\u036f]/g, "").replace(/[\u2018\u2019]/g, "'").replace(/[\u2010-\u2015]/g, "-");
  // Synonyms from the glossary. A search for one also finds the term.
  const terms = new Map(window.courseAliases.map(([name, term]) => [plain(name), term]));
  const all = window.courseSections.map(([page, anchor, kind, title, headings, text]) => {
    const spelt = (text) => plain(text).replace(/\u221a/g, "\u221a root "), last = plain(headings.split(" › ").at(-1) || title).replace(/ \(.*\)$/, "");
    const question = kind === "lesson" && !anchor ? text.slice(0, text.indexOf("?") + 1) : ""; // which a lesson begins with
    return { page, anchor, kind, title, headings, text, last, name: kind === "term" ? last : spelt([title, headings, question].join(" ")), words: spelt(text) };
  });
  const escape = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  // A word is found where a word begins with it, in one number or the other, with and without hyphens, in British and
  // in American spelling: "KV-cache" in "KV cache", "overfitting" in "over-fitting", "quantization" in "quantisation".
  const pattern = (word) => {
    const stem = /[^s]s$/.test(word) && word.length > 4 ? word.slice(0, -1) : word;
    const spelt = [...stem.replace(/-/g, " ")].map(escape).join("-?").replace(/(?:-\?)? (?:-\?)?/g, "[-\\s]?")
      .replace(/i-\?[sz](?=-\?[aei])/g, "i-?[sz]").replace(/o-\?u?(?:-\?)?r$/, (end) => (stem.length > 4 ? "o-?u?-?r" : end));
    return new RegExp("(?<![\\p{L}\\p{N}])" + spelt, "gu");
  };
  const parsed = (query) => {
    const phrases = [];
    const rest = plain(query).replace(/"([^"]+)"/g, (_, phrase) => { phrases.push(phrase.trim()); return " "; });
    const words = rest.replace(/[",;?!()]/g, " ").split(/\s+/).filter(Boolean), telling = words.filter((word) => !SMALL.has(word));
    return [...phrases, ...(telling.length || phrases.length ? telling : words)];
  };
  const times = (text, found) => (text.match(found) ?? []).length;
  const bare = (query) => plain(query).replace(/"/g, "").replace(/\s+/g, " ").trim();
  // The query, and the term that it is a synonym of.
  const ways = (query) => [query, terms.get(bare(query))].filter(Boolean);
  const isCode = (query) => /[_.()]|[a-z][A-Z]/.test(query.trim().replace(/[.?]$/, ""));
  const findOne = (query) => {
    const parts = parsed(query), patterns = parts.map(pattern), whole = bare(query), phrase = pattern(whole);
    const found = new Map();
    if (!parts.length) return found;
    for (const section of all) {
      let score = 0;
      const fits = patterns.every((one) => {
        const inName = times(section.name, one), inText = times(section.words, one);
        score += 12 * Math.min(inName, 2) + Math.min(inText, 6);
        return inName + inText;
      });
      if (!fits) continue;
      if (parts.length > 1 && times(section.name, phrase)) score += 40;
      if (parts.length > 1 && times(section.words, phrase)) score += 25;
      if (times(section.last, phrase) && section.last.length <= whole.length + 2) score += 40;
      if (section.kind === "term" && section.last === plain(terms.get(whole) ?? "")) score += 60;
      if (section.last === "what to read next") score /= 2; // a list of books has every word
      found.set(section, score * (KINDS[section.kind] ?? 0.5));
    }
    return found;
  };
  const find = (query) => {
    const best = new Map();
    ways(query).forEach((way, at) => findOne(way).forEach((score, section) => best.set(section, Math.max(best.get(section) ?? 0, at ? 0.9 * score : score))));
    // A search for a word, such as LoRA, prefers lessons; a search for a name in code prefers the reference.
    const isTerm = terms.has(bare(query)) || all.some((section) => section.kind === "term" && section.last === bare(query));
    const late = (section) => Number((isTerm || !isCode(query)) && section.kind === "reference");
    const found = [...best].sort(([a, high], [b, low]) => late(a) - late(b) || low - high || a.page.localeCompare(b.page)).map(([section]) => section);
    // No page gets all the top results.
    const seen = new Map(), first = [], rest = [];
    for (const section of found) {
      const count = (seen.get(section.page) ?? 0) + 1;
      seen.set(section.page, count);
      (count > FROM_ONE_PAGE ? rest : first).push(section);
    }
    return [...first, ...rest];
  };

  // The most similar word of the course, at most two letters different, or one in short words.
  let known;
  const vocabulary = () => {
    if (known) return known;
    known = new Map();
    for (const { name, words, kind } of all) {
      for (const word of `${name} ${kind === "reference" ? "" : words}`.match(/\p{L}{3,}/gu) ?? []) known.set(word, (known.get(word) ?? 0) + 1);
    }
    for (const name of terms.keys()) known.set(name, (known.get(name) ?? 0) + 1);
    return known;
  };
  const distance = (a, b, most) => {
    let before = [], row = Array.from({ length: b.length + 1 }, (_, j) => j);
    for (let i = 1; i <= a.length; i++) {
      const next = [i];
      for (let j = 1; j <= b.length; j++) {
        next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] !== b[j - 1]));
        if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) next[j] = Math.min(next[j], before[j - 2] + 1);
      }
      if (Math.min(...next) > most) return most + 1;
      [before, row] = [row, next];
    }
    return row[b.length];
  };
  const nearest = (word) => {
    const most = word.length < 5 ? 1 : 2;
    let best = "", least = most + 1, often = 0;
    for (const [other, count] of vocabulary()) {
      if (count < 2 || Math.abs(other.length - word.length) > most) continue;
      const off = distance(word, other, most);
      if (off < least || (off === least && count > often)) [best, least, often] = [other, off, count];
    }
    return least > most ? "" : best;
  };
  const meant = (query) => {
    const fixed = parsed(query).map((word) => (findOne(word).size ? word : nearest(word)));
    return fixed.length && fixed.every(Boolean) && find(fixed.join(" ")).length ? fixed.join(" ") : "";
  };

  const around = (section, query) => {
    const marks = ways(query).flatMap((way) => [bare(way), ...parsed(way)]).filter(Boolean);
    // `words` is as long as `text` but for accents and roots; close enough to cut out the place.
    const at = marks.map((mark) => section.words.search(new RegExp(pattern(mark).source, "u"))).find((place) => place >= 0) ?? 0;
    const from = Math.max(0, section.text.lastIndexOf(" ", Math.max(at - 70, 0))), cut = section.text.slice(from, at + 150).trim();
    const line = document.createElement("small"), shown = new RegExp(`(${marks.map((mark) => pattern(mark).source).sort((a, b) => b.length - a.length).join("|")})`, "giu");
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
    const found = find(query), other = query.trim() && !found.length ? meant(query) : "";
    list.replaceChildren(...found.slice(0, MOST).map((section) => {
      const item = document.createElement("li"), link = document.createElement("a");
      link.href = section.page + ".html" + (section.anchor ? "#" + section.anchor : "");
      link.textContent = [section.title, section.headings].filter(Boolean).join(" › ");
      item.append(link, around(section, query));
      return item;
    }));
    const many = found.length === 1 ? "1 result" : `${found.length} results`, term = terms.get(bare(query));
    said.textContent = !query.trim() ? "" : !found.length ? "No section contains all of these words." : `${term ? `Also called ${term}. ` : ""}${many}${found.length > MOST ? `; here are the best ${MOST}:` : ":"}`;
    if (!other) return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = other;
    button.addEventListener("click", () => { field.value = other; show(other); field.focus(); });
    said.append(" Did you mean ", button, "?");
  };
  field.value = new URLSearchParams(location.search).get("q") ?? "";
  document.title = field.value ? `${field.value} · ${document.title}` : document.title;
  field.addEventListener("input", () => show(field.value));
  field.form.addEventListener("submit", (event) => { event.preventDefault(); show(field.value); });
  field.focus();
  show(field.value);
})();
