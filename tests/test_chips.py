"""What a chip's memory allows: the makers' figures, this machine's, and the table of them."""

import pytest
import torch

from companion.costs.account import decode_bytes
from companion.costs.chips import CHIPS, PUBLISHED_PEAKS, published_machine, this_machine
from companion.costs.tables import decoding_table
from companion.presets import PRESETS


def test_the_chips_with_a_bandwidth_are_those_with_a_peak():
    assert {chip.device for chip in CHIPS.values()} == set(PUBLISHED_PEAKS)
    for name, known in CHIPS.items():
        machine = published_machine(name)
        assert machine == published_machine(known.device) and machine.memory == known.memory
        assert 80 < machine.chip.balance < 500  # FLOPs a byte: a slip of a digit would show
        assert 5 < machine.memory / machine.chip.bandwidth * 1000 < 100  # ms to read all of it


def test_an_unknown_chip_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"chip='h20': expected one of a100-40gb, .*; did you mean h200\?"):
        published_machine("h20")


def test_the_limit_is_bandwidth_over_bytes():
    config, machine = PRESETS["llama-2-70b"], published_machine("h100")
    head, _, empty, full, chips = decoding_table(config, machine).splitlines()
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
        decoding_table(PRESETS["bert-base"], machine)


def test_this_machine_is_found_or_measured():
    machine = this_machine()
    assert 1e7 < machine.chip.bandwidth < 1e15 and machine.name
    assert "tokens a second" in decoding_table(PRESETS["gpt2"], machine)


def test_a_gpu_of_the_table_needs_no_measurement(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA L4")
    monkeypatch.setattr("companion.costs.chips.measure_chip", lambda *_: pytest.fail("measured"))
    assert this_machine() == published_machine("l4")
