"""The moving figures of the decoder: what they say that a slot sees does affect a model's logits."""

import json
import math
import re

import matplotlib

matplotlib.use("Agg")

import pytest
import torch
import torch.nn.functional as F

from companion import AttentionConfig, FeedForwardConfig, ModelConfig, PositionConfig, Transformer
from companion_school.study import live
from companion_school.study.live import moving
from companion_school.study.live.decoder import MASKS, SHIFTS, lowest, sees

OWN = [[1, 0, 0], [0.5, 0.5, 0], [0.2, 0.3, 0.5]]
CROSS = [[0.1, 0.9], [0.8, 0.2], [0.5, 0.5]]
CHANCES = [[0.1, 0.2, 0.7, 0.0], [0.0, 0.9, 0.1, 0.0], [0.6, 0.2, 0.1, 0.1]]


@pytest.fixture
def shown(monkeypatch):
    """Return what a figure passes to Jupyter."""
    outputs = []
    monkeypatch.setattr(moving, "display", outputs.append)
    return outputs


def data(output):
    html = output._repr_mimebundle_()["text/html"]
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', html)[1])


def writing(own=OWN, cross=CROSS, chances=CHANCES, source=("a", "b"), vocabulary=("end", "x", "y", "z")):
    live.writing(own, cross, chances, source=source, vocabulary=vocabulary, caption="Figure 8.1. A decoder writes.")


@pytest.mark.parametrize("shift", SHIFTS.values(), ids=SHIFTS)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_a_slot_sees_the_targets_that_move_its_logits(shift, mask):
    slots, tokens = 5, 7
    torch.manual_seed(0)
    model = Transformer(
        ModelConfig(
            vocab=tokens + 1, d_model=12, layers=2, context=slots, attention=AttentionConfig(3),
            feed_forward=FeedForwardConfig(20), positions=PositionConfig("sinusoidal"),
        )
    ).double()  # fmt: skip
    for block in model.decoder.blocks:
        block.attention.causal = False
    visible = torch.ones(1, 1, slots, slots, dtype=torch.bool).tril(mask)
    if mask > 0:  # one layer, because a second one could pass on what a slot saw too early
        del model.decoder.blocks[1:]

    def logits(targets):
        return model(F.pad(targets, (shift, 0), value=tokens)[:, :slots], mask=visible).logits[0]

    targets = torch.arange(slots)[None] % tokens
    with torch.no_grad():
        before, columns = logits(targets), []
        for k in range(slots):
            other = targets.clone()
            other[0, k] = (other[0, k] + 3) % tokens
            columns.append((logits(other) - before).abs().amax(dim=-1) > 1e-9)
    assert torch.stack(columns, dim=1).tolist() == sees(slots, shift, mask).tolist()


def test_the_lowest_loss_is_the_entropy_of_what_is_left_to_guess():
    even = math.log(16)
    right, wide, twice = sees(6, 1, 0), sees(6, 1, 1), sees(6, 2, 0)
    assert lowest(right, 16, 0.0) == pytest.approx([even] * 6)
    assert lowest(wide, 16, 0.0) == pytest.approx([0] * 5 + [even])
    assert lowest(sees(6, 0, 0), 16, 0.75) == [0] * 6
    follows = [0.75 + 0.25 / 16] + [0.25 / 16] * 15  # the successor, and the fifteen other tokens
    assert lowest(right, 16, 0.75)[1:] == pytest.approx([-sum(p * math.log(p) for p in follows)] * 5)
    assert lowest(twice, 16, 0.75)[:2] == pytest.approx([even] * 2)
    assert lowest(right, 16, 0.75)[2] < lowest(twice, 16, 0.75)[2] < even


def test_the_likeliest_word_is_what_the_next_slot_reads(shown):
    writing()
    assert data(shown[0])["inputs"] == ["<start>", "y", "x"]


def test_the_switches_hold_nine_tables_and_the_losses_of_two_texts(shown):
    live.mask_and_shift(4, tokens=9, follows=0.5, caption="Figure 8.3. Switches.")
    found = data(shown[0])
    assert found["texts"] == ["dice with 9 sides", "50 % habit"]
    assert found["seen"][1][1] == ["0000", "1000", "1100", "1110"]
    assert found["seen"][2][2] == ["0000", "1000", "1100", "1100"]
    assert [len(text) for text in found["losses"]] == [3, 3]
    assert found["losses"][0][1][2] == pytest.approx([0, 0, 0, math.log(9)], abs=1e-3)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: writing(cross=CROSS[:2]), r"own, cross, probabilities: expected \(slot, slot\).*got .*\(2, 2\)"),
        (lambda: writing(source=("a",)), "two to six source words"),
        (lambda: writing(chances=[[1.0, 0.5, 0, 0]] * 3), "expected rows of probabilities that sum to one"),
        (lambda: writing(own=[[0.5, 0.5, 0], *OWN[1:]]), "own: expected no weight above the diagonal"),
        (lambda: live.mask_and_shift(3), "slots, tokens, follows: expected four to eight slots.*got 3, 16 and 0.75"),
        (lambda: live.mask_and_shift(6, tokens=1), "at least two tokens.*got 6, 1 and 0.75"),
        (lambda: live.mask_and_shift(6, follows=1.0), "a probability between 0 and 1; got 6, 16 and 1.0"),
    ],
)
def test_what_cannot_be_shown_is_refused(shown, call, message):
    with pytest.raises(ValueError, match=message):
        call()
    assert shown == []
    matplotlib.pyplot.close("all")
