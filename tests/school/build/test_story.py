"""A learner's files become a model that tells stories, in a format that the library and transformers read."""

import json
import re
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from companion import load_pretrained
from companion.commands.main import main
from companion_school.build import story
from companion_school.build.isolated_modules import World
from companion_school.build.parts import references
from companion_school.build.saved_model import save_model
from companion_school.build.stages import STAGES
from companion_school.build.workspace import take

HOSTILE = [
    "",
    " ",
    "naïve café",
    "東京\n\n 3.14",
    "a\x00b",
    "x_y__z",
    "  two  blanks ",
    "\U0001f40d\U0001f1e9\U0001f1ea",
    "Mila's",
]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Train a model for a few updates with the course's files; return the folder, the printed text and the result."""
    folder, lines = tmp_path_factory.mktemp("own") / "transformer", []
    take(folder, [STAGES[number] for number in (1, 2, 5)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(story, "STORIES", 60)
        patch.setattr(story, "MERGES", 120)
        patch.setattr(story, "CONTEXT", 48)
        patch.setattr(story._Training, "possible", lambda self, seconds: 30)
        made = story.tell(folder, 1.0, device="cpu", say=lines.append)
    return folder, lines, made


def code():
    stages = [STAGES[number] for number in range(1, 8)]
    return World({name: text for stage in stages for name, text in references(stage).items()}, "generation")


def merges_in(folder):
    known = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]
    return [tuple(known["vocab"][piece] for piece in pair) for pair in known["merges"]]


def test_it_says_whose_files_they_are_how_far_it_is_and_where_the_time_went(told):
    folder, lines, made = told
    assert lines[0].startswith("yours: tokenizer.py, attention.py, model.py; the course's: positions.py, layers.py")
    updates = [int(match[1]) for line in lines if (match := re.match(r"update +(\d+)  loss \d", line))]
    assert updates == [3, 6, 9, 12, 15, 18, 21, 24, 27]
    assert made.updates == 30 and made.loss < 5 and made.story.startswith(story.BEGINNING)
    assert "Only 30 updates fitted into the time. Allow more minutes (--minutes)" in str(made)
    assert "fitted into" not in str(replace(made, updates=story.FEW))
    assert set(made.seconds) == {"learning merges", "encoding", "training", "writing"}
    assert {path.name for path in folder.glob("*.json")} >= {"config.json", "tokenizer.json", "generation_config.json"}


def test_the_folder_gives_the_learners_ids_and_logits_here_and_in_transformers(told):
    folder, own = told[0], code()
    merges = merges_in(folder)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    for text in HOSTILE:
        ids = own["tokenizer"].encode(text, merges)
        assert theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"] == ids, text
    ids = torch.tensor([own["tokenizer"].encode("Once upon a time there lived a mole", merges)])
    mine, there = own["training"].load(folder), AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        torch.testing.assert_close(mine(ids), there(ids).logits, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(mine(ids), load_pretrained(folder)(ids).logits, atol=1e-4, rtol=1e-4)


def test_every_command_takes_the_folder(told, capsys):
    folder = str(told[0])
    given = ["--prompt", "Once upon a time", "--tokens", "9", "--seed", "4"]
    assert main(["generate", "--checkpoint", folder, *given]) == 0
    assert capsys.readouterr().out.startswith("Once upon a time")
    assert main(["inspect", folder]) == 0 and "llama" in capsys.readouterr().out
    file = told[0].parent / "mine.gguf"
    assert main(["export", str(file), "--checkpoint", folder, "--gguf", "F32"]) == 0
    capsys.readouterr()
    written = []
    for model in (folder, str(file)):
        assert main(["generate", "--checkpoint", model, *given, "--temperature", "0"]) == 0
        written.append(capsys.readouterr().out)
    assert written[0] == written[1]


def test_what_cannot_be_saved_leaves_the_earlier_model(tmp_path):
    own, merges = code(), [(97, 98), (98, 99)]
    config = own["model"].Config(vocab=256 + 2, d_model=16, layers=1, heads=2, kv_heads=1, d_ff=24)
    model, folder = own["model"].Transformer(config), tmp_path / "one"
    save_model(folder, own, model, merges, 20)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(ValueError, match="two merges produce 'abc'"):
        save_model(folder, own, model, [(97, 98), (98, 99), (256, 99), (97, 257)], 20)
    model.decoder.norm.eps = 1.0
    with pytest.raises(ValueError, match="give other logits than your model"):
        save_model(folder, own, model, merges, 20)
    model.decoder.norm.bias = torch.nn.Parameter(torch.zeros(16))
    with pytest.raises(ValueError, match="the files that your save function wrote are not a valid model"):
        save_model(folder, own, model, merges, 20)
    del own["training"].save
    with pytest.raises(ValueError, match=r"training.py: expected save, found none; `companion build start`"):
        save_model(folder, own, model, merges, 20)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before and len(before) == 5


def test_little_text_is_said_and_too_little_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("A letter.", "utf-8")
    assert main(["build", "story", "--data", "a.txt", "--minutes", "0.01", "--folder", "mine"]) == 2
    told = capsys.readouterr()
    assert "9 bytes are not much" in told.out and "expected text of at least 32 tokens" in told.err
    assert not (tmp_path / "mine").exists()
