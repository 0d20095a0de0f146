"""Calibrated rounding is never worse than rounding to the nearest level, and gives the result of its definition."""

import pytest
import torch
from models import GROUPED, drawn

from companion.config.model import AttentionConfig, EmbeddingConfig, FeedForwardConfig, MoEConfig
from companion.generation.generate import complete
from companion.generation.sampling import Sampling
from companion.quantization.calibration import (
    DAMP,
    Moments,
    balancing,
    calibrate,
    corrected_levels,
    output_error,
    rounded_by,
    windows_of,
)
from companion.quantization.matmul_kernels import possible
from companion.quantization.rounding import GROUP, in_four_bits, nearest_level
from companion.quantization.weights import four_bit_layers, prepared, rounded_of, step_bytes
from companion.transformer import Transformer

ONLY_HERE = pytest.mark.parametrize("form", ["int4"] if possible("int4", "cpu") else [])


def inputs_of(rows: int, d_in: int, seed: int) -> torch.Tensor:
    """Return correlated inputs, with two channels that are far larger than the others."""
    drawn_ = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, d_in, generator=drawn_) @ torch.randn(d_in, d_in, generator=drawn_) / d_in**0.5
    x[:, [3, d_in - 2]] *= 30
    return x


def by_definition(weight: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """Round the entries of each row one by one.

    After each one, the remaining entries are set to the values that minimize the output error, given the rounded ones.
    This least-squares problem is solved from scratch each time.
    """
    plain, order = in_four_bits(weight.float()), h.diagonal().argsort(descending=True, stable=True)
    damped = h.clone()
    damped.diagonal().add_(DAMP * h.diagonal().mean())
    scale, middle = (part.double().repeat_interleave(GROUP, 1) for part in (plain.scale, plain.middle))
    found = torch.empty_like(weight)
    for row, wanted in enumerate(weight):
        now = wanted.clone()
        for place, j in enumerate(order):
            level = nearest_level(now[j], scale[row, j], middle[row, j])
            now[j] = (level.double() - 8) * scale[row, j] + middle[row, j]
            fixed, left = order[: place + 1], order[place + 1 :]
            asked = damped[left][:, fixed] @ (now[fixed] - wanted[fixed])
            now[left] = wanted[left] - torch.linalg.solve(damped[left][:, left], asked)
        found[row] = now
    return found


@pytest.mark.parametrize("seed", range(6))
def test_no_row_is_worse_than_at_its_nearest_levels_and_the_whole_is_better(seed) -> None:
    torch.manual_seed(seed)
    weight, x = torch.randn(24 + 8 * seed, 96) * torch.rand(96).exp(), inputs_of(300, 96, seed)
    moments = Moments(x.double().T @ x.double())
    plain, chosen = in_four_bits(weight), corrected_levels(weight, moments)
    assert torch.equal(plain.scale, chosen.scale) and torch.equal(plain.middle, chosen.middle)
    assert plain.levels.shape == chosen.levels.shape and plain.levels.dtype == chosen.levels.dtype == torch.uint8
    before, after = (output_error(weight, rounded, moments.h) for rounded in (plain, chosen))
    assert (after <= before).all() and float(after.sum()) < 0.5 * float(before.sum())
    # The sum equals the error of the layer's outputs for these inputs.
    gives = (x.double() @ (chosen.numbers(torch.float64) - weight.double()).T).square().sum(0)
    torch.testing.assert_close(after, gives, rtol=1e-6, atol=1e-9)


def test_it_is_the_definition_solved_by_one_factor() -> None:
    """The remaining entries, computed from the Cholesky factor, are the least-squares solutions to within 1e-10."""
    torch.manual_seed(7)
    weight, x = torch.randn(5, 64).double(), inputs_of(150, 64, 7).double()
    moments = Moments(x.T @ x)
    expected = by_definition(weight, moments.h)
    before = output_error(weight, in_four_bits(weight.float()), moments.h)
    worse = ((expected - weight) @ moments.h * (expected - weight)).sum(-1) >= before
    assert not worse.any()
    found = corrected_levels(weight, moments).numbers(torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_with_inputs_that_do_not_lean_on_each_other_it_is_rounding() -> None:
    torch.manual_seed(8)
    weight = torch.randn(16, 64)
    found = corrected_levels(weight, Moments(torch.eye(64) * 3))
    assert torch.equal(found.levels, in_four_bits(weight).levels)
    # A channel that is always zero does not affect the others.
    x = inputs_of(200, 64, 8)
    x[:, 11] = 0
    found = corrected_levels(weight, Moments(x.T @ x))
    assert found.numbers().isfinite().all()


def test_columns_are_balanced_by_powers_of_two_where_that_helps() -> None:
    """Channels are balanced by powers of two only if that reduces the error.

    A channel whose inputs are 32 times as large, and its weights 32 times as small, is rounded like the others, with
    the same error as without this factor. If no channel stands out, nothing is balanced without a benefit.
    """
    torch.manual_seed(3)
    weight, x = torch.randn(40, 64).double(), torch.randn(500, 64).double()
    h, wild = x.T @ x, torch.ones(64).double()
    wild[[4, 40]], wild[[9, 33]] = 32, 1 / 32
    left = [float(output_error(weight, rounded_by(weight, h), h).sum())]
    outside, inside = weight / wild, h * wild * wild[:, None]
    factor = balancing(outside, inside)
    assert torch.equal(factor.double().log2(), factor.double().log2().round()) and factor.dtype == torch.bfloat16
    ratio = factor.double() * wild
    assert float(ratio.min()) >= 0.5 and float(ratio.max()) <= 2
    found = rounded_by(outside, inside)
    left += [float(output_error(outside, one, inside).sum()) for one in (found, in_four_bits(outside.float()))]
    assert left[1] < 1.3 * left[0] and left[2] > 20 * left[0]
    gives = (x * wild) @ (found.numbers(torch.float64) - outside).T
    assert float(gives.square().sum()) == pytest.approx(left[1], rel=1e-6)


@ONLY_HERE
@pytest.mark.parametrize(
    "config",
    [
        GROUPED,
        GROUPED.with_(attention=AttentionConfig(4, bias=True), embedding=EmbeddingConfig(tied=False), vocab=77),
        GROUPED.with_(moe=MoEConfig(4, 2, shared=1, pattern=(False, True))),
        GROUPED.with_(stack="encoder_decoder"),
        GROUPED.with_(feed_forward=FeedForwardConfig(50)),
    ],
    ids=["plain", "biases", "experts", "encoder-decoder", "a width of no whole groups"],
)
def test_a_calibrated_model_is_nearer_at_the_same_bytes(config, form) -> None:
    model = drawn(config, std=0.15).eval()
    torch.manual_seed(1)
    tokens = torch.randint(config.vocab, (24, 40))
    inputs = {"source": torch.randint(config.vocab, (24, 7))} if config.stack == "encoder_decoder" else {}
    with torch.no_grad():
        wanted = model(tokens, **inputs).logits
        plain = prepared(model, form)
        far = (plain(tokens, **inputs).logits - wanted).square().mean()
        before = {name: weight.clone() for name, weight in model.state_dict().items()}
        found = calibrate(model.train(), tokens, **inputs)
        assert model.training and found.chosen < found.plain and found.tokens == 960
        said = f"{found.layers} matrices, calibrated on 960 tokens: squared error of their outputs 0."
        assert str(found).startswith(said)
        made = prepared(model.eval(), form)
        near = (made(tokens, **inputs).logits - wanted).square().mean()
    balanced = [group for group in four_bit_layers(model) if rounded_of(group)[0].factor is not None]
    assert step_bytes(made) == step_bytes(plain) + sum(2 * group[0].in_features for group in balanced)
    assert near < 0.8 * far
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


@ONLY_HERE
def test_levels_are_those_of_the_weights_that_were_read(form) -> None:
    """Levels apply to fused and to separate layers, but not to a weight that has changed since calibration."""
    model = drawn(GROUPED, std=0.15).eval()
    torch.manual_seed(1)
    tokens = torch.randint(80, (8, 40))
    options = {"max_new_tokens": 12, "sampling": Sampling(0.0), "weights": form}
    with torch.no_grad():
        before, first = prepared(model, form)(tokens).logits, complete(model, [[1, 2]], **options)
        calibrate(model, tokens)
        after = prepared(model, form)(tokens).logits
        apart = prepared(model, form, together=False)(tokens).logits
        assert not torch.equal(before, after)
        torch.testing.assert_close(after, apart, rtol=1e-2, atol=1e-2)
        second = complete(model, [[1, 2]], **options)
        assert second == complete(model, [[1, 2]], **options) != first
        for layer in model.decoder.modules():
            if isinstance(layer, torch.nn.Linear):
                layer.weight += 0  # the values do not change
        assert torch.equal(prepared(model, form)(tokens).logits, after)
        compiled = torch.compile(prepared(model, form, together=False), backend="eager")
        torch.testing.assert_close(compiled(tokens).logits, apart, rtol=1e-2, atol=1e-2)
        changed = model.decoder.blocks[0].attention.query
        changed.weight[0, 0] += 1
        assert rounded_of([changed]) is None
        assert prepared(model, form)(tokens).logits.isfinite().all()


def test_windows_come_from_all_over_a_text(monkeypatch) -> None:
    ids = torch.arange(1000)
    assert windows_of(ids[:7], 40).tolist() == [list(range(7))]
    assert windows_of(ids, 300).shape == (3, 300)
    monkeypatch.setattr("companion.quantization.calibration.TOKENS", 80)
    found = windows_of(ids, 20)
    assert found.shape == (4, 20) and found[0, 0] == 0 and found[-1, -1] == 999
    with pytest.raises(ValueError, match="expected at least one token"):
        windows_of(ids[:0], 20)


def test_what_cannot_be_is_named(unchecked) -> None:
    weight, eye = torch.randn(4, 64), torch.eye(64)
    with pytest.raises(ValueError, match=r"weight has shape \(4, 50\): expected a number of columns that equals"):
        corrected_levels(torch.randn(4, 50), Moments(torch.eye(50)))
    with pytest.raises(ValueError, match=r"weight has shape \(4, 64\): expected .* the number of rows of moments, 32"):
        corrected_levels(weight, Moments(torch.eye(32)))
    with pytest.raises(ValueError, match=r"moments has shape \(64, 64\): expected a square matrix of finite numbers"):
        Moments(eye * float("nan"))
    model = Transformer(GROUPED)
    with pytest.raises(ValueError, match=r"tokens has shape \(0, 4\): expected at least one row and one token"):
        calibrate(model, torch.zeros(0, 4, dtype=torch.long))
    with pytest.raises(ValueError, match="tokens"):
        calibrate(model, torch.rand(2, 4))
    with pytest.raises(ValueError, match="expected a model that generates text"):
        calibrate(Transformer(GROUPED.with_(stack="encoder")), torch.ones(1, 4, dtype=torch.long))
    narrow = Transformer(GROUPED.with_(d_model=40, feed_forward=FeedForwardConfig(50)))
    with pytest.raises(ValueError, match="expected linear layers whose input width is a multiple of 32"):
        calibrate(narrow, torch.ones(1, 4, dtype=torch.long))
