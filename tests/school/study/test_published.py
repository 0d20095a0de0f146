"""A published model in a lesson: a small checkpoint in GPT-2's layout, and a folder in place of the network."""

from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError

from companion_school.study import published
from tests.families.compared import transformers
from tests.small_tokenizers import byte_level

PROMPT = "She sells sea shells; she sells sea"


class Hub:
    """A stand-in for the network: a model that can be downloaded and is then in the cache."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cached, self.fetched = folder, False, []

    def snapshot_download(self, name, *, allow_patterns, local_files_only=False):
        if not local_files_only:
            self.fetched.append(name)
            self.cached = True
        if not self.cached:
            raise LocalEntryNotFoundError("not in the cache")
        return str(self.folder)


@pytest.fixture
def gpt2(tmp_path):
    vocab = byte_level(tmp_path)
    torch.manual_seed(3)
    config = transformers.GPT2Config(
        vocab_size=vocab, n_embd=20, n_head=4, n_layer=3, n_positions=64, attn_implementation="eager"
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
    theirs.save_pretrained(tmp_path)
    return theirs


@pytest.fixture
def hub(gpt2, tmp_path, monkeypatch):
    found = Hub(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", found.snapshot_download)
    return found


def test_nothing_is_fetched_unasked_and_what_was_fetched_is_found(hub, capsys):
    assert published.opened("gpt2") is None
    told = capsys.readouterr().out
    assert "openai-community/gpt2 is not on this machine; the lesson continues." in told and "550 MB" in told
    assert hub.fetched == []
    assert published.opened("gpt2", fetch_it=True) is not None and hub.fetched == ["openai-community/gpt2"]
    assert published.opened("gpt2") is not None and len(hub.fetched) == 1


def test_without_a_network_a_line_says_so(monkeypatch, capsys):
    def offline(name, *, local_files_only=False, **_):
        raise LocalEntryNotFoundError("no") if local_files_only else ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    assert published.opened("gpt2", fetch_it=True) is None
    told = capsys.readouterr().out
    assert "no route to host" in told and "continues without it" in told
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    assert published.opened("gpt2", fetch_it=True) is None
    assert "needs huggingface_hub" in " ".join(capsys.readouterr().out.split())


def test_another_name_is_refused():
    with pytest.raises(ValueError, match=r"name='gpt5': expected one of gpt2, smollm2-135m, qwen3-0.6b"):
        published.opened("gpt5")


def test_what_is_shown_is_what_the_model_computes(hub, gpt2, capsys):
    real = published.opened("gpt2", fetch_it=True)
    reading = real.read(PROMPT)
    ids = torch.tensor([real.tokenizer.encode(PROMPT)])
    with torch.no_grad():
        theirs = gpt2(ids, output_attentions=True)
    torch.testing.assert_close(reading.logits, theirs.logits[0], atol=1e-4, rtol=1e-4)
    assert len(reading.attention) == 3 and "".join(reading.tokens) == PROMPT
    for ours, weights in zip(reading.attention, theirs.attentions, strict=True):
        torch.testing.assert_close(ours, weights[0], atol=1e-5, rtol=1e-4)
    written = gpt2.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)[0, ids.shape[1] :]
    assert real.write(PROMPT, 6) == real.tokenizer.decode(written.tolist())
    real.show(PROMPT, tokens=6)
    told = capsys.readouterr().out
    best = theirs.logits[0, -1].softmax(-1).topk(5)
    for token, chance in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        assert f"{theirs.logits[0, -1, token]:8.2f}{chance:8.4f}" in told, token
    assert f"{3 * 2 * 20 * 2} bytes a token" in told and f"{gpt2.num_parameters():,} parameters" in told
    assert "Attention weights of 2 heads of openai-community/gpt2" in told


def test_the_heads_that_are_drawn_are_those_that_look_there_most():
    weights = torch.full((2, 5, 5), 0.2).tril()
    weights[1] = torch.eye(5).roll(-1, 1)  # head 1 attends to the previous token
    again = torch.full((2, 5, 5), 0.2).tril()
    again[0, 3] = torch.tensor([0.0, 0.9, 0.1, 0, 0])  # a b c a: at the second a, attend to what followed the first one
    again[0, 4] = torch.tensor([0.0, 0, 0.9, 0.1, 0])
    reading = published.Reading(list("abcab"), torch.zeros(5, 7), [weights, again], None)
    (before, *first), (after, *second) = published.previous_and_induction(reading)
    assert (before, first) == ("the token before", [0, 1, pytest.approx(1.0)])
    assert (after, second[:2]) == ("what followed last time", [1, 0]) and second[2] == pytest.approx(0.9)
