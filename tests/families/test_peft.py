"""Our adapters in peft, and peft's in our models: the same logits, in every published layout."""

import json
from pathlib import Path

import peft
import pytest
import torch
from families.compared import class_of, ids, release, transformers
from families.test_export import OF_EACH

from companion.families.adapters import ADAPTER, ADAPTER_WEIGHTS, adapt, load_adapters, merged_model, save_adapters
from companion.families.export import export_model
from companion.families.pretrained import load_pretrained
from companion.files.models import load_tensors
from companion.layers.low_rank import low_rank_layers

LAYOUTS = ("gpt2", "llama", "phi3", "glm4", "deepseek_v3", "kimi_linear", "qwen3_next")
"""Each says something otherwise: stored the other way round, fused, in groups of rows, renamed, with latents or states.
(All that write texts were tried once, and pass.)"""


@pytest.mark.parametrize("kind", LAYOUTS)
@torch.no_grad()
def test_peft_reads_our_adapters_and_we_read_peft_s(kind, tmp_path):
    transformers.logging.set_verbosity_error()
    ours, _ = release(OF_EACH[kind], 0, tmp_path / "released")
    export_model(tmp_path / "base", ours, kind=kind)
    tokens = ids(3, 9, 0)
    before = ours(tokens).logits
    adapt(ours, 3, alpha=5.0, kind=kind)
    assert torch.equal(ours(tokens).logits, before), "B is zero: nothing has changed"
    for layer in low_rank_layers(ours).values():
        layer.up.normal_(std=0.2)
    wanted = ours(tokens).logits
    assert (wanted - before).abs().max() > 0.1 * before.std()
    torch.testing.assert_close(merged_model(ours)(tokens).logits, wanted, rtol=1e-3, atol=1e-3)
    save_adapters(tmp_path / "ours", ours, kind=kind)
    made = class_of(json.loads((tmp_path / "base" / "config.json").read_text()))
    base = made.from_pretrained(tmp_path / "base", attn_implementation="eager").float().eval()
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "ours").eval()
    torch.testing.assert_close(theirs(tokens).logits / wanted.std(), wanted / wanted.std(), rtol=1e-4, atol=1e-4)
    theirs.save_pretrained(tmp_path / "theirs")
    again = load_pretrained(tmp_path / "base")
    load_adapters(tmp_path / "theirs", again, kind=kind)
    assert torch.equal(again(tokens).logits, wanted)
    named = [set(load_tensors(Path(tmp_path, whose, ADAPTER_WEIGHTS))) for whose in ("ours", "theirs")]
    assert named[0] == named[1] and (tmp_path / "ours" / ADAPTER).is_file()
