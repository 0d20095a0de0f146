"""A learner's files become a model that tells stories, is kept, and is read by the library and by transformers."""

import json
import re

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from companion import load_pretrained
from companion.commands.main import main
from companion_school.build import keep, story
from companion_school.build.isolated_modules import World
from companion_school.build.parts import references
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
    """A folder with the course's files and a model trained for a few updates; what was said, and the result."""
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
    model, there = load_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, there(ids).logits, atol=1e-4, rtol=1e-4)
        mine = own["model"].Transformer(own["model"].Config(256 + len(merges), **story.SHAPE))
        mine.load_state_dict(model.state_dict())
        assert keep.logits_agree(folder, mine, ids[0].tolist())
        mine.embedding.weight.mul_(1.1)
        assert not keep.logits_agree(folder, mine, ids[0].tolist())


def test_every_command_takes_the_folder(told, capsys):
    folder = str(told[0])
    given = ["--prompt", "Once upon a time", "--tokens", "9", "--seed", "4"]
    assert main(["generate", "--checkpoint", folder, *given]) == 0
    assert capsys.readouterr().out.startswith("Once upon a time")
    assert main(["inspect", folder]) == 0 and "llama" in capsys.readouterr().out


def test_a_model_or_a_tokenizer_of_another_kind_is_not_saved(tmp_path):
    own = code()
    config = own["model"].Config(vocab=256 + 2, d_model=16, layers=1, heads=2, kv_heads=1, d_ff=24)
    model = own["model"].Transformer(config)
    with pytest.raises(ValueError, match="two of its merges spell the same token"):
        keep.tokenizer_of(own, [(97, 98), (98, 99), (256, 99), (97, 257)])
    model.decoder.norm.bias = torch.nn.Parameter(torch.zeros(16))
    with pytest.raises(ValueError, match="expected the weights of the stages 2 to 5"):
        keep.save(tmp_path / "one", own, model, [(97, 98), (98, 99)], 20)
    assert not (tmp_path / "one").exists()


def test_little_text_is_said_and_too_little_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("A letter.", "utf-8")
    assert main(["build", "story", "--data", "a.txt", "--minutes", "0.01", "--folder", "mine"]) == 2
    told = capsys.readouterr()
    assert "9 bytes are little" in told.out and "expected text of at least 32 tokens" in told.err
    assert not (tmp_path / "mine").exists()
