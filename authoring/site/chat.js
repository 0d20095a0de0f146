// A story in turns: the reader writes, and the model continues to the end of a sentence. Each token is read once.

const MOST = 48, ROOM = 30, TEMPERATURE = 0.5; // tokens of an answer; of the context that are kept free for it

const chat = async (box) => {
  const { html } = makeKit(box), story = html(box, "div", { class: "chat-story", role: "log", "aria-label": "The story", tabindex: 0 });
  const form = html(box, "form", { class: "chat-form" }), field = html(form, "label", { class: "flow-field" });
  html(field, "span", {}, "Your sentence");
  const input = html(field, "textarea", { rows: 2, maxlength: 200, spellcheck: "false" });
  const bar = html(form, "div", { class: "ext-row" }), send = html(bar, "button", { type: "submit", class: "flow-play" }, "Send");
  const again = html(bar, "button", { type: "button" }, "A new story"), sentence = html(box, "p", { class: "ext-say", role: "status" }, "Loading the model …");
  const starts = ["One rainy day Tom the turtle went to the lake. He lost his", "Mila the mole found a red kite. She was", "Ben the bear was sad. He could not find his"];
  let model, pass, begun = 0;

  const turn = (who, text) => {
    const line = html(story, "p", { class: `chat-${who}` });
    html(line, "b", { class: "chat-who" }, who === "you" ? "You" : "Model");
    line.append(" ");
    const place = html(line, "span", {}, text);
    story.scrollTop = story.scrollHeight;
    return place;
  };
  const begin = () => {
    pass = model.engine.begin();
    model.engine.read(pass, model.words.start);
    story.replaceChildren();
    input.value = starts[begun++ % starts.length];
    sentence.textContent = "Send this beginning or write your own.";
  };
  const drawn = (logits) => { // a low temperature: so small a model loses its thread soon enough
    const p = softmax(logits.map((z) => z / TEMPERATURE));
    let left = Math.random();
    return [...p.keys()].find((id) => (left -= p[id]) < 0) ?? best(p, 1)[0];
  };
  // The model's turn: up to the end of a sentence or of the story.
  const answer = async () => {
    const tokens = [], place = turn("model", "");
    for (;;) {
      const token = drawn(pass.seen.logits.at(-1));
      if (token === model.words.stop) { sentence.textContent = "The model has ended the story. Start a new one."; return false; }
      model.engine.read(pass, [token]);
      tokens.push(token);
      place.textContent = model.words.decode(tokens);
      story.scrollTop = story.scrollHeight;
      if (tokens.length >= MOST || /[.!?]["”]?$/.test(place.textContent)) return true;
      await new Promise((shown) => setTimeout(shown, 70));
    }
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const first = pass.tokens.decoder.length === 1, text = (first ? "" : " ") + input.value.trim();
    if (!text.trim()) { sentence.textContent = "Write a few words first."; return; }
    const ids = model.words.encode(text), room = model.config.context - pass.tokens.decoder.length - ROOM;
    if (ids.length > room) { sentence.textContent = room > 0 ? `Your text has ${ids.length} tokens, and there is room for ${room}.` : "This model cannot read a longer story. Start a new one."; return; }
    send.disabled = again.disabled = true;
    turn("you", input.value.trim());
    input.value = "";
    model.engine.read(pass, ids);
    if (await answer()) sentence.textContent = `Your turn. ${pass.tokens.decoder.length} of ${model.config.context} tokens are used.`;
    send.disabled = again.disabled = false;
    input.focus({ preventScroll: true });
  });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!send.disabled) form.requestSubmit();
  });
  again.addEventListener("click", begin);
  try {
    model = await openModel(box.dataset.model);
    begin();
  } catch (error) {
    send.disabled = true;
    sentence.textContent = `${error.message}.`;
  }
};

chat(document.getElementById("chat"));
