"""Masks as predicates: each says which keys a query sees, and they combine."""

import pytest
import torch

from companion.layers.masks import (
    both,
    causal,
    documents,
    either,
    evaluate,
    every,
    fixed,
    materialize,
    own_block,
    padding,
    per_head,
    strided,
    summaries,
    window,
)


def table(mask):
    return ["".join("x" if seen else "." for seen in row) for row in mask.tolist()]


def test_causal_and_window_by_eye():
    assert table(materialize(causal, 1, 4, 4)[0, 0]) == ["x...", "xx..", "xxx.", "xxxx"]
    assert table(materialize(window(2), 1, 4, 4)[0, 0]) == ["x...", "xx..", ".xx.", "..xx"]
    assert table(materialize(causal, 1, 2, 4)[0, 0]) == ["xxx.", "xxxx"]  # the last two of four queries


def test_padding_hides_columns_of_its_own_row_and_documents_do_not_meet():
    mask = materialize(padding(torch.tensor([3, 1])), 2, 2, 3)
    assert table(mask[0, 0]) == ["xxx", "xxx"]
    assert table(mask[1, 0]) == ["x..", "x.."]
    packed = materialize(both(causal, documents(torch.tensor([[0, 0, 1, 1, 1]]))), 1, 5, 5)
    assert table(packed[0, 0]) == ["x....", "xx...", "..x..", "..xx.", "..xxx"]


def test_both_and_either_are_and_and_or():
    combined = materialize(both(causal, window(3), padding(torch.tensor([2, 5]))), 2, 5, 5)
    parts = [materialize(p, 2, 5, 5) for p in (causal, window(3), padding(torch.tensor([2, 5])))]
    assert torch.equal(combined, parts[0] & parts[1] & parts[2])
    assert torch.equal(materialize(either(causal, window(3)), 1, 5, 5), parts[0][:1] | parts[1][:1])


def test_queries_may_stand_at_different_places_in_each_row():
    mask = materialize(causal, 2, torch.tensor([[2], [0]]), 4, heads=3)
    assert mask.shape == (2, 3, 1, 4)
    assert table(mask[:, 2, 0]) == ["xxx.", "x..."]


def test_bad_masks_are_refused():
    with pytest.raises(ValueError, match="width=0"):
        window(0)
    for combine in (both, either):
        with pytest.raises(ValueError, match="at least one"):
            combine()


def test_sparse_patterns_by_eye():
    assert table(materialize(strided(3), 1, 7, 7)[0, 0]) == [
        "x......",
        "xx.....",
        "xxx....",
        "xxxx...",
        ".xxxx..",
        "..xxxx.",
        "x..xxxx",
    ]
    assert table(materialize(fixed(3), 1, 7, 7)[0, 0]) == [
        "x......",
        "xx.....",
        "xxx....",
        "..xx...",
        "..xxx..",
        "..xxxx.",
        "..x..xx",
    ]
    assert table(materialize(fixed(3, 2), 1, 2, 7)[0, 0]) == [".xxxxx.", ".xx.xxx"]


PATTERNS = {"strided": (strided, window, every, 1.5), "fixed": (fixed, own_block, summaries, 1.0)}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("side", [16, 32, 64])
def test_sparse_patterns_leave_a_multiple_of_n_to_the_one_and_a_half(pattern, side):
    whole, _, _, factor = PATTERNS[pattern]
    n = side * side
    pairs = materialize(whole(side), 1, n, n).sum().item()
    assert pairs / n**1.5 == pytest.approx(factor, abs=1.1 / side)
    assert pairs < n * (n + 1) // 2


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("stride", [1, 4, 5, 23, 40])
def test_two_steps_of_a_sparse_pattern_reach_every_earlier_token_and_no_later_one(pattern, stride):
    whole, near, far, _ = PATTERNS[pattern]
    n = 23
    one, first, second = (materialize(p(stride), 1, n, n)[0, 0].long() for p in (whole, near, far))
    assert torch.equal(one, first | second)
    reached = (one @ one) > 0
    assert torch.equal(reached, torch.ones(n, n).tril().bool())
    # The far step comes first and then the near one, as if the two halves were in alternate layers. A block can only be
    # entered through its last token, so a query inside the same block only uses the near step.
    assert torch.equal((second @ first + first) > 0, reached)
    assert stride in (1, 23, 40) or not torch.equal(one > 0, reached)


def test_heads_take_turns():
    mask = materialize(per_head(window(2), every(3)), 2, 5, 7, heads=3)
    assert mask.shape == (2, 3, 5, 7)
    for head, predicate in enumerate((window(2), every(3), window(2))):
        assert torch.equal(mask[:, head], materialize(predicate, 2, 5, 7)[:, 0])


def test_an_axis_that_a_predicate_does_not_need_stays_one():
    positions = torch.arange(5)
    assert evaluate(causal, 2, 3, positions, positions).shape == (1, 1, 5, 5)
    assert evaluate(padding(torch.tensor([4, 2])), 2, 3, positions, positions).shape == (2, 1, 1, 5)
    assert evaluate(per_head(causal, every(2)), 2, 3, positions, positions).shape == (1, 3, 5, 5)


def test_bad_sparse_patterns_are_refused():
    for pattern in (strided, every, own_block, summaries, fixed):
        with pytest.raises(ValueError, match="stride=0"):
            pattern(0)
    for count in (0, 4):
        with pytest.raises(ValueError, match=f"count={count}: expected a number of tokens from 1 to the stride, 3"):
            fixed(3, count)
    with pytest.raises(ValueError, match="at least one"):
        per_head()
