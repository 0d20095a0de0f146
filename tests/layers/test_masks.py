"""Masks as predicates: each says who may look, and they combine."""

import pytest
import torch

from companion.layers.masks import both, causal, documents, either, materialize, padding, window


def table(mask):
    return ["".join("x" if seen else "." for seen in row) for row in mask.tolist()]


def test_causal_and_window_by_eye():
    assert table(materialize(causal, 1, 4, 4)[0, 0]) == ["x...", "xx..", "xxx.", "xxxx"]
    assert table(materialize(window(2), 1, 4, 4)[0, 0]) == ["x...", "xx..", ".xx.", "..xx"]
    assert table(materialize(causal, 1, 2, 4)[0, 0]) == ["xxx.", "xxxx"]  # the last two queries of four


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
