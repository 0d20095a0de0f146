"""The explorer's engine computes the same as the package: every tensor of three models."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from explorer_tensors import ENGINE, PASS, base64_of, differences, texts_of
from scripts import BROWSER, run

from companion.data.number_names import language
from companion.data.number_words import task
from companion_school.explorer.models import NAMES, live_file, load_live
from companion_school.records import story_model

SCRIPT = """
const [engine, words] = openModel(given.model);
const passes = given.texts.map((text) => passOf(engine, words, text));
write("said.json", JSON.stringify(passes.map(({ numbers, ...said }) => said)));
const all = new Float32Array(passes.reduce((total, { numbers }) => total + numbers.length, 0));
passes.reduce((at, { numbers }) => (all.set(numbers, at), at + numbers.length), 0);
write("numbers", new Uint8Array(all.buffer));
"""


def passes(name, texts, folder, **where):
    """Yield for each text the description that `passOf` returns, and its numbers."""
    run(ENGINE + PASS + SCRIPT, {"model": base64_of(live_file(name)), "texts": texts}, folder, **where)
    numbers, at = np.fromfile(folder / "numbers", dtype="<f4"), 0
    for said in json.loads((folder / "said.json").read_text("utf-8")):
        size = sum(sum(sizes) for _, sizes in said["names"])
        yield said, numbers[at : at + size]
        at += size


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_of_twenty_texts_is_the_packages(name, tmp_path):
    model, texts = load_live(live_file(name)), texts_of(name, 20)
    compared = [differences(*one, model) for one in passes(name, texts, tmp_path)]
    assert len(compared) == 20  # of each model; a browser compares a hundred of each
    worst = {key: max(found.get(key, 0.0) for found in compared) for key in compared[-1]}
    assert {key: value for key, value in worst.items() if value > 1e-4} == {}


def test_a_browser_computes_what_is_compared_here(tmp_path):
    model, texts = load_live(live_file("experts")), texts_of("experts", 12)[:2]
    compared = [differences(*one, model) for one in passes("experts", texts, tmp_path, browser=BROWSER is not None)]
    assert len(compared) == 2 and max(max(found.values()) for found in compared) < 1e-4


def test_texts_become_the_tokens_of_the_package(tmp_path):
    _, tokenizer = story_model()
    texts = texts_of("story", 20)
    for text, (said, _) in zip(texts, passes("story", texts, tmp_path), strict=True):
        assert said["tokens"] == [tokenizer.separator, *tokenizer.encode(text["text"])]
    german = task("de", "en")
    sources = [{"source": german.source.name(n), "text": "[5]"} for n in range(7, 1_000_000, 19_973)]
    for given, (said, _) in zip(sources, passes("translator", sources, tmp_path), strict=True):
        assert said["source"] == german.encode(language("de").number(given["source"]))[0]


def test_a_head_that_is_off_adds_nothing_and_an_expert_that_is_off_is_chosen_by_no_token(tmp_path):
    text = "One windy day Mila the mole went to the pond."
    name, layer = "experts", "decoder.blocks.1"
    off = [f"{layer}.attention.2", f"{layer}.feed_forward.3"]
    (on, numbers), (said, changed) = passes(name, [{"text": text}, {"text": text, "off": off}], tmp_path)
    before, after = rows_of(on, numbers), rows_of(said, changed)
    heads = np.array(after[f"{layer}.attention.heads"]).reshape(-1, 4, 24)
    assert (heads[:, 2] == 0).all() and (heads[:, [0, 1, 3]] != 0).all()
    assert 3 in np.array(before[f"{layer}.feed_forward.experts"])
    assert 3 not in np.array(after[f"{layer}.feed_forward.experts"])
    assert np.array_equal(before["decoder.blocks.0"], after["decoder.blocks.0"])
    assert not np.allclose(before["logits"], after["logits"], atol=1e-3)


PATCHES = """
const [engine, words] = openModel(given.model), whole = (text, source) => {
  const tokens = source ? [...words.start, ...words.target(text)] : [...words.start, ...words.encode(text)];
  const pass = engine.begin({ source: source && words.encode(source) });
  engine.read(pass, tokens);
  return pass;
};
const [pass, other] = [whole(given.text, given.source), whole(given.other, given.source)], found = {};
const names = ["decoder.embedding", ...Array.from({ length: engine.layers }, (_, i) => `decoder.blocks.${i}`)];
for (const [layer, at, end] of given.places) {
  found[`${layer} ${at} ${end}`] = [...engine.patched(pass, layer, at, other.seen[names[layer]][at], end)];
}
const tokens = [pass, other].map((one) => one.tokens.decoder);
write("found.json", JSON.stringify({ found, tokens, source: pass.tokens.encoder }));
"""


@torch.no_grad()
def patched(model, tokens, other, source, layer, at):
    """Return the logits of `tokens` if one state after a layer is that of `other`, patched in with a PyTorch hook."""
    blocks, given = model.decoder.blocks, {"source": torch.tensor([source])} if source else {}
    kept = []
    watch = blocks[0].register_forward_pre_hook if layer == 0 else blocks[layer - 1].register_forward_hook

    def state(*passed):
        return passed[-1][0]

    hook = watch(lambda *passed: kept.append(state(*passed).clone()))
    model(torch.tensor([other]), **given)
    hook.remove()

    def put(*passed):
        state(*passed)[0, at] = kept[0][0, at]

    hook = watch(put)
    logits = model(torch.tensor([tokens]), **given).logits[0]
    hook.remove()
    return logits


@pytest.mark.parametrize("name", NAMES)
def test_a_state_put_in_the_place_of_another_gives_the_logits_that_pytorch_gives(name, tmp_path):
    places = [[0, 3, 5], [1, 3, 4], [1, 4, 5], [2, 2, 5], [2, 5, 5]]
    given = {"text": "Mila the mole went to", "other": "Mila the fox went to", "places": places}
    if name == "translator":
        given |= {"source": "einundzwanzig", "text": "[3, 4, 5, 6, 7]", "other": "[3, 4, 9, 6, 7]"}
    run(ENGINE + PASS + PATCHES, {"model": base64_of(live_file(name)), **given}, tmp_path)
    said = json.loads((tmp_path / "found.json").read_text("utf-8"))
    tokens, other = said["tokens"]
    assert len(tokens) == len(other) == 6 and tokens != other
    for layer, at, end in places:
        expected = patched(load_live(live_file(name)), tokens, other, said["source"], layer, at)[end]
        found = torch.tensor(said["found"][f"{layer} {at} {end}"])
        assert (found - expected).abs().max() < 1e-4 * max(1, expected.abs().max())


WITHOUT = """
const [engine, words] = openModel(given.model), source = given.source ? words.encode(given.source) : null;
const pass = engine.begin({ source, off: new Set(given.off) }), found = {};
engine.read(pass, given.tokens);
for (const [name, head, end] of given.heads) {
  const whole = engine.begin({ source, off: new Set([...given.off, `${name}.${head}`]) });
  engine.read(whole, given.tokens.slice(0, end + 1));
  const [short, long, before] = [engine.without(pass, name, head, end), whole.seen.logits[end], pass.seen.logits[end]];
  found[`${name}.${head}`] = [[...short], [...long], [...before]];
}
write("found.json", JSON.stringify(found));
"""


@pytest.mark.parametrize("name", ["story", "translator"])
def test_a_head_that_is_off_beside_others_gives_what_a_pass_without_it_gives(name, tmp_path):
    heads = [["decoder.blocks.0.attention", 3, 4], ["decoder.blocks.1.attention", 1, 5]]
    given = {"tokens": [2, 40, 9, 17, 8, 30], "off": ["decoder.blocks.1.attention.0"], "heads": heads}
    if name == "translator":
        more = [["encoder.blocks.1.attention", 2, 4], ["decoder.blocks.0.cross", 1, 5]]
        given |= {"source": "einundzwanzig", "tokens": [1, 9, 5, 7, 8, 6], "heads": heads + more}
    run(ENGINE + PASS + WITHOUT, {"model": base64_of(live_file(name)), **given}, tmp_path)
    found = json.loads((tmp_path / "found.json").read_text("utf-8"))
    assert len(found) == len(given["heads"])
    for short, whole, before in map(np.array, found.values()):
        assert np.abs(short - whole).max() < 1e-4 * max(1, np.abs(whole).max())
        assert np.abs(whole - before).max() > 1e-3


def rows_of(said, numbers):
    """Return the rows of a pass by name."""
    found, at = {}, 0
    for name, sizes in said["names"]:
        ends = at + np.cumsum([0, *sizes])
        found[name], at = [numbers[a:b] for a, b in pairwise(ends)], ends[-1]
    return found
