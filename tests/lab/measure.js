// Of the open notebook: what is too wide for its place, and how many characters a line of prose has.
(widest) => {
  const panel = document.querySelector('.jp-NotebookPanel:not(.lm-mod-hidden)'), faults = [];
  const all = (selector) => [...panel.querySelectorAll(selector)].filter((e) => e.getClientRects().length);
  const start = (e) => e.textContent.trim().replace(/\s+/g, ' ').slice(0, 60);
  const inPixels = (e, name) => parseFloat(getComputedStyle(e)[name]) || 0;
  const lines = (e) => Math.round(
    (e.clientHeight - inPixels(e, 'paddingTop') - inPixels(e, 'paddingBottom')) / inPixels(e, 'lineHeight'));

  for (const e of all('mjx-container[display="true"]')) {
    const number = e.querySelector('mjx-assistive-mml mlabeledtr > mtd')?.textContent.trim() ?? '';
    const text = e.closest('.jp-RenderedHTMLCommon'), name = `equation ${number} under ${JSON.stringify(start(text))}`;
    // A numbered equation fills its line, and says how much it needs.
    const wide = inPixels(e, 'minWidth') || e.querySelector('mjx-math').getBoundingClientRect().width;
    if (wide > widest + 0.5) faults.push(`${name}: ${Math.round(wide)} pixels wide, at most ${widest}`);
    if (e.scrollWidth > e.clientWidth + 1 || wide > text.clientWidth) faults.push(`${name} is cut: ${Math.round(wide)} in ${text.clientWidth} pixels`);
  }
  for (const e of all('.jp-RenderedMarkdown, .jp-OutputArea-output')) {
    const [needs, has] = [e.scrollWidth, e.clientWidth];
    if (needs > has + 1) faults.push(`scrolls sideways, ${needs} in ${has} pixels: ${start(e)}`);
  }
  for (const e of all('.jp-OutputArea-output pre')) {
    const written = e.textContent.replace(/\n$/, '').split('\n').length;
    if (lines(e) > written) faults.push(`printed lines wrap, ${written} take ${lines(e)}: ${start(e)}`);
  }
  let letters = 0, rows = 0;
  for (const e of all('.jp-RenderedMarkdown > p')) {
    if (e.querySelector('mjx-container, img') || lines(e) < 2) continue;
    letters += e.textContent.trim().length;
    rows += lines(e) - 0.5; // the last one is half full
  }
  return [faults, rows ? Math.round(letters / rows) : 0];
}
