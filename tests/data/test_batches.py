"""Windows depend only on (seed, step) in training; in evaluation each token is scored exactly once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from companion.data.batches import IGNORE, EvaluationBatches, TrainingBatches, encode_documents
from companion.data.corpora import Document
from companion.data.tokenizer import BytePairTokenizer


def test_documents_begin_with_the_separator_and_are_whole() -> None:
    tokenizer = BytePairTokenizer.train(["some text, some text"], vocab=260)
    first, second = encode_documents(tokenizer, [Document("a", "some text"), Document("b", "")])
    assert first[0] == tokenizer.separator and tokenizer.decode(first.tolist()) == "some text"
    assert second.tolist() == [tokenizer.separator]


def test_a_batch_depends_on_its_number_and_the_seed_alone() -> None:
    documents = [torch.arange(100, 157), torch.arange(57)]
    one = TrainingBatches(documents, context=7, batch=3, seed=5)
    other = TrainingBatches(documents, context=7, batch=3, seed=5)
    for step in (11, 0, 3, 3, 40):  # in any order and repeatedly, from a new object each time
        assert torch.equal(one(step)[0], other(step)[0])
        assert torch.equal(one(step)[1], other(step)[1])
    assert not torch.equal(one(0)[0], TrainingBatches(documents, context=7, batch=3, seed=6)(0)[0])
    assert not torch.equal(one(0)[0], one(1)[0])


@settings(max_examples=80, deadline=None)
@given(st.integers(5, 60), st.integers(1, 9), st.integers(1, 5), st.integers(0, 3))
def test_in_an_epoch_no_token_is_a_target_twice(tokens: int, context: int, batch: int, seed: int) -> None:
    context = min(context, tokens)
    batches = TrainingBatches([torch.arange(tokens)], context=context, batch=batch, seed=seed)
    windows = tokens // context
    assert batches.windows == windows
    steps = -(-2 * windows // batch)
    inputs, targets = (torch.cat(parts) for parts in zip(*map(batches, range(steps)), strict=True))
    assert torch.equal(targets[:, :-1], inputs[:, 1:])  # each target is the token after its input
    # Ids are positions here, so that windows are stretches of the ring
    assert torch.equal(targets, (inputs + 1) % tokens)
    for epoch in range(2):
        scored = targets[epoch * windows : (epoch + 1) * windows].flatten()
        assert len(scored.unique()) == len(scored) > tokens - context


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 12), st.data())
def test_evaluation_scores_every_token_once_with_the_context_it_promises(lengths, context, data) -> None:
    stride = data.draw(st.integers(1, context))
    batch = data.draw(st.integers(1, 4))
    ids, documents = 0, []
    for length in lengths:  # ids are positions in the whole text, so that each token is unique
        documents.append(torch.arange(ids, ids + length))
        ids += length
    batches = EvaluationBatches(documents, context=context, stride=stride, batch=batch)
    scored: list[int] = []
    made = list(batches)
    assert len(made) == len(batches)
    starts = {int(document[0]) for document in documents}
    for inputs, targets in made:
        assert inputs.shape == targets.shape and inputs.shape[1] <= context and len(inputs) <= batch
        for row, target in zip(inputs.tolist(), targets.tolist(), strict=True):
            places = [i for i, t in enumerate(target) if t != IGNORE]
            for i in places:
                assert row[i] + 1 == target[i]
                # the context begins with the document or has at least context - stride tokens
                assert row[0] in starts or i >= context - stride
                assert row[: i + 1] == list(range(row[0], row[0] + i + 1))
            scored.extend(target[i] for i in places)
    assert sorted(scored) == sorted(i for d in documents for i in d[1:].tolist())


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"context=9: expected at most 8, the number"):
        TrainingBatches([torch.arange(8)], context=9, batch=1, seed=0)
    with pytest.raises(ValueError, match="batch=0"):
        TrainingBatches([torch.arange(8)], context=2, batch=0, seed=0)
    for stride in (0, 5):
        with pytest.raises(ValueError, match=f"stride={stride}: expected a whole number from 1 to context=4"):
            EvaluationBatches([torch.arange(8)], context=4, stride=stride)
