// Passes that Python computed: one that came with the page, or as many as are asked for.

const passOfRecord = ({ recorded, weights }) => {
  const seen = {}, kept = {}, { tokens, lens, text } = recorded;
  for (const [name, sizes] of Object.entries(recorded.sizes)) {
    let at = 0;
    seen[name] = sizes.map((size) => weights[name].data.subarray(at, (at += size)));
  }
  for (const name of recorded.kept) kept[name] = { keys: seen[`${name}.turned_key`], values: seen[`${name}.values`] };
  return { seen, kept, tokens, lens, text, off: new Set() };
};

const recordLens = (pass, name, at, count) => pass.lens[name][at].slice(0, count);

// The pass that came with the page, with the face of an engine. It is of one text, and nothing in it can be changed.
const makeRecord = (model) => {
  const pass = passOfRecord(model);
  return { ...model.recorded.counts, fixed: true, pass: () => pass, lens: recordLens };
};

// An engine whose passes Python makes (`companion_school.explorer.server`), each at a request to `address`.
const makeServed = ({ recorded }, address) => {
  const ask = async (what, given) => {
    const answer = await fetch(address + what, { method: "POST", body: JSON.stringify(given) }).catch(() => null);
    if (!answer) throw Object.assign(new Error("Python does not answer; start it again, in a notebook by running the cell"), { unreached: true });
    if (!answer.ok) throw new Error(await answer.text());
    return answer;
  };
  // Lines of JSON, each as soon as Python has computed it. Who no longer wants them lets the rest go.
  const lines = async function* (what, given) {
    const reader = (await ask(what, given)).body.pipeThrough(new TextDecoderStream()).getReader();
    try {
      for (let left = "", got; !(got = await reader.read()).done;) {
        const found = (left + got.value).split("\n");
        left = found.pop();
        for (const line of found) yield JSON.parse(line);
      }
    } finally {
      reader.cancel();
    }
  };
  const idsOf = ({ tokens: { decoder, encoder } }) => ({ tokens: decoder, source: encoder });
  const read = async (given, off) => {
    const answer = await ask("read", { ...given, off: [...off] });
    return { ...passOfRecord(readModel(new Uint8Array(await answer.arrayBuffer()))), off };
  };
  return {
    ...recorded.counts, asks: true, lens: recordLens,
    readText: (text, off) => read({ text }, off),
    readTokens: (source, tokens, off) => read({ source: source ?? [], tokens }, off),
    // As `patched` of an engine, layer after layer, of the states of `other` at all places from `first` to `end`: of each
    // the logits of the tokens `pair`.
    carried: (pass, other, first, end, pair) => lines("carried", { ...idsOf(pass), other: idsOf(other), off: [...pass.off], first, end, pair }),
    // As `without`, of every head, attention after attention: the chance of a token after the place `end`.
    without: (pass, end, token) => lines("without", { ...idsOf(pass), off: [...pass.off], end, token }),
  };
};
