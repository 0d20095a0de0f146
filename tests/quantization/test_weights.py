"""Weight formats for decoding compute the same function, as closely as their bits allow."""

import weakref

import pytest
import torch
from models import GROUPED, drawn

from companion import MoEConfig, Transformer
from companion.config.model import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LatentConfig,
    LinearConfig,
    NormConfig,
    PositionConfig,
    RotaryScaling,
    WindowConfig,
)
from companion.generation.generate import complete, generate, generate_long
from companion.generation.sampling import Sampling
from companion.layers.cache import KVCache
from companion.quantization import matmul_kernels
from companion.quantization import weights as forms
from companion.quantization.matmul_kernels import Made, Product, possible
from companion.quantization.rounding import in_eight_bits
from companion.quantization.weights import FORMS, prepared, step_bytes

LAYOUTS = {
    "swiglu, grouped, tied": GROUPED,
    "biases, learned positions, untied": GROUPED.with_(
        attention=AttentionConfig(4, bias=True),
        feed_forward=FeedForwardConfig(128, "gelu_tanh", bias=True),
        positions=PositionConfig("learned"),
        norm=NormConfig("layer", "post"),
        embedding=EmbeddingConfig(tied=False),
    ),
    "a vocabulary that is no multiple of a block": GROUPED.with_(vocab=77, norm=NormConfig("rms", unit_offset=True)),
    "experts": GROUPED.with_(moe=MoEConfig(4, 2, shared=1)),
    "sizes that fit no kernel": GROUPED.with_(d_model=40, vocab=45, feed_forward=FeedForwardConfig(50)),
    "encoder-decoder": GROUPED.with_(stack="encoder_decoder"),
    "norms of heads, caps and a window": GROUPED.with_(
        attention=AttentionConfig(
            4, 2, qk_norm="head", score_width=5, softcap=2.0, window=WindowConfig(6, (True, False))
        ),
        norm=NormConfig(placement="both", unit_offset=True),
        embedding=EmbeddingConfig(scaled=True, rounded=True, logit_softcap=3.0),
        positions=PositionConfig(
            partial_rotary_factor=0.5, scaling=RotaryScaling("linear", 2.0), pattern=(True, False)
        ),
    ),
    "linear layers": GROUPED.with_(attention=AttentionConfig(4, linear=LinearConfig((True, False), d_v=12))),
    "latents": GROUPED.with_(attention=AttentionConfig(4, latent=LatentConfig(32, 8, q_lora_rank=64))),
    "latents, queries of the stream": GROUPED.with_(attention=AttentionConfig(4, latent=LatentConfig(24, 8))),
    "multipliers and lists of divisors": GROUPED.with_(
        attention=AttentionConfig(4, 2, score_width=100.0),
        embedding=EmbeddingConfig(multiplier=12.0, logit_divisor=0.5),
        positions=PositionConfig(
            partial_rotary_factor=0.5,
            scaling=RotaryScaling("longrope", 2.0, 64, short=(1.0, 1.1, 1.2, 1.3), long=(1.0, 2.0, 3.0, 4.0)),
        ),
        residual=0.22,
    ),
    "norms of the whole width, after": GROUPED.with_(
        attention=AttentionConfig(4, 2, qk_norm="width"), norm=NormConfig(placement="after")
    ),
    "sinks, gates, and experts in some layers": GROUPED.with_(
        attention=AttentionConfig(4, 2, sinks=True, gate="width"), moe=MoEConfig(4, 2, shared=1, pattern=(False, True))
    ),
}
HERE = [form for form in FORMS if possible(form, "cpu")]
ROUNDING = {"fp32": 1e-5, "fp16": 3e-3, "bf16": 2e-2, "int8": 4e-2, "int4": 0.4}
"""How far logits may be from the model's, as a share of their spread."""


def model_of(config, seed=0):
    return drawn(config, seed=seed, std=0.15).eval()


def inputs_of(config):
    torch.manual_seed(1)
    source = torch.randint(config.vocab, (3, 7)) if config.stack == "encoder_decoder" else None
    return torch.randint(config.vocab, (3, 20)), {} if source is None else {"source": source}


@pytest.mark.parametrize("form", HERE)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_copy_is_the_same_function_as_closely_as_its_bits_allow(layout, form):
    model = model_of(LAYOUTS[layout])
    names = list(model.state_dict())
    tokens, others = inputs_of(model.config)
    with torch.no_grad():
        expected = model(tokens, **others).logits
        found = prepared(model, form)(tokens, **others).logits
        assert torch.equal(model(tokens, **others).logits, expected)
    # Use the median over tokens, because a token between two experts may be sent to the other one.
    error = ((found - expected).square().mean(-1).sqrt() / expected.std()).median()
    assert error < ROUNDING[form]
    if form != "fp32":
        assert error > 1e-5, "the weights are not in that form"
    assert list(model.state_dict()) == names and found.dtype == expected.dtype


@pytest.mark.parametrize("layout", ["swiglu, grouped, tied", "encoder-decoder"])
def test_in_fp32_the_text_is_the_same(layout):
    model = model_of(LAYOUTS[layout])
    _, others = inputs_of(model.config)
    others = {name: tensor.tolist() for name, tensor in others.items()}
    prompts = [[1, 2, 3], [4], [5, 6]]
    for sampling in (Sampling(0.0), Sampling(0.9, top_k=20)):
        options = {"max_new_tokens": 9, "sampling": sampling, "stop": [7], **others}
        assert complete(model, prompts, weights="fp32", **options) == complete(model, prompts, weights=None, **options)
    if not others:
        plain, copied = (
            list(generate_long(model, prompts, max_new_tokens=43, sampling=Sampling(0.0), weights=form))
            for form in (None, "fp32")
        )
        assert plain == copied


def test_the_prompt_is_read_with_the_weights_as_they_are_and_what_is_written_in_the_form():
    """The rows are read together or in a server, with the coarsest format."""
    form = HERE[-1]
    model, new = model_of(GROUPED.with_(embedding=EmbeddingConfig(tied=False))), 9
    prompts = torch.randint(80, (6, 24), generator=torch.Generator().manual_seed(4))
    texts = {}
    for reader in (model, prepared(model, form)):
        cache, ids = KVCache.create(model.config, len(prompts), prompts.shape[1] + new), prompts[:, :0]
        with torch.no_grad():
            out = reader(prompts, cache=cache)
            while ids.shape[1] < new:
                ids = torch.cat((ids, out.logits[:, -1:].argmax(-1)), 1)
                out = prepared(model, form)(ids[:, -1:], cache=out.cache)
        texts[reader] = ids.tolist()
    expected, other = texts.values()
    assert expected != other, "the prompt in the form says the same: it would prove nothing"
    options = {"max_new_tokens": new, "sampling": Sampling(0.0), "weights": form}
    for how in ({}, {"batch_size": 2}):
        assert complete(model, prompts.tolist(), **options, **how) == expected, how


def test_the_form_takes_its_share_of_the_bytes():
    model = model_of(GROUPED)
    whole = step_bytes(prepared(model, "fp32"))
    for form, share in (("fp16", 1 / 2), ("bf16", 1 / 2), ("int8", 1 / 4), ("int4", 1 / 8)):
        if form in HERE:
            found = step_bytes(prepared(model, form)) / whole
            assert share <= found < share * 1.7  # scales, and the head of int4 in int8


def test_a_model_in_training_mode_is_left_in_it():
    model = Transformer(GROUPED.with_(dropout=0.3)).train()
    list(generate(model, [[1]], max_new_tokens=3, weights="fp32"))
    assert model.training and model.decoder.training


@pytest.mark.parametrize("form", [form for form in HERE if form.startswith("int")])
def test_whole_numbers_are_as_close_as_their_levels(form):
    """No weight differs from the original by more than half a level, and rows of zeros stay zeros."""
    torch.manual_seed(3)
    weight = torch.randn(48, 64) * torch.logspace(-3, 1, 48)[:, None]
    weight[5] = 0
    found = Product(weight, form)(torch.eye(64)).t()
    if form == "int8":
        level = weight.abs().amax(1, keepdim=True) / 127
    else:
        groups = weight.unflatten(1, (-1, matmul_kernels.GROUP))
        level = ((groups.amax(-1) - groups.amin(-1)) / 15).repeat_interleave(matmul_kernels.GROUP, 1)
    # The rounding of the result to bf16 is added.
    assert ((found - weight).abs() <= 0.55 * level + 2**-8 * weight.abs() + 1e-9 + (form == "int4") * 0.1 * level).all()
    assert (found[5].abs() < 1e-9).all()


def test_auto_takes_the_form_with_the_quickest_step(monkeypatch):
    model = model_of(GROUPED)
    slow = {"fp32": 4.0, "fp16": 3.0, "bf16": 1.0, "int8": 2.0}
    monkeypatch.setattr(forms, "_step_seconds", lambda made: slow[made.unembedding.product.form])
    assert prepared(model, "auto").unembedding.product.form == "bf16"
    monkeypatch.setattr(forms, "possible", lambda form, device: form != "bf16")
    other = model_of(GROUPED, seed=1)
    assert prepared(other, "auto").unembedding.product.form == "int8"


def test_auto_measures_a_step_of_every_stack():
    for layout in ("experts", "encoder-decoder"):
        assert prepared(model_of(LAYOUTS[layout]), "auto").unembedding.product.form in forms.AUTO


def test_what_cannot_be_is_refused_by_name_before_anything_runs(monkeypatch, unchecked):
    model = model_of(GROUPED)
    with pytest.raises(
        ValueError, match="weights='int3': expected one of fast, fp32, fp16, bf16, int8, int4, auto, or None"
    ):
        generate(model, [[1]], weights="int3")
    monkeypatch.setattr(forms, "possible", lambda form, device: form == "fp32")
    with pytest.raises(
        ValueError,
        match=r"weights='int8': PyTorch has no matrix product .*\(cpu\); the available formats are fp32",
    ):
        generate(model, [[1]], weights="int8")
    reader = Transformer(GROUPED.with_(stack="encoder"))
    with pytest.raises(ValueError, match="weights='fp16': expected a model that generates text, got stack='encoder'"):
        prepared(reader, "fp16")


def test_a_product_that_comes_out_wrong_is_none_that_this_processor_has(monkeypatch):
    possible.cache_clear()
    monkeypatch.setitem(
        matmul_kernels.PACKED, "int8", lambda weight: Made(lambda x: torch.zeros(len(x), len(weight)), (), 0)
    )
    matmul_kernels.packs.cache_clear()
    assert not Product(torch.randn(32, 64), "int8").packed and possible("int8", "cpu")
    possible.cache_clear()
    monkeypatch.setitem(
        matmul_kernels.PLAIN, "int8", lambda weight: Made(lambda x: torch.zeros(len(x), len(weight)), (), 0)
    )
    assert not possible("int8", "cpu") and possible("fp32", "cpu")
    possible.cache_clear()
    matmul_kernels.packs.cache_clear()


@pytest.mark.parametrize("form", [form for form in matmul_kernels.PACKED if matmul_kernels._right(form, "cpu", True)])
def test_packed_and_plain_kernels_compute_the_same(form):
    """They agree up to the plain kernel's rounding of its input and its result.

    A row's result does not depend on the other rows, up to the order of summation: one row, two and ten may use
    different kernels.
    """
    torch.manual_seed(4)
    weight = torch.randn(48, 96) * 0.3
    x = torch.randn(5, 2, 96) * torch.logspace(-3, 3, 10).view(5, 2, 1)
    x[3] = 0
    packed, plain = (Product(weight, form, packed) for packed in (True, False))
    assert packed.packed and packed.bytes == plain.bytes
    found = packed(x)
    assert found.shape == (5, 2, 48)
    size = x.norm(dim=-1, keepdim=True) * weight.norm(dim=-1)
    assert ((found - plain(x)).abs() <= 2**-7 * size).all()
    # Two orders of 96 products in fp32 differ by at most 2 * 96 rounding errors (Higham 2002, section 3.1).
    order = 2 * 96 * 2**-24 * size
    if form == "bf16":  # the kernel rounds its result, possibly in different directions where the sums differ
        order += 2**-7 * found.abs()
    if form == "int8":  # an input whose last bit differs may be rounded to the neighbouring level
        order += x.abs().amax(-1, keepdim=True) / (2 * matmul_kernels.LEVELS**2) * weight.abs().sum(-1)
    assert ((packed(x[2:3]) - found[2:3]).abs() <= order[2:3]).all()
    for row in (0, 4):
        assert ((packed(x[row, :1]) - found[row, :1]).abs() <= order[row, :1]).all()
    assert not found[3].any() and not packed(x[3, :1]).any()
    inputs = torch.full((1, 96), torch.nan)
    assert packed(inputs).isnan().all()
    inputs = torch.ones(1, 96).index_fill_(1, torch.tensor([7]), torch.inf)
    assert not packed(inputs).isfinite().any()


def test_numpy_multiplies_only_where_it_is_quicker(monkeypatch):
    slow = torch.randn(1024, 1024)
    monkeypatch.setattr(matmul_kernels, "_right", lambda *_: True)
    for made, taken in ((lambda x: x, True), (lambda x: slow @ slow, False)):
        monkeypatch.setitem(matmul_kernels.PACKED, "fp32", lambda weight, made=made: Made(made, (), 0))
        matmul_kernels.packs.cache_clear()
        assert matmul_kernels.packs("fp32") == taken
    matmul_kernels.packs.cache_clear()


def test_small_matrices_lie_in_one_block_and_do_not_touch(monkeypatch):
    """A block is freed after the last of its matrices."""
    monkeypatch.setattr(matmul_kernels, "_block", None)
    weights = [torch.full((out, 75), float(out)) for out in (37, 5, 61)]
    makers = [matmul_kernels._in_large_pages(weight) for weight in weights]
    assert len({id(made.base) for made in makers}) == 1
    assert all((made == weight.numpy()).all() for made, weight in zip(makers, weights, strict=True))
    assert all(made.ctypes.data % 64 == makers[0].ctypes.data % 64 for made in makers)
    large = matmul_kernels._in_large_pages(torch.ones(3, matmul_kernels.BLOCK))
    assert large.base is not makers[0].base and (large == 1).all()
    block = weakref.ref(makers[0].base)
    del makers[1:]
    assert block() is not None
    del makers
    assert block() is None


def test_whole_numbers_in_place_of_inputs_lose_next_to_nothing():
    """The error of the int8 product is that of the weights, even with an outlier; the plain kernel rounds x to bf16."""
    torch.manual_seed(5)
    weight, x = torch.randn(64, 256), torch.randn(3, 256)
    x[0, 17] = 80.0
    levels, scale = in_eight_bits(weight)
    expected = x.double() @ (levels.double() * scale.double()[:, None]).t()
    product = Product(weight, "int8")
    error = (product(x) - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert (error < (1e-3 if product.packed else 1e-2)).all()


def test_a_matrix_beyond_half_precision_is_kept_in_bf16():
    weight = torch.randn(16, 32)
    weight[3, 4] = 1e5
    product = Product(weight, "fp16")
    assert product.form == "bf16" and product(torch.ones(1, 32)).isfinite().all()
