"""Moving figures: one self-contained output that keeps its contract and is the same each time.

`make lab-check` tests in a browser that they move.
"""

import json
import re

import matplotlib

matplotlib.use("Agg")

import pytest
import torch
from live_examples import EXAMPLES, KEYS, QUERIES, SENTENCE

from authoring.figure_contract import faults, figures_in, words
from companion import AttentionConfig, FeedForwardConfig, ModelConfig, account, chips
from companion.costs.chips import published_chip
from companion.data.tokenizer import BytePairTokenizer
from companion.families.registry import preset
from companion_school.study import figures, live, micro_example
from companion_school.study.live import moving, serving
from companion_school.study.live.tuning import advantages, pulled
from companion_school.study.live.walk import follow

TOKENIZER = BytePairTokenizer.train(["the cat sat on the mat"], 300)
BYTES = BytePairTokenizer.train(["a"], 257)
A100 = published_chip("a100-80gb")
SMALL = micro_example.trained()._asdict()
MODEL = ModelConfig(
    vocab=8,
    d_model=512,
    layers=2,
    context=1024,
    attention=AttentionConfig(4),
    feed_forward=FeedForwardConfig(2048, activation="relu"),
)
ALT = "A bar that grows when the handle is moved to the right."


@pytest.fixture
def shown(monkeypatch):
    """Return what a figure passes to Jupyter."""
    outputs = []
    monkeypatch.setattr(moving, "display", outputs.append)
    return outputs


def bar(height=1.0):
    fig, ax = figures.subplots(width=3, height=2)
    ax.bar([0], [height])
    ax.set(xlabel="key", ylabel="weight")
    return fig


def page(output):
    return output._repr_mimebundle_()["text/html"]


def data(output):
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', page(output))[1])


def roofline(kv_heads, **options):
    live.roofline(chips.Chip(1e15, 3.4e12), MODEL, kv_heads=kv_heads, caption="Figure 10.5. A roof.", **options)


SAYS = {"<bos>": "twenty", "twenty": "twenty", "one": "<eos>"}


def lanes(target=("twenty", "one"), says=SAYS, **others):
    live.lanes(target, says=says, **others)


MOMENTS = {0: (4.0, "s zx of"), 50: (2.0, " is a row")}


def leaves(**given):
    sizes = {"layers": 61, "heads": 128, "d_head": 192, "d_v": 128, "groups": 8, "latent": (512, 64)}
    return live.leaves(**sizes | given)


def growing(moments=MOMENTS, known=("is", "a", "row"), marks=None, **others):
    marks = {"counting": 3.0} if marks is None else marks
    live.growing(moments, prompt="The model", known=set(known) | {"the", "model"}, marks=marks, **others)


LAW = (1.0, 0.5, 0.5, 30.0, 300.0)


def budget(laws=(LAW,), compute=7.9e10, runs=((1, 22_776, 2.6),), **others):
    live.budget(laws, compute=compute, runs=runs, **others)


def plan(machines=None, known=None, machine="laptop", **others):
    live.plan(machines or {"laptop": (5e10, 1.0, 40)}, known=known or {}, machine=machine, **others)


def rewritten(keys=None, values=("red", "blue"), writes=(("a", "red"),), decay=0.9):
    live.rewritten(keys or {"a": (1, 0), "b": (0, 1)}, values, writes, decay=decay)


def bounded(keys=((2, 1), (1, -1)), cap=20, **others):
    live.bounded([1.5, 0.5], keys, words=["cat", "mat"], cap=cap, **others)


def queues(tokens="ABCDEFGH", runs=None, steps=(0, 10), experts=4, **others):
    runs = {"a": [[0, 1, 2, 3] * 2, [0] * 8]} if runs is None else runs
    live.queues(tokens, runs, steps=steps, experts=experts, **others)


def walk(models=None, start=("the", "boss", "is")):
    live.walk({"trained": SMALL} if models is None else models, vocabulary=micro_example.VOCABULARY, start=start)


def film(curves=None, maps=None, updates=(0, 10, 20, 30), heads=("a", "b"), tokens="xyx", **others):
    curves = {"one": [0.0, 0.25, 0.5, 1.0]} if curves is None else curves
    maps = [[torch.eye(3), torch.full((3, 3), 1 / 3)]] * 4 if maps is None else maps
    live.film(curves, maps, updates=updates, heads=heads, tokens=tokens, **others)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_figure_keeps_the_contract_and_is_the_same_each_time(shown, name):
    for _ in range(2):
        EXAMPLES[name]()
    first, second = shown
    assert list(faults(page(first))) == []
    assert page(first) == page(second)
    assert not matplotlib.pyplot.get_fignums()
    [(_, inside)] = figures_in(page(first))
    assert repr(first) == f"Moving figure {name}: {words(inside)}"  # what a program without HTML support shows


def test_every_figure_that_has_a_script_has_a_function_and_an_example():
    assert set(moving.names()) == set(EXAMPLES) == set(live.__all__)


def test_data_are_rounded_to_what_every_machine_computes_alike(shown):
    moving.show("collapse", {"scores": [1 / 3, 2.0, -0.0], "words": ["</script>"]}, bar(), alt=ALT)
    assert data(shown[0]) == {"scores": [0.3333, 2, 0], "words": ["</script>"]}
    assert page(shown[0]).count("</script>") == 2  # of the data and of the script; no text may close either of them


def test_the_walk_shows_what_the_model_of_the_lesson_says():
    w = {name: part.numpy() for name, part in micro_example.one_network()._asdict().items()}
    state, weights, p = follow(w, [1, 5, 9], micro_example.EPS)
    assert round(float(p[7]), 4) == 0.3379 and p.argmax() == 7
    assert weights[0, 2].round(4).tolist() == [0.2172, 0.1226, 0.6602] and weights[:, 0].tolist() == [[1, 0, 0]] * 2
    assert state[2].round(4).tolist() == [1.4104, 0.1747, -1.2396, 0.666]


def test_moments_of_a_training_get_a_handle_over_them(shown):
    moments = {"0": micro_example.one_network()._asdict(), "600": micro_example.trained()._asdict()}
    live.walk(moments, vocabulary=micro_example.VOCABULARY, start=("the", "boss", "is"), film="update")
    assert data(shown[0])["film"] == "update" and [one["name"] for one in data(shown[0])["models"]] == ["0", "600"]


def test_the_merges_travel_with_the_figure_in_their_order(shown):
    live.cut(TOKENIZER, "the cat")
    merges = json.loads(TOKENIZER.to_json())["model"]["merges"]
    packed = data(shown[0])["merges"]
    pairs = [(int(packed[at : at + 3], 36), int(packed[at + 3 : at + 6], 36)) for at in range(0, len(packed), 6)]
    assert [[TOKENIZER.bytes_of(a), TOKENIZER.bytes_of(b)] for a, b in pairs] == [
        [half.replace("Ġ", " ").encode() for half in pair] for pair in merges
    ]


def test_a_switch_is_a_bit_of_the_set_of_heads_that_are_off(shown):
    live.switchboard([1.0, 0.5, 0.25, 0.125], [["a", "b"]], caption="Figure 3.1. Two heads.")
    assert data(shown[0])["percent"] == [100, 50, 25, 12]
    assert "<td>layer 0, head 1</td><td>0.250</td>" in page(shown[0]).replace("\n", "")


def test_the_triangle_counts_the_rows_of_every_step(shown):
    live.triangle(["a", "b", "c", "d"], caption="Figure 10.1. Four words.")
    rows = re.findall(r"<tr>(.*?)</tr>", page(shown[0]).replace("\n", ""))
    assert [re.findall(r"<td>(.*?)</td>", row) for row in rows][-1] == ["4", "4", "10"]


def test_what_a_model_writes_follows_its_prompt_and_made_up_words_are_marked(shown):
    growing()
    first, last = data(shown[0])["rows"]
    assert first == [["The ", "models", " ", "zx", " ", "of", ""]]  # every second piece is marked
    assert last == [["The model is a row"]]


def test_the_still_budget_shows_the_runs_of_one_night_and_the_data_all(shown):
    budget(runs=[(1, 22_776, 2.6), (0.5, 106_816, 2.9)], caption="Figure 23.2. A budget.")
    assert [run["compute"] for run in data(shown[0])["runs"]] == [1, 0.5]
    [row] = re.findall("<td>22776</td>.*?</tr>", page(shown[0]).replace("\n", ""))
    assert "<td>578094</td>" in row and row.endswith("<td>2.6</td></tr>")  # 7.9e10 / 6 / 22776 tokens


def test_the_table_of_a_budget_without_runs_follows_the_valley(shown):
    budget(runs=[], caption="Figure 23.2. A budget.")
    rows = re.findall("<tr><td>([0-9]+)</td><td>([0-9]+)</td>", page(shown[0]).replace("\n", ""))
    assert len(rows) == 6 and all(abs(6 * int(size) * int(tokens) / 7.9e10 - 1) < 0.01 for size, tokens in rows)


def test_a_film_keeps_the_lower_half_of_its_maps_row_by_row_and_begins_at_the_end(shown):
    film()
    drawn = data(shown[0])
    assert drawn["start"] == 3
    assert drawn["maps"][0] == ["z0z00z", "cccccc"]  # from 0 ... z


def test_the_still_picture_of_the_valley_goes_down_as_its_rate_says(shown):
    live.valley(rate=0.4, caption="Figure 14.2. A valley.")
    rows = re.findall(r"<tr>(.*?)</tr>", page(shown[0]).replace("\n", ""))
    last = re.findall(r"<td>(.*?)</td>", rows[-1])
    assert last == ["40", f"{-4 * (1 - 0.4 * 0.1) ** 40:.3f}", "0.000"]


@pytest.mark.parametrize("kv_heads", [4, 1])
def test_the_roofline_has_the_intensity_that_the_account_has(shown, kv_heads):
    roofline((4, 1), kept=(0, 999))
    drawn = data(shown[0])
    at = drawn["heads"].index(kv_heads)
    model = MODEL.with_(attention=AttentionConfig(4, kv_heads))
    texts, kept, width = 8, 999, drawn["width"]
    cache = texts * 2 * kept * width * kv_heads / 4
    work = texts * (2 * drawn["weights"][at] + 4 * kept * width)
    found = work / (drawn["size"] * (drawn["weights"][at] + cache))
    exact = account.intensity(model, 1, cached=kept - 1, batch=texts, dtype=torch.bfloat16)
    assert found == pytest.approx(exact, rel=0.01)  # this also counts the norms and the small table


def test_the_free_lane_of_the_still_figure_reads_what_it_said(monkeypatch):
    texts = []
    monkeypatch.setattr(moving, "show", lambda name, given, still, **_: texts.append((given, still)))
    lanes(slots=5)
    [(given, still)] = texts
    rows = {}
    for text in still.axes[0].texts:
        rows.setdefault(text.get_position()[1], []).append(text.get_text())
    assert list(rows.values()) == [
        ["should say", "twenty", "one", "<eos>"],
        ["forced: reads", "<bos>", "twenty", "one"],
        ["says", "twenty", "twenty ✗", "<eos>"],
        ["free: reads", "<bos>", "twenty", "twenty", "twenty", "twenty"],
        ["says", "twenty", "twenty ✗", "twenty ✗", "twenty ✗", "twenty ✗"],
    ]
    assert given == {
        "target": ["twenty", "one", "<eos>"],
        "reads": ["<bos>", "twenty", "one"],
        "says": ["twenty", "twenty", "<eos>"],
        "slots": 5,
        "start": 5,
    }
    matplotlib.pyplot.close("all")


def test_the_still_figure_is_checked_like_every_other(shown):
    fig, _ = figures.subplots()
    with pytest.raises(ValueError, match="no label on the x axis"):
        moving.show("collapse", {}, fig, alt=ALT)
    assert shown == []


def test_the_switchboard_names_the_sets_that_are_taken_away_together(shown):
    right = [1 - off / 64 for off in range(64)]
    together = [0b000101, 0b111000, 0b010111, 0b000111]
    live.switchboard(right, [["a"] * 3, ["b"] * 3], together=together, caption="Figure 3.6. Six heads.")
    html = page(shown[0])
    sets = "layer 0, heads 0 and 2", "layer 1, all", "layer 0, all; layer 1, head 1", "layer 0, all"
    assert all(f">{words}<" in html for words in ("none", "layer 1, head 2", *sets))
    for off in together:
        assert f"{right[off]:.3f}" in html
    matplotlib.pyplot.close("all")


def test_the_sweep_ends_with_the_output_of_a_softmax(shown):
    powers, values = [[1, 2, 4, 1], [8, 1, 1, 3]], [8.0, 4.0, 2.0, 16.0]
    live.sweep(powers, values, caption="Figure 12.2. A tile.")
    outputs = torch.softmax(torch.tensor(powers).double().log(), dim=1) @ torch.tensor(values).double()
    assert outputs.tolist() == pytest.approx([5, 9.077], abs=1e-3)
    rows = re.findall(r"<tr>(.*?)</tr>", page(shown[0]).replace("\n", ""))
    assert [float(re.findall(r">([^<]*)</td>", row)[-1]) for row in rows[1:3]] == pytest.approx(
        outputs.tolist(), rel=1e-3
    )


def test_a_larger_tile_moves_less_and_a_small_one_more_than_the_formula(shown):
    live.climb(A100, 192, tokens=1024, tiles=[8, 64, 1024], start=8, caption="Figure 12.3. Tiles.")
    rows = re.findall(r"<tr>(.*?)</tr>", page(shown[0]).replace("\n", ""))[1:4]
    moved = [float(re.findall(r">([^<]*)</td>", row)[1]) for row in rows]
    formula = 2 * (4 * 1024**2 + 4 * 1024 * 64) / 1e6
    assert moved[0] > formula > moved[1] > moved[2] == pytest.approx(2 * 4 * 1024 * 64 / 1e6, abs=0.05)


def test_each_edit_says_what_it_changes_and_counts_what_the_model_has(shown):
    gpt, llama, mixtral = preset("gpt2"), preset("llama-7b"), preset("mixtral-8x7b")
    live.edits({"a": [("GPT-2", gpt), ("LLaMA", llama), ("", mixtral)]}, caption="Figure 13.2. Two edits.")
    [sizes] = data(shown[0])["sizes"]
    first, second, third = sizes["steps"]
    assert first["changed"] == [] and second["changed"] == ["positions", "norm", "biases", "network", "head", "keys"]
    assert third["changed"] == ["keys", "hidden", "experts"]  # if there is a gate, the width is a change by itself
    for step, config in zip((first, second, third), (gpt, llama, mixtral), strict=True):
        count = account.parameters(config)
        assert (step["total"], step["active"]) == (count.total, count.active)
        assert sum(step["where"]) == count.total
        assert step["cache"] * 2 == account.cache_bytes(config, 1, dtype=torch.bfloat16)


def test_memory_travels_with_the_parameters_and_the_numbers_that_a_token_keeps(shown):
    config = preset("llama-2-70b")
    cards = {"small": 24, "large": 80}
    live.memory({"70B": config}, cards=cards, start="70B", texts=[1, 3], tokens=[100], caption="Figure 13.4. Memory.")
    [model] = data(shown[0])["models"]
    texts, tokens = 3, 100
    needed = 2 * (1e6 * model["millions"] + texts * tokens * model["each"])
    exact = account.serve_bytes(config, tokens=tokens, batch=texts, dtype=torch.bfloat16)
    assert needed == pytest.approx(exact, rel=5e-4)  # data are rounded to four digits
    assert 16e6 * model["millions"] == pytest.approx(account.train_bytes(config), rel=5e-4)


def test_scores_that_grow_are_those_of_attention_and_normed_ones_do_not_know_the_size(shown):
    query, keys = torch.tensor([1.5, 0.5]), torch.tensor([[2.0, 1.0], [1.0, -1.0]])
    live.bounded(query, keys, words=["cat", "mat"], cap=20, start=2, caption="Figure 16.1. A row.")
    given, rows = data(shown[0]), page(shown[0])
    torch.testing.assert_close(torch.tensor(given["scores"]), keys @ query / 2**0.5, rtol=1e-3, atol=1e-3)
    sized = [torch.nn.functional.rms_norm(x, (2,)) for x in (query, keys)]
    torch.testing.assert_close(torch.tensor(given["normed"]), sized[1] @ sized[0] / 2**0.5, rtol=1e-3, atol=1e-3)
    plain, sink = (torch.tensor([z * 4 for z in given["scores"]] + more).softmax(0) for more in ([], [0.0]))
    assert f"{plain[0]:.3f}" in rows and f"{sink[2]:.3f}" in rows


def test_a_table_is_what_the_four_rules_write_and_a_name_reads_with_its_key(shown):
    keys = {"Ann": (1.0, 0.0, 0.0), "Ben": (0.6, 0.8, 0.0)}
    writes = [("Ann", "red"), ("Ben", "blue"), ("Ann", "blue")]
    live.rewritten(keys, ["red", "blue"], writes, decay=0.5, caption="Figure 17.1. A table.")
    given = data(shown[0])
    K, V = torch.tensor(list(keys.values())), torch.eye(2)
    for rule, tables, reads in zip(given["rules"], given["states"], given["reads"], strict=True):
        S = torch.zeros(3, 2)
        for (name, value), table, read in zip(writes, tables[1:], reads[1:], strict=True):
            k, v = K[list(keys).index(name)], V[["red", "blue"].index(value)]
            S = S * (0.5 if "fades" in rule else 1.0)
            S = S + torch.outer(k, v - S.T @ k if "delta" in rule else v)
            torch.testing.assert_close(torch.tensor(table).float(), S, rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(torch.tensor(read).float(), K @ S, rtol=1e-3, atol=1e-3)
    assert given["last"] == [[-1, -1], [0, -1], [0, 1], [1, 1]]


def test_a_timetable_gives_each_text_its_tokens_in_turn_and_chunks_shorten_the_longest_gap():
    texts = [(0, 4, 6), (0, 40, 9), (1, 3, 2), (2, 5, 3), (9, 4, 4)]
    found = {}
    for way in serving.WAYS:
        made = found[way] = serving.timetable(texts, seats=2, way=way, together=8, chunk=4)
        letters = "".join(step.seats for step in made.steps)
        for at, (_, prompt, answer) in enumerate(texts):
            reads = letters.count(chr(ord("a") + at))  # the last of these steps gives the first token
            assert letters.count(chr(ord("A") + at)) == answer - 1
            assert reads == (-(-prompt // 4) if way == "in chunks" else 1)
        for step in made.steps:
            read = [ch for ch in step.seats if ch != "."]
            assert len(set(read)) == len(read) <= 2 and step.took >= 1
        assert made.end == pytest.approx(sum(step.took for step in made.steps))
    static, continuous, chunks = (found[way] for way in serving.WAYS)
    assert continuous.end < static.end and continuous.first < static.first
    assert static.gap == 1 and chunks.gap < 1.5
    whole = serving.timetable([(0, 1, 9), (3, 40, 2)], seats=2, way="continuous", together=8, chunk=4)
    assert whole.gap == pytest.approx(41 / 8)  # a token of one text waits for the prompt of the other


def test_guesses_that_are_mended_add_up_to_what_the_model_wants(shown):
    live.mending([0.5, 0.3, 0.2], [0.2, 0.3, 0.5], words=["cat", "dog", "owl"], caption="Figure 18.1. M.")
    rows = re.findall(r"<tr>(.*?)</tr>", page(shown[0]).replace("\n", ""))[1:]
    for row in rows:
        wants, _, accepted, mended = (float(x) for x in re.findall(r">([0-9.]+)</td>", row)[-4:])
        assert accepted + mended == pytest.approx(wants)


def test_what_is_pulled_is_the_best_of_all_chances_for_its_reward_and_its_leash():
    start, rewards, tau = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.0, 1.0, -1.0]), 0.6
    best = torch.tensor(pulled(start.tolist(), rewards.tolist(), tau))

    def goal(p):
        return (p * rewards).sum() - tau * (p * (p / start).log()).sum()

    assert best.sum() == pytest.approx(1)
    others = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
    assert all(goal(other) < goal(best) for other in others)
    assert pulled([0.5, 0.5], [0, 2000], 0.1) == pytest.approx([0, 1])


@pytest.mark.parametrize("divided", [True, False])
def test_the_advantages_of_a_group_add_up_to_nothing(divided):
    for right in range(8):
        up, down = advantages(right, 7, divided=divided)
        assert right * up + (7 - right) * down == pytest.approx(0)
        rewards = torch.tensor([1.0] * right + [0.0] * (7 - right))
        if 0 < right < 7:
            off = rewards - rewards.mean()
            wanted = off / rewards.std(correction=0) if divided else off
            assert [up, down] == pytest.approx([wanted[0].item(), wanted[-1].item()], abs=1e-6)
    assert advantages(7, 7, divided=divided) == advantages(0, 7, divided=divided) == (0, 0)


def test_every_token_stands_in_one_queue_at_every_moment(shown):
    queues(
        runs={"alone": torch.tensor([[0, 1, 2, 3] * 2, [3] * 8]), "bias": [[0] * 8, [1, 2] * 4]},
        caption="Figure 11.2. Q.",
    )
    assert [run["experts"] for run in data(shown[0])["runs"]] == [["01230123", "33333333"], ["00000000", "12121212"]]
    rows = re.findall(r"<tr>(.*?)</tr>", page(shown[0]).replace("\n", ""))[1:5]
    counts = [[int(n) for n in re.findall(r">([^<]*)</td>", row)[-4:]] for row in rows]
    assert counts == [[2, 0, 8, 0], [2, 0, 0, 4], [2, 0, 0, 4], [2, 8, 0, 0]]


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: moving.show("colapse", {}, bar(), alt=ALT), r"name: expected .* one of .*collapse.*; got 'colapse'"),
        (lambda: moving.show("hover", {"x": float("nan")}, bar(), alt=ALT), "hover: expected finite numbers and text"),
        (lambda: moving.show("hover", {"x": object()}, bar(), alt=ALT), "hover: expected finite numbers and text"),
        (lambda: moving.show("hover", {"x": "a" * 42_000}, bar(), alt=ALT), "hover: expected at most 42000 bytes"),
        (lambda: live.travels({}, words=["a", "b"]), "shares: expected 1 to 3 ways of patching; got"),
        (lambda: live.travels({"a": [[0, 1]], "b": [[0]]}, words=["a", "b"]), "shares: expected tables .layer, token."),
        (lambda: live.travels({"a": [[0, 1]]}, words=["a", "b", "c"]), "words: expected one for each of the 2 tokens"),
        (lambda: live.travels({"a": [[0, float("inf")]]}, words=["a", "b"]), "shares: expected finite numbers"),
        (
            lambda: live.travels({"a": [[0, 1]]}, words=["a", "b"], start=(1, 0)),
            "start: expected a layer index and a token index",
        ),
        (
            lambda: live.pull([0.5, 0.6], {"a": [0, 1]}, words=["x", "y"]),
            "start: expected positive probabilities that sum",
        ),
        (
            lambda: live.pull([0.5, 0.5], {"a": [0]}, words=["x", "y"]),
            "judges: expected a reward for each of 2 answers",
        ),
        (lambda: live.pull([1.0], {"a": [0]}, words=["x"]), "expected probabilities for 2 to 6 answers; got 1 and 1"),
        (lambda: live.pull([0.5, 0.5], {"a": [0, 1]}, words=["x", "y"], temperature=3), "temperature: expected one of"),
        (
            lambda: live.group(size=8, count=9),
            "size, count: expected 2 to 10 answers and at most as many right ones; got 8 and 9",
        ),
        (lambda: live.group(right=0), r"right, wrong: expected lengths of 1 to 99 tokens; got 0 and \[3, 7, 9\]"),
        (lambda: live.collapse([1.0], words=["a"]), "two scores and one word for each score, got 1 and 1"),
        (
            lambda: live.collapse([1.0, 2.0], words=["a"]),
            r"expected at least two scores and one word for each score, got 2 and 1",
        ),
        (
            lambda: live.collapse(torch.ones(1, 1), words=["a"]),
            r"scores: expected a list of numbers, got shape \(1, 1\)",
        ),
        (lambda: live.collapse([1.0, 2.0], words=["a", "b"], widths=[4, 0]), r"widths: expected .* positive"),
        (lambda: live.collapse([1.0, 2.0], words=["a", "b"], start=5), r"start: expected one of the widths .*, got 5"),
        (
            lambda: live.hover(QUERIES, KEYS[:2], words=["a"] * 3),
            r"queries, keys: expected the same shape for both .*\(3, 4\) and \(2, 4\)",
        ),
        (lambda: live.hover(QUERIES, KEYS, words=SENTENCE), r"words: expected 3, one for each token, got 8"),
        (
            lambda: live.hover(QUERIES, KEYS, words=["a"] * 3, start=3),
            "start: expected the index of one of 3 tokens, got 3",
        ),
        (lambda: live.together([1, 0, 0], [0, 1], words=("a", "b")), "query, key: expected two components each"),
        (
            lambda: live.together([0, 0], [0, 1], words=("a", "b")),
            "query, key: expected two components each, not both zero",
        ),
        (lambda: live.together([1, 0], [0, 1], words=("a", "b"), start=5), r"start: expected 10 to 40"),
        (lambda: live.together([1, 0], [0, 1], words=("a", "b"), places=11), "expected 2 <= distances < places"),
        (lambda: live.home(depths=[2, 2]), r"depths: expected increasing numbers from 1 to 64, got \[2, 2\]"),
        (lambda: live.home(depths=[2, 65]), r"depths: expected increasing numbers from 1 to 64, got \[2, 65\]"),
        (lambda: live.home(writes=[0.0, 1.0]), r"writes: expected sizes above 0, got \[0.0, 1.0\]"),
        (lambda: live.home(start=3), r"start, write: expected one of .* and one of .*, got 3 and 1.0"),
        (lambda: live.home(write=3), r"start, write: expected one of .* and one of .*, got 2 and 3"),
        (lambda: live.hearing(words=["a", "b"]), "words: expected three to ten, got 2"),
        (lambda: live.hearing(words=["a", "b", "c"], start=4), "start, who: expected at most 3 rounds .* got 4 and 0"),
        (
            lambda: live.hearing(words=["a", "b", "c"], who=3),
            "start, who: expected .* the index of a word, got 0 and 3",
        ),
        (lambda: live.filler([[0] * 3] * 3, [[1, 2]] * 2, words=["a", "b"]), r"got \(3, 3\) and \(2, 2\) for 2"),
        (
            lambda: live.filler([[0] * 3] * 3, [[1, 2]] * 3, words=["a", "b"], start=4),
            r"start: expected one of .*, got 4",
        ),
        (lambda: live.filler([[0] * 3] * 3, [[1, -2]] * 3, words=["a", "b"]), "from 0 upwards"),
        (
            lambda: live.filler([[0] * 3] * 3, [[1, 2]] * 3, words=["a", "b"], counts=[1, 2]),
            r"counts: expected increasing numbers that start at 0, got \[1, 2\]",
        ),
        (
            lambda: live.sweep([[1, 9], [1, 1]], [1, 2]),
            "powers: expected 2 to 8 rows of equal length, with two or more whole",
        ),
        (lambda: live.sweep([[1, 2], [1]], [1, 2]), "powers: expected 2 to 8 rows of equal length"),
        (lambda: live.sweep([[1, 2], [1, 1]], [1]), "values: expected 2 numbers, one for each key, got 1"),
        (lambda: live.sweep([[1, 2], [1, 1]], [1, 2], tile=3), "tile: expected a number that divides 2 and 2, got 3"),
        (
            lambda: live.climb(A100, 192, tiles=[16, 8]),
            r"tiles: expected increasing numbers from 1 to 4096, got \[16, 8\]",
        ),
        (lambda: live.climb(A100, 192, start=3), r"start: expected one of .*, got 3"),
        (lambda: live.sampling([1.0], words=["a"]), "two to ten logits and one word for each logit, got 1 and 1"),
        (lambda: live.triangle(["a", "b"]), "words: expected three to eight, got 2"),
        (lambda: live.triangle(["a", "b", "c"], start=4), "start: expected a number from 1 to 3, .* got 4"),
        (lambda: roofline((8, 2)), r"kv_heads: expected 4 and then one or two of its divisors, got \(8, 2\)"),
        (lambda: roofline((4, 3)), r"kv_heads: expected .* got \(4, 3\)"),
        (lambda: roofline((4,)), r"kv_heads: expected .* got \(4,\)"),
        (
            lambda: live.dials([1, 0, 1], [1, 0, 1]),
            "query, key: expected the same even width from 4 to 8 for both, got 3 and 3",
        ),
        (lambda: live.dials([1, 0, 1, 0], [1, 0, 1, 0], base=1), "base: expected a number above 1, got 1"),
        (lambda: live.cut(TOKENIZER, ""), "text: expected 1 to 60 characters, got 0"),
        (lambda: live.cut(BYTES, "cat"), "tokenizer: expected a tokenizer with merges, got one with only the 256"),
        (
            lambda: walk(start=("the", "<pad>", "is")),
            r"start: expected three of the words .*, got \['the', '<pad>', 'is'\]",
        ),
        (lambda: walk(start=("the", "boss")), "start: expected three of the words"),
        (lambda: walk(models={}), "models: expected at least one, got none"),
        (lambda: walk(models={"a": {"E": torch.ones(10, 4)}}), "a: expected the matrices E, Wq, .*, got E"),
        (
            lambda: walk(models={"a": SMALL | {"W1": torch.ones(3, 4)}}),
            r"a: expected W1 of shape \(4, 4\), got \(3, 4\)",
        ),
        (
            lambda: live.edits({}),
            r"models: expected sequences of equal length for two or more models, got lengths \[\]",
        ),
        (lambda: live.edits({"a": [("", MODEL)]}), r"models: expected sequences of equal length .* got lengths \[1\]"),
        (
            lambda: live.edits({"a": [("x", MODEL), ("y", MODEL)]}),
            "change in each step, but step 1, 'y', changes nothing",
        ),
        (
            lambda: live.edits({"a": [("x", MODEL), ("BERT", preset("bert-base"))]}),
            "models: expected decoders, got 'BERT' with stack='encoder'",
        ),
        (
            lambda: live.memory({"a": preset("bert-base")}, cards={"c": 24}, start="a"),
            "models: expected decoders, got 'a' with stack='encoder'",
        ),
        (lambda: live.memory({"a": MODEL}, cards={"c": 24}, start="b"), "start: expected one of a, got 'b'"),
        (
            lambda: live.memory({"a": MODEL}, cards={"c": 80, "d": 24}, start="a"),
            r"cards: expected positive memory sizes in gigabytes, in increasing order, got \[80, 24\]",
        ),
        (lambda: live.bricks(7, 3), "tokens, heads: expected 2 to 6 tokens and 2 to 4 heads, got 7 and 3"),
        (lambda: live.switchboard([1.0] * 4, [["a", "b"], ["c"]]), r"does: expected rows of equal length .*\[2, 1\]"),
        (lambda: live.switchboard([1.0] * 3, [["a", "b"]]), r"right: expected 4 fractions from 0 to 1, .*\(3,\)"),
        (lambda: live.switchboard([1.0, 2.0], [["a"]]), "right: expected 2 fractions from 0 to 1"),
        (lambda: lanes(["twenty"]), r"target: expected two to five different pieces .*, got \['twenty'\]"),
        (lambda: lanes(["twenty", "twenty"]), "target: expected two to five different pieces"),
        (lambda: lanes(says={"<bos>": "one"}), r"says: expected one of .* for each of \['<bos>', 'twenty', 'one'\]"),
        (lambda: lanes(says=SAYS | {"one": "two"}), "says: expected one of .* for each of .*'one': 'two'"),
        (lambda: lanes(slots=2), "slots: expected 3 to 8, got 2"),
        (lambda: lanes(start=7), "start: expected 1 to 6, got 7"),
        (lambda: growing({0: (4.0, "a")}), r"moments: expected two to ten increasing numbers, got \[0\]"),
        (lambda: growing({9: (4.0, "a"), 3: (2.0, "b")}), r"moments: expected .* increasing numbers, got \[9, 3\]"),
        (lambda: growing(marks={}), "marks: expected one to four baselines, got 0"),
        (lambda: growing(start=7), r"start: expected one of the updates \[0, 50\], got 7"),
        (lambda: film(updates=(0, 10, 10, 20)), "updates: expected four to sixteen increasing"),
        (lambda: film(start=5), "start: expected one of the updates .* got 5"),
        (lambda: film(heads=["a"]), "curves, heads: expected one or two curves and two heads, got 1 and 1"),
        (lambda: film(curves={"one": [0.0, 2.0, 0.0, 0.0]}), "curves, one: expected 4 fractions from 0 to 1"),
        (lambda: film(tokens="xy"), "maps: expected two maps of 2 by 2 for each of 4 moments"),
        (lambda: film(maps=[[torch.eye(3)]] * 4), "maps: expected two maps of 3 by 3"),
        (lambda: plan(machines={"laptop": (0, 1.0, 40)}), "machines: expected one to five machines with positive"),
        (lambda: plan(known={"one": (10, 1e9)}), "known: expected sizes and tokens within the axes, got one"),
        (lambda: plan(machine="phone"), "machine: expected one of laptop, got 'phone'"),
        (lambda: plan(hours=3), r"hours: expected one of \(0.25, .*\), got 3"),
        (lambda: plan(ratio=7), r"ratio: expected one of \(1, .*\), got 7"),
        (lambda: budget(laws=[]), r"laws: expected one to six laws with different floors, got the floors \[\]"),
        (lambda: budget(laws=[LAW, LAW]), r"laws: expected .* got the floors \[1.0, 1.0\]"),
        (lambda: budget(compute=0), "compute: expected a number above 0, got 0"),
        (lambda: budget(runs=[(2, 1000, 3.0)]), r"runs: expected numbers of nights from \(0.25, .*\), got \[2\]"),
        (lambda: budget(law=1), "law: expected 0 to 0, got 1"),
        (lambda: live.bands([5]), r"pairs: expected two or more non-negative numbers, not all of them 0, got \[5\]"),
        (lambda: live.bands([0, 0]), r"pairs: expected .*, got \[0, 0\]"),
        (lambda: live.bands([1, 2], start=(3, 8)), r"start: expected a number of bands from \(1, .* got \(3, 8\)"),
        (lambda: live.valley(rate=0.3), r"rate: expected one of \(0.02, .*\), got 0.3"),
        (lambda: live.bounded([1, 2], [[1, 2]], words=["a"], cap=2), "keys: expected one row of 2 numbers for each of"),
        (lambda: bounded(keys=[[1, 0], [0, 0]]), "query, keys: expected no row of zeros"),
        (lambda: bounded(cap=0), "cap: expected a number above 0, got 0"),
        (lambda: bounded(sizes=[0, 1]), r"sizes: expected two or more numbers, each at least 1, got \[0, 1\]"),
        (lambda: bounded(start=7), "start: expected one of the sizes"),
        (lambda: rewritten(keys={"a": (1,)}), "keys: expected 2 to 4 of equal width"),
        (lambda: rewritten(keys={"a": (1, 0), "b": (1,)}), "keys: expected 2 to 4 of equal width"),
        (
            lambda: rewritten(keys={"a": (1, 0), "b": (1, 1)}),
            r"keys: expected each of length 1, got .*\[1.0, 1.414",
        ),
        (lambda: rewritten(values=["red"]), "values: expected 2 to 4, got 1"),
        (
            lambda: rewritten(writes=[("c", "red")]),
            "writes: expected 1 to 8 pairs of named keys and values",
        ),
        (lambda: rewritten(decay=1.5), "decay: expected a number from 0 to 1, got 1.5"),
        (lambda: queues(tokens="ABC"), "tokens: expected 8 to 96, got 3"),
        (lambda: queues(experts=9), "experts: expected 2 to 8, got 9"),
        (lambda: queues(steps=[5, 5]), r"steps: expected two or more increasing numbers, got \[5, 5\]"),
        (lambda: queues(start=2), "start: expected an index from 0 to 1, got 2"),
        (lambda: queues(runs={}), "runs: expected one to three, got 0"),
        (lambda: queues(runs={"a": [[0] * 8]}), r"runs, a: expected whole numbers from 0 to 3 of shape \(2, 8\)"),
        (lambda: queues(runs={"a": [[4] * 8] * 2}), "runs, a: expected whole numbers from 0 to 3"),
        (lambda: live.clocks(9), "pairs: expected 2 to 8, got 9"),
        (
            lambda: live.mending([0.5, 0.4], [0.5, 0.5], words=["a", "b"]),
            r"p: expected probabilities that sum to 1; got",
        ),
        (lambda: live.mending([1.0], [1.0], words=["a"]), "expected probabilities for 2 to 5 words; got 1, 1 and 1"),
        (lambda: live.seats([(0, 1, 1)]), "expected 2 to 12 texts, together >= 1 and chunk >= 1; got 1 texts"),
        (lambda: live.seats([(2, 1, 1), (1, 1, 1)]), "with ascending arrivals >= 0 and 1 to 64 tokens each"),
        (lambda: live.seats([(0, 1, 1), (1, 0, 1)]), "with ascending arrivals >= 0 and 1 to 64 tokens each"),
        (lambda: leaves(heads=40), "heads=40, groups=8: expected heads to be a multiple of 32"),
        (lambda: leaves(groups=5), "groups=5: expected heads to be a multiple of 32"),
        (lambda: leaves(latent=(512, 0)), "all other sizes to be at least 1"),
        (lambda: live.clocks(base=7), r"base, bases: expected numbers above 1, with the base among them; got 7"),
        (lambda: live.clocks(start=201), "places, start: expected .* got 201 and 201"),
        (
            lambda: live.switchboard([0.5] * 4, [["a", "b"]], together=[4]),
            r"together: expected set indices from 0 to 3, got \[4\]",
        ),
    ],
)
def test_what_cannot_be_shown_is_told(shown, call, message):
    with pytest.raises(ValueError, match=message):
        call()
    assert shown == []
    matplotlib.pyplot.close("all")


# --- the contract, on figures that break it


@pytest.fixture(scope="module")
def sound():
    """Return the HTML of a figure that keeps the contract."""
    outputs = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moving, "display", outputs.append)
        EXAMPLES["hover"]()
    return page(outputs[0])


@pytest.mark.parametrize(
    "old, new, fault",
    [
        ("<img alt=", "<img title=", "it has no still figure"),
        (' role="group"', "", 'a screen reader needs role="group" and a label'),
        ("<b>Figure 2.2.</b>", "Figure:", "its caption must begin with its number"),
        ("const move =", "fetch('x'); const move =", "it must not ask the network for anything: 'fetch('"),
        (
            "const move =",
            "new Image().src = 'https://x.org/y.png'; const move =",
            "ask the network for anything: 'https:/'",
        ),
        ("const move =", "Math.random(); const move =", "it must be the same each time: 'Math.random'"),
        (
            "const move =",
            "window.x = 1; const move =",
            "leave nothing behind and find itself, so that it may stand on a page twice: 'window.'",
        ),
        ("kit.choice(", "choose(", "it has no handle"),
        ("kit.say(", "say(", "it must say in a sentence what is shown now"),
        ("kit.numbers(", "numbers(", "the numbers behind it must follow its handles"),
        ("event.stopPropagation()", "0", "it must keep its key presses to itself"),
        ('"start":2', '"start":', "its data are not JSON"),
        ('type="module"', 'type="text/javascript"', "its data and its script once each; there are 1 and 0"),
        ("</figcaption>", "x" * 20_000 + "</figcaption>", "and must stay under 42000"),
    ],
)
def test_a_figure_that_breaks_the_contract_is_told(sound, old, new, fault):
    assert sound.count(old) == 1
    [found] = faults(sound.replace(old, new))
    assert found.startswith("moving figure 'hover': ") and fault in found
