"""A learner's stage 10 on a real model: the messages if it is right, if it is wrong, and if there is no model."""

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from companion_school.build import check, own, real_model
from companion_school.build.check import Report
from companion_school.build.isolated_modules import World
from companion_school.build.parts import references
from companion_school.build.stages import STAGES
from companion_school.build.workspace import take

FIELDS = {"model_type": "llama", "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "rms_norm_eps": 1e-5,
          "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 24, "rope_theta": 100.0,
          "tie_word_embeddings": True}  # fmt: skip


@pytest.fixture
def model(tmp_path, monkeypatch):
    """Make a folder with a small model in place of SmolLM2, and its right logits."""
    shapes = {"self_attn.q_proj": (16, 16), "self_attn.k_proj": (8, 16), "self_attn.v_proj": (8, 16),
              "self_attn.o_proj": (16, 16), "mlp.gate_proj": (24, 16), "mlp.up_proj": (24, 16),
              "mlp.down_proj": (16, 24), "input_layernorm": (16,), "post_attention_layernorm": (16,)}  # fmt: skip
    shapes = {f"model.layers.{n}.{name}": shape for n in range(2) for name, shape in shapes.items()}
    shapes |= {"model.embed_tokens": (40, 16), "model.norm": (16,)}
    generator = torch.Generator().manual_seed(0)
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({f"{name}.weight": torch.randn(shape, generator=generator) for name, shape in shapes.items()},
              folder / "model.safetensors")  # fmt: skip
    (folder / "config.json").write_text(json.dumps(FIELDS))
    ids = torch.tensor([[1, 7, 3, 9]])
    with torch.no_grad():
        right = World(references(STAGES[10]), "published").load(folder)(ids)[0]
    monkeypatch.setattr(real_model, "theirs", lambda model: (ids, right, "those of transformers"))
    return folder


def mine(tmp_path, old="", new=""):
    folder = tmp_path / "mine"
    take(folder, [STAGES[number] for number in (*STAGES[10].needs, 10)])
    file = folder / "published.py"
    file.write_text(file.read_text().replace(old, new))
    return folder


def test_right_logits_are_told_with_the_time_that_loading_took(model, tmp_path, capsys):
    assert real_model.main([str(mine(tmp_path)), str(model)]) == 0
    assert "its logits equal those of transformers up to 0.0000" in capsys.readouterr().out


@pytest.mark.parametrize(
    "old, new, told",
    [
        ('intermediate_size"], base)', 'intermediate_size"])', "from token 1 on; most likely positions or the mask"),
        ("self.decoder.norm = RMSNorm(config.d_model, eps)", "self.decoder.norm = nn.Identity()", "your `load` raises"),
        ("x @ (self.embedding", "2 * x @ (self.embedding", "from token 0 on; most likely a weight"),
    ],
)
def test_what_is_wrong_with_a_real_model_is_told(model, tmp_path, capsys, old, new, told):
    assert real_model.main([str(mine(tmp_path, old, new)), str(model)]) == 1
    assert told in capsys.readouterr().out


def test_without_the_model_the_report_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(real_model, "at_hand", lambda name: None)
    report = check.with_real_model(Report(STAGES[10], ()), tmp_path)
    assert report.is_right and "companion get smollm2" in str(report)
    assert str(check.with_real_model(Report(STAGES[5], ()), tmp_path)) == "build.5 model.py: right."


def test_a_machine_that_is_too_busy_does_not_make_the_stage_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(real_model, "at_hand", lambda name: SimpleNamespace(folder=tmp_path))
    monkeypatch.setattr(real_model, "SECONDS", 0.01)
    report = check.with_real_model(Report(STAGES[10], ()), tmp_path)
    assert report.is_right and "so your logits were not compared with it" in str(report)


def test_a_wrong_real_model_makes_the_stage_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(real_model, "try_real_model", lambda folder: (False, "SmolLM2: your logits differ"))
    report = check.with_real_model(Report(STAGES[10], ()), tmp_path)
    assert not report.is_right and str(report) == "build.10 published.py: not yet.\n  SmolLM2: your logits differ"


def test_the_last_notebook_shows_the_saved_model_or_else_the_courses(model, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COMPANION_BUILD", str(model))
    assert own.own_model() == model and "yours" in capsys.readouterr().out
    monkeypatch.setenv("COMPANION_BUILD", str(tmp_path / "none"))
    made = own.own_model()
    storyteller = World(references(STAGES[10]), "published").load(made)
    assert "the course's" in capsys.readouterr().out and (made / "tokenizer.json").is_file()
    assert storyteller.embedding.weight.shape == (768, 96)
