"""The references that are not on the page: tokenizer, published models, latent attention, race."""

import importlib
import json
import sys
from functools import partial
from itertools import pairwise

import pytest
import theirs
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from companion import AttentionConfig, LatentConfig, PositionConfig
from companion.data.corpora import first_edition
from companion.layers.latent import LatentAttention
from companion_school.build.stages import STAGES
from companion_school.build.stubs import reference

LONG = "\n\n".join(document.text for document in first_edition().documents)
TEXT = LONG[:20_000]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Write all references into one folder, like a learner who takes all of them."""
    folder = tmp_path_factory.mktemp("transformer")
    for number, stage in STAGES.items():
        (folder / stage.file).write_text(reference(number), "utf-8")
    modules = [stage.module for stage in STAGES.values()]
    hidden = {name: sys.modules.pop(name) for name in modules if name in sys.modules}
    sys.path.insert(0, str(folder))
    yield {name: importlib.import_module(name) for name in modules}  # this includes gpt2, which `load` then supports
    sys.path.remove(str(folder))
    for name in modules:
        del sys.modules[name]
    sys.modules.update(hidden)


@pytest.fixture(scope="module")
def tokenizer(files):
    return files["tokenizer"]


@pytest.fixture(scope="module")
def merges(tokenizer):
    return tokenizer.learn(TEXT, 300)


# tokenizer


def test_merges_are_those_of_the_lesson(tokenizer):
    learned = tokenizer.learn("the cat sat on the mat", 9)
    assert [tuple(tokenizer.decode([token], learned) for token in pair) for pair in learned[:1]] == [("a", "t")]
    assert learned == [(ord("a"), ord("t")), (ord("h"), ord("e")), (ord("t"), 257)]


def test_merges_are_the_most_frequent_pairs_counted_anew(tokenizer):
    words = [list(piece) for piece in tokenizer.pieces(TEXT[:4000])]
    learned = tokenizer.learn(TEXT[:4000], 40)
    for number, pair in enumerate(learned):
        pairs = [pair for word in words for pair in pairwise(word)]
        assert pair == min(set(pairs), key=lambda pair: (-pairs.count(pair), pair))
        words = [tokenizer.join(word, pair, 256 + number) for word in words]


@settings(max_examples=300, deadline=None)
@given(text=st.text())
def test_every_text_comes_back(tokenizer, merges, text):
    assert tokenizer.decode(tokenizer.encode(text, merges), merges) == text
    assert b"".join(tokenizer.pieces(text)) == text.encode()


@pytest.mark.parametrize(
    "text", ["", " ", "\r\n\t ", "x" * 500, "naïve 東京 🐍 ½² ٣٤ a_b __init__", "\0\x7f\u2028", "  .  ..,"]
)
def test_odd_texts_come_back(tokenizer, merges, text):
    assert tokenizer.decode(tokenizer.encode(text, merges), merges) == text


def test_merges_shorten_and_are_used_in_their_order(tokenizer, merges):
    ids = tokenizer.encode(TEXT, merges)
    assert len(ids) < 0.55 * len(TEXT.encode()) and max(ids) < 256 + len(merges)
    swapped = [(ord("h"), ord("e")), (ord("t"), ord("h")), (ord("t"), 256)]
    assert tokenizer.encode("the", swapped) == [258]
    assert tokenizer.encode("the", [swapped[1], swapped[0]]) == [256, ord("e")]
    assert tokenizer.encode("aaaaa", [(97, 97), (256, 256)]) == [257, 97]


def test_learning_ends_where_no_pair_occurs_twice(tokenizer):
    assert tokenizer.learn("abcd", 5) == tokenizer.learn("", 5) == tokenizer.learn("abab abab", 0) == []


def test_half_a_character_is_shown_and_a_lone_surrogate_refused(tokenizer, merges):
    assert tokenizer.decode([0xC3], []) == "\ufffd"
    with pytest.raises(ValueError, match="surrogate"):
        tokenizer.encode("\ud800", merges)


# published


def kinds():
    return {
        "gpt2": theirs.gpt2,
        "llama": theirs.llama,
        "llama, tied, another base and width": lambda: theirs.llama(
            tie_word_embeddings=True, rope_theta=500.0, head_dim=8, rms_norm_eps=1e-3
        ),
        "qwen3": theirs.qwen3,
        "qwen3, tied": lambda: theirs.qwen3(tie_word_embeddings=True),
    }


@pytest.fixture(scope="module", params=kinds())
def saved(request, tmp_path_factory):
    """Make a model of `transformers`, and the folder that it was saved to."""
    torch.manual_seed(5)
    model, folder = kinds()[request.param](), tmp_path_factory.mktemp("published")
    model.save_pretrained(folder)
    return model.eval(), folder


def test_logits_are_those_of_transformers(files, saved):
    theirs, folder = saved
    own = files["published"].load(folder)
    ids = torch.randint(50, (3, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = theirs(ids).logits
        assert_close(own(ids), logits, rtol=0, atol=2e-5 * logits.abs().max().item())
    assert logits.std() > 0.1


def test_a_published_model_writes_with_the_own_cache(files, saved):
    theirs, folder = saved
    own = files["published"].load(folder)
    text = list(files["generation"].generate(own, [7, 3, 9], 12, temperature=0))
    assert text == list(files["generation"].generate(own, [7, 3, 9], 12, temperature=0, cached=False))
    ids = torch.tensor([[7, 3, 9]])
    mask, choice = torch.ones_like(ids), {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    whole = theirs.generate(ids, attention_mask=mask, max_new_tokens=12, **choice)
    assert whole[0, 3:].tolist() == text


def test_what_the_own_model_does_not_do_is_refused(files, saved, tmp_path):
    _, folder = saved
    fields = json.loads((folder / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    wrong = {"model_type": "mamba"}, {"hidden_act": "relu", "activation_function": "relu"}
    wrong += ({"rope_parameters": {"rope_type": "yarn"}},) if fields["model_type"] != "gpt2" else ()
    for changes in wrong:
        (tmp_path / "config.json").write_text(json.dumps(fields | changes))
        with pytest.raises(ValueError, match="config.json: .*(mamba|relu|yarn)"):
            files["published"].load(tmp_path)
    missing = "n_head" if fields["model_type"] == "gpt2" else "num_attention_heads"
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in fields.items() if k != missing}))
    with pytest.raises(ValueError, match=f"config.json: the field '{missing}' is missing"):
        files["published"].load(tmp_path)


@pytest.mark.parametrize("change", ["missing", "left over", "shape"])
def test_tensors_are_read_strictly(files, saved, change, tmp_path):
    from safetensors.torch import load_file, save_file

    _, folder = saved
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in sorted(tensors) if "norm" in name or "ln_" in name)
    if change == "missing":
        del tensors[name]
    elif change == "left over":
        tensors["strange.weight"] = torch.ones(3)
    else:
        tensors[name] = torch.ones(5)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(
        ValueError, match={"left over": "strange", "missing": "Missing", "shape": "size mismatch"}[change]
    ):
        files["published"].load(tmp_path)


def test_damaged_files_are_named(files, saved, tmp_path):
    _, folder = saved
    load, data = files["published"].load, (folder / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="config.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(ValueError, match="found none"):
        load(tmp_path)
    for wrong in (b"", data[:-7], data[:40], b"\xff" * 50, b"PK" + data[2:]):
        (tmp_path / "model.safetensors").write_bytes(wrong)
        with pytest.raises(ValueError, match=r"model.safetensors: expected a complete safetensors file"):
            load(tmp_path)


def test_half_precision_and_several_files_are_read(files, saved, tmp_path):
    from safetensors.torch import load_file, save_file

    _, folder = saved
    tensors = {name: x.bfloat16() for name, x in load_file(folder / "model.safetensors").items()}
    names = sorted(tensors)
    for number, part in enumerate((names[::2], names[1::2])):
        save_file({name: tensors[name] for name in part}, tmp_path / f"model-{number}.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    own, rounded = files["published"].load(folder), files["published"].load(tmp_path)
    for name, weight in rounded.named_parameters():
        assert weight.dtype == torch.float32
        assert_close(weight, dict(own.named_parameters())[name].bfloat16().float(), rtol=0, atol=0)


# latent


def test_latent_attention_is_the_packages(files):
    sizes = AttentionConfig(heads=3, latent=LatentConfig(10, d_rope=4, eps=1e-6))
    packages = LatentAttention(24, sizes, positions=PositionConfig("rotary", base=500.0)).double()
    own = files["latent"].LatentAttention(24, heads=3, rank=10, d_rope=4).double()
    own.load_state_dict(packages.state_dict())
    x, places = torch.randn(2, 7, 24, dtype=torch.float64), torch.arange(7)
    turn = partial(files["positions"].rotate, base=500.0)
    whole = own(x, files["attention"].causal(7, 7), turn=partial(turn, places=places))
    assert_close(whole, packages(x), rtol=1e-10, atol=1e-12)
    cache = files["generation"].Cache()
    rows = [own(x[:, n : n + 1], turn=partial(turn, places=places[n : n + 1]), cache=cache) for n in range(7)]
    assert_close(torch.cat(rows, dim=1), whole, rtol=1e-10, atol=1e-12)


def test_a_decoder_with_latents_writes_with_the_own_cache_and_keeps_what_the_formula_says(files):
    code = files["latent"]
    config = files["model"].Config(vocab=50, d_model=32, layers=3, heads=4, kv_heads=2)
    model, plain = code.put_latents(files["model"].Transformer(config), 12, 4), files["model"].Transformer(config)
    told = [list(files["generation"].generate(model, [7, 3, 9], 12, temperature=0, cached=c)) for c in (True, False)]
    assert told[0] == told[1] and len(told[0]) == 12
    for one, kept in ((model, (12, 4)), (plain, (None, 0))):
        caches = [files["generation"].Cache() for _ in one.decoder.blocks]
        one(torch.zeros(1, 9, dtype=torch.long), caches)
        held = sum(x.numel() * x.element_size() for cache in caches for x in (cache.keys, cache.values))
        assert held == code.bytes_kept(config, 9, *kept)


# race


def test_the_race_learns_in_its_time_and_hands_in_what_can_be_measured(files):
    runner = files["race"].race(LONG[:60_000], 5.0)
    unseen = LONG[60_000:66_000]
    ids = torch.tensor(files["tokenizer"].encode(unseen, runner.merges))
    bits = files["training"].bits_per_byte(runner.model, ids, runner.context, len(unseen.encode()))
    assert 0.5 < bits < 5  # without learning, a byte of this text would take more than five bits
    logits = runner.model(ids[None, :9])
    other = ids[None, :9].clone()
    other[0, 8] = (other[0, 8] + 1) % 256
    assert logits.shape == (1, 9, 256 + len(runner.merges))
    assert_close(runner.model(other)[:, :8], logits[:, :8])
