"""The task of lesson 05 and its model: predictable symbols are predictable, and each kind of positions is right."""

import pytest
import torch

from companion_school.study.rounds import KINDS, Reader, linear_biases, practise, right, rounds


def test_after_one_round_the_next_symbol_follows_from_what_was_read():
    text, known = rounds(torch.Generator().manual_seed(2), 7, (3, 5), 19)
    assert text.shape == (7, 20) and known.shape == (7, 19)
    for row, can in zip(text.tolist(), known.tolist(), strict=True):
        period = can.index(True)
        assert 3 <= period <= 5 and len(set(row[:period])) == period
        assert all(can[period:]) and row[period:] == row[:-period]


def test_linear_biases_take_off_in_proportion_to_the_distance_by_a_slope_for_each_head():
    bias = linear_biases(6, 4)
    assert bias.shape == (1, 4, 6, 6)
    assert bias[0, 0, 5, 2].item() == -3 * 2**-2 and bias[0, 3, 5, 2].item() == -3 * 2**-8
    assert bias.diagonal(dim1=2, dim2=3).abs().max() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_only_encodings_that_are_added_notice_that_a_text_begins_elsewhere(kind):
    reader, at = Reader(kind, start=3), torch.arange(11)
    symbols = torch.randint(64, (2, 11), generator=torch.Generator().manual_seed(4))
    change = (reader(symbols, positions=at + 90) - reader(symbols, positions=at)).abs().max().item()
    assert change < 1e-3 if kind in ("rotary", "linear biases") else change > 0.01


def test_practice_makes_better_and_is_the_same_each_time():
    first, second = (practise(Reader("rotary", 0), 0, steps=60, batch=8, periods=(2, 4), length=13) for _ in range(2))
    before = right(Reader("rotary", 0), (2, 4), 13)
    assert right(first, (2, 4), 13) > before + 0.1
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_whoever_watches_sees_the_model_before_each_update_and_at_the_end():
    reader, seen = Reader("rotary", 0), []
    practise(reader, 0, steps=3, batch=2, watch=lambda done: seen.append((done, reader.out.weight.clone())))
    assert [done for done, _ in seen] == [0, 1, 2, 3]
    assert torch.equal(seen[0][1], Reader("rotary", 0).out.weight) and torch.equal(seen[3][1], reader.out.weight)
    assert not torch.equal(seen[1][1], seen[2][1])


def test_a_kind_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="kind='alibi': expected one of sinusoidal, learned, rotary, linear biases"):
        Reader("alibi", 0)
