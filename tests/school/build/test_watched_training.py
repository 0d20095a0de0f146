"""The race's check watches a training loop: does it clear its gradients, and does it read more than one batch?"""

import pytest
import torch

from companion_school.build.isolated_modules import watched_training

TEXT = torch.arange(97)


def batch(update):
    return TEXT[update * 5 : update * 5 + 8]


def trained(model, updates=9, batch=batch, accumulate=1, clears=True, moves=True):
    for update in range(updates):
        for part in range(accumulate):
            ids = batch(update * accumulate + part)
            torch.nn.functional.cross_entropy(model(ids[:-1]), ids[1:]).backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.1 * weight.grad * moves
                weight.grad = None if clears else weight.grad


def watched(**how):
    with watched_training() as seen:
        trained(torch.nn.Sequential(torch.nn.Embedding(97, 4), torch.nn.Linear(4, 97)), **how)
    return seen


def test_a_loop_that_clears_its_gradients_and_draws_new_batches():
    seen = watched()
    assert seen.cleared and seen.kept == 0 and seen.passes == 9
    assert len(seen.batches) == 9 and seen.ids == 7


def test_gradients_that_are_never_cleared():
    seen = watched(clears=False)
    assert not seen.cleared and seen.kept == 8


def test_micro_batches_that_form_one_update_are_no_forgotten_gradients():
    assert watched(updates=1, accumulate=8).kept == 0
    seen = watched(updates=2, accumulate=8)
    assert seen.cleared and seen.kept == 0


def test_gradients_that_are_cleared_between_the_model_and_backward():
    model = torch.nn.Embedding(97, 97)
    with watched_training() as seen:
        for update in range(6):
            loss = torch.nn.functional.cross_entropy(model(batch(update)), batch(update))
            model.zero_grad()
            loss.backward()
            model.weight.data -= 0.1 * model.weight.grad
    assert seen.cleared and seen.kept == 0


def test_another_model_that_is_thrown_away_with_its_gradients():
    with watched_training() as seen:
        torch.nn.Embedding(97, 97)(batch(0)).sum().backward()
        trained(torch.nn.Embedding(97, 97))
    assert seen.cleared and seen.kept == 0


def test_one_batch_for_all_updates():
    seen = watched(batch=lambda _: TEXT[:8])
    assert len(seen.batches) == 1 and seen.passes == 9


def test_reading_without_gradients_is_no_training():
    with watched_training() as seen, torch.no_grad():
        torch.nn.Embedding(97, 97)(batch(0))
    assert seen.passes == 0 and not seen.batches


def test_the_hooks_are_removed_even_if_the_loop_raises():
    before = torch.autograd.backward
    with pytest.raises(RuntimeError, match="stop"), watched_training() as seen:
        raise RuntimeError("stop")
    torch.nn.Embedding(97, 97)(batch(0)).sum().backward()
    assert torch.autograd.backward is before and seen.passes == 0
