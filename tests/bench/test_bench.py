"""`companion bench`: everybody computes the same function before anybody is timed, and the figures are what they say.

Nothing here asserts a speed.
"""

import gc
import importlib.util
import json
import math
from dataclasses import replace

import pytest
import torch

from companion.bench import attention_variants, drafts, gated_delta_net, layers, models, peers, report
from companion.bench.compare import OURS, Comparison, Setting
from companion.bench.sizes import PARTS, SIZES, find_parts, find_sizes
from companion.bench.timing import Spread, interleaved, paired_ratio
from companion.bench.tolerance import difference
from companion.bench.weight_formats import own_text_cost
from companion.commands.main import main
from companion.config.model import AttentionConfig, EmbeddingConfig, MoEConfig, NormConfig
from companion.costs.account import counted_flops, decode_bytes
from companion.costs.chips import Chip
from companion.generation.generate import complete
from companion.generation.sampling import Sampling
from companion.generation.weights import FORMS, possible
from companion.layers.moe import MoE

TINY = SIZES["tiny"]
INSTALLED = {name for name in peers.PEERS if importlib.util.find_spec(name.replace("-", "_"))}


@pytest.fixture
def setting():
    return Setting(torch.device("cpu"), "fp32", False, rounds=1, chip=Chip(flops=2e9, bandwidth=1e9), progress=False)


def names(comparison):
    return {row.name for row in comparison.rows}


# The whole of it


def test_one_run_says_prints_and_writes_the_same(tmp_path, capsys, few_and_short):
    data = tmp_path / "new" / "figures.json"
    assert main(["bench", "--quick", "--sizes", "tiny", "--rounds", "2", "--device", "cpu", "--json", str(data)]) == 0
    printed = capsys.readouterr().out
    said = " ".join(printed.split())
    record = json.loads(data.read_text())
    assert [path.name for path in data.parent.iterdir()] == ["figures.json"]
    assert all(record["ceiling"][name] > 0 for name in ("flops", "bandwidth", "copying"))
    assert record["machine"]["threads"] == torch.get_num_threads() and record["machine"]["device"] == "cpu"
    assert f"{torch.get_num_threads()} thread" in printed
    assert set(record["versions"]) >= INSTALLED

    comparisons = record["comparisons"]
    assert list(dict.fromkeys(c["part"] for c in comparisons)) == list(PARTS)
    for c in comparisons:
        assert c["title"] in printed
        rows = [line for line in printed.splitlines() if line.startswith(tuple(row["name"] for row in c["rows"]))]
        assert len(rows) >= len(c["rows"]) and max(map(len, rows)) <= 80
        ours = next(row for row in c["rows"] if row["name"] == OURS)
        for row in c["rows"]:
            assert row["name"] in printed
            assert len(row["samples"]) == 2 and min(row["samples"]) > 0
            assert row["seconds"]["median"] == pytest.approx(sum(row["samples"]) / 2)
            ratios = [a / b for a, b in zip(row["samples"], ours["samples"], strict=True)]
            assert row["ratio"]["median"] == pytest.approx(sum(ratios) / 2)
            assert row["rate"] == pytest.approx(c["items"] / row["seconds"]["median"])
            least = c["least"] if row["moved"] is None else row["moved"] / record["ceiling"]["bandwidth"]
            assert row["share"] == pytest.approx(least / row["seconds"]["median"])
        assert not [out for out in c["left_out"] if out["kind"] == "differs"]
        assert all(" ".join(f"not timed: {out['name']}: {out['why']}".split()) in said for out in c["left_out"])
        if "form of weights" in c["title"]:
            forms = [form for form in FORMS if possible(form, "cpu")]
            names = [row["name"] for row in c["rows"]]
            assert names[: len(forms) + 1] == [OURS, *(f"ours, {form}" for form in forms)]
            assert set(names[len(forms) + 1 :]) == INSTALLED
            moved = {row["name"].split()[-1]: row["moved"] for row in c["rows"]}
            assert moved["fp32"] > moved["fp16"] == moved["bf16"] > moved["int4"]
            assert all(form in c["remarks"][0] for form in forms)
            assert all(f"{form} +" in c["remarks"][1] or f"{form} -" in c["remarks"][1] for form in forms)
        elif "with a draft" in c["title"]:
            assert len(c["rows"]) == 3 and "ours, n-gram look-up" in {row["name"] for row in c["rows"]}
            assert all("% of its proposals accepted" in remark for remark in c["remarks"][1:])
        elif "at a time" in c["title"]:
            rows = [OURS, *(f"ours, {rows} at a time" for rows in (1, 3, 16))]
            assert [row["name"] for row in c["rows"]] == rows
        elif c["part"] in ("train", "decode"):
            timed = {row["name"] for row in c["rows"]}
            missing = {out["name"] for out in c["left_out"] if out["kind"] == "missing"}
            assert timed == {OURS, *INSTALLED}
            assert missing == set(peers.PEERS) - INSTALLED
        if c["part"] == "kept":
            assert [row["name"] for row in c["rows"]] == list(attention_variants.WAYS)
        if c["part"] == "moe":
            timed = {row["name"] for row in c["rows"]}
            assert {OURS, "ours, loop", "ours, grouped", layers.DENSE} <= timed
            assert {"transformers, eager", "transformers, grouped_mm", "transformers, batched_mm"} <= timed
            assert "ours, gather" not in timed  # which copies, for a GPU
        if c["part"] == "linear":
            assert [row["name"] for row in c["rows"]] == list(gated_delta_net.WAYS)
        if c["part"] == "attention":
            assert {row["name"] for row in c["rows"]} == {OURS, "reference", "sdpa", "tiled"}


def test_a_step_reads_what_is_kept_as_the_formula_says(setting):
    """16 heads of 16: keys and values of all, of four, of one; a latent of 64 numbers beside 8 that are turned; and a
    matrix a head, which a longer text leaves as large."""
    numbers = dict(zip(attention_variants.WAYS[:-1], (2 * 16 * 16, 2 * 4 * 16, 2 * 16, 64 + 8), strict=True))
    found = attention_variants.decode_kept(TINY, setting)
    moved = {row.name: row.moved for row in found.rows}
    *kinds, (way, config) = attention_variants.kinds(TINY).items()
    assert moved[way] == decode_bytes(config, 10**6) and "bytes a layer for any length" in found.remarks[-1]
    for way, config in kinds:
        assert config.sizes.kept_numbers == numbers[way]
        assert moved[way] - decode_bytes(config, 0) == 64 * config.layers * numbers[way] * 4
    for number, line in zip(numbers.values(), found.remarks[:-1], strict=True):
        assert f"{number:,} numbers, {4 * number:,} bytes a token and layer" in line


def test_another_function_is_never_timed_and_the_exit_code_says_so(tmp_path, monkeypatch, capsys, few_and_short):
    honest = peers.build

    def build(name, ours):
        peer = honest(name, ours)
        if name == "transformers":
            with torch.no_grad():
                peer.model.model.norm.weight.mul_(-1)  # the least likely token is now the most likely
        return peer

    monkeypatch.setattr(peers, "build", build)
    monkeypatch.setattr(drafts, "UPDATES", 2)
    arguments = ["bench", "--quick", "--sizes", "tiny", "--rounds", "1", "--device", "cpu", "--out", str(tmp_path)]
    assert main([*arguments, "--only", "decode", "train"]) == 1
    record = json.loads((tmp_path / "bench.json").read_text())
    assert [c["part"] for c in record["comparisons"]] == ["train", *["decode"] * 5]
    for c in (record["comparisons"][0], record["comparisons"][2]):  # one token may come out right by chance
        assert "transformers" not in {row["name"] for row in c["rows"]}
        assert ("transformers", "differs") in {(out["name"], out["kind"]) for out in c["left_out"]}
    assert "should never happen" in capsys.readouterr().out


def test_updates_must_agree_too_not_only_the_first_output(monkeypatch, setting):
    honest = peers.build

    def build(name, ours):
        peer = honest(name, ours)
        peer.model.get_parameter(next(iter(dict(peer.model.named_parameters())))).requires_grad_(False)
        return peer

    monkeypatch.setattr(peers, "build", build)
    comparison = models.training(TINY, setting)
    assert names(comparison) == {OURS}
    assert {out.name for out in comparison.left_out if out.kind == "differs"} == INSTALLED


def test_a_mixture_with_gate_and_inner_swapped_is_not_timed(monkeypatch, setting):
    honest = layers.mixtral_block

    def block(ours, *arguments):
        other = MoE(ours.inner.shape[1], TINY.config.feed_forward, TINY.experts)
        other.load_state_dict(ours.state_dict())
        other.gate, other.inner = other.inner, other.gate
        return honest(other, *arguments)

    monkeypatch.setattr(layers, "mixtral_block", block)
    comparison = layers.moe(TINY, setting)[1]
    assert not [name for name in names(comparison) if name.startswith("transformers")]
    assert {"transformers, eager", "transformers, grouped_mm"} <= {
        out.name for out in comparison.left_out if out.kind == "differs"
    }


def test_a_missing_or_broken_peer_is_named_and_the_rest_goes_on(monkeypatch, setting):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        peers.importlib.util, "find_spec", lambda name: None if name == "x_transformers" else find(name)
    )

    def broken(ours):
        raise TypeError("its interface\nhas changed")

    monkeypatch.setattr(peers, "_transformers", broken)
    for comparison in models.decode(TINY, setting):
        assert OURS in names(comparison)
        out = {out.name: out for out in comparison.left_out}
        assert out["x-transformers"].kind == "missing" and "pip install" in out["x-transformers"].why
        assert (
            out["transformers"].kind == "failed" and out["transformers"].why == "TypeError: its interface has changed"
        )


# Our weights in other people's models


@pytest.mark.parametrize("name", sorted(INSTALLED))
def test_a_peer_is_the_same_function_with_grouped_heads_too(name):
    config = TINY.config.with_(attention=AttentionConfig(heads=6, kv_heads=2, d_head=10), d_model=42, layers=3)
    ours = models.drawn(config)
    peer = peers.build(name, ours)
    peer.model.eval()
    tokens = torch.randint(config.vocab, (3, 17))
    expected = ours(tokens).logits
    assert difference(expected, peer.logits(tokens)) < 1e-5
    wanted = complete(ours, [tokens[0, :7].tolist()], max_new_tokens=15, sampling=Sampling(0.0))[0]
    for write in (peer.generate, *peer.variants.values()):
        assert write(tokens[:1, :7], 15) == wanted
    assert difference(expected, peer.logits(tokens)) < 1e-5, "generation left something behind"
    assert sum(p.numel() for p in peer.model.parameters()) == sum(p.numel() for p in ours.parameters())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedding": EmbeddingConfig(tied=False)}, "embedding.tied=False: expected True"),
        ({"norm": NormConfig("layer")}, "norm.kind='layer': expected 'rms'"),
        ({"dropout": 0.1}, "dropout=0.1: expected 0.0"),
    ],
)
def test_another_layout_is_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        peers.build("transformers", models.drawn(TINY.config.with_(**change)))


def test_an_unknown_peer_is_refused():
    with pytest.raises(ValueError, match="peer='fairseq': expected one of transformers, x-transformers"):
        peers.build("fairseq", models.drawn(TINY.config))


# What is counted


def test_the_mixtures_flops_are_those_of_the_counter(setting):
    size = replace(TINY, visitors=(24, 2), experts=MoEConfig(4, 3))
    forward, both, few = layers.moe(size, setting)
    torch.manual_seed(0)
    ours = MoE(size.config.d_model, size.config.feed_forward, size.experts)
    x = torch.randn(1, 24, size.config.d_model)
    assert forward.flops == counted_flops(lambda: ours(x, experts="loop"))
    assert both.flops == 3 * forward.flops and few.flops * 12 == forward.flops
    assert forward.least == forward.flops / 2e9


def test_kept_bytes_grow_with_the_square_of_the_length_for_the_formula_alone(setting):
    size = replace(TINY, lengths=(64, 128))
    comparisons = [c for c in layers.attention(size, setting) if "backward" in c.title]
    kept = {row.name: [] for row in comparisons[0].rows}
    for comparison in comparisons:
        for row in comparison.rows:
            kept[row.name].append(row.kept)
    for name in (OURS, "sdpa", "tiled"):
        assert kept[name][1] == pytest.approx(2 * kept[name][0], rel=0.05)
    assert kept["reference"][1] == pytest.approx(4 * kept["reference"][0], rel=0.2)


def test_what_would_take_too_much_memory_is_left_out(monkeypatch, setting):
    monkeypatch.setattr(layers, "MOST_BYTES", 100_000)
    comparison = layers.moe(TINY, setting)[0]
    assert "transformers, batched_mm" not in names(comparison)
    why = [out.why for out in comparison.left_out if out.name == "transformers, batched_mm"]
    assert why == [f"it would copy {56 * 2 * 3 * 32 * 80 * 4 / 1e9:.1f} GB of experts' matrices"]


# Statistics


def test_quartiles_by_hand():
    assert Spread.of([4.0, 1.0, 3.0, 2.0]) == Spread(median=2.5, lower=1.75, upper=3.25)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)
    with pytest.raises(ValueError, match="samples is empty"):
        Spread.of([])


def test_a_slow_round_cancels_in_the_ratio():
    assert paired_ratio([2.0, 20.0, 4.0], [1.0, 10.0, 2.0]) == Spread(2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="seconds has 1 rounds: expected 2"):
        paired_ratio([1.0], [1.0, 2.0])


def test_rounds_hold_everybody_once_in_changing_order():
    calls, ticks = [], []
    runs = {name: (lambda name=name: calls.append(name)) for name in "abcd"}
    samples = interleaved(runs, rounds=8, least=0.0, tick=lambda: ticks.append(1))
    warm, timed = calls[: 3 * 4], calls[3 * 4 :]
    assert sorted(warm) == sorted("abcd" * 3)
    rounds = [tuple(timed[i : i + 4]) for i in range(0, len(timed), 4)]
    assert len(rounds) == 8 and all(sorted(order) == list("abcd") for order in rounds)
    assert len(set(rounds)) > 3
    assert len(ticks) == 32 and {name: len(s) for name, s in samples.items()} == dict.fromkeys("abcd", 8)
    with pytest.raises(ValueError, match="rounds=0: expected a whole number >= 1"):
        interleaved(runs, rounds=0)


def test_patience_ends_after_three_rounds_at_least():
    calls = []
    samples = interleaved({"a": lambda: calls.append(1)}, rounds=8, least=0.0, patience=0.0)
    assert len(samples["a"]) == 3 and len(calls) == 3 + 3
    assert len(interleaved({"a": lambda: None}, rounds=8, least=0.0, patience=100.0)["a"]) == 8


def test_where_steps_are_slow_fewer_tokens_are_written(setting, monkeypatch):
    assert models.affordable(TINY, setting) == TINY
    monkeypatch.setattr(models, "LONGEST", 0.0)
    assert models.affordable(TINY, setting) == replace(TINY, new=16)


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


def test_difference_is_relative_and_infinite_where_nothing_can_be_compared():
    expected = torch.tensor([3.0, -4.0])
    assert difference(expected, expected + torch.tensor([0.3, 0.4])) == pytest.approx(0.1)
    assert difference(expected, torch.zeros(3)) == math.inf
    assert difference(expected, torch.tensor([3.0, math.nan])) == math.inf


def test_more_than_the_ceiling_is_explained(setting):
    """A share above one is no share: the table says what it means."""
    for bound, words in (("compute", "kept the machine busy"), ("memory", "stay in a cache before it")):
        for least, expected in ((1e9, True), (1e-9, False)):
            comparison = Comparison("train", "a step", "tiny", 1, 1.0, least, bound)
            comparison.time({OURS: lambda: None}, setting)
            assert (words in report.table(comparison)) == expected


def test_there_is_no_comparison_without_ours(setting):
    comparison = Comparison("train", "a step", "tiny", 1, 1.0, 1.0)
    with pytest.raises(ValueError, match="runs has theirs: expected 'ours' too"):
        comparison.time({"theirs": lambda: None}, setting)


# Arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "huge"], "--sizes huge: expected one or more of tiny, small, medium, gpt2, large"),
        (["--only", "sleep"], "--only sleep: expected one or more of train, decode, kept, moe, attention"),
        (["--rounds", "0"], "--rounds 0: expected a whole number >= 1"),
        (["--precision", "int8"], "--precision int8: expected one of auto, fp32, bf16"),
        (["--device", "abacus"], "--device abacus: expected cpu, cuda, cuda:1, mps or auto"),
        (["--json", "folder"], "--json folder: expected a place for a file, but folder is a folder"),
        (["--out", "file"], "--out file: expected a folder, or a place for one"),
        (["--rounds", "many"], "many"),
    ],
)
def test_bad_arguments_exit_2_before_anything_runs(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    code = main(["bench", *arguments])
    assert code == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_sizes_and_parts_come_in_order_and_once():
    assert [size.name for size in find_sizes(["small", "tiny", "small"])] == ["small", "tiny"]
    assert find_parts(["moe", "train", "moe"]) == ["train", "moe"]
    for find, flag in ((find_sizes, "--sizes"), (find_parts, "--only")):
        with pytest.raises(ValueError, match=f"{flag}: expected one or more of .*, got none"):
            find([])


def test_what_another_distribution_costs_by_hand():
    """A fair coin written down as one of 1/4 and 3/4: (ln 2 - ln(3/2)) / 2 more nats than ln 2."""
    fair, bent = torch.zeros(2, 3, 2), torch.tensor([0.25, 0.75]).log().expand(2, 3, 2)
    expected = 50 * (math.log(2) - math.log(1.5)) / math.log(2)
    assert own_text_cost(fair, bent + 7.0) == pytest.approx(expected, rel=1e-5)
    assert own_text_cost(bent, bent - 3.0) == pytest.approx(0, abs=1e-4)
