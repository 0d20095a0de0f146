"""`make bench` times only implementations that compute the same function, and its figures are correct.

No test asserts a speed.
"""

import gc
import json
import math
import re
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import compare, decode, growth, memory, peers, prefill, smollm2, training
from benchmarks.compare import OURS, Comparison, Setting, differs
from benchmarks.peers import drawn
from benchmarks.sizes import SIZES
from benchmarks.timing import Spread, interleaved, paired_ratio
from companion.config.model import AttentionConfig, NormConfig
from companion.costs import account, chips
from companion.costs.chips import Chip
from companion.families.export import export_model
from companion.generation.generate import complete
from companion.generation.sampling import Sampling
from companion.ground.installed import installed

TINY = SIZES["tiny"]
INSTALLED = {name for name in peers.PEERS if installed(name)}


@pytest.fixture
def setting():
    return Setting(torch.device("cpu"), "fp32", False, rounds=1, chip=Chip(flops=2e9, bandwidth=1e9))


@pytest.fixture
def short(monkeypatch):
    """Make each sample a single run, and measure the machine's ceiling only briefly: no figure is asserted here."""
    monkeypatch.setattr(compare, "interleaved", partial(compare.interleaved, least=0.0))
    best = chips._best_seconds
    monkeypatch.setattr(chips, "_best_seconds", lambda run, device, seconds=0.0: best(run, device, 0.01))


def names(comparison):
    return {row.name for row in comparison.rows}


# The whole benchmark


def test_one_run_prints_and_writes_the_same(tmp_path, capsys, short):
    only = ["--only", "decode", "prefill", "training", "memory"]
    arguments = ["--quick", "--sizes", "tiny", "--rounds", "2", "--device", "cpu", "--out", str(tmp_path), *only]
    assert command.main(arguments) == 0
    printed = capsys.readouterr().out
    record = json.loads((tmp_path / "bench.json").read_text())
    assert all(record["ceiling"][name] > 0 for name in ("flops", "bandwidth", "copying"))
    assert set(record["versions"]) >= INSTALLED
    assert [c["part"] for c in record["comparisons"]] == ["decode", "prefill", "training"]
    for c in record["comparisons"]:
        assert c["title"] in printed and {row["name"] for row in c["rows"]} >= {OURS, *INSTALLED}
        for row in c["rows"]:
            assert len(row["samples"]) == 2
            assert row["share"] == pytest.approx(c["least"] / row["seconds"]["median"])
            assert row["rate"] == pytest.approx(c["items"] / row["seconds"]["median"])
    formula, ours, *others = record["memory"]
    assert ours["training"] == formula["training"] == 16 * account.parameters(TINY.config).total
    assert {one["name"] for one in others} == INSTALLED and all(one["training"] == ours["training"] for one in others)


def test_another_function_is_never_timed_and_the_exit_code_says_so(tmp_path, monkeypatch, capsys, short):
    honest = peers.PEERS["transformers"]

    def build(ours):
        peer = honest(ours)
        with torch.no_grad():
            peer.model.model.norm.weight.mul_(-1)  # the least likely token is now the most likely
        return peer

    monkeypatch.setitem(peers.PEERS, "transformers", build)
    only = ["--only", "decode", "prefill", "training"]
    arguments = ["--quick", "--sizes", "tiny", "--rounds", "1", "--device", "cpu", "--out", str(tmp_path), *only]
    assert command.main(arguments) == 1
    for c in json.loads((tmp_path / "bench.json").read_text())["comparisons"]:
        assert "transformers" not in {row["name"] for row in c["rows"]}
        assert ("transformers", "differs") in {(gone["name"], gone["kind"]) for gone in c["left_out"]}
    assert "should never happen" in capsys.readouterr().out


def test_updates_must_agree_too_not_only_the_first_output(monkeypatch, setting):
    def frozen(build):
        def changed(ours):
            peer = build(ours)
            next(peer.model.parameters()).requires_grad_(False)
            return peer

        return changed

    for name, build in peers.PEERS.items():
        monkeypatch.setitem(peers.PEERS, name, frozen(build))
    comparison = training.compare(TINY, setting)
    assert names(comparison) == {OURS}
    assert {gone.name for gone in comparison.left_out if gone.kind == "differs"} == INSTALLED


def test_a_missing_or_broken_peer_is_named_and_the_rest_goes_on(monkeypatch, setting):
    monkeypatch.setattr(peers, "installed", lambda name: None if name == "x-transformers" else "5.0")

    def broken(ours):
        raise TypeError("its interface\nhas changed")

    monkeypatch.setitem(peers.PEERS, "transformers", broken)
    for comparison in (decode.compare(TINY, setting), prefill.compare(TINY, setting)):
        assert OURS in names(comparison)
        gone = {gone.name: gone for gone in comparison.left_out}
        assert gone["x-transformers"].kind == "missing" and "pip install" in gone["x-transformers"].why
        assert gone["transformers"].kind == "failed"
        assert gone["transformers"].why == "TypeError: its interface has changed"


def test_half_precision_is_compared_in_both_types(setting):
    for found in (decode.compare(TINY, replace(setting, precision="bf16")),
                  prefill.compare(TINY, replace(setting, precision="bf16"))):  # fmt: skip
        assert names(found) >= {OURS, *INSTALLED}


# Our weights in other libraries' models


@pytest.mark.parametrize("name", sorted(INSTALLED))
def test_a_peer_is_the_same_function_with_grouped_heads_too(name):
    config = TINY.config.with_(attention=AttentionConfig(heads=6, kv_heads=2, d_head=10), d_model=42, layers=3)
    ours = drawn(config)
    peer = peers.PEERS[name](ours)
    peer.model.eval()
    tokens = torch.randint(config.vocab, (3, 17))
    expected = ours(tokens).logits
    assert differs(expected, peer.logits(tokens), "logits", torch.float32) is None
    wanted = complete(ours, [tokens[0, :7].tolist()], max_new_tokens=15, sampling=Sampling(0.0))[0]
    for write in (peer.generate, *peer.variants.values()):
        assert write(tokens[:1, :7], 15) == wanted
    assert differs(expected[:1, -1], peer.prefill(tokens[:1]), "logits", torch.float32) is None
    assert sum(p.numel() for p in peer.model.parameters()) == sum(p.numel() for p in ours.parameters())


def test_a_layout_that_a_peer_does_not_have_is_named_and_never_timed(setting):
    size = replace(TINY, config=TINY.config.with_(norm=NormConfig("layer")))
    found = prefill.compare(size, setting)
    assert names(found) == {OURS}
    [why] = [gone.why for gone in found.left_out if gone.name == "transformers"]
    assert "norm.kind='layer'" in why


# A published model


def test_a_published_model_that_is_not_here_is_said_and_nothing_fails(tmp_path, monkeypatch, capsys, short):
    def missing(name):
        raise ValueError("`companion get smollm2` fetches it")

    monkeypatch.setattr(smollm2, "pretrained_folder", missing)
    assert command.main(["--only", "smollm2", "--device", "cpu", "--out", str(tmp_path)]) == 0
    assert "not measured: SmolLM2: `companion get smollm2` fetches it" in capsys.readouterr().out


OUR_FORMS = ("ours, fp32", "ours, fp16", "ours, int8", "ours, int4")


def compared(setting, tmp_path, python, kinds):
    files = {kind: tmp_path / kind for kind in kinds}
    for file in files.values():
        file.write_bytes(b"four")
    ids = list(range(1, 9))
    return smollm2.compare_threads(drawn(TINY.config), tmp_path, ids, 3, setting, python, files)


def test_every_format_of_ours_and_transformers_are_compared_and_llama_cpp_is_missed(tmp_path, setting, short):
    export_model(tmp_path, drawn(TINY.config), kind="llama")
    reading, writing = compared(replace(setting, rounds=2), tmp_path, None, ())
    theirs = INSTALLED & {"transformers"}  # left out if its cache could not be shortened again
    assert names(reading) == {OURS} | theirs and names(writing) == {OURS, *OUR_FORMS} | theirs
    assert writing.left_out[-1].name == "llama.cpp" and writing.left_out[-1].kind == "missing"
    assert "LLAMA_CPP_PYTHON" in writing.table()
    losses, _, products = writing.remarks
    assert all(f"{name} " in losses for name in (OURS, *OUR_FORMS))
    assert re.findall(r"(ours, \w+) \d+\.\d", products) == list(OUR_FORMS)
    rows = {row.name: row.share * row.seconds.median for row in writing.rows}
    assert (
        rows["ours, fp32"] > rows["ours, fp16"] > rows["ours, int8"] > rows["ours, int4"]
    )  # the bytes that each of them reads


def test_llama_cpp_is_asked_in_its_own_process_and_its_fp32_must_write_our_tokens(
    tmp_path, monkeypatch, setting, short
):
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import json, sys\nfor line in sys.stdin:\n    name, *_ = json.loads(line)\n"
        "    if 'Q8_0' in sys.argv[1]: sys.exit(3)\n"
        "    print(json.dumps({'read': 5, 'write': [97, 97, 97], 'nats': 2.0}[name]), flush=True)\n"
    )
    monkeypatch.setattr(smollm2, "WORKER", worker)
    monkeypatch.setattr(smollm2, "installed", lambda name: None)
    reading, writing = compared(setting, tmp_path, sys.executable, ("F32", "F16", "Q8_0"))
    assert names(reading) == {OURS, "llama.cpp, F16"} and names(writing) >= names(reading)
    gone = {gone.name: (gone.kind, gone.why) for gone in writing.left_out}
    assert gone["transformers"] == ("missing", "not installed (pip install transformers)")
    assert gone["llama.cpp, F32"] == ("differs", "it generates different tokens from ours")
    assert gone["llama.cpp, Q8_0"] == ("failed", "RuntimeError: llama.cpp exited with code 3")
    assert "llama.cpp, F16 2.0000" in writing.remarks[0]


# How costs grow


def test_a_step_with_more_is_measured_beside_its_formula(tmp_path, monkeypatch, capsys, short):
    monkeypatch.setattr(growth, "CACHED", (8, 64))
    monkeypatch.setattr(growth, "ROWS", (1, 3))
    monkeypatch.setattr(growth, "EXPERTS", (2, 4))
    monkeypatch.setattr(growth, "interleaved", partial(interleaved, least=0.0))
    only = ["--only", "growth", "--sizes", "tiny", "--rounds", "2", "--device", "cpu", "--out", str(tmp_path)]
    assert command.main(only) == 0
    printed, record = capsys.readouterr().out, json.loads((tmp_path / "bench.json").read_text())
    assert [(one["axis"], one["value"]) for one in record["growth"]] == [
        *(("tokens in the cache", 8), ("tokens in the cache", 64), ("rows", 1), ("rows", 3)),
        *(("experts", 2), ("experts", 4)),
    ]
    least = account.forward_bytes(TINY.config, 1, cached=64) / record["ceiling"]["bandwidth"]
    assert record["growth"][1]["least"] >= least > 0 and "a decode step with more experts; tiny" in printed


def test_a_step_after_many_tokens_is_that_of_a_cache_which_has_read_them(setting):
    logits, cache = growth.step(TINY.config, 2, 8, setting)()
    assert logits.shape == (2, TINY.config.vocab) and cache.filled == 9 and cache.lengths.tolist() == [9, 9]


# Counts


def test_bytes_kept_for_the_backward_pass_by_hand():
    """A linear layer stores its input and a square its own; weights do not count, and each storage counts once."""
    layer, x = torch.nn.Linear(5, 7), torch.randn(3, 5)
    assert memory.kept_for_backward(lambda: layer(x).square().sum(), layer) == 4 * (3 * 5 + 3 * 7)
    assert memory.kept_for_backward(lambda: (layer(x) + layer(x)).sum(), layer) == 4 * 3 * 5


def test_the_peak_of_a_step_by_hand():
    with memory.Live() as live:
        a = torch.zeros(1000)
        b = a + 1
        del a
        c = b + 1
        c.add_(b.view(10, 100).flatten())
    assert live.most == live.now == 8000
    layer = torch.nn.Linear(100, 50, bias=False)  # at most the gradients of the weight, of the output and of the input
    x = torch.zeros(30, 100)
    assert memory.peak_of_step(lambda: layer(x).sum(), layer) in range(4 * 5000, 4 * (5000 + 2 * 1500) + 100)
    assert layer.weight.grad is None


def test_the_least_time_is_that_of_the_formulas(setting):
    found = prefill.compare(TINY, setting, ())
    flops = account.forward_flops(TINY.config, 24, cached=0, logits="last").total
    moved = account.forward_bytes(TINY.config, 24, cached=0, dtype=torch.float32)
    assert found.least == pytest.approx(max(flops / 2e9, moved / 1e9))
    trained = training.compare(TINY, setting, ())
    assert trained.least == pytest.approx(account.train_flops(TINY.config, 48, batch=2) / 2e9)


def test_where_steps_are_slow_fewer_tokens_are_written(setting, monkeypatch):
    assert decode.affordable(TINY, setting) == TINY
    monkeypatch.setattr(decode, "LONGEST", 0.0)
    assert decode.affordable(TINY, setting) == replace(TINY, new=16)


# Statistics


def test_quartiles_by_hand():
    assert Spread.of([4.0, 1.0, 3.0, 2.0]) == Spread(median=2.5, lower=1.75, upper=3.25)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)


def test_a_slow_round_cancels_in_the_ratio():
    assert paired_ratio([2.0, 20.0, 4.0], [1.0, 10.0, 2.0]) == Spread(2.0, 2.0, 2.0)


def test_rounds_hold_everybody_once_in_changing_order():
    calls = []
    runs = {name: (lambda name=name: calls.append(name)) for name in "abcd"}
    samples = interleaved(runs, rounds=8, least=0.0)
    warm, timed = calls[: 3 * 4], calls[3 * 4 :]
    assert sorted(warm) == sorted("abcd" * 3)
    rounds = [tuple(timed[i : i + 4]) for i in range(0, len(timed), 4)]
    assert len(rounds) == 8 and all(sorted(order) == list("abcd") for order in rounds)
    assert len(set(rounds)) > 3
    assert {name: len(s) for name, s in samples.items()} == dict.fromkeys("abcd", 8)
    with pytest.raises(ValueError, match="rounds=0: expected a whole number >= 1"):
        interleaved(runs, rounds=0)


def test_patience_ends_after_three_rounds_at_least():
    calls = []
    samples = interleaved({"a": lambda: calls.append(1)}, rounds=8, least=0.0, patience=0.0)
    assert len(samples["a"]) == 3 and len(calls) == 3 + 3
    assert len(interleaved({"a": lambda: None}, rounds=8, least=0.0, patience=100.0)["a"]) == 8


def test_a_quick_run_is_repeated_within_a_sample():
    calls = []
    interleaved({"a": lambda: calls.append(1)}, rounds=1, least=1e-3)
    assert len(calls) > 10


def test_garbage_is_collected_again_after_an_error():
    calls = []

    def fail():
        calls.append(gc.isenabled())
        if len(calls) > 3:
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        interleaved({"a": fail}, rounds=1, least=0.0)
    assert calls[3] is False and gc.isenabled()


def test_a_difference_is_relative_and_what_cannot_be_compared_differs():
    expected = torch.tensor([3.0, -4.0])
    near = expected + torch.tensor([0.3e-4, 0.4e-4])
    assert differs(expected, near, "output", torch.float32) is None
    said = differs(expected, expected + torch.tensor([0.3, 0.4]), "output", torch.float32)
    assert said == "its output differs from ours by 1.0e-01 (relative error); at most 1e-04 is allowed"
    for wrong in (torch.zeros(3), torch.tensor([3.0, math.nan])):
        assert differs(expected, wrong, "output", torch.float32)


def test_more_than_the_ceiling_is_explained(setting):
    """A share above one is impossible, so the table explains it."""
    for bound, words in (("compute", "was busy with something else"), ("memory", "stay in the processor's cache")):
        for least, expected in ((1e9, True), (1e-9, False)):
            comparison = Comparison("train", "a step", "tiny", 1, least, bound)
            comparison.time({OURS: lambda: None}, setting)
            assert (words in comparison.table()) == expected


# Arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "huge"], "invalid choice: 'huge'"),
        (["--only", "sleep"], "invalid choice: 'sleep'"),
        (["--rounds", "0"], "--rounds 0: expected a whole number >= 1"),
        (["--device", "abacus"], "expected cpu, cuda, cuda:1, mps or auto"),
        (["--out", "file"], "File exists: 'file'"),
    ],
)
def test_bad_arguments_exit_2_before_anything_runs(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    try:
        code = command.main(arguments)
    except SystemExit as ended:
        code = ended.code
    assert code == 2 and message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
