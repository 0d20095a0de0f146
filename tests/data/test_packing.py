"""Packed windows: each token is a target once per epoch, there is little padding, and batches depend on their index."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from companion import AttentionConfig, FeedForwardConfig, ModelConfig, MoEConfig, PositionConfig, Transformer
from companion.data.batches import IGNORE, TrainingBatches
from companion.data.packing import PADDING, PackedBatches, best_fit
from companion.training.losses import packed_next_token_loss

SEPARATOR = 0


def numbered(lengths):
    """Return documents in which every token is unique, each after the separator."""
    first, documents = 1, []
    for length in lengths:
        documents.append(torch.tensor([SEPARATOR, *range(first, first + length)]))
        first += length
    return documents


def epoch_of(batches, number):
    """Return the windows of one epoch: inputs, positions and targets."""
    rows = range(number * batches.windows, (number + 1) * batches.windows)
    made = [tuple(part[row % batches.batch] for part in batches(row // batches.batch)) for row in rows]
    return tuple(torch.stack(parts) for parts in zip(*made, strict=True))


def pieces_of(window):
    """Return a window's pieces as lists of (input, target); assert that padding comes last and is never a target."""
    inputs, places, targets = (part.tolist() for part in window)
    filled = sum(place != PADDING for place in places)
    assert all(place == PADDING for place in places[filled:]) and set(targets[filled:]) <= {IGNORE}
    pieces = []
    for i in range(filled):
        if places[i] == 0:
            pieces.append([])
        assert places[i] == len(pieces[-1])
        pieces[-1].append((inputs[i], targets[i]))
    return pieces


some_lengths = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@settings(max_examples=120, deadline=None)
@given(some_lengths, st.integers(1, 15), st.integers(1, 5), st.integers(0, 3))
def test_in_an_epoch_every_token_is_a_target_exactly_once(lengths, context, batch, seed):
    documents = numbered(lengths)
    batches = PackedBatches(documents, context=context, batch=batch, seed=seed)
    wanted = sorted(token for document in documents for token in document.tolist())
    for number in range(3):
        _, _, targets = epoch_of(batches, number)
        assert sorted(targets[targets != IGNORE].tolist()) == wanted


@settings(max_examples=120, deadline=None)
@given(some_lengths, st.integers(1, 15), st.integers(1, 5), st.integers(0, 3))
def test_no_piece_crosses_a_document_and_only_a_long_one_is_cut(lengths, context, batch, seed):
    documents = numbered(lengths)
    # Each document as the pairs to learn, including its end
    pairs = [list(zip(ids, [*ids[1:], SEPARATOR], strict=True)) for ids in (d.tolist() for d in documents)]
    batches = PackedBatches(documents, context=context, batch=batch, seed=seed)
    seen = [piece for window in zip(*epoch_of(batches, 1), strict=True) for piece in pieces_of(window)]
    for one in pairs:
        mine = [piece for piece in seen if set(piece) & set(one)]
        assert len(mine) == -(-len(one) // context)  # as few pieces as possible: a document that fits is not split
        assert all(any(piece == one[i : i + len(piece)] for i in range(len(one))) for piece in mine)
    assert len(seen) == sum(-(-len(one) // context) for one in pairs)


def test_the_next_epoch_cuts_packs_and_orders_anew():
    batches = PackedBatches(numbered([30, 17, 9, 5, 5, 4, 3, 2, 2]), context=8, batch=2, seed=4)
    one, other = ([pieces_of(window) for window in zip(*epoch_of(batches, number), strict=True)] for number in (0, 1))
    assert len(one) == len(other) == batches.windows and one != other
    where = lambda epoch: {piece[0] for window in epoch for piece in window}  # noqa: E731
    together = lambda epoch: {frozenset(piece[-1] for piece in window) for window in epoch}  # noqa: E731
    assert where(one) != where(other) and together(one) != together(other)


def test_a_batch_is_a_function_of_its_number_and_the_seed_alone():
    documents = numbered([30, 17, 9, 5, 5, 4, 3, 2, 2])
    one, other = (PackedBatches(documents, context=8, batch=3, seed=5) for _ in range(2))
    for step in (11, 0, 3, 3, 40, 1):  # in any order and repeatedly, from a new object each time
        assert all(torch.equal(a, b) for a, b in zip(one(step), other(step), strict=True))
    another = PackedBatches(documents, context=8, batch=3, seed=6)
    assert not torch.equal(one(0)[0], another(0)[0]) and not torch.equal(one(0)[0], one(1)[0])


def test_a_batch_does_not_depend_on_pythons_hash_seed():
    program = (
        "import torch; from companion.data.packing import PackedBatches; "
        "documents = [torch.arange(n) for n in (30, 17, 9, 5, 5, 4)]; "
        "print([part.tolist() for part in PackedBatches(documents, context=8, batch=3, seed=5)(2)])"
    )
    elsewhere = {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    done = subprocess.run([sys.executable, "-c", program], env=elsewhere, capture_output=True, text=True, check=True)
    documents = [torch.arange(n) for n in (30, 17, 9, 5, 5, 4)]
    here = PackedBatches(documents, context=8, batch=3, seed=5)(2)
    assert done.stdout.strip() == str([part.tolist() for part in here])


@pytest.mark.parametrize("kind", [PackedBatches, TrainingBatches])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_contiguous_rows_divide_a_batch_among_processes(kind, world):
    batches = kind(numbered([30, 17, 9, 5, 5, 4, 3, 2, 2]), context=8, batch=5, seed=5)
    whole = batches(3)
    parts = [[part.tensor_split(world)[rank] for part in whole] for rank in range(world)]
    assert all(len(part[0]) for part in parts)
    for i, tensor in enumerate(whole):
        assert torch.equal(torch.cat([part[i] for part in parts]), tensor)
    # No example occurs in two batches of an epoch either, so processes never share one.
    _, *_, targets = epoch_of(batches, 0)
    scored = targets[targets > SEPARATOR]
    assert len(scored.unique()) == len(scored)


def test_best_fit_by_hand():
    # The longest comes first: 6 opens a window and leaves 2, and 5 opens another and leaves 3. Then 3 and 2 fill them.
    assert best_fit([5, 2, 6, 3], 8) == [1, 0, 0, 1]
    # The 1 joins 6 and 3, where it leaves no room, and not the other 6, where it would leave three.
    assert best_fit([6, 1, 6, 3], 10) == [0, 1, 1, 1]
    assert best_fit([], 8) == [] and best_fit([8, 8], 8) == [0, 1]


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 30), st.data())
def test_best_fit_fills_no_window_past_its_room_and_opens_none_without_need(room, data):
    lengths = data.draw(st.lists(st.integers(1, room), max_size=40))
    windows = best_fit(lengths, room)
    filled = [0] * (max(windows, default=-1) + 1)
    for length, window in zip(lengths, windows, strict=True):
        filled[window] += length
    assert all(0 < size <= room for size in filled)
    opener = [max(n for n, w in zip(lengths, windows, strict=True) if w == j) for j in range(len(filled))]
    for i, size in enumerate(filled):  # whatever opened a later window did not fit into an earlier one
        assert all(size + longest > room for longest in opener[i + 1 :])


def test_little_is_padding():
    torch.manual_seed(0)
    lengths = torch.empty(2000).exponential_(1 / 60).long().clamp(min=1).tolist()
    batches = PackedBatches(numbered(lengths), context=128, batch=4, seed=0)
    _, places, _ = epoch_of(batches, 0)
    assert float((places == PADDING).float().mean()) == pytest.approx(batches.padded, abs=1e-9)
    assert batches.padded < 0.01
    assert batches.epochs(batches.windows) == 4


MODELS = {
    "rotary": ModelConfig(
        vocab=60,
        d_model=12,
        layers=2,
        context=16,
        attention=AttentionConfig(heads=4, kv_heads=2, d_head=6, d_v=5),
        feed_forward=FeedForwardConfig(20),
    )
}
MODELS["learned"] = MODELS["rotary"].with_(positions=PositionConfig("learned"))
MODELS["sinusoidal"] = MODELS["rotary"].with_(positions=PositionConfig("sinusoidal"))
MODELS["experts"] = MODELS["rotary"].with_(moe=MoEConfig(5, 2))


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_apart_every_document_has_the_loss_it_has_alone(config):
    torch.manual_seed(3)
    model = Transformer(config).double()
    batches = PackedBatches(numbered([21, 9, 7, 6, 3, 3, 2]), context=16, batch=3, seed=1)
    batch = batches(0)
    assert (batch[1] == 0).sum(1).max() > 1 and (batch[1] == PADDING).any()
    together = packed_next_token_loss(model, *batch, hide="documents")
    alone = torch.zeros((), dtype=torch.double)
    for window in zip(*batch, strict=True):
        for piece in pieces_of(window):
            inputs, targets = (torch.tensor([ids]) for ids in zip(*piece, strict=True))
            alone += torch.nn.functional.cross_entropy(model(inputs).logits[0], targets[0], reduction="sum")
    torch.testing.assert_close(together.nats, alone)
    assert together.tokens == (batch[2] != IGNORE).sum()
    mixed = packed_next_token_loss(model, *batch, hide="nothing")
    assert abs(mixed.nats - alone) > 1e-3  # without the mask, the earlier documents are visible


def test_apart_the_logits_are_those_of_each_document_alone():
    torch.manual_seed(3)
    model = Transformer(MODELS["learned"]).double()
    seen = []
    hook = model.decoder.register_forward_hook(lambda module, args, out: seen.append(model.head(out[0])))
    inputs, places, targets = PackedBatches(numbered([21, 9, 7, 6, 3, 3, 2]), context=16, batch=2, seed=1)(1)
    packed_next_token_loss(model, inputs, places, targets, hide="documents")
    hook.remove()
    for row, window in enumerate(zip(inputs, places, targets, strict=True)):
        at = 0
        for piece in pieces_of(window):
            ids = torch.tensor([[token for token, _ in piece]])
            torch.testing.assert_close(seen[0][row, at : at + len(piece)], model(ids).logits[0])
            at += len(piece)


@pytest.mark.parametrize("hide", ["padding", "documents"])
def test_experts_do_not_count_padding(hide):
    model = Transformer(MODELS["experts"])
    batch = PackedBatches(numbered([21, 9, 7, 6, 3, 3, 2]), context=16, batch=9, seed=1)(0)
    real = int((batch[1] != PADDING).sum())
    assert real < batch[1].numel()
    for layer in packed_next_token_loss(model, *batch, hide=hide).routing:
        assert layer.counts.sum() == 2 * real


def test_bad_arguments_are_named():
    documents = numbered([5, 3])
    with pytest.raises(ValueError, match="context=0: expected a whole number >= 1"):
        PackedBatches(documents, context=0, batch=1, seed=0)
    with pytest.raises(ValueError, match="documents: expected at least one with a token after its separator, got none"):
        PackedBatches([torch.tensor([SEPARATOR])], context=4, batch=1, seed=0)
    with pytest.raises(ValueError, match="from 1 to room=4, got 5"):
        best_fit([2, 5], 4)
