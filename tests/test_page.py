"""The page and the package contain the same model: the same weights, numbers, texts and updates."""

import ast
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import companion
from companion import AttentionConfig, FeedForwardConfig, ModelConfig, MoEConfig, Sampling, complete, page
from companion.layers.balance import switch_loss
from companion.layers.routing import within_capacity
from companion.training.losses import next_token_loss, translation_loss
from companion.training.trainer import Trainer, TrainingConfig

PAGE = Path(page.__file__).read_text(encoding="utf-8")
VOCAB, WIDTH, LAYERS, HEADS, D_FF = 29, 24, 3, 4, 40
FILLER, START, STOP = 0, 1, 2
EXACT = {"rtol": 0, "atol": 1e-10}
KINDS = ("dense", "grouped", "experts", "translator")


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def pair(kind):
    """Return the page's model and the package's, with the package's weights loaded strictly into both."""
    torch.manual_seed(3)
    kv_heads = {"dense": HEADS, "grouped": 1}.get(kind, 2)
    config = ModelConfig(
        vocab=VOCAB,
        d_model=WIDTH,
        layers=LAYERS,
        context=64,
        attention=AttentionConfig(HEADS, kv_heads),
        feed_forward=FeedForwardConfig(D_FF),
        moe=MoEConfig(experts=5, top_k=2) if kind == "experts" else None,
        stack="encoder_decoder" if kind == "translator" else "decoder",
    )
    theirs = companion.Transformer(config)
    sizes = page.Config(VOCAB, WIDTH, LAYERS, HEADS, kv_heads, D_FF)
    ours = page.Translator(sizes) if kind == "translator" else page.Transformer(sizes)
    if kind == "experts":
        page.put_experts(ours, 5, 2)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def sources(batch=3, longest=11):
    """Return sources of unequal length, padded."""
    generator = torch.Generator().manual_seed(8)
    ids = torch.randint(3, VOCAB, (batch, longest), generator=generator)
    lengths = torch.tensor([longest, 4, 7])[:batch, None]
    return ids.masked_fill(torch.arange(longest) >= lengths, FILLER)


def both_logits(kind, ours, theirs):
    ids = torch.randint(3, VOCAB, (3, 13), generator=torch.Generator().manual_seed(5))
    if kind != "translator":
        return ours(ids), theirs(ids).logits
    source = sources()
    real = source != FILLER
    return ours(source, real, ids), theirs(ids, source=theirs.encode(source, attention_mask=real)).logits


def test_page_is_a_page_and_needs_pytorch_and_safetensors_alone():
    assert len(PAGE.splitlines()) <= 400
    imports = [node for node in ast.walk(ast.parse(PAGE)) if isinstance(node, ast.Import | ast.ImportFrom)]
    named = {(getattr(node, "module", None) or node.names[0].name).split(".")[0] for node in imports}
    assert named == {"dataclasses", "functools", "json", "math", "pathlib", "safetensors", "torch"}


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_gradients_are_the_packages(kind):
    ours, theirs = pair(kind)
    mine, other = both_logits(kind, ours, theirs)
    assert_close(mine, other, **EXACT)
    weights = torch.randn(mine.shape, generator=torch.Generator().manual_seed(1))
    (mine * weights).mean().backward()
    (other * weights).mean().backward()
    named = dict(theirs.named_parameters())
    for name, weight in ours.named_parameters():
        assert weight.grad.abs().max() > 0
        assert_close(weight.grad, named[name].grad, **EXACT)


@pytest.mark.parametrize("kind", KINDS[:3])
def test_greedy_text_is_the_packages_with_and_without_a_cache(kind):
    ours, theirs = pair(kind)
    [text] = complete(theirs, [[5, 9, 4]], max_new_tokens=30, sampling=Sampling(temperature=0))
    assert list(page.generate(ours, [5, 9, 4], 30, temperature=0)) == text
    assert list(page.generate(ours, [5, 9, 4], 30, temperature=0, cached=False)) == text
    assert list(page.generate(ours, [5, 9, 4], 30, temperature=0, stop=text[4])) == text[: text.index(text[4])]


def test_drawn_text_does_not_depend_on_the_cache():
    ours, _ = pair("grouped")
    choice = {"temperature": 0.9, "top_k": 12, "top_p": 0.9, "min_p": 0.02, "seed": 4}
    cached = list(page.generate(ours, [3], 40, **choice))
    assert cached == list(page.generate(ours, [3], 40, **choice, cached=False)) and len(set(cached)) > 5


@pytest.mark.parametrize("choice", [(1.0,), (0.7, 9), (1.3, None, 0.6), (1.0, None, None, 0.3), (0.8, 11, 0.7, 0.2)])
def test_probabilities_are_the_packages(choice):
    logits = 2 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(6))
    given = {"temperature": choice[0]}
    for name, value in zip(("top_k", "top_p", "min_p"), choice[1:], strict=False):
        given |= {} if value is None else {name: value}
    assert_close(page.probabilities(logits, **given), Sampling(**given).probabilities(logits), **EXACT)


def test_translation_is_the_packages():
    ours, theirs = pair("translator")
    source = sources()
    real = source != FILLER
    mine = page.translate(ours, source, real, START, STOP, 12)
    rows = [row[row != FILLER].tolist() for row in source]
    other = complete(theirs, source=rows, start=START, max_new_tokens=12, stop={STOP}, sampling=Sampling(temperature=0))
    for row, text in zip(mine.tolist(), other, strict=True):
        text = [id for id in text if id != STOP]
        assert row[: len(text)] == text and set(row[len(text) :]) <= {STOP}


# Several batches make an update in the same lines for every kind. But the package also counts the tokens of each
# expert, and the translator has other batches.
@pytest.mark.parametrize(("kind", "accumulate"), [*((kind, 1) for kind in KINDS), ("translator", 3), ("experts", 3)])
def test_twenty_updates_are_the_packages(kind, accumulate):
    ours, theirs = pair(kind)
    text = torch.randint(3, VOCAB, (300,), generator=torch.Generator().manual_seed(2))

    def batch(n):
        return page.windows(text, 9, 5, torch.Generator().manual_seed(n))

    def pairs(n):
        source, target = sources(), page.windows(text, 6, 3, torch.Generator().manual_seed(n))[0]
        return source, page.forced(target, START), target

    def mine(n):
        if kind != "translator":
            return page.loss_of(ours(batch(n)[0]), batch(n)[1])
        source, inputs, targets = pairs(n)
        return page.loss_of(ours(source, source != FILLER, inputs), targets)

    def other(model, *tensors):
        return (
            translation_loss(model, *tensors, padding=FILLER)
            if kind == "translator"
            else next_token_loss(model, *tensors)
        )

    losses = list(page.train(ours, mine, 20, warmup=3, accumulate=accumulate))
    config = TrainingConfig(updates=20, warmup=3, accumulate=accumulate)
    trainer = Trainer(theirs, pairs if kind == "translator" else batch, config, loss=other)
    for loss in losses:
        assert trainer.update().loss == pytest.approx(loss, abs=1e-6)  # the trainer reports it in fp32
    assert losses[-1] < losses[0]
    named = dict(theirs.named_parameters())
    for name, weight in ours.named_parameters():
        assert_close(weight, named[name], **EXACT)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_count_is_what_the_model_has(kind):
    ours, _ = pair(kind)
    assert page.count(ours.config) == sum(weight.numel() for weight in ours.parameters())


def test_initial_weights_are_spread_as_the_packages():
    torch.manual_seed(0)
    config = ModelConfig(
        vocab=300, d_model=96, layers=4, context=9, attention=AttentionConfig(6, 3), feed_forward=FeedForwardConfig(256)
    )
    ours = dict(page.Transformer(page.Config(300, 96, 4, 6, 3, 256)).named_parameters())
    for name, weight in companion.Transformer(config).named_parameters():
        spread = weight.detach().std().item() if weight.ndim > 1 else 0
        assert ours[name].detach().std().item() == pytest.approx(spread, rel=0.05) and ours[name].shape == weight.shape


@pytest.mark.parametrize("capacity", [0.5, 1.0, 1.25])
def test_capacity_and_balance_are_the_packages(capacity):
    logits = torch.randn(17, 5, generator=torch.Generator().manual_seed(7))
    routing = companion.route(logits, 2)
    weights, chosen = page.route(logits, 2)
    assert_close(weights, routing.weights, **EXACT)
    assert chosen.equal(routing.experts)
    assert page.within(chosen, 5, capacity).equal(within_capacity(routing, capacity))
    assert page.balance(logits, 2).item() == pytest.approx(switch_loss(routing).item(), abs=1e-12)


def test_full_experts_add_nothing():
    torch.manual_seed(2)
    layer = page.Experts(d_model=6, d_ff=10, experts=3, top_k=1)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight)
    x = torch.randn(2, 5, 6)
    free = layer(x)
    layer.capacity = 0.6
    kept = page.within(page.route(layer.logits, 1)[1], 3, 0.6).view(2, 5, 1)
    assert 0 < kept.sum() < 10
    assert_close(layer(x), free * kept, **EXACT)


def test_positions_are_the_packages():
    places = torch.tensor([0, 3, 4, 11])
    assert_close(page.waves(places, 12, 500.0), companion.sinusoidal(places, 12, 500.0, torch.float64), **EXACT)
    q, k = torch.randn(2, 1, 3, 1, 8, generator=torch.Generator().manual_seed(1))
    at = [page.rotate(q, torch.tensor([n + 5])) @ page.rotate(k, torch.tensor([n])).mT for n in (0, 40)]
    assert_close(at[0], at[1], **EXACT)


def test_text_is_measured_in_bits_for_each_byte():
    ours, _ = pair("dense")
    ids = torch.randint(3, VOCAB, (25,), generator=torch.Generator().manual_seed(9))
    logs = ours(ids[None, :-1]).log_softmax(-1)[0, torch.arange(24), ids[1:]]
    assert page.bits_per_byte(ours, ids, 24, 70) == pytest.approx(-logs.sum().item() / torch.tensor(2.0).log() / 70)
    parts = [page.bits_per_byte(ours, ids[a : a + 9], 8, 70) for a in (0, 8, 16)]
    assert page.bits_per_byte(ours, ids, 8, 70) == pytest.approx(sum(parts))
