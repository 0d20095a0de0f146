"""The examples that come with the package run unchanged."""

import json
import runpy
import sys
from pathlib import Path

import torch
from small_tokenizers import byte_level

import companion
from companion.examples import one_layer, own_text, published
from companion.files.models import save_model

EXAMPLES = Path(companion.__file__).parent / "examples"


def test_a_text_of_ones_own_is_learned_kept_and_written(tmp_path, capsys, monkeypatch):
    text = tmp_path / "letter.txt"
    text.write_text("The sea is wide, and the sea is deep, and nobody swims it twice. " * 40)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["own_text", "letter.txt", "mine", "12"])
    runpy.run_path(str(EXAMPLES / "own_text.py"), run_name="__main__")
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("2,600 characters are ") and said[1].startswith("update   12: ")
    assert said[2].startswith("The sea is wide, and")
    assert companion.load_model("mine").config.layers == 3 and own_text.CONTEXT == 64


def test_a_published_folder_is_read_asked_and_lets_write(tmp_path, capsys):
    folder = tmp_path / "release"
    folder.mkdir()
    vocab = byte_level(folder)
    config = companion.ModelConfig(
        vocab=vocab,
        d_model=24,
        layers=2,
        context=64,
        attention=companion.AttentionConfig(heads=3),
        feed_forward=companion.FeedForwardConfig(d_ff=40),
    )
    torch.manual_seed(0)
    save_model(folder, companion.Transformer(config))
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": False, "eos_token_id": 0}))
    published.main(str(folder), "The sea")
    first, *chances, written = capsys.readouterr().out.splitlines()
    assert first.endswith(" parameters") and sum("%" in line for line in chances) == 5
    assert "The sea" in "\n".join([*chances, written])


def test_a_layer_learns_in_a_module_of_ones_own(capsys):
    one_layer.main(12)
    assert capsys.readouterr().out.startswith("update   12: ")
    symbols, answers = one_layer.batch(3)
    model = one_layer.Twice()
    assert model(symbols).shape == (3, 2) and answers.shape == (3,)
    swapped = symbols.flip(1)  # order matters, because the layer has positions
    assert not torch.allclose(model(symbols), model(swapped))
