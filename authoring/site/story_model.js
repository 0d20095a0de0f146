// The story model next to the explorer. It is a script, because a page opened from a folder may not fetch files.
const openModel = (src) => new Promise((done, failed) => {
  const onload = () => {
    const bytes = Uint8Array.from(atob(window.explorerModels.story), (letter) => letter.charCodeAt(0)), model = readModel(bytes);
    delete window.explorerModels.story;
    done({ ...model, engine: makeEngine(model), words: makeWords(model) });
  };
  const onerror = () => failed(new Error("the model's file is missing"));
  document.head.append(Object.assign(document.createElement("script"), { src, async: true, onload, onerror }));
});
