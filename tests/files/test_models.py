"""Checkpoints are restored completely or not at all, and mismatches are named."""

import json
import os
import re
import threading

import pytest
import torch
from models import drawn
from safetensors.torch import load_file, save_file

from companion import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
    Transformer,
)
from companion.families.adapters import adapt, load_adapters, save_adapters
from companion.families.export import export_model
from companion.families.pretrained import load_pretrained
from companion.files.models import load_model, load_tensors, save_model, save_tensors
from companion.ground import atomic
from companion.ground.atomic import write_atomic
from companion.layers.low_rank import low_rank_layers

CONFIG = ModelConfig(
    vocab=13,
    d_model=12,
    layers=2,
    context=20,
    attention=AttentionConfig(heads=4, kv_heads=2, d_head=6, d_v=5),
    feed_forward=FeedForwardConfig(d_ff=7),
)
VARIANTS = {
    "tied": CONFIG,
    "untied": CONFIG.with_(embedding=EmbeddingConfig(tied=False)),
    "experts": CONFIG.with_(moe=MoEConfig(experts=3, top_k=2)),
    "learned, biased": CONFIG.with_(
        positions=PositionConfig("learned"), attention=AttentionConfig(heads=3, bias=True), stack="encoder"
    ),
    "both stacks": CONFIG.with_(stack="encoder_decoder"),
}


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_a_model_comes_back_bit_for_bit(config, tmp_path):
    torch.manual_seed(1)
    model = Transformer(config)
    save_model(tmp_path / "deep" / "folder", model)
    again = load_model(tmp_path / "deep" / "folder")
    assert again.config == config and not again.training
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(again.state_dict()[name], value) for name, value in model.state_dict().items())
    assert all(p.requires_grad for p in again.parameters())
    assert sorted(os.listdir(tmp_path / "deep" / "folder")) == ["config.json", "model.safetensors"]


def test_a_tied_table_is_stored_once_and_stays_one_parameter(tmp_path):
    model = Transformer(CONFIG)
    save_model(tmp_path, model)
    stored = load_file(tmp_path / "model.safetensors")
    assert sum(t.numel() for t in stored.values()) == sum(p.numel() for p in model.parameters())
    assert [name for name, t in stored.items() if t.shape == (13, 12)] == ["embedding.weight"]
    again = load_model(tmp_path)
    x = torch.randn(1, 12)
    before = again.head(x)
    with torch.no_grad():
        again.embedding.weight *= 2
    torch.testing.assert_close(again.head(x), 2 * before)


def test_the_dtype_can_be_chosen_when_loading(tmp_path):
    model = Transformer(CONFIG).double()
    save_model(tmp_path, model)
    assert {p.dtype for p in load_model(tmp_path).parameters()} == {torch.float64}
    half = load_model(tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert torch.equal(half.embedding.weight, model.embedding.weight.bfloat16())


def test_loading_draws_no_random_numbers(tmp_path):
    save_model(tmp_path, Transformer(CONFIG))
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    load_model(tmp_path)
    assert torch.equal(torch.rand(2), expected)


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere: expected a folder with config.json and model.safetensors"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"config.json: expected the model's configuration, found no such file"):
        load_model(tmp_path)
    save_model(tmp_path, Transformer(CONFIG))
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    for size in (0, 5, len(whole) // 2, len(whole) - 1):
        weights.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=rf"model.safetensors: .* its {size} bytes are damaged or truncated"):
            load_model(tmp_path)
    weights.unlink()
    with pytest.raises(ValueError, match=r"model.safetensors: expected a safetensors file, found none$"):
        load_model(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"found none; pytorch_model.bin is a pickle, .* never read"):
        load_model(tmp_path)
    text = (tmp_path / "config.json").read_text()
    for damaged in (text[: len(text) // 2], "[1]", ""):
        (tmp_path / "config.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"config.json: expected (JSON, but the file is damaged|a JSON object)"):
            load_model(tmp_path)


def test_a_configuration_that_does_not_fit_the_weights_is_taken_apart(tmp_path):
    save_model(tmp_path, Transformer(CONFIG))
    other = CONFIG.with_(feed_forward=FeedForwardConfig(d_ff=9, activation="relu", bias=True), layers=1)
    (tmp_path / "config.json").write_text(other.to_json())
    with pytest.raises(ValueError) as caught:
        load_model(tmp_path)
    message = str(caught.value)
    assert "missing decoder.blocks.0.feed_forward.inner.bias (9,)" in message
    assert "unexpected decoder.blocks.0.feed_forward.gate.weight (7, 12)" in message
    assert "decoder.blocks.0.feed_forward.inner.weight is (7, 12), expected (9, 12)" in message
    assert re.search(r"and \d+ more", message)


def test_a_checkpoint_of_another_kind_of_model_is_refused(tmp_path):
    save_model(tmp_path, Transformer(CONFIG))
    data = json.loads(CONFIG.to_json())
    for change, message in (
        ({"model_type": "bert"}, "which is a Hugging Face configuration; load it with companion.load_pretrained"),
        ({"alibi": True}, "config.alibi: unknown field"),
        ({"d_model": 13}, "heads"),
        ({"layers": "2"}, "config.layers='2': expected int"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**data, **change, "attention": {"heads": 4}}))
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            load_model(tmp_path)
        assert str(tmp_path / "config.json") in str(caught.value)


def _fail(*_args, **_kwargs):
    raise OSError("no space left on device")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_files_and_no_draft(step, tmp_path, monkeypatch):
    old = Transformer(CONFIG)
    save_model(tmp_path, old)
    save_tensors(tmp_path / "state.safetensors", {"step": torch.tensor(1)})
    write_atomic(tmp_path / "notes.txt", "old")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(os, step, _fail)
    for write in (
        lambda: save_model(tmp_path, Transformer(CONFIG)),
        lambda: save_tensors(tmp_path / "state.safetensors", {"step": torch.tensor(2)}),
        lambda: write_atomic(tmp_path / "notes.txt", "new"),
        lambda: write_atomic(tmp_path / "more.txt", "new"),
    ):
        with pytest.raises(OSError, match="no space left"):
            write()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_model_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    save_model(tmp_path, Transformer(CONFIG))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr("companion.files.models.save_file", _fail)
    with pytest.raises(OSError, match="no space left"):
        save_model(tmp_path, Transformer(CONFIG.with_(layers=1)))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


LLAMA = CONFIG.with_(attention=AttentionConfig(heads=2))


def two_models():
    """Return two models of the same shapes that differ in their configurations and weights, and two with adapters."""
    made = [drawn(LLAMA.with_(norm=NormConfig("rms", eps=eps)), seed=seed) for seed, eps in enumerate((1e-5, 1e-3))]
    adapted = [drawn(LLAMA, seed=0) for _ in made]
    for rank, model in enumerate(adapted, 2):
        adapt(model, rank, kind="llama")
    return made, adapted


def test_who_reads_a_folder_that_is_replaced_meets_one_model_or_the_other(tmp_path):
    """For our own layout, a published one, and adapters, whatever is read was saved together."""
    made, adapted = two_models()
    writes = {
        "own": lambda i: save_model(tmp_path / "own", made[i]),
        "published": lambda i: export_model(tmp_path / "published", made[i], kind="llama"),
        "adapters": lambda i: save_adapters(tmp_path / "adapters", adapted[i], kind="llama"),
    }
    for write in writes.values():
        write(0)
    over, faults = threading.Event(), []

    def replaced():
        turn = 0
        while not over.wait(0.005):
            turn += 1
            for write in writes.values():
                write(turn % 2)

    writer = threading.Thread(target=replaced)
    writer.start()
    seen = set()
    try:
        for _ in range(25):
            for name in ("own", "published"):
                found = load_pretrained(tmp_path / name)
                which = found.config.norm.eps == made[1].config.norm.eps
                faults += [name] if not torch.equal(found.embedding.weight, made[which].embedding.weight) else []
                seen.add((name, which))
            model = drawn(LLAMA, seed=0)
            load_adapters(tmp_path / "adapters", model)
            seen.add(("adapters", next(iter(low_rank_layers(model).values())).rank))
    finally:
        over.set()
        writer.join()
    assert faults == [] and len(seen) == 6


@pytest.mark.parametrize("name", ["own", "published", "adapters"])
def test_a_replacement_that_was_killed_halfway_is_noticed_until_it_is_made_again(name, tmp_path, monkeypatch):
    made, adapted = two_models()
    write, read = {
        "own": (lambda i: save_model(tmp_path, made[i]), lambda: load_model(tmp_path)),
        "published": (lambda i: export_model(tmp_path, made[i], kind="llama"), lambda: load_pretrained(tmp_path)),
        "adapters": (
            lambda i: save_adapters(tmp_path, adapted[i], kind="llama"),
            lambda: load_adapters(tmp_path, drawn(LLAMA, seed=0)),
        ),
    }[name]
    write(0)
    names, real = [], os.replace

    def once(old, new):
        if names:
            raise KeyboardInterrupt
        names.append(real(old, new))

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", once)
        write(1)
    monkeypatch.setitem(atomic.read_together.__kwdefaults__, "seconds", 0.05)
    with pytest.raises(ValueError, match="the files do not belong together.* save the model there"):
        read()
    write(1)
    read()
    assert not list(tmp_path.glob(".*"))


def test_text_and_bytes_are_written_as_they_are(tmp_path):
    write_atomic(tmp_path / "new" / "text", "Grüße\n")
    write_atomic(tmp_path / "new" / "data", b"\x00\xff")
    assert (tmp_path / "new" / "text").read_bytes() == "Grüße\n".encode()
    assert (tmp_path / "new" / "data").read_bytes() == b"\x00\xff"


def test_tensors_of_any_dtype_and_layout_come_back(tmp_path):
    tensors = {
        "a.b": torch.arange(6, dtype=torch.int64).view(2, 3).T,
        "rng": torch.get_rng_state(),
        "scalar": torch.tensor(0.5, dtype=torch.float64),
        "half": torch.randn(3, requires_grad=True).bfloat16(),
        "flag": torch.tensor([True, False]),
    }
    save_tensors(tmp_path / "state.safetensors", tensors)
    again = load_tensors(tmp_path / "state.safetensors")
    assert again.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert again[name].dtype == tensor.dtype and torch.equal(again[name], tensor)


def test_no_pickle_is_read(tmp_path):
    torch.save({"embedding.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(CONFIG.to_json())
    with pytest.raises(ValueError, match="expected a complete safetensors file"):
        load_model(tmp_path)


def test_weights_of_foreign_names_are_listed(tmp_path):
    save_file({"wte.weight": torch.zeros(2, 3), "wpe.weight": torch.zeros(2, 3)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(CONFIG.to_json())
    with pytest.raises(ValueError, match=r"missing embedding.weight \(13, 12\).*more"):
        load_model(tmp_path)


def test_nothing_is_drawn_while_a_model_is_loaded(tmp_path, monkeypatch):
    """The random weights would be discarded, and on the meta device PyTorch would load its compiler to draw them."""
    config = ModelConfig(7, 8, 2, context=9, attention=AttentionConfig(2), feed_forward=FeedForwardConfig(5))
    model = Transformer(config)
    save_model(tmp_path, model)

    def drawn(*_, **__):
        raise AssertionError("weights were drawn")

    for name in ("normal_", "uniform_"):
        monkeypatch.setattr(torch.Tensor, name, drawn)
    loaded = load_model(tmp_path).state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in model.state_dict().items())
    with pytest.raises(AssertionError, match="weights were drawn"):
        Transformer(config)


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
    mixed, short = Transformer(CONFIG), Transformer(CONFIG)
    mixed.decoder.norm.to(torch.bfloat16)
    short.decoder.blocks = short.decoder.blocks[:1]
    for model, message in (
        (mixed, r"expected one dtype, or model.to\(dtype\) to convert the model"),
        (short, r"missing decoder.blocks.1.attention_norm.weight \(12,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            save_model(tmp_path / "new", model)
        assert not (tmp_path / "new").exists()
    save_model(tmp_path / "new", mixed.to(torch.bfloat16))
    assert load_model(tmp_path / "new").decoder.norm.weight.dtype == torch.bfloat16


def test_a_layer_that_stands_in_two_places_is_saved_in_both(tmp_path):
    model = Transformer(CONFIG).eval()
    model.decoder.blocks[1].feed_forward = model.decoder.blocks[0].feed_forward
    save_model(tmp_path, model)
    tokens = torch.arange(9)[None]
    again = load_model(tmp_path)
    assert all(map(torch.equal, again.state_dict().values(), model.state_dict().values()))
    torch.testing.assert_close(again(tokens).logits, model(tokens).logits)  # sums may round differently in other memory


def test_saved_weights_can_be_read_by_whoever_can_read_other_new_files(tmp_path):
    before = os.umask(0o027)
    try:
        (tmp_path / "plain.txt").touch()
        save_tensors(tmp_path / "a.safetensors", {"x": torch.arange(3)})
        save_model(tmp_path / "model", Transformer(CONFIG))
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*.*") if path.is_file()]
    assert len(files) == 4 and len({path.stat().st_mode for path in files}) == 1
