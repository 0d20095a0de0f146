// Of a page on a phone: print of a figure that is too small, that is off the screen, or that other print covers.
(least) => {
  const faults = [], start = (text) => JSON.stringify(text.textContent.trim().slice(0, 30));
  for (const figure of document.querySelectorAll("article figure[data-live]")) {
    const picture = figure.querySelector(".ext-box > svg"), frame = figure.getBoundingClientRect(), name = figure.dataset.live;
    if (!picture?.getBoundingClientRect().width) continue;
    const texts = [...picture.querySelectorAll("text")].filter((text) => {
      const { visibility, opacity } = getComputedStyle(text);
      return text.textContent.trim() && visibility !== "hidden" && opacity > 0.1 && !text.closest("[visibility=hidden], [opacity='0']") && text.getBoundingClientRect().width;
    });
    const unit = picture.getBoundingClientRect().width / picture.viewBox.baseVal.width;
    for (const text of texts) {
      const size = parseFloat(getComputedStyle(text).fontSize) * unit, box = text.getBoundingClientRect();
      if (size < least) faults.push(`${name}: ${start(text)} is ${size.toFixed(1)} pixels tall, expected ${least} at least`);
      if (box.left < frame.left - 3 || box.right > frame.right + 3) faults.push(`${name}: ${start(text)} is off the screen, ${Math.round(box.left)} to ${Math.round(box.right)} of ${Math.round(frame.right)}`);
    }
    // Turned print has a box that says nothing.
    const level = texts.filter((text) => !text.hasAttribute("transform")).map((text) => [text, text.getBoundingClientRect()]);
    level.forEach(([one, a], i) => {
      for (const [other, b] of level.slice(i + 1)) {
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left), high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 0.4 * Math.min(a.width, b.width) && high > 0.6 * Math.min(a.height, b.height)) faults.push(`${name}: ${start(one)} and ${start(other)} lie over each other`);
      }
    });
  }
  for (const picture of document.querySelectorAll("article .ext-figure > img, article .ext-figure > picture img")) {
    const shown = picture.getBoundingClientRect().width, drawn = picture.currentSrc && picture.naturalWidth / 2; // two pixels for a point
    if (drawn && shown < 0.75 * drawn) faults.push(`a picture is shown at ${Math.round((100 * shown) / drawn)} % of its size: ${picture.alt.slice(0, 40)}`);
  }
  for (const part of document.querySelectorAll(".flow-part :is(div, span, small, b, button, p), .flow-walk p")) {
    const size = parseFloat(getComputedStyle(part).fontSize);
    if (part.childElementCount === 0 && part.textContent.trim() && size < least) faults.push(`flow: ${start(part)} is ${size} pixels tall`);
  }
  return [...new Set(faults)].slice(0, 12);
}
