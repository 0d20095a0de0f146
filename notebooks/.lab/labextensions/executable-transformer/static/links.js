// JupyterLab scrolls to the cell of a link once, as soon as the notebook is open. It draws most cells after that, and they
// push the cell out of sight. This extension scrolls again until the cell has stayed in place for two seconds, or until the
// reader does something. It is written by hand, in the form that JupyterLab loads without a build.
const links = {
  id: "executable-transformer:links",
  autoStart: true,
  activate: (app) => {
    const LOOK = 100, STAYS = 2_000, LONGEST = 60_000; // milliseconds
    let timer = 0;
    const stop = () => window.clearInterval(timer);
    const follow = (id) => {
      stop();
      const began = performance.now();
      let since = began, last = null;
      timer = window.setInterval(() => {
        const now = performance.now();
        if (now - began > LONGEST) return stop();
        const cells = app.shell.currentWidget?.content?.widgets ?? [];
        const node = cells.find((cell) => cell.model?.id === id)?.node;
        if (!node?.isConnected || !node.offsetHeight) return;
        const view = node.closest(".jp-WindowedPanel-outer") ?? node.parentElement;
        const top = node.getBoundingClientRect().top - view.getBoundingClientRect().top;
        const atEnd = view.scrollTop + view.clientHeight >= view.scrollHeight - 1;
        if (Math.abs(top) > 2 && !(atEnd && top > 0 && top < view.clientHeight - 50)) {
          node.scrollIntoView();
          since = now;
        } else if (last !== view.scrollHeight) since = now;
        last = view.scrollHeight;
        if (now - since > STAYS) stop();
      }, LOOK);
    };
    for (const act of ["wheel", "keydown", "touchstart"]) document.addEventListener(act, stop, { capture: true, passive: true });
    document.addEventListener("mousedown", stop, true);
    document.addEventListener("click", (event) => {
      const id = event.target.closest?.("a[href*='#cell-id=']")?.href.split("#cell-id=")[1];
      if (id) follow(id);
    }, true);
  },
};

(window._JUPYTERLAB ??= {})["executable-transformer"] = { init: () => {}, get: async () => () => ({ __esModule: true, default: links }) };
