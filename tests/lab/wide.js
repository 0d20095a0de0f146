// Of a page of the site: what makes it scroll sideways, or is cut, and has no frame of its own to scroll in.
() => {
  const root = document.documentElement, faults = [];
  const start = (e) => `<${e.tagName.toLowerCase()} class="${e.className.baseVal ?? e.className}"> ${e.textContent.trim().replace(/\s+/g, ' ').slice(0, 60)}`;
  if (root.scrollWidth > root.clientWidth + 1) faults.push(`the page scrolls sideways, ${root.scrollWidth} in ${root.clientWidth} pixels`);
  const frames = '.formula, pre, .table-wrapper, .ext-numbers, .ext-box svg, .ext-figure img, p:has(> img[src$=".svg"]), .sidebar-drawer, .toc-drawer';
  for (const e of document.querySelectorAll('article :is(p, li, dd, dt, h1, h2, h3, h4, summary, label, button, fieldset, figure, input, svg, img)')) {
    const box = e.getBoundingClientRect();
    if (!box.width || !e.checkVisibility() || e.closest(frames) || e.matches('.ext-figure, .ext-figure img') || e.parentElement.closest('svg')) continue;
    if (box.right > root.clientWidth + 1 || box.left < -1) faults.push(`sticks out to ${Math.round(box.right)} of ${root.clientWidth}: ${start(e)}`);
    else if (e.matches('p, li, dd, h1, h2, h3, h4') && e.scrollWidth > e.clientWidth + 2 && !e.querySelector(frames)) faults.push(`is wider than its place, ${e.scrollWidth} in ${e.clientWidth}: ${start(e)}`);
  }
  return faults.slice(0, 6);
}
