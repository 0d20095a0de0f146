// Lays moving figures out for a narrow screen. A figure is drawn 760 units wide; scaled down to a phone, its print would
// be six pixels tall. Here its parts are set below one another, each squeezed to the width of the screen where it must
// be, while print, circles and dials keep their shape. A line of print that is too long is broken, one that sticks out
// comes back in, and two that overlap move apart. A script that changes a figure later changes the same elements.
(() => {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg", WIDE = 760, NARROW = 360, LINE = 16, APART = 60;
  // Of each figure the rows from top to bottom, and of a row its columns, as they stand in the wide drawing: left,
  // right, and where it is fixed by how much a column is squeezed. A row has the height from `top` to `bottom` (from
  // below, if negative), and `pad` units free at its left and `after` below; `stretch` makes room between lines that will be broken.
  const rest = (...columns) => ({ columns });
  const band = (top, bottom, ...columns) => ({ top, bottom, columns });
  const ROWS = {
    walk: [rest([0, 296]), rest([298, 562], [566, 760])],
    hover: [rest([0, 124, 0.9], [124, 760])],
    film: [band(0, 12, [0, 760]), band(12, Infinity, [0, 44, 0.8], [44, 760])],
    switchboard: [band(0, 69, [0, 66, 1], [66, 413]), { ...band(0, 69, [413, 760]), pad: 66 }, band(70, 141, [0, 66, 1], [66, 413]), { ...band(70, 141, [413, 760]), pad: 66 }, band(142, Infinity, [0, 66, 0.7], [66, 760])],
    clocks: [band(0, 146, [0, 380]), band(0, 146, [380, 760]), band(150, Infinity, [0, 92, 1], [92, 760])],
    together: [band(0, 70, [0, 760]), band(74, Infinity, [0, 490]), { ...band(74, Infinity, [510, 760]), pad: 55 }],
    dials: [band(0, 24, [190, 570]), band(25, 276, [0, 507]), { ...band(25, 276, [507, 760]), pad: 53 }, band(276, Infinity, [0, 60, 0.8], [60, 760])],
    home: [rest([0, 96, 0.9], [96, 760])],
    hearing: [rest([0, 262]), rest([262, 512]), rest([512, 762])],
    filler: [rest([0, 432]), band(10, 275, [432, 760])],
    mask_and_shift: [rest([0, 420]), rest([490, 760])],
    writing: [rest([0, 760])],
    lanes: [rest([0, 108, 0.6], [108, 760])],
    triangle: [rest([60, 396]), band(50, 230, [396, 760])],
    sweep: [{ ...rest([0, 356]), after: 20 }, band(36, -34, [400, 760])],
    climb: [rest([0, 524]), band(20, 210, [530, 760])],
    edits: [rest([0, 456]), band(8, 400, [456, 760])],
    memory: [rest([0, 118, 0.55], [118, 760])],
    growing: [band(0, 222, [0, 52, 0.7], [52, 760]), { ...band(222, Infinity, [0, 760]), stretch: 2 }],
    rewritten: [rest([0, 390]), band(0, 290, [390, 760])],
    seats: [rest([0, 46, 1], [46, 760])],
    leaves: [band(0, 168, [0, 760]), band(168, Infinity, [0, 90, 0.7], [90, 760])],
    comparing: [rest([0, 150, 0.8], [150, 760])],
    plan: [band(0, 14, [0, 760]), band(14, Infinity, [0, 62, 0.75], [62, 760])],
    number_lines: [{ ...band(0, 17, [0, 760]), after: 18 }, band(17, Infinity, [0, 760])],
    newton_schulz: [rest([0, 316]), rest([330, 760])],
    travels: [rest([0, 62, 1], [62, 760])],
    roofline: [rest([0, 74, 0.7], [74, 760])],
  };
  const CONDENSED = { queues: 0.86, group: 0.76, seats: 0.9, lanes: 0.92, memory: 0.9, mending: 0.9 }; // print beside print, in narrow columns
  const AS_WIDE = new Set(["bricks"]); // a row that is about being long: it scrolls
  const OWN = new Set(["cut", "pipeline"]); // their scripts draw for the width of the picture

  const number = (element, ...names) => names.map((name) => parseFloat(element.getAttribute(name))).find(Number.isFinite) ?? 0;
  // Where the parts of a figure lie: left, right, top and bottom in the wide drawing, and the group that holds each.
  const partsOf = (name, height) => {
    const parts = [];
    let below = 0;
    for (const { columns, top = 0, bottom = height, pad = 0, stretch = 1, after = 8 } of ROWS[name] ?? [rest([0, WIDE])]) {
      const end = Math.min(bottom < 0 ? height + bottom : bottom, height), fixed = columns.filter(([, , scale]) => scale);
      const room = NARROW - pad - fixed.reduce((sum, [left, right, scale]) => sum + (right - left) * scale, 0);
      const free = columns.filter(([, , scale]) => !scale).reduce((sum, [left, right]) => sum + right - left, 0);
      let x = pad;
      for (const [left, right, scale = Math.min(1, room / free)] of columns) {
        const group = document.createElementNS(SVG, "g");
        group.setAttribute("class", "phone-part");
        group.setAttribute("transform", `translate(${x} ${below}) scale(${scale} ${stretch}) translate(${-left} ${-top})`);
        group.style.setProperty("--wider", (CONDENSED[name] ?? 1) / scale);
        group.style.setProperty("--rounder", 1 / scale);
        group.style.setProperty("--lower", 1 / stretch);
        parts.push({ left, right, top, bottom: end, group, scale, x });
        x += (right - left) * scale;
      }
      below += (end - top) * stretch + after;
    }
    return [parts, below];
  };
  const layOut = (name, picture) => {
    const { height } = picture.viewBox.baseVal, frame = picture.getBoundingClientRect(), unit = WIDE / frame.width, [parts, below] = partsOf(name, height);
    const centre = (element) => {
      const box = element.getBoundingClientRect();
      if (box.width + box.height) return [(box.left + box.width / 2 - frame.left) * unit, (box.top + box.height / 2 - frame.top) * unit];
      return [number(element, "x", "cx", "x1"), number(element, "y", "cy", "y1")];
    };
    const away = (part, [x, y]) => Math.max(part.left - x, x - part.right, 0) + Math.max(part.top - y, y - part.bottom, 0);
    const placed = [...picture.children].map((element) => [element, centre(element)]);
    for (const [element, at] of placed) {
      const part = parts.reduce((best, one) => (away(one, at) < away(best, at) ? one : best)), own = element.getAttribute("transform");
      if (own?.startsWith("translate")) { // a dial, which turns within itself
        element.setAttribute("transform", `${own} scale(${1 / part.scale} 1)`);
        element.style.setProperty("--wider", 1);
        element.style.setProperty("--rounder", 1);
      }
      for (const text of [element, ...element.querySelectorAll("text[transform]")].filter((one) => one.matches("text[transform^=rotate]"))) {
        const [x, y] = [number(text, "x"), number(text, "y")];
        text.setAttribute("transform", `translate(${x} ${y}) scale(${1 / part.scale} 1) translate(${-x} ${-y}) ${text.getAttribute("transform")}`);
        text.dataset.turned = "";
      }
      part.group.append(element);
    }
    picture.append(...parts.map((part) => part.group));
    picture.setAttribute("viewBox", `0 0 ${NARROW} ${below}`);
    picture.classList.add("phone-picture");
    tidy(picture);
    const watch = new MutationObserver(() => {
      watch.disconnect();
      tidy(picture);
      watch.observe(picture, seen);
    });
    const seen = { subtree: true, childList: true, characterData: true, attributeFilter: ["x", "y", "d", "transform"] };
    watch.observe(picture, seen);
  };

  // Breaks a line of print that is wider than the picture, with the marks of its pieces.
  const broken = (text, unit) => {
    const most = (NARROW - 4) * unit, whole = text.textContent, scale = text.getBoundingClientRect().width / Math.max(text.getComputedTextLength(), 1);
    if (text.getBoundingClientRect().width <= most || whole.includes("\u200b")) return;
    const runs = [...text.childNodes].map((node) => [node.textContent, node.nodeType === 1 ? node.getAttribute("style") : ""]);
    const breaks = [];
    let from = 0;
    for (let at = 1; at <= whole.length; at++) {
      if (text.getSubStringLength(from, at - from) * scale <= most) continue;
      const blank = whole.lastIndexOf(" ", at - 1);
      breaks.push(blank > from ? blank + 1 : at - 1);
      from = breaks.at(-1);
    }
    text.replaceChildren();
    let done = 0;
    const piece = (words, style, first) => {
      const span = document.createElementNS(SVG, "tspan");
      span.textContent = words;
      if (style) span.setAttribute("style", style);
      if (first) { span.setAttribute("x", text.getAttribute("x") ?? 0); span.setAttribute("dy", LINE); span.textContent = `\u200b${words}`; }
      text.append(span);
    };
    for (const [words, style] of runs) {
      let left = words;
      for (const place of breaks.filter((one) => one > done && one < done + words.length)) {
        const cut = place - (done + words.length - left.length);
        piece(left.slice(0, cut), style, breaks.includes(done + words.length - left.length) && done + words.length - left.length > 0);
        left = left.slice(cut);
      }
      const start = done + words.length - left.length;
      piece(left, style, start > 0 && breaks.includes(start));
      done += words.length;
    }
  };
  const tidy = (picture) => {
    const frame = picture.getBoundingClientRect(), unit = frame.width / NARROW, texts = [...picture.querySelectorAll("text:not([data-turned])")].filter((text) => text.textContent.trim());
    if (!frame.width) return;
    for (const text of texts) Object.assign(text.style, { translate: "", visibility: "" });
    for (const text of texts) broken(text, unit);
    const boxes = texts.map((text) => {
      const { left, right, top, bottom } = text.getBoundingClientRect();
      return { text, left, right, top, bottom, by: 0 };
    }).filter(({ left, right }) => right > left);
    const move = (box, by) => { box.left += by; box.right += by; box.by += by; };
    const inside = (box) => move(box, Math.max(0, frame.left - box.left) || Math.min(0, frame.right - box.right));
    boxes.forEach(inside);
    for (let turn = 0; turn < 3; turn++) {
      for (const [i, a] of boxes.entries()) {
        for (const b of boxes.slice(i + 1)) {
          const [one, other] = a.left + a.right <= b.left + b.right ? [a, b] : [b, a], over = one.right + 3 - other.left;
          if (over <= 0 || Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) < 6 || a.hidden || b.hidden) continue;
          if (a.text.textContent === b.text.textContent && over > 5) { // the same again, where there is no room: once is enough
            other.hidden = true;
            other.text.style.visibility = "hidden";
            continue;
          }
          const room = Math.min(over / 2, one.left - frame.left), by = Math.min(over - room, frame.right - other.right);
          if (Math.abs(one.by - room) < APART) move(one, -Math.max(0, room));
          if (Math.abs(other.by + by) < APART) move(other, Math.max(0, by));
        }
      }
    }
    const lowest = Math.max(...boxes.map(({ bottom }) => bottom), 0) - frame.top, { height } = picture.viewBox.baseVal;
    for (const { text, by } of boxes) {
      const scale = text.closest(".phone-part").getCTM().a;
      if (by) text.style.translate = `${by / scale}px 0`;
    }
    if (lowest / unit > height) picture.setAttribute("viewBox", `0 0 ${NARROW} ${Math.ceil(lowest / unit) + 2}`);
  };

  addEventListener("DOMContentLoaded", () => {
    if (innerWidth > 600) return;
    for (const figure of document.querySelectorAll("figure[data-live]")) {
      const picture = figure.querySelector(".ext-box > svg"), name = figure.dataset.live;
      if (picture?.viewBox.baseVal.width !== WIDE || !picture.getBoundingClientRect().width || AS_WIDE.has(name)) continue;
      if (!OWN.has(name)) { layOut(name, picture); continue; }
      picture.setAttribute("viewBox", `0 0 ${NARROW} ${2 * picture.viewBox.baseVal.height}`);
      picture.classList.add("phone-picture");
      figure.querySelector("input").dispatchEvent(new Event("input"));
    }
  });
})();
