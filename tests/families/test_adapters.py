"""Adapters of a model, and their file in peft's format, tested without peft; `test_peft.py` uses peft itself."""

import json

import pytest
import torch
from families.test_export import CONFIG, OURS
from models import drawn

from companion.families.adapters import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    adapt,
    adapter_tensors,
    load_adapters,
    merged_model,
    put_adapters,
    save_adapters,
)
from companion.files.models import load_tensors, save_tensors
from companion.layers.low_rank import low_rank_layers, without_adapters

TOKENS = torch.randint(1, 40, (3, 9), generator=torch.Generator().manual_seed(0))


def adapted(config=CONFIG, rank=3, **options):
    """Return a model with adapters whose weights are not zero."""
    model = drawn(config, std=0.2).eval()
    adapt(model, rank, **options)
    with torch.no_grad():
        for layer in low_rank_layers(model).values():
            layer.up.normal_(std=0.2)
    return model


@torch.no_grad()
@pytest.mark.parametrize("kind", ["llama", "gpt2", "phi3", "qwen3", "mixtral", "deepseek_v3", "qwen3_next"])
def test_adapters_come_back_from_their_file_and_merge(kind, tmp_path):
    config = OURS.get(kind, CONFIG)
    plain, model = drawn(config, std=0.2).eval(), adapted(config, alpha=5.0, kind=kind)
    wanted = model(TOKENS).logits
    with without_adapters(model):
        assert torch.equal(model(TOKENS).logits, plain(TOKENS).logits)
    assert (wanted - plain(TOKENS).logits).abs().max() > 0.05
    torch.testing.assert_close(merged_model(model)(TOKENS).logits, wanted, rtol=1e-3, atol=1e-4)
    save_adapters(tmp_path, model, kind=kind)
    assert sorted(path.name for path in tmp_path.iterdir()) == [ADAPTER, ADAPTER_WEIGHTS]
    load_adapters(tmp_path, plain, kind=kind)
    assert torch.equal(plain(TOKENS).logits, wanted)


@pytest.mark.parametrize(
    ("kind", "name", "shape"),
    [
        ("llama", "model.layers.1.self_attn.k_proj", (12, 3)),
        ("phi3", "model.layers.1.self_attn.qkv_proj", (48, 3)),  # one matrix A for three layers of ours
        ("gpt2", "transformer.h.1.attn.c_attn", (72, 3)),  # stored transposed, but adapters are not
    ],
)
def test_names_are_those_of_the_published_layout(kind, name, shape):
    tensors = adapter_tensors(adapted(OURS.get(kind, CONFIG), kind=kind), kind)
    assert tensors[f"base_model.model.{name}.lora_B.weight"].shape == shape
    assert tensors[f"base_model.model.{name}.lora_A.weight"].shape == (3, 24)


def test_few_numbers_learn_and_attention_alone_may():
    model, other = adapted(rank=2), adapted(rank=2, targets="attention")
    trained = [sum(p.numel() for p in one.parameters() if p.requires_grad) for one in (model, other)]
    attention = 2 * (2 * (24 + 24) * 2 + 2 * (24 + 12) * 2)
    assert trained == [attention + 2 * 2 * 3 * (24 + 36), attention]
    assert set(low_rank_layers(other)) < set(low_rank_layers(model))


def changed(folder, **fields):
    path = folder / ADAPTER
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"peft_type": "IA3"}, 'peft_type=.IA3.: expected "LORA"'),
        (
            {"use_dora": True},
            "use_dora=True: unsupported field; it may change what the adapters compute",
        ),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern={'q_proj': 4}: expected {} or null"),
        ({"r": 0}, "r=0: expected a whole number >= 1"),
        ({"r": 4}, r"lora_A.weight: expected a tensor of shape \(4, 24\), got \(3, 24\)"),
        ({"bias": "all"}, "bias='all': expected \"none\" or null"),
    ],
)
def test_what_peft_can_and_this_cannot_is_refused_by_name(fields, sentence, tmp_path):
    save_adapters(tmp_path, adapted())
    changed(tmp_path, **fields)
    with pytest.raises(ValueError, match=sentence):
        load_adapters(tmp_path, drawn(CONFIG))


def test_adapters_of_another_model_or_of_its_head_are_refused(tmp_path):
    save_adapters(tmp_path, adapted())
    tensors = load_tensors(tmp_path / ADAPTER_WEIGHTS)
    with pytest.raises(ValueError, match="expected a linear layer of this model"):
        load_adapters(tmp_path, drawn(CONFIG.with_(layers=1)))
    few = {name: tensor for name, tensor in tensors.items() if "q_proj" not in name}
    with pytest.raises(ValueError, match=r"q_proj.lora_A.weight: expected a tensor of shape .*, got none"):
        put_adapters(adapted(), few)
    save_tensors(tmp_path / ADAPTER_WEIGHTS, few)
    model = drawn(CONFIG)
    load_adapters(tmp_path, model)  # a file may change only some layers
    assert len(low_rank_layers(model)) == 2 * 6
    with pytest.raises(ValueError, match="expected a model without adapters"):
        adapt(model, 2)
    with pytest.raises(ValueError, match="expected a model with adapters"):
        adapter_tensors(drawn(CONFIG))
