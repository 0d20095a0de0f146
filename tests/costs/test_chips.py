"""The memory and bandwidth of chips: published figures, measurements on this machine, and the table of both."""

from functools import partial

import pytest
import torch

from companion.costs import chips
from companion.costs.account import decode_bytes
from companion.costs.chips import CHIPS, published_chip, published_peak, this_chip
from companion.costs.tables import decoding_table
from companion.families.registry import preset


def test_a_chip_is_found_by_both_names_and_its_figures_are_of_one_kind():
    assert len({chip.name for chip in CHIPS.values()}) == len(CHIPS)
    for short, chip in CHIPS.items():
        assert published_chip(short) is published_chip(chip.name) is chip
        assert published_peak(chip.name, torch.bfloat16) == chip.flops
        assert 80 < chip.balance < 500  # FLOPs per byte, which would reveal a wrong digit
        assert 5 < chip.memory / chip.bandwidth * 1000 < 100  # milliseconds to read all of it


def test_an_unknown_chip_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"chip='h20': expected one of a100-40gb, .*; did you mean h200\?"):
        published_chip("h20")


def test_the_limit_is_bandwidth_over_bytes():
    config, chip = preset("llama-2-70b"), published_chip("h100")
    head, _, empty, full, chips = decoding_table(config, chip).splitlines()
    assert head == "on NVIDIA H100 80GB HBM3: 3,350 GB/s"
    for line, cached in ((empty, 0), (full, 4095)):
        fp32, bf16, int8 = (float(value) for value in line.split()[-3:])
        assert fp32 == pytest.approx(3350e9 / decode_bytes(config, cached), rel=0.01)
        assert bf16 == pytest.approx(2 * fp32, rel=0.01)
        assert int8 == pytest.approx(
            3350e9 / decode_bytes(config, cached, dtype=torch.int8, cache_dtype=torch.bfloat16), rel=0.01
        )
    assert chips.split()[-3:] == ["4", "2", "1"]
    with pytest.raises(ValueError, match="stack='encoder': expected a decoder"):
        decoding_table(preset("bert-base"), chip)


def test_this_chip_is_found_or_measured(monkeypatch):
    # test_account.py measures for the full time.
    monkeypatch.setattr(chips, "_best_seconds", partial(chips._best_seconds, seconds=0.02))
    chip = this_chip()
    assert 1e7 < chip.bandwidth < 1e15 and chip.name
    assert "tokens a second" in decoding_table(preset("gpt2"), chip)


def test_a_gpu_of_the_table_needs_no_measurement(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA L4")
    monkeypatch.setattr("companion.costs.chips.measure_chip", lambda *_: pytest.fail("measured"))
    assert this_chip() == published_chip("l4")


def test_reading_counts_each_byte_once(monkeypatch):
    """The result is the better one of a sum and a dot product, both over 512 MB."""
    seconds, shapes = iter([4.0, 2.0]), []

    def timed(run, *_):
        shapes.append(float(run()))
        return next(seconds)

    monkeypatch.setattr(chips, "_best_seconds", timed)
    assert chips.measure_reading() == 2**29 / 2.0
    assert shapes == [2.0**27, 2.0**26]
    monkeypatch.undo()
    assert 1e7 < chips.measure_reading() < 1e15
