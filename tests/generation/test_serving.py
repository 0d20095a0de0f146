"""Serving many texts at once: each text is the same as alone, and all blocks return to the pool.

`REQUESTS=2000 pytest tests/generation/test_serving.py -k soak` is the long run.
"""

import gc
import os
from dataclasses import replace
from resource import RUSAGE_SELF, getrusage

import numpy as np
import pytest
import torch
from models import drawn

from companion import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LatentConfig,
    LinearConfig,
    ModelConfig,
    MoEConfig,
    PositionConfig,
    RotaryScaling,
    Server,
    WindowConfig,
)
from companion.generation import serving
from companion.generation.generate import Rules, complete
from companion.generation.prefill_decode import NotFinite
from companion.generation.sampling import Sampling

CONFIG = ModelConfig(7, 8, 2, 24, AttentionConfig(2, 1, d_head=4), FeedForwardConfig(10))
LONG = RotaryScaling("longrope", 2.0, 12, short=(1.0, 1.5), long=(2.0, 4.0))
LAYOUTS = {
    "rotary": CONFIG,
    "learned": CONFIG.with_(positions=PositionConfig("learned")),
    "windows": CONFIG.with_(attention=replace(CONFIG.attention, window=WindowConfig(5, (True, False)))),
    "latents": CONFIG.with_(attention=AttentionConfig(2, d_head=4, latent=LatentConfig(3, 2))),
    "linear and full": CONFIG.with_(
        layers=3,
        attention=replace(CONFIG.attention, window=WindowConfig(5), linear=LinearConfig((True, False), key_heads=1)),
    ),
    "linear alone": CONFIG.with_(
        attention=replace(CONFIG.attention, linear=LinearConfig(decay="channel", convolution=2, negative=True))
    ),
    "experts": CONFIG.with_(moe=MoEConfig(experts=3, top_k=2)),
    "scaled by length": CONFIG.with_(positions=PositionConfig("rotary", scaling=RotaryScaling("dynamic", 2.0, 8))),
    "turned anew": CONFIG.with_(positions=PositionConfig("rotary", scaling=LONG)),
    "linear, turned anew": CONFIG.with_(
        attention=replace(CONFIG.attention, linear=LinearConfig((True, False))),
        positions=PositionConfig("rotary", scaling=LONG),
    ),
}
REQUESTS = int(os.environ.get("REQUESTS", 60))


@pytest.fixture(scope="module")
def models():
    return {name: drawn(config, seed=i).double() for i, (name, config) in enumerate(LAYOUTS.items())}


def asked_at_random(random, model, server, beginnings):
    """Return a random prompt, which may share its beginning with others, and the options of its request."""
    room = min(model.config.context, server.blocks.count * server.blocks.size + 1)
    prompt = beginnings[random.integers(len(beginnings))][: random.integers(1, 17)]
    prompt = prompt + random.integers(model.config.vocab, size=random.integers(4)).tolist()
    asked = {
        "max_new_tokens": int(random.integers(1, room - len(prompt) + 1)),
        "sampling": [Sampling(0.0), Sampling(1.2), Sampling(0.9, top_k=4)][random.integers(3)],
        "seed": int(random.integers(9)),
        "stop": [(), {2}][random.integers(2)],
    }
    if random.integers(3) == 0:
        asked["rules"] = Rules(never=[3], min_new_tokens=2, repetition_penalty=1.3)
    return prompt, asked


def served_at_random(model, server, random, requests):
    """Submit requests at random steps, cancel every third one, and return the largest number that ran at once."""
    beginnings = [random.integers(model.config.vocab, size=16).tolist() for _ in range(3)]
    handles, alone, written, doomed, busiest = {}, {}, {}, {}, 0
    while len(handles) < requests or server.busy:
        while len(handles) < requests and random.integers(3):
            prompt, asked = asked_at_random(random, model, server, beginnings)
            stream = int(random.integers(50))
            handle = server.submit(prompt, generator=stream, **asked)
            handles[handle.number], written[handle.number] = handle, []
            (alone[handle.number],) = complete(model, [prompt], generators=[stream], **asked)
            if len(handles) % 3 == 0:  # cancel it after some of its tokens
                doomed[handle.number] = int(random.integers(len(alone[handle.number])))
        for number in [number for number, tokens in doomed.items() if len(written[number]) == tokens]:
            assert server.cancel(handles[number]) == written[number] == alone[number][: doomed.pop(number)]
        for one in server.step():
            written[one.number].append(one.token)
            assert one.last == handles[one.number].ended
        busiest = max(busiest, len(server.running))
    for number, handle in handles.items():
        assert handle.ended and handle.tokens == written[number]
        assert handle.state == "cancelled" or handle.tokens == alone[number]
    assert [handle.state for handle in handles.values()].count("cancelled") == requests // 3
    return busiest


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_text_that_comes_and_goes_is_what_it_would_be_alone(models, layout):
    """The pool is too small for all of them, chunks are shorter than a prompt, and blocks are shorter than a chunk."""
    model, random = models[layout], np.random.default_rng(len(layout))
    server = Server(model, rows=5, tokens=30, block=3, budget=7)
    assert served_at_random(model, server, random, 12 if "linear" in layout else 16) >= 2
    by_length = layout == "scaled by length" or layout.endswith("turned anew")
    assert (server.shared == 0) == by_length and (server.preempted == 0 or not by_length)
    assert server.blocks.used == 0 and not server.busy and server.step() == []
    assert server._state_slots is None or sorted(server._state_slots._free) == list(range(5))


def test_a_soak_of_requests_leaves_every_text_right_and_memory_as_it_was(models):
    model, random, peaks = models["windows"], np.random.default_rng(1), []
    server = Server(model, rows=16, tokens=60, block=4, budget=24)
    for half in (REQUESTS - REQUESTS // 2, REQUESTS // 2):
        assert served_at_random(model, server, random, half) > 2 and not server.busy
        assert server.blocks.used == 0 and server.blocks.free == 15 and not any(server.blocks._users)
        gc.collect()
        peaks.append(getrusage(RUSAGE_SELF).ru_maxrss)
    assert server.shared > 0 and server.preempted > 0
    assert peaks[1] < 1.05 * peaks[0]
    counts = f"{server.preempted:,} times one had to wait, {server.read:,} tokens read and {server.shared:,} shared"
    print(f"{REQUESTS:,} requests; {counts}; {peaks[1] / peaks[0]:.3f} times the memory of the first half")


def test_complete_writes_some_at_a_time_what_it_writes_all_together(models):
    model, asked = models["latents"], {"sampling": Sampling(1.1), "stop": {2}, "seed": 4, "max_new_tokens": 9}
    prompts = [[1, 2], [3], [4, 5, 6, 1], [0], [1, 2, 3]]
    wanted = complete(model, prompts, **asked)
    assert complete(model, prompts, **asked, batch_size=2) == complete(model, prompts, **asked, batch_size=9) == wanted
    assert len(set(map(len, wanted))) > 1
    two = complete(model, prompts[:2], generators=[7, 5], **asked)
    assert complete(model, prompts[:2], generators=[7, 5], **asked, batch_size=1) == two
    for wrong, message in (
        ({"draft": "ngram"}, "cannot be used together with draft"),
        ({"generators": [1]}, "generators has 1 entries: expected 5"),
    ):
        with pytest.raises(ValueError, match=message):
            complete(model, prompts, **asked, batch_size=2, **wrong)


def test_equal_beginnings_are_stored_once_and_read_once(models):
    model, asked = models["rotary"], {"max_new_tokens": 3, "sampling": Sampling(0.0)}
    prompt = [1, 2, 3, 4, 5, 6, 0, 1, 2]
    server = Server(model, rows=4, tokens=48, block=4)
    handles = [server.submit(prompt, **asked) for _ in range(2)]
    server.step()  # both were read at once, and then two blocks of one of them were released
    assert server.blocks.used == 2 + 2 and server.read == 18 and server.shared == 0
    handles.append(server.submit(prompt, **asked))
    server.step()
    assert server.blocks.used == 2 + 3 and server.shared == 8 and server.read == 18 + 2 + 1
    alone = complete(model, [prompt], **asked)
    assert [handle.result() for handle in handles] == 3 * alone
    assert server.blocks.used == 0
    assert server.submit(prompt, **asked).result() == alone[0] and server.shared == 16  # after all others had ended


def test_a_shared_block_is_copied_before_it_is_written(models):
    """If the whole prompt is cached, only its last token is read, and its slot is in a shared block."""
    model, asked = models["rotary"], {"max_new_tokens": 4, "sampling": Sampling(0.0)}
    prompt = [1, 2, 3, 4, 5, 6, 0, 1]
    server = Server(model, rows=3, tokens=48, block=4)
    first = server.submit(prompt, **asked)
    server.step()
    shared = first._blocks[1]
    before = server._pool.keys[0][shared].clone()
    second = server.submit(prompt, **asked)
    copied = []
    copy = server._pool.copy
    object.__setattr__(server._pool, "copy", lambda old, new: (copied.append(old), copy(old, new)))
    server.step()
    assert copied == [shared] and torch.equal(server._pool.keys[0][shared], before)
    assert second._blocks[:2] == first._blocks[:2]  # after the copy, the block is shared again
    assert first.result() == second.result() == complete(model, [prompt], **asked)[0]


def test_a_state_is_kept_where_a_second_text_shows_that_texts_begin_alike(models):
    model, asked = models["linear and full"], {"max_new_tokens": 2, "sampling": Sampling(0.0)}
    server = Server(model, rows=2, tokens=48, block=4)
    alike = [[1, 2, 3, 4, 5, 6, 0, 1, last] for last in range(5)]
    read = [0]
    for prompt in alike[:4]:
        assert server.submit(prompt, **asked).result() == complete(model, [prompt], **asked)[0]
        read.append(server.read)
    # The second prompt is read in two parts, so that the state between them can be stored
    assert np.diff(read).tolist() == [10, 10, 2, 2]
    # The second text stores each of these states, and the oldest state is evicted
    for prompt in ([3, 3, 3, 3, 0], [4, 4, 4, 4, 0]):
        for _ in range(2):
            server.submit(prompt, **asked).result()
    shared = server.shared
    assert server.submit(alike[4], **asked).result() == complete(model, alike[4:], **asked)[0]
    assert server.shared == shared and len(server._state_slots._kept) == 2
    server.submit(alike[4], **asked).result()
    with torch.no_grad():
        model.embedding.weight[3] += 1
    assert server.submit(alike[4], **asked).result() == complete(model, alike[4:], **asked)[0]
    assert server.shared == shared + 8 and sorted(server._state_slots._free) == [0, 1]


def test_other_tokens_or_other_weights_never_share(models):
    model = drawn(CONFIG).double()
    asked = {"max_new_tokens": 4, "sampling": Sampling(0.0)}
    server = Server(model, rows=2, tokens=48, block=2)
    server.submit([1, 2, 3, 4, 5], **asked).result()
    for prompt in ([2, 2, 3, 4, 5], [3, 4, 5], [1, 3, 3, 4]):  # the same block after another beginning
        assert server.submit(prompt, **asked).result() == complete(model, [prompt], **asked)[0]
    assert server.shared == 0
    with torch.no_grad():
        model.embedding.weight[3] += 1
    assert server.submit([1, 2, 3, 4, 5], **asked).result() == complete(model, [[1, 2, 3, 4, 5]], **asked)[0]
    assert server.shared == 0


def test_a_long_prompt_keeps_nobody_waiting(models):
    model = models["learned"]
    server = Server(model, rows=2, tokens=48, block=4, budget=5)
    short = server.submit([1], max_new_tokens=8, rules=Rules(never=[2]))
    server.step()
    long = server.submit([1, 2, 3] * 5, max_new_tokens=2)
    lines = [[one.number for one in server.step()] for _ in range(5)]
    # 15 tokens, of which four are read per step, beside one of the other text
    assert lines == [[0], [0], [0], [0, 1], [0, 1]]
    assert len(short.tokens) == 6 and long.ended


def test_where_the_pool_is_full_whoever_came_last_is_read_again_later(models):
    model, asked = models["latents"], {"max_new_tokens": 14, "sampling": Sampling(1.3)}
    server = Server(model, rows=3, tokens=24, block=2)
    handles = [server.submit([number, 1, 2], generator=number, **asked) for number in range(3)]
    states = []
    while server.busy:
        server.step()
        states.append("".join(handle.state[0] for handle in handles))
    assert states[0] == "rrr" and "rrw" in states and "ddr" in states  # running, waiting, done
    assert server.preempted >= 1 and server.shared > 0  # blocks that still exist are not read again
    for number, handle in enumerate(handles):
        assert handle.tokens == complete(model, [[number, 1, 2]], generators=[number], **asked)[0]


def test_steps_read_the_weights_in_the_form_asked_for():
    model = drawn(CONFIG.with_(d_model=32, vocab=32), std=0.2)
    asked = {"max_new_tokens": 12, "sampling": Sampling(0.0)}
    server = Server(model, rows=3, tokens=24, block=4, weights="bf16")  # too small for all three
    prompts = ([1, 2], [3], [1, 2, 5])
    handles = [server.submit(prompt, **asked) for prompt in prompts]
    assert [h.result() for h in handles] == [complete(model, [p], **asked, weights="bf16")[0] for p in prompts]
    assert server.preempted > 0


def test_what_does_not_fit_is_refused_and_nothing_changes(models):
    server = Server(models["rotary"], rows=2, tokens=11, block=3)
    for prompt, asked, message in (
        (
            [1, 2, 3],
            {"max_new_tokens": 8},
            "a prompt of 3 tokens and max_new_tokens=8 add up to 11; expected at most 10",
        ),
        (
            [1] * 10,
            {},
            "a prompt of 10 tokens and max_new_tokens=1 add up to 11; expected at most 10, the capacity of the pool",
        ),
        ([1] * 20, {"max_new_tokens": 8}, "expected at most context=24"),
        ([], {}, "is empty: expected at least one token"),
        ([7], {}, "token id 7: expected a whole number from 0 to 6"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens=0"),
        ([1], {"generator": -1}, "generators"),
        ([1], {"stop": [9]}, "stop: token id 9"),
    ):
        with pytest.raises(ValueError, match=message):
            server.submit(prompt, **asked)
    assert not server.busy
    first, other = server.submit([1]), Server(models["rotary"], rows=1).submit([1])
    assert first.number == 0 and len(first.result()) == 9
    with pytest.raises(ValueError, match="handle=Handle.*: expected a handle returned by this server's submit"):
        server.cancel(other)
    assert first.cancel() == first.tokens and first.state == "done"


@pytest.mark.parametrize(
    ("config", "asked", "message"),
    [
        (CONFIG.with_(stack="encoder_decoder"), {}, "stack='encoder_decoder': expected 'decoder'"),
        (CONFIG, {"rows": 0}, "rows=0"),
        (CONFIG, {"tokens": 15}, "tokens=15: expected at least block=16"),
        (CONFIG, {"block": 0}, "block=0"),
        (CONFIG, {"rows": 9, "budget": 8}, "budget=8: expected at least rows=9"),
        (CONFIG, {"tokens": 10**15}, "the pool needs"),
    ],
)
def test_a_server_that_cannot_be_is_refused(config, asked, message):
    with pytest.raises(ValueError, match=message):
        Server(drawn(config), **asked)


def test_an_until_may_cancel_its_own_text_and_others(models):
    server, handles = Server(models["rotary"], rows=3, tokens=48, block=4), []

    def until(number, new):
        if len(new) == 2:
            handles[0].cancel(), handles[2].cancel()
        return len(new) == 2

    handles += [server.submit([number], max_new_tokens=5, until=until if number == 0 else None) for number in range(3)]
    lines = [[one.number for one in server.step()] for _ in range(3)]
    assert lines == [[0, 1, 2], [0, 1], [1]]
    assert [handle.state for handle in handles] == ["cancelled", "running", "cancelled"]
    assert len(handles[1].result()) == 5 and server.blocks.used == 0


def test_a_text_that_fails_ends_alone():
    model = drawn(CONFIG.with_(embedding=EmbeddingConfig(tied=False))).double()
    with torch.no_grad():
        model.embedding.weight[6] = float("nan")  # token 6 makes all logits NaN
    asked = {"max_new_tokens": 12, "sampling": Sampling(0.8), "rules": Rules(never=[6])}
    (alone,) = complete(model, [[1, 2]], generators=[5], **asked)
    server = Server(model, rows=4, tokens=48, block=4)
    good = server.submit([1, 2], generator=5, **asked)
    server.step()
    bad = server.submit([3, 6, 6, 6, 6], **asked)
    none = server.submit([3], max_new_tokens=3, rules=Rules(never=[0, 1, 2, 4, 5, 6], no_repeat=1))
    odd = server.submit([3], until=lambda number, new: 1 / 0)
    server.step()
    assert [one.state for one in (good, bad, none, odd)] == ["running", "failed", "failed", "failed"]
    for handle, kind, message in (
        (bad, NotFinite, f"logits of text {bad.number}: expected finite values"),
        (none, ValueError, f"rules: every token is excluded for text {none.number}"),
        (odd, ZeroDivisionError, "division"),
    ):
        with pytest.raises(kind, match=message):
            handle.result()
    late = server.submit([1, 2], generator=5, **asked)  # it gets the blocks that the failed text has released
    assert good.result() == late.result() == alone and server.blocks.used == 0


WRONG = {
    "a tensor of several numbers": (lambda number, new: torch.tensor(new[-2:]) == 5, RuntimeError),
    "an array of several numbers": (lambda number, new: np.arange(len(new) + 1) == 1, ValueError),
    "an object without a truth value": (lambda number, new: Odd(), TypeError),
}


class Odd:
    def __bool__(self):
        raise TypeError("no truth value")


@pytest.mark.parametrize("name", WRONG)
def test_an_until_without_a_truth_value_ends_its_own_text_alone(models, name):
    until, kind = WRONG[name]
    model = models["rotary"]
    asked = {"max_new_tokens": 9, "sampling": Sampling(0.9), "seed": 2}
    alone = complete(model, [[1, 2], [3], [4, 5, 6]], **asked)
    server = Server(model, rows=4, tokens=80, block=4)
    handles = [server.submit(prompt, generator=row, **asked) for row, prompt in enumerate([[1, 2], [3], [4, 5, 6]])]
    odd = server.submit([2], until=until)
    while server.busy:
        server.step()
    assert [handle.tokens for handle in handles] == alone and server.blocks.used == 0
    assert odd.state == "failed" and isinstance(odd.error, kind)


@pytest.mark.parametrize("layout", ["rotary", "linear and full", "turned anew", "experts", "windows"])
def test_a_step_that_is_interrupted_is_made_anew(models, layout, monkeypatch):
    """Ctrl-C comes in an `until`, in a layer, between two passes of a step, or during sampling.

    Every text still ends up the same as alone, and every block returns to the pool.
    """
    model, random = models[layout], np.random.default_rng(3)
    prompts = [random.integers(7, size=n).tolist() for n in (3, 9, 1, 6, 12)]
    asked = {"max_new_tokens": 9, "sampling": Sampling(0.9), "seed": 4}

    def now_and_then(function, share=0.1):
        def interrupted(*given, **named):
            if random.random() < share:
                raise KeyboardInterrupt
            result = function(*given, **named)
            if random.random() < share:
                raise KeyboardInterrupt
            return result

        return interrupted

    alone = complete(model, prompts, **asked)
    server = Server(model, rows=4, tokens=64, block=4, budget=8)
    until = now_and_then(lambda number, new: False, 0.05)
    handles = [server.submit(one, generator=row, until=until, **asked) for row, one in enumerate(prompts)]
    monkeypatch.setattr(serving, "draw_tokens", now_and_then(serving.draw_tokens))
    monkeypatch.setattr(server, "_pass", now_and_then(server._pass))
    block = model.decoder.blocks[1]
    monkeypatch.setattr(block, "forward", now_and_then(block.forward))
    interruptions = 0
    while server.busy:
        try:
            server.step()
        except KeyboardInterrupt:
            interruptions += 1
    assert [handle.tokens for handle in handles] == alone and interruptions > 5
    assert server.blocks.used == 0 and {handle.state for handle in handles} == {"done"}
    assert server._state_slots is None or sorted(server._state_slots._free) == list(range(4))
