"""The task of lesson 02 and its head, which the lesson trains."""

import torch

from companion_school.study.dictionary import KEYS, VALUES, Lookup, dictionaries


def test_no_key_stands_twice_in_a_dictionary_and_every_question_asks_for_an_entry():
    keys, values, asked = dictionaries(torch.Generator().manual_seed(3), batch=5, questions=7, entries=11)
    assert keys.shape == values.shape == (5, 11) and asked.shape == (5, 7)
    assert all(len(set(row)) == 11 for row in keys.tolist())
    assert keys.min() >= 0 and keys.max() < KEYS and values.max() < VALUES and asked.max() < 11


def test_the_divisor_divides_the_scores_and_nothing_else():
    asked = dictionaries(torch.Generator().manual_seed(5), batch=2, questions=3, entries=6)
    (raw, values), (divided, others) = (Lookup(1, divisor).weights(*asked) for divisor in (1, 8))
    assert torch.equal(values, others)
    softer = torch.softmax(raw.log() / 8, dim=-1)
    torch.testing.assert_close(divided, softer, rtol=1e-4, atol=1e-5)
