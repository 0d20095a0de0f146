"""Batches built in another thread are the same batches."""

import threading

import pytest
import torch

from companion.training.prefetch import Ahead


def test_batches_made_ahead_are_the_same_in_any_order_and_by_another_thread():
    asked: list[int] = []
    by: set[int] = set()

    def batches(number):
        asked.append(number)
        by.add(threading.get_ident())
        if number == 13:
            raise ValueError("batch 13 cannot be made")
        return torch.full((2, 3), number), torch.arange(number)

    ahead = Ahead(batches, 2, pin=False)
    for number in (0, 1, 2, 7, 8, 3, 4):
        inputs, targets = ahead(number)
        assert torch.equal(inputs, torch.full((2, 3), number)) and torch.equal(targets, torch.arange(number))
    ahead(9)  # wait for the last batch that was built ahead
    assert threading.get_ident() not in by
    assert set(range(10)) <= set(asked) and asked[:5] == [0, 1, 2, 3, 4]
    assert asked.count(1) == asked.count(2) == 1
    assert ahead(11)[1].shape == (11,)
    with pytest.raises(ValueError, match="batch 13"):
        ahead(13)


def test_a_trainer_ends_with_the_same_weights_when_its_batches_are_made_ahead(make_trainer):
    plain, ahead = make_trainer(), make_trainer()
    ahead._batches = Ahead(ahead.batches, 3, pin=False)
    for _ in range(4):
        assert plain.update() == ahead.update()
    for a, b in zip(plain.model.parameters(), ahead.model.parameters(), strict=True):
        assert torch.equal(a, b)
