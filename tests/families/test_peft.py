"""Our adapters in peft, and peft's in our models, give the same logits in every published layout."""

import json
from pathlib import Path

import peft
import pytest
import torch
from families.compared import ids, release, transformers
from families.test_export import OF_EACH

from companion.families.adapters import ADAPTER, ADAPTER_WEIGHTS, adapt, load_adapters, merged_model, save_adapters
from companion.families.pretrained import load_pretrained
from companion.families.registry import families
from companion.files.models import load_tensors
from companion.layers.low_rank import low_rank_layers

KINDS = sorted(kind for kind, family in families().items() if family.writes and kind not in ("marian", "t5", "bart"))
"""Every family of decoders."""


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_peft_reads_our_adapters_and_we_read_peft_s(kind, tmp_path):
    transformers.logging.set_verbosity_error()
    ours, theirs = release(OF_EACH[kind], 0, tmp_path / "base")
    tokens = ids(3, 9, 0)
    before = ours(tokens).logits
    adapt(ours, 3, alpha=5.0)
    assert torch.equal(ours(tokens).logits, before), "B is zero: nothing has changed"
    for layer in low_rank_layers(ours).values():
        layer.up.normal_(std=0.2)
    wanted = ours(tokens).logits
    assert (wanted - before).abs().max() > 0.1 * before.std()
    torch.testing.assert_close(merged_model(ours)(tokens).logits, wanted, rtol=1e-3, atol=1e-3)
    save_adapters(tmp_path / "ours", ours)
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path / "ours").eval()
    torch.testing.assert_close(theirs(tokens).logits / wanted.std(), wanted / wanted.std(), rtol=1e-4, atol=1e-4)
    theirs.save_pretrained(tmp_path / "theirs")
    again = load_pretrained(tmp_path / "base")
    load_adapters(tmp_path / "theirs", again)
    assert torch.equal(again(tokens).logits, wanted)
    named = [set(load_tensors(Path(tmp_path, whose, ADAPTER_WEIGHTS))) for whose in ("ours", "theirs")]
    assert named[0] == named[1] and (tmp_path / "ours" / ADAPTER).is_file()


QKV = ["q_proj", "k_proj", "v_proj"]
OF_PEFT = [
    ({"init_lora_weights": False}, None),
    ({"init_lora_weights": "gaussian"}, None),
    ({"init_lora_weights": "orthogonal"}, None),
    ({"lora_dropout": 0.3, "layers_to_transform": [1], "layers_pattern": "layers"}, None),
    ({"target_modules": "all-linear", "exclude_modules": ["k_proj"], "task_type": "CAUSAL_LM"}, None),
    (
        {"init_lora_weights": "pissa"},
        "='pissa': expected true or.*others also change the weights below",
    ),
    ({"init_lora_weights": "pissa_niter_2"}, "init_lora_weights='pissa_niter_2': expected"),
    ({"init_lora_weights": "olora"}, "init_lora_weights='olora': expected"),
    ({"init_lora_weights": "mica"}, "init_lora_weights='mica': expected"),
    ({"alora_invocation_tokens": [7, 8]}, r"alora_invocation_tokens=\[7, 8\]: unsupported field"),
    ({"use_rslora": True}, "use_rslora=True: unsupported field"),
    ({"use_dora": True}, "use_dora=True: unsupported field"),
    ({"rank_pattern": {"q_proj": 2}}, "rank_pattern={'q_proj': 2}: expected"),
    ({"alpha_pattern": {"q_proj": 9}}, "alpha_pattern={'q_proj': 9}: expected"),
    ({"modules_to_save": ["lm_head"]}, r"modules_to_save=\['lm_head'\]: unsupported field"),
    ({"layer_replication": [(0, 2), (1, 3)]}, "layer_replication=.*unsupported field"),
    ({"trainable_token_indices": [3]}, "trainable_token_indices=.*unsupported field"),
    ({"lora_bias": True, "init_lora_weights": False}, "lora_bias=True: unsupported field"),
    ({"bias": "lora_only"}, "bias='lora_only': expected"),
    ({"kasa_config": {}}, "kasa_config=.*unsupported field"),
    ({"target_modules": [*QKV, "lm_head"]}, "lm_head.*the token embeddings or the head cannot be read"),
    ({"target_modules": [*QKV, "embed_tokens"]}, "embed_tokens.*the token embeddings or the head cannot be read"),
]


@pytest.mark.parametrize(("fields", "sentence"), OF_PEFT)
@torch.no_grad()
def test_an_adapter_of_peft_is_read_as_peft_reads_it_or_refused_by_name(fields, sentence, tmp_path):
    """The fields are all those that peft 0.21 can write into adapter_config.json."""
    ours, theirs = release(OF_EACH["llama"], 0, tmp_path / "base")
    torch.manual_seed(3)
    config = peft.LoraConfig(**{"r": 4, "lora_alpha": 6, "target_modules": QKV, **fields})
    made = peft.get_peft_model(theirs, config)
    for name, parameter in made.named_parameters():
        if ".lora_" in name:
            parameter.normal_(std=0.3)
    made.save_pretrained(tmp_path / "adapter")
    if sentence is not None:
        before = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
        with pytest.raises(ValueError, match=sentence):
            load_adapters(tmp_path / "adapter", ours)
        assert before.keys() == ours.state_dict().keys(), "nothing is changed"
        return
    tokens = ids(3, 9, 0)
    load_adapters(tmp_path / "adapter", ours)
    base = load_pretrained(tmp_path / "base")(tokens).logits
    wanted = made.eval()(tokens).logits
    assert (wanted - base).abs().max() > 0.1 * base.std()
    torch.testing.assert_close(ours(tokens).logits, wanted, rtol=1e-4, atol=1e-4 * float(wanted.std()))


@torch.no_grad()
def test_a_model_that_was_not_read_from_a_folder_finds_the_layout_of_the_file(tmp_path):
    ours, _ = release(OF_EACH["phi3"], 0, tmp_path / "base")
    tokens = ids(3, 9, 0)
    adapt(ours, 3)
    for layer in low_rank_layers(ours).values():
        layer.up.normal_(std=0.2)
    save_adapters(tmp_path / "adapter", ours)
    again = load_pretrained(tmp_path / "base")
    again.published_kind = None
    load_adapters(tmp_path / "adapter", again)
    assert torch.equal(again(tokens).logits, ours(tokens).logits) and again.published_kind == "phi3"


def test_a_feature_of_another_version_of_peft_is_read_where_it_is_off(tmp_path):
    ours, _ = release(OF_EACH["llama"], 0, tmp_path / "base")
    adapt(ours, 3)
    save_adapters(tmp_path / "adapter", ours)
    path = tmp_path / "adapter" / ADAPTER
    said = json.loads(path.read_text())
    for value, fits in ((False, True), (None, True), ({}, True), (True, False), (0.5, False)):
        path.write_text(json.dumps(said | {"use_of_tomorrow": value}))
        again = load_pretrained(tmp_path / "base")
        if fits:
            load_adapters(tmp_path / "adapter", again)
        else:
            with pytest.raises(ValueError, match="use_of_tomorrow=.*unsupported field"):
                load_adapters(tmp_path / "adapter", again)
