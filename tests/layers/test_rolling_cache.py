"""Local layers and their rolling cache: however a text is split, each token sees exactly its window."""

import random

import pytest
import torch
from heads import Largest
from models import drawn

from companion import (
    AttentionConfig,
    FeedForwardConfig,
    KVCache,
    LatentConfig,
    ModelConfig,
    PositionConfig,
    WindowConfig,
)
from companion.layers import masks
from companion.layers import rolling_cache as caches
from companion.layers.kernels import chunked
from companion.layers.masks import window
from companion.layers.rolling_cache import columns

CONFIG = ModelConfig(
    vocab=31,
    d_model=12,
    layers=3,
    context=64,
    attention=AttentionConfig(
        4, 2, d_head=6, d_v=5, window=WindowConfig(5, (True, True, False), base=100.0), sinks=True
    ),
    feed_forward=FeedForwardConfig(10),
)
LATENT = CONFIG.with_(
    attention=AttentionConfig(4, d_head=6, d_v=5, window=CONFIG.attention.window, latent=LatentConfig(7, 4))
)
ALL_LOCAL = CONFIG.with_(attention=AttentionConfig(2, d_head=4, window=WindowConfig(3)))


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Use few columns, so that even a short text makes them roll often."""
    monkeypatch.setattr(caches, "BACK", 3)


@pytest.fixture(params=[CONFIG, ALL_LOCAL, LATENT], ids=["every third layer global", "all local", "latents"])
def model(request):
    return drawn(request.param).double().eval()


def tokens_of(rows, count, seed=0):
    return torch.randint(0, 31, (rows, count), generator=torch.Generator().manual_seed(seed))


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=0)


def test_a_local_layer_is_one_with_a_window_for_a_mask():
    net = drawn(ALL_LOCAL).double().eval()
    layer = net.decoder.blocks[0].attention
    for n in (3, 4, 11):  # as many tokens as a token sees, and one more
        x = torch.randn(2, n, 12, dtype=torch.float64)
        layer.window = 3
        local = layer(x)
        layer.window = None
        close(local, layer(x, mask=window(3)))
        assert torch.allclose(local, layer(x)) == (n == 3)
    # Tokens outside every window on the way to the last one do not reach it; 3 layers with windows of 3 tokens reach 7.
    tokens = tokens_of(2, 12)
    other = tokens.clone()
    other[:, :5] = (tokens[:, :5] + 1) % 31
    net = drawn(ALL_LOCAL).double().eval()
    torch.testing.assert_close(net(tokens).logits[:, -1], net(other).logits[:, -1], atol=1e-12, rtol=0)
    assert not torch.allclose(net(tokens).logits[:, -2], net(other).logits[:, -2])


@torch.no_grad()
def test_any_split_of_a_text_gives_the_logits_of_the_whole(model):
    tokens = tokens_of(2, 40)
    whole, draw, rolled = model(tokens).logits, random.Random(1), 0
    for case in range(12):
        cache = KVCache.create(model.config, 2, 40, dtype=torch.float64, bucket=8 if case % 2 else 1)
        steps, at = [], 0
        while at < 40:
            count = min(draw.choice([1, 1, 1, 2, 6, 17]) if case else 1, 40 - at)
            out = model(tokens[:, at : at + count], cache=cache)
            cache, at = out.cache, at + count
            steps.append(out.logits)
        close(torch.cat(steps, 1), whole)
        rolled += int(cache.local.gone.max())
    assert rolled > 0


@pytest.mark.parametrize("bucket", [1, 8])
@torch.no_grad()
def test_rows_of_unequal_length_padded_together_go_on_as_each_would_alone(model, bucket):
    lengths, more = [3, 25, 14], 14
    texts = [tokens_of(1, n + more, seed=n)[0] for n in lengths]
    prompts = torch.zeros(3, 25, dtype=torch.long)
    for row, (text, n) in enumerate(zip(texts, lengths, strict=True)):
        prompts[row, :n] = text[:n]
    cache = KVCache.create(model.config, 3, 40, dtype=torch.float64, bucket=bucket)
    out = model(prompts, cache=cache)
    cache = out.cache.rewind(torch.tensor(lengths))
    alone = [model(text[None]).logits[0] for text in texts]
    for row, n in enumerate(lengths):
        close(out.logits[row, :n], alone[row][:n])
    for step in range(more):
        out = model(torch.stack([text[n + step] for text, n in zip(texts, lengths, strict=True)])[:, None], cache=cache)
        cache = out.cache
        for row, n in enumerate(lengths):
            close(out.logits[row, 0], alone[row][n + step])
    assert cache.lengths.tolist() == [n + more for n in lengths]


@torch.no_grad()
def test_padding_and_masks_count_slots_however_few_columns_there_are(model):
    """Left padding is hidden by `attention_mask` in every call, together with a mask of pairs."""
    tokens, pad = tokens_of(2, 30), torch.tensor([0, 4])
    attention_mask = torch.arange(30) >= pad[:, None]
    allowed = torch.rand(2, 1, 30, 30, generator=torch.Generator().manual_seed(2)) > 0.2
    whole = model(
        tokens, attention_mask=attention_mask, mask=allowed & torch.ones(30, 30, dtype=torch.bool).tril()
    ).logits
    cache, steps = KVCache.create(model.config, 2, 30, dtype=torch.float64), []
    for at, count in ((0, 9), (9, 1), (10, 1), (11, 12), (23, 1), (24, 6)):
        end = at + count
        out = model(
            tokens[:, at:end], attention_mask=attention_mask[:, :end], mask=allowed[:, :, at:end, :end], cache=cache
        )
        cache, steps = out.cache, [*steps, out.logits]
    steps = torch.cat(steps, 1)
    for row in range(2):
        close(steps[row, pad[row] :], whole[row, pad[row] :])


@torch.no_grad()
def test_what_the_last_call_brought_can_be_taken_back_and_no_more_than_is_held(model):
    tokens = tokens_of(2, 40)
    whole = model(tokens).logits
    cache = model(tokens[:, :20], cache=KVCache.create(model.config, 2, 40, dtype=torch.float64)).cache
    long = model(tokens[:, 20:38], cache=cache).cache
    back = long.rewind(21)
    close(model(tokens[:, 21:30], cache=back).logits, whole[:, 21:30])
    for at in range(38, 40):
        long = model(tokens[:, at : at + 1], cache=long).cache
    close(model(tokens[:, 37:40], cache=long.rewind(37)).logits, whole[:, 37:])  # BACK tokens
    with pytest.raises(ValueError, match=r"lengths=\[6, 6\]: expected each length to be 0 or close to .*\[40, 40\]"):
        long.rewind(6)
    again = long.rewind(torch.tensor([0, 40])).rewind(0)
    close(model(tokens, cache=again).logits, whole)


@torch.no_grad()
def test_rows_that_rolled_apart_may_go_back_to_one_length(model):
    tokens, lengths = tokens_of(2, 40), torch.tensor([14, 12])
    whole = model(tokens).logits
    cache = model(tokens[:, :14], cache=KVCache.create(model.config, 2, 40, dtype=torch.float64)).cache.rewind(lengths)
    for step in range(10):
        new = torch.stack([tokens[row, n + step] for row, n in enumerate(lengths.tolist())])
        cache = model(new[:, None], cache=cache).cache
    first, second = cache.local.gone.tolist()
    assert first != second
    cache = cache.rewind(22)
    for at in (22, 23, 25):
        out = model(tokens[:, at : at + 1 + at % 2], cache=cache)
        cache = out.cache
        close(out.logits, whole[:, at : at + 1 + at % 2])


@torch.no_grad()
def test_an_older_handle_and_a_copy_stay_what_they_were(model):
    tokens, other = tokens_of(2, 40), tokens_of(2, 40, seed=1)
    cache = model(tokens[:, :30], cache=KVCache.create(model.config, 2, 40, dtype=torch.float64)).cache
    copy, swapped = cache.clone(), cache.select(torch.tensor([1, 0, 1]))
    left = cache
    for at in range(30, 40):
        left = model(other[:, at : at + 1], cache=left).cache
    whole = model(tokens).logits[:, 30:]
    for start, rows in ((copy, [0, 1]), (swapped, [1, 0, 1]), (cache, [0, 1])):
        steps = []
        for at in range(30, 40):
            out = model(tokens[rows, at : at + 1], cache=start)
            start, steps = out.cache, [*steps, out.logits]
        close(torch.cat(steps, 1), whole[rows])


@torch.no_grad()
def test_memory_is_that_of_the_window_after_a_long_text():
    model = drawn(CONFIG).eval()
    cache = KVCache.create(CONFIG, 1, 60)
    assert [k.shape[2] for k in cache.keys] == [columns(5, 60)] * 2 + [60] == [10, 10, 60]
    out = model(tokens_of(1, 50), cache=cache)
    assert [k.shape[2] for k in out.cache.keys] == [50, 50, 60]  # until it is known which of them are padding
    out = model(tokens_of(1, 1), cache=out.cache)
    assert [k.shape[2] for k in out.cache.keys] == [10, 10, 60] and out.cache.slots == 60
    assert [k.shape[2] for k in KVCache.create(CONFIG, 1, 9).keys] == [9, 9, 9]
    with pytest.raises(ValueError, match="51 of 60 slots are filled, got 10 more tokens; expected at most 9"):
        model(tokens_of(1, 10), cache=out.cache)


def test_a_cache_of_a_model_with_another_window_is_refused():
    model = drawn(CONFIG).eval()
    for other in (None, WindowConfig(4, (True, True, False)), WindowConfig(5)):
        changed = CONFIG.with_(attention=AttentionConfig(4, 2, d_head=6, d_v=5, window=other))
        with torch.no_grad(), pytest.raises(ValueError, match="cache is for window=.*: expected a cache made for this"):
            model(tokens_of(1, 2), cache=KVCache.create(changed, 1, 9))


@torch.no_grad()
def test_positions_of_their_own_do_not_move_the_window():
    """The window counts tokens and not positions, so a text with gaps in its positions sees as many tokens."""
    model = drawn(ALL_LOCAL.with_(positions=PositionConfig("none"))).double().eval()
    tokens = tokens_of(1, 20)
    close(model(tokens, positions=3 * torch.arange(20)).logits, model(tokens).logits)


@pytest.mark.parametrize("cap", [None, 0.5])
def test_a_long_text_makes_no_mask_of_all_pairs_with_a_cache_or_without(monkeypatch, cap):
    config = CONFIG.with_(context=900, attention=AttentionConfig(4, 2, d_head=6, window=WindowConfig(5), softcap=cap))
    net, tokens = drawn(config).double().eval(), tokens_of(2, 700)
    hidden = torch.ones(1, 1, 1, 700, dtype=torch.bool)
    hidden[..., 690:695] = False

    def outputs(bucket=1):
        with torch.no_grad():
            cache = KVCache.create(config, 2, 768, dtype=torch.float64, bucket=bucket)
            first = net(tokens[:, :400], cache=cache)
            second = net(tokens[:, 400:], cache=first.cache)
            masked = net(tokens, mask=hidden).logits
            return net(tokens).logits, masked, torch.cat((first.logits, second.logits), 1), second.cache

    *expected, _ = outputs()
    monkeypatch.setattr(masks, "PAIRS", 20_000)
    monkeypatch.setattr(chunked, "LEAST", 32)
    with Largest() as largest:
        *found, cache = outputs()
    assert largest.numbers < 700 * 400 / 2
    for ours, theirs in zip(found, expected, strict=True):
        close(ours, theirs)
    assert cache.local.columns < 700
    close(outputs(bucket=64)[2], expected[2])

    x = torch.randn(2, 300, 12, dtype=torch.float64, requires_grad=True)
    layer, grads = net.decoder.blocks[0].attention, []
    for pairs in (2**22, 20_000):
        monkeypatch.setattr(masks, "PAIRS", pairs)
        grads.append(torch.autograd.grad(layer(x).square().sum(), x)[0])
    close(*grads)
