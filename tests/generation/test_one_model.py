"""Weight formats belong to linear layers, and the model itself runs.

It runs with all wrappers around its layers, and with the weights that it has when generation begins.
"""

import copy
import gc
import random
import weakref

import numpy as np
import pytest
import torch
from models import drawn
from torch import nn
from torch.nn.utils import parametrize, prune

from companion import ModelConfig, Transformer
from companion.config.model import AttentionConfig, EmbeddingConfig, FeedForwardConfig
from companion.generation.draft import Draft
from companion.generation.generate import complete, generate, generate_long
from companion.generation.prefill_decode import decode, prefill
from companion.generation.sampling import Sampling
from companion.generation.serving import Server
from companion.layers.attention import Attention
from companion.layers.block import Block
from companion.layers.feedforward import FeedForward
from companion.layers.norms import RMSNorm
from companion.layers.positions import Rotary
from companion.quantization import matmul_kernels
from companion.quantization import weights as forms
from companion.quantization.matmul_kernels import Product, possible
from companion.quantization.weights import FORMS, fast_form, form_bytes, prepared
from companion.training.trainer import Trainer, TrainingConfig

HERE = [form for form in FORMS if possible(form, "cpu")]
CONFIG = ModelConfig(
    80, 64, 2, 40, AttentionConfig(4, 2), FeedForwardConfig(96, "swiglu"), embedding=EmbeddingConfig(tied=True)
)
ROUNDING = {"fp32": 1e-5, "fp16": 3e-3, "bf16": 3e-2, "int8": 5e-2, "int4": 0.4}
"""How far logits may be from the model's, as a share of their spread."""


def model_of(config=CONFIG, seed=0):
    return drawn(config, seed=seed, std=0.15).eval()


def stepped(model, form):
    """Return the logits of three decode steps."""
    tokens, found = [5, 9, 7, 2, 11], []
    with torch.inference_mode():
        _, cache, _ = prefill(model, [tokens[:2]], None, 8)
        writer = model if form is None else prepared(model, form)
        for token in tokens[2:]:
            logits, cache = decode(writer, torch.tensor([token]), cache, None)
            found.append(logits.float())
    return torch.stack(found)


def off(found, expected):
    """Return the distance of logits from the expected ones, relative to their standard deviation."""
    return float((found - expected).square().mean().sqrt() / expected.std())


def products(monkeypatch):
    """Record the format of every `Product` that is made from now on.

    Only `__init__` is replaced and not the class, because the class's name is used in annotations, which are evaluated
    at the first call.
    """
    made, make = [], Product.__init__

    def noted(self, weights, form, **more):
        made.append(form)
        make(self, weights, form, **more)

    monkeypatch.setattr(Product, "__init__", noted)
    return made


def doubled(of):
    def project(*given):
        q, k, v = of(*given)
        return 2 * q, k, v

    return project


EDITS = {
    "the queries": (Attention, "project", doubled),
    "the heads": (Attention, "_merge", lambda of: staticmethod(lambda heads: -of(heads))),
    "the network": (FeedForward, "forward", lambda of: lambda self, x: of(self, x).flip(-1)),
    "the residual": (Block, "_out", lambda of: lambda self, x, *given: of(self, 0.5 * x, *given)),
    "the norm": (RMSNorm, "forward", lambda of: lambda self, x: of(self, x).abs()),
    "the turn": (Rotary, "turn", lambda of: lambda self, x, by: of(self, x.flip(-1), by)),
    "the head": (Transformer, "limited", lambda of: lambda self, logits: of(self, logits).cos()),
}


@pytest.mark.parametrize("edit", EDITS)
def test_who_edits_one_method_edits_all_ways_to_write(edit, monkeypatch):
    model, (kind, name, change) = model_of(), EDITS[edit]
    before = stepped(model, None)
    monkeypatch.setattr(kind, name, change(getattr(kind, name)))
    with torch.no_grad():
        whole = model(torch.tensor([[5, 9, 7, 2, 11]])).logits[0, 2:, None]
    assert off(whole, before) > 0.2
    for form in (None, *HERE):
        # Twice as large, because an edit may double the rounding error.
        assert off(stepped(model, form), whole) < 2 * ROUNDING.get(form, 1e-5), form


# Changes to a model between two calls


def trained(make):
    """Return a change by an optimizer with random gradients."""

    def change(model):
        torch.manual_seed(3)
        parameters = list(model.parameters())
        optimizer = make(parameters)
        for p in parameters:
            p.grad = torch.randn_like(p)
        optimizer.step()
        for p in parameters:
            p.grad = None

    return change


def to_each(change):
    """Return a change of every matrix in the blocks and of the embedding."""

    def all_of_them(model):
        for p in model.parameters():
            if p.ndim == 2:
                change(p)

    return all_of_them


def in_mode(mode, change):
    def inside(p):
        with mode():
            change(p)

    return to_each(inside)


def data(p):
    p.data = p.data.roll(1, 0).neg()


def storage(p):
    with torch.no_grad():
        p.set_(p.detach().flip(0).contiguous())


def by_numpy(p):
    p.detach().numpy()[::2] *= -1.5


def by_dlpack(p):
    np.from_dlpack(p.detach())[:, ::2] *= -1


def other_state(model):
    return {name: value.flip(0).contiguous() for name, value in model.state_dict().items()}


def each_linear(model):
    for block in model.decoder.blocks:
        yield from (
            (part, name)
            for part in (block.attention, block.feed_forward)
            for name, layer in part.named_children()
            if isinstance(layer, nn.Linear)
        )


def swapped(model):
    for part, name in list(each_linear(model)):
        old = getattr(part, name)
        torch.manual_seed(old.out_features)
        setattr(part, name, nn.Linear(old.in_features, old.out_features, bias=True))


def other_parameters(model):
    for part, name in list(each_linear(model)):
        layer = getattr(part, name)
        layer.weight = nn.Parameter(layer.weight.detach().flip(0).contiguous(), requires_grad=False)


class Negated(nn.Module):
    def forward(self, weight):
        return -weight


def parametrized(model):
    for part, name in list(each_linear(model)):
        parametrize.register_parametrization(getattr(part, name), "weight", Negated())


def pruned(model):
    for part, name in list(each_linear(model)):
        prune.l1_unstructured(getattr(part, name), "weight", amount=0.5)


class Adapted(nn.Module):
    """A linear layer with two narrow ones in parallel."""

    def __init__(self, base):
        super().__init__()
        torch.manual_seed(4)
        self.base = base
        self.down, self.up = nn.Linear(base.in_features, 3), nn.Linear(3, base.out_features)

    def forward(self, x):
        return self.base(x) + 3 * self.up(self.down(x))


def adapted(model):
    for part, name in list(each_linear(model)):
        setattr(part, name, Adapted(getattr(part, name)))


class Tripled(nn.Linear):
    def forward(self, x):
        return 3 * super().forward(x)


def subclassed(model):
    for part, name in list(each_linear(model)):
        old = getattr(part, name)
        setattr(part, name, Tripled(old.in_features, old.out_features, bias=False))
        getattr(part, name).weight = old.weight


def hooked(model):
    for block in model.decoder.blocks:
        block.attention.query.register_forward_hook(lambda layer, given, out: out.flip(-1))
        block.feed_forward.outer.register_forward_pre_hook(lambda layer, given: (given[0] * 2,))
        block.feed_forward.register_forward_hook(lambda layer, given, out: -out)
        block.dropout.register_forward_hook(lambda layer, given, out: out * 0.5)


def own_forward(model):
    for block in model.decoder.blocks:
        layer = block.feed_forward.inner
        layer.forward = lambda x, layer=layer: nn.functional.linear(x, layer.weight).neg()


def shorter(model):
    model.decoder.blocks = model.decoder.blocks[:1]


class Half(nn.Module):
    """A block without attention and network."""

    def forward(self, x, **inputs):
        return 0.5 * x.flip(-1), None


def another_block(model):
    model.decoder.blocks[1] = Half()


def untied(model):
    model.unembedding = nn.Linear(64, 80, bias=False)


WAYS = {
    "AdamW": trained(lambda p: torch.optim.AdamW(p, 0.3, foreach=False)),
    "AdamW, foreach": trained(lambda p: torch.optim.AdamW(p, 0.3, foreach=True)),
    "AdamW, fused": trained(lambda p: torch.optim.AdamW(p, 0.3, fused=True)),
    "Adam, fused": trained(lambda p: torch.optim.Adam(p, 0.3, fused=True)),
    "SGD, fused": trained(lambda p: torch.optim.SGD(p, 0.3, fused=True)),
    "Adagrad, fused": trained(lambda p: torch.optim.Adagrad(p, 0.3, fused=True)),
    "p.data.mul_": to_each(lambda p: p.data.mul_(torch.linspace(-1, 1, p.shape[1]))),
    "p.data = ": to_each(data),
    "set_": to_each(storage),
    "NumPy": to_each(by_numpy),
    "DLPack": to_each(by_dlpack),
    "copy_, no_grad": in_mode(torch.no_grad, lambda p: p.copy_(p.flip(1))),
    "copy_, inference_mode": in_mode(torch.inference_mode, lambda p: p.copy_(p.flip(1))),
    "load_state_dict": lambda model: model.load_state_dict(other_state(model)),
    "load_state_dict, assign": lambda model: model.load_state_dict(other_state(model), assign=True),
    "vector_to_parameters": lambda model: nn.utils.vector_to_parameters(
        nn.utils.parameters_to_vector(model.parameters()).neg(), model.parameters()
    ),
    "other modules": swapped,
    "other parameters": other_parameters,
    "parametrized": parametrized,
    "pruned": pruned,
    "adapters": adapted,
    "a subclass": subclassed,
    "hooks": hooked,
    "a forward of its own": own_forward,
    "a block less": shorter,
    "another block": another_block,
    "no longer tied": untied,
}
KEEP = {
    "requires_grad": lambda model: model.requires_grad_(False),
    "there and back": lambda model: model.double().float(),
    "in training mode": lambda model: model.train(),
    "shared": lambda model: model.share_memory(),
    "half": lambda model: model.bfloat16().float(),
}
"""What changes no number, or hardly one."""


@pytest.mark.parametrize("way", WAYS)
def test_no_form_writes_with_weights_that_are_gone(way):
    model = model_of()
    before = {form: stepped(model, form) for form in HERE}
    old = stepped(model, None)
    WAYS[way](model)
    now = stepped(model, None)
    assert off(old, now) > 0.05, "nothing has changed"
    for form in HERE:
        found = stepped(model, form)
        # Rounding may affect the changed model more, but its error always stays below that of the old weights.
        assert off(found, now) < min(2.5 * ROUNDING[form], max(0.5 * off(before[form], now), ROUNDING["fp32"])), form


@pytest.mark.parametrize("seed", range(12))
def test_nor_after_any_number_of_changes(seed):
    """Changes in any order, with generations in any format between them."""
    chance = random.Random(seed)
    model, looked = model_of(seed=seed), 0
    names = [name for name in WAYS if name not in ("load_state_dict", "load_state_dict, assign")]
    for _ in range(4):
        for change in [*chance.sample([WAYS[name] for name in names], 2), chance.choice(list(KEEP.values()))]:
            try:
                change(model)
            except (RuntimeError, AttributeError, TypeError, IndexError, KeyError, ValueError):
                continue  # this change does not fit an earlier one
        model.eval()
        expected, (form,) = stepped(model, None), chance.sample(["fp32", "fp16"], 1)
        if expected.isfinite().all() and expected.std() > 1e-3:
            assert off(stepped(model, form), expected) < (1e-4 if form == "fp32" else 5e-2)
            looked += 1
    assert looked


@pytest.mark.parametrize("form", HERE)
def test_a_product_is_of_these_very_numbers(form):
    """It notices a flipped bit, a flipped sign, two swapped rows, and the opposite sign everywhere."""
    torch.manual_seed(2)
    parts = [torch.randn(32, 64), torch.randn(16, 64)]
    product = Product(parts, form)
    assert product.is_of(parts) and product.is_of([part.clone() for part in parts])
    bit = parts[1].clone()
    bit.view(torch.int32)[3, 5] ^= 1
    sign = parts[1].clone()
    sign[7, 1] *= -1
    rows = parts[1][[1, 0, *range(2, 16)]]
    for other in (bit, sign, rows, -parts[1], parts[1].bfloat16(), parts[1].t(), parts[1][:8]):
        assert not product.is_of([parts[0], other])
    assert not product.is_of(parts[:1]) and not product.is_of(parts[::-1])


def test_a_trained_model_writes_what_it_has_learned():
    """The package's own trainer is used, whose optimizer is fused from a million weights on."""
    config = ModelConfig(
        40, 192, 2, 16, AttentionConfig(4), FeedForwardConfig(768), embedding=EmbeddingConfig(tied=True)
    )
    torch.manual_seed(0)
    model = Transformer(config)
    start = torch.arange(8)[:, None] * 2
    tokens = start + torch.arange(15)
    settings = TrainingConfig(updates=30, learning_rate=3e-3, warmup=3)
    trainer = Trainer(model, lambda _: (tokens[:, :-1], tokens[:, 1:]), settings)
    assert trainer.optimizer.defaults["fused"], "not what this test is about"
    asked = {"max_new_tokens": 11, "sampling": Sampling(0.0)}
    for form in HERE:
        complete(model, [[1]], weights=form, **asked)
    for _ in range(30):
        trainer.update()
    counted = [list(range(2, 13))]
    assert complete(model, [[1]], weights=None, **asked) == counted
    for form in HERE:
        assert complete(model, [[1]], weights=form, **asked) == counted, form
    assert list(generate_long(model, [[1]], weights="int8", **asked)) == [[token] for token in counted[0]]


def test_products_are_made_once_while_the_weights_stay(monkeypatch):
    model, made = model_of(), products(monkeypatch)
    prepared(model, "fp16")
    # In two blocks: queries, keys and values; the output; gate and inner; and outer. In addition, the embedding.
    assert len(made) == 9
    prepared(model, "fp16")
    assert len(made) == 9
    with torch.no_grad():
        model.decoder.blocks[1].feed_forward.gate.weight[3, 4] += 1
    first = prepared(model, "fp16")
    assert len(made) == 10
    gone = weakref.ref(first.unembedding.product)
    del first, model
    made.clear()
    gc.collect()
    assert gone() is None, "the products outlive their model"


def test_a_prepared_model_shares_what_it_does_not_change():
    model = model_of()
    other = prepared(model, "fp16")
    assert other.embedding.weight is model.embedding.weight
    assert other.decoder.blocks[0].attention_norm.weight is model.decoder.blocks[0].attention_norm.weight
    query = other.decoder.blocks[0].attention.query
    assert query.weight is model.decoder.blocks[0].attention.query.weight
    assert (query.in_features, query.out_features, query.bias) == (64, 64, None)
    assert not other.training and model.unembedding is None


def test_a_hook_that_comes_while_a_text_is_written_is_called():
    model, seen = model_of(), []
    steps = generate(model, [[1, 2, 3]], max_new_tokens=5, weights="fp16")
    next(steps), next(steps)
    model.decoder.blocks[1].attention.output.register_forward_hook(lambda *_: seen.append("output"))
    model.embedding.register_forward_hook(lambda *_: seen.append("tokens"))
    assert len(list(steps)) == 3 and seen == ["tokens", "output"] * 3


def test_layers_of_one_x_are_one_product_and_no_part_is_given_twice():
    model = model_of()
    attention = prepared(model, "fp32").decoder.blocks[0].attention
    x = torch.randn(1, 1, 64)
    with torch.inference_mode():
        expected = [layer(x) for layer in (attention.query, attention.key, attention.value)]
        x.mul_(2)  # the same tensor with other values
        found = [layer(x) for layer in (attention.value, attention.query, attention.key)]
    for one, two in zip(expected, (found[1], found[2], found[0]), strict=True):
        torch.testing.assert_close(two, 2 * one)


def test_a_draft_and_a_server_write_with_the_weights_of_now():
    model, small = model_of(), model_of(CONFIG.with_(layers=1), seed=5)
    asked = {"max_new_tokens": 12, "sampling": Sampling(0.0), "weights": "fp32"}
    draft, server = Draft(small), Server(model, rows=2, tokens=40, block=4, weights="fp32")

    def served():
        return server.submit([1, 2], max_new_tokens=12, sampling=Sampling(0.0)).result()

    for change in (lambda _: None, to_each(by_numpy), WAYS["AdamW, fused"]):
        change(model), change(small)
        expected = complete(model, [[1, 2]], **asked | {"weights": None})
        assert complete(model, [[1, 2]], **asked, draft=draft) == expected == [served()]
    change_of_draft = stepped(small, None)
    torch.testing.assert_close(stepped(small, "fp32"), change_of_draft, atol=1e-4, rtol=1e-4)


# The fast format


LARGE = ModelConfig(512, 256, 2, 64, AttentionConfig(4), FeedForwardConfig(688), embedding=EmbeddingConfig(tied=True))


def test_the_fast_form_is_that_of_the_weights_own_dtype_where_it_pays(monkeypatch):
    monkeypatch.setattr(forms, "quicker", lambda form: True)
    model = model_of(LARGE)
    assert form_bytes(model) == 4 * sum(p.numel() for p in model.parameters() if p.ndim == 2) > 4 * 2**20
    assert fast_form(model, 16) == "fp32" and fast_form(copy.deepcopy(model).bfloat16(), 16) == "bf16"
    assert fast_form(copy.deepcopy(model).half(), 99, 6) == "fp16"
    assert fast_form(model, 15) is fast_form(model, 16, 7) is None
    for packed, compiled in ((True, None), (False, "fp32")):  # a compiler cannot trace NumPy's product
        monkeypatch.setattr(forms, "packs", lambda form, packed=packed: packed)
        assert fast_form(model, 16, compile=True) == compiled
    assert fast_form(copy.deepcopy(model).bfloat16(), 16, compile=True) is None
    assert fast_form(model_of(), 16) is None and fast_form(copy.deepcopy(model).double(), 16) is None
    with torch.autocast("cpu"):
        assert fast_form(model, 16) is None
    monkeypatch.setattr(forms, "memory", lambda: 4 * form_bytes(model) - 1)
    assert fast_form(model, 16) is None
    monkeypatch.setattr(forms, "memory", lambda: None)
    monkeypatch.setattr(forms, "quicker", lambda form: False)
    assert fast_form(model, 16) is None


def test_who_says_nothing_gets_the_fast_form_and_the_same_text(monkeypatch):
    monkeypatch.setattr(forms, "quicker", lambda form: True)
    asked = products(monkeypatch)
    model = model_of(LARGE)
    plain = complete(model, [[1, 2, 3]], max_new_tokens=20, sampling=Sampling(0.0), weights=None)
    assert not asked
    assert complete(model, [[1, 2, 3]], max_new_tokens=20, sampling=Sampling(0.0)) == plain
    assert set(asked) == {"fp32"}


def test_quicker_is_what_takes_less_time_than_the_layer_itself(monkeypatch):
    matmul_kernels.quicker.cache_clear()
    slow = torch.randn(1024, 1024)
    for function, found in ((lambda x: x, True), (lambda x: slow @ slow, False)):
        monkeypatch.setattr(matmul_kernels, "packs", lambda form: True)
        monkeypatch.setitem(
            matmul_kernels.PACKED,
            "fp16",
            lambda weight, function=function: matmul_kernels.Made(lambda x: function(x), (), 0),
        )
        monkeypatch.setattr(matmul_kernels, "possible", lambda *_: True)
        matmul_kernels.quicker.cache_clear()
        assert matmul_kernels.quicker("fp16") == found
    matmul_kernels.quicker.cache_clear()
