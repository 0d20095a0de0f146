// Of a figure: print of less contrast than 4.5 to 1 with what is under it, lines of less than 3 to 1 with the page.
(figure) => {
  const pen = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
  const rgba = (color) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = color;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], ground, seen) => [r, g, b].map((x, i) => x * a * seen + ground[i] * (1 - a * seen));
  const linear = (x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  const light = (color) => color.reduce((sum, x, i) => sum + linear(x / 255) * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (one, other) => {
    const [dark, bright] = [light(one), light(other)].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  };
  const page = rgba(getComputedStyle(figure).backgroundColor).slice(0, 3), faults = [];
  const opacity = (e) => {
    let whole = 1;
    for (; e && e !== figure; e = e.parentElement) whole *= parseFloat(getComputedStyle(e).opacity);
    return whole;
  };
  const surface = 'rect, circle, ellipse, path, polygon';
  const under = ({ x, y, width, height }) =>
    document.elementsFromPoint(x + width / 2, y + height / 2).reverse().reduce((ground, e) => {
      const style = getComputedStyle(e);
      if (!figure.contains(e) || !e.matches(surface) || style.fill === 'none') return ground;
      return over(rgba(style.fill), ground, parseFloat(style.fillOpacity) * opacity(e));
    }, page);

  for (const e of figure.querySelectorAll('.ext-box svg text')) {
    const box = e.getBoundingClientRect(), style = getComputedStyle(e);
    if (!e.textContent.trim() || !box.width || style.visibility === 'hidden' || !opacity(e)) continue;
    const ground = under(box), size = parseFloat(style.fontSize) * (box.width / (e.getBBox().width || box.width));
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const found = contrast(over(rgba(style.fill), ground, parseFloat(style.fillOpacity) * opacity(e)), ground);
    const text = JSON.stringify(e.textContent.slice(0, 30));
    if (found < (large ? 3 : 4.5)) faults.push(`print ${text} has a contrast of ${found.toFixed(1)}`);
  }
  for (const e of figure.querySelectorAll('.ext-box svg :is(line, polyline, polygon, path, rect, circle, ellipse)')) {
    const box = e.getBoundingClientRect(), style = getComputedStyle(e), seen = opacity(e) * parseFloat(style.strokeOpacity);
    if (style.stroke === 'none' || !parseFloat(style.strokeWidth) || !(box.width + box.height) || !seen) continue;
    const color = rgba(style.stroke), found = contrast(over(color, page, seen), page);
    const apart = String(color.slice(0, 3)) === String(page); // keeps two surfaces apart, and is no line
    const what = `a line (${e.tagName}, ${style.stroke}, opacity ${seen.toFixed(2)})`;
    if (found < 3 && !apart) faults.push(`${what} has a contrast of ${found.toFixed(1)}`);
  }
  return [...new Set(faults)];
}
