"""Losses are sums over tokens, never means of means, and bits per byte are right."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from companion.config.model import AttentionConfig, EmbeddingConfig, FeedForwardConfig, ModelConfig, MoEConfig
from companion.training import losses
from companion.training.losses import (
    IGNORE,
    bits_per_byte,
    cross_entropy_sum,
    head_cross_entropy_sum,
    next_token_loss,
    packed_next_token_loss,
    translation_loss,
)
from companion.transformer import Transformer


def test_the_sum_is_minus_ln_p_over_the_scored_positions() -> None:
    logits = torch.tensor([[[0.0, math.log(3.0)], [1.0, 1.0], [9.0, 0.0]]])
    total, count = cross_entropy_sum(logits, torch.tensor([[1, 0, IGNORE]]))
    assert count.item() == 2
    assert total.item() == pytest.approx(-math.log(3 / 4) - math.log(1 / 2))


def test_ignored_positions_get_no_gradient_and_a_batch_without_targets_is_zero() -> None:
    logits = torch.randn(2, 3, 5, requires_grad=True)
    targets = torch.tensor([[1, IGNORE, 4], [IGNORE, IGNORE, IGNORE]])
    cross_entropy_sum(logits, targets)[0].backward()
    assert logits.grad is not None
    scored = logits.grad.abs().sum(-1) > 0
    assert torch.equal(scored, targets != IGNORE)
    total, count = cross_entropy_sum(logits, torch.full((2, 3), IGNORE))
    assert total.item() == 0 and count.item() == 0


def test_half_precision_logits_are_scored_in_fp32() -> None:
    logits, targets = torch.randn(3, 7, 11), torch.randint(11, (3, 7))
    half = logits.bfloat16()
    total, _ = cross_entropy_sum(half, targets)
    assert total.dtype == torch.float32
    wanted = F.cross_entropy(half.float().flatten(0, 1), targets.flatten(), reduction="sum")
    assert total.item() == pytest.approx(wanted.item())


def test_bits_per_byte_of_uniform_bytes_is_eight_and_of_nothing_is_refused() -> None:
    assert bits_per_byte(10 * math.log(256), 10) == pytest.approx(8)
    with pytest.raises(ValueError, match="bytes=0: expected"):
        bits_per_byte(1.0, 0)


# label smoothing


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_label_smoothing_is_pytorchs(smoothing: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 5, 11, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(11, (3, 5))
    targets[0, 2:], targets[2] = IGNORE, IGNORE
    total, count = cross_entropy_sum(logits, targets, smoothing=smoothing)
    theirs = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing
    )
    torch.testing.assert_close(total, theirs)
    assert count.item() == 7
    ours, wanted = (torch.autograd.grad(value, logits, retain_graph=True)[0] for value in (total, theirs))
    torch.testing.assert_close(ours, wanted)


def test_the_gradient_of_label_smoothing_is_p_minus_q_and_its_least_value_the_entropy_of_q() -> None:
    torch.manual_seed(1)
    logits, targets = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True), torch.randint(7, (2, 3))
    q = 0.9 * F.one_hot(targets, 7) + 0.1 / 7
    cross_entropy_sum(logits, targets, smoothing=0.1)[0].backward()
    torch.testing.assert_close(logits.grad, logits.softmax(-1).detach() - q)
    least, _ = cross_entropy_sum(q.log(), targets, smoothing=0.1)
    torch.testing.assert_close(least, -(q * q.log()).sum())


def test_a_smoothing_that_is_no_share_is_refused() -> None:
    for smoothing in (-0.1, 1.0):
        with pytest.raises(ValueError, match=f"smoothing={smoothing}: expected a fraction"):
            cross_entropy_sum(torch.zeros(1, 1, 2), torch.zeros(1, 1, dtype=torch.long), smoothing=smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunk", [1, 30, 1000])
def test_the_loss_in_chunks_is_the_whole_loss_and_so_is_its_gradient(monkeypatch, smoothing, dtype, chunk) -> None:
    """The chunks have one token, or two with a shorter last one, or hold all.

    Some targets do not count, and their logits are not finite.
    """
    torch.manual_seed(0)
    logits = (3 * torch.randn(3, 5, 13)).to(dtype).requires_grad_()
    targets = torch.randint(13, (3, 5))
    targets[1, 2:4] = IGNORE
    outcomes = []
    for whole in (10**9, 0):
        monkeypatch.setattr(losses, "ON_CPU", losses.Limits(whole, chunk))
        total, count = cross_entropy_sum(logits, targets, smoothing=smoothing)
        (gradient,) = torch.autograd.grad(0.7 * total, logits)
        outcomes.append((total, count, gradient))
    (total, count, gradient), (in_chunks, counted, theirs) = outcomes
    assert in_chunks.dtype == total.dtype and theirs.dtype == dtype and count == counted
    close = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(in_chunks, total, rtol=min(close, 1e-5), atol=0)
    torch.testing.assert_close(theirs, gradient, rtol=close, atol=close / 10)
    with torch.no_grad():
        logits[1, 2:4] = math.nan
    total, _ = cross_entropy_sum(logits, targets, smoothing=smoothing)
    assert total.isfinite() and torch.autograd.grad(total, logits)[0].isfinite().all()


@pytest.mark.parametrize("wrong", [-1, 7, 70])
def test_a_target_that_is_no_id_is_named_in_chunks_and_at_once(monkeypatch, wrong) -> None:
    for whole in (10**9, 0):
        monkeypatch.setattr(losses, "ON_CPU", losses.Limits(whole, chunk=14))
        with pytest.raises(
            ValueError, match=f"^targets: Target {wrong} is out of bounds; expected ids from 0 to 6, or -100"
        ):
            cross_entropy_sum(torch.zeros(1, 3, 7), torch.tensor([[2, wrong, IGNORE]]))


def test_in_chunks_no_table_of_tokens_by_vocab_is_kept_beside_the_logits(monkeypatch) -> None:
    """This is tested by the bytes stored for the backward pass, and by the largest tensor in either pass."""

    class Largest(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.wide = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.dtype == torch.float32:
                self.wide = max(self.wide, out.numel())
            return out

    logits = torch.randn(4, 64, 512).bfloat16().requires_grad_()
    targets = torch.randint(512, (4, 64))
    kept: dict[int, int] = {}
    wide: dict[int, int] = {}
    for whole in (10**9, 0):
        monkeypatch.setattr(losses, "ON_CPU", losses.Limits(whole, chunk=8 * 512))
        storages: dict[int, int] = {}

        def pack(tensor, storages=storages):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with Largest() as largest, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            total, _ = cross_entropy_sum(logits, targets)
            total.backward()
        kept[whole], wide[whole] = sum(storages.values()), largest.wide
    assert wide[10**9] == 4 * 64 * 512 and wide[0] == 8 * 512
    assert kept[0] <= logits.nbytes + 4 * 64 * (8 + 4) and kept[10**9] >= 4 * logits.numel()


# the loss through the output head


def small(vocab: int = 13, **ends) -> Transformer:
    torch.manual_seed(0)
    sizes = {"attention": AttentionConfig(2), "feed_forward": FeedForwardConfig(16)}
    later = ends.pop("later", 0)
    config = ModelConfig(vocab=vocab, d_model=8, layers=1, context=9, embedding=EmbeddingConfig(**ends), **sizes)
    model = Transformer(config.with_(medusa_heads=later))
    if model.head_bias is not None:
        torch.nn.init.normal_(model.head_bias)
    return model


HEADS = [{"tied": True}, {"tied": False}, {"tied": True, "head": "biased"}, {"tied": False, "head": "biased"}]
HEADS += [{"tied": True, "logit_divisor": 3.0}, {"tied": True, "logit_softcap": 2.0}]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("made", [1, 30, 1000])
@pytest.mark.parametrize("ends", HEADS, ids=str)
def test_the_loss_through_the_head_is_pytorchs_and_so_is_every_gradient(monkeypatch, ends, made, smoothing) -> None:
    """The chunks have one token, or two with a shorter last one, or hold all; some tokens are not scored."""
    model = small(**ends).double()
    stream = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(13, (3, 5))
    targets[1, 2:4], targets[2, -1] = IGNORE, IGNORE
    monkeypatch.setattr(losses, "ON_CPU", losses.Limits(0, 26, made))
    total, count = head_cross_entropy_sum(model, stream, targets, smoothing=smoothing)
    theirs = F.cross_entropy(
        model.head(stream).flatten(0, 1), targets.flatten(), reduction="sum", label_smoothing=smoothing
    )
    wanted = [stream, *(p for p in model.parameters() if theirs.requires_grad)]
    ours, right = (torch.autograd.grad(0.7 * value, wanted, allow_unused=True) for value in (total, theirs))
    torch.testing.assert_close(total, theirs)
    assert count == 12
    assert [one is None for one in ours] == [one is None for one in right]
    for one, other in zip(ours, right, strict=True):
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        torch.testing.assert_close(head_cross_entropy_sum(model, stream, targets, smoothing=smoothing)[0], theirs)


def test_through_the_head_frozen_weights_get_no_gradient_and_nothing_to_score_is_zero(monkeypatch) -> None:
    monkeypatch.setattr(losses, "ON_CPU", losses.Limits(0, 26, 26))
    model = small(tied=False).requires_grad_(False)
    stream = torch.randn(1, 5, 8, requires_grad=True)
    head_cross_entropy_sum(model, stream, torch.tensor([[1, 2, IGNORE, 3, 4]]))[0].backward()
    assert model.unembedding is not None and model.unembedding.weight.grad is None and stream.grad is not None
    assert [bool(row.any()) for row in stream.grad[0]] == [True, True, False, True, True]
    total, count = head_cross_entropy_sum(model, stream, torch.full((1, 5), IGNORE))
    assert total == 0 and count == 0


@pytest.mark.parametrize("later", [0, 2])
@pytest.mark.parametrize("bf16", [False, True])
def test_a_training_step_through_the_head_is_the_plain_one(monkeypatch, bf16, later) -> None:
    tokens = torch.randint(13, (3, 9))
    outcomes = []
    for whole in (10**9, 0):
        monkeypatch.setattr(losses, "ON_CPU", losses.Limits(whole, 26, 52))
        model = small(tied=True, later=later)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            scored = next_token_loss(model, tokens[:, :-1], tokens[:, 1:])
        (scored.nats if scored.beside is None else scored.nats + scored.beside).backward()
        outcomes.append((scored.nats, scored.tokens, *(p.grad for p in model.parameters())))
    for plain, fused in zip(*outcomes, strict=True):
        fused, plain = fused.double(), plain.double()
        assert (fused - plain).norm() <= (2e-2 if bf16 else 1e-5) * plain.norm()


def test_through_the_head_no_tensor_holds_the_logits_of_all_tokens(monkeypatch) -> None:
    class Largest(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            self.most = max(self.most, out.numel() if isinstance(out, torch.Tensor) else 0)
            return out

    model, tokens = small(vocab=50, tied=True), torch.randint(50, (40, 9))
    # Otherwise the largest tensor is that of the feed-forward network
    for whole, most in ((10**9, 40 * 9 * 50), (0, 40 * 9 * 16)):
        monkeypatch.setattr(losses, "ON_CPU", losses.Limits(whole, 100, 200))
        with Largest() as largest:
            next_token_loss(model, tokens, tokens).nats.backward()
        assert largest.most == most


def test_through_the_head_wrong_targets_and_smoothing_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(losses, "ON_CPU", losses.Limits(0, 26, 26))
    model, stream, right = small(tied=True), torch.randn(1, 3, 8), torch.tensor([[1, 2, 3]])
    for targets, smoothing, message in (
        (torch.tensor([[1, 13, IGNORE]]), 0.0, "^targets: Target 13 is out of bounds; expected ids from 0 to 12"),
        (right, 1.0, "smoothing=1.0: expected a fraction"),
    ):
        with pytest.raises(ValueError, match=message):
            head_cross_entropy_sum(model, stream, targets, smoothing=smoothing)


def test_a_gradient_through_the_head_is_not_differentiated_again_without_a_word(monkeypatch) -> None:
    model, stream = small(tied=True), torch.randn(1, 3, 8, requires_grad=True)

    def penalised() -> torch.Tensor:
        total = head_cross_entropy_sum(model, stream, torch.tensor([[1, 2, 3]]))[0]
        return torch.autograd.grad(total, model.embedding.weight, create_graph=True)[0].square().sum()

    penalised().backward()
    monkeypatch.setattr(losses, "ON_CPU", losses.Limits(38, 26, 26))
    with pytest.raises(RuntimeError, match="cannot be differentiated twice.* at most 38 .*got 39"):
        penalised()  # at once, before anything is differentiated a second time


@pytest.mark.parametrize("loss", ["packed", "translation"])
def test_padding_that_causality_hides_makes_no_mask_for_attention(monkeypatch, loss) -> None:
    """The experts get the mask but attention does not, so a decoder uses the fused causal kernel even with experts."""
    given = []
    theirs = torch.nn.functional.scaled_dot_product_attention

    def noted(q, k, v, attn_mask=None, is_causal=False, **options):
        given.append((q.shape[2] == k.shape[2], attn_mask is None, is_causal))
        return theirs(q, k, v, attn_mask=attn_mask, is_causal=is_causal, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
    stack = "decoder" if loss == "packed" else "encoder_decoder"
    sizes = {"attention": AttentionConfig(2), "feed_forward": FeedForwardConfig(16)}
    config = ModelConfig(vocab=11, d_model=8, layers=2, context=9, stack=stack, **sizes)
    model = Transformer(config.with_(moe=MoEConfig(3, 2)))
    tokens = torch.tensor([[3, 4, 5, 6, 7, 8, 9], [3, 4, 5, 6, 0, 0, 0]])
    if loss == "packed":
        places = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, -1, -1, -1]])
        scored = packed_next_token_loss(model, tokens, places, tokens, hide="padding")
    else:
        scored = translation_loss(model, torch.tensor([[1, 2, 3], [4, 5, 6]]), tokens, tokens, padding=0)
    (decoder,) = {layer.counts.sum().item() for layer in scored.routing if layer.logits.shape[1] == 7}
    assert decoder == 2 * 11  # two experts for each of eleven tokens, three of which are padding
    causal = [unmasked for square, unmasked, triangle in given if square and triangle]
    assert causal == [True, True]


def test_counted_is_for_a_decoder_and_in_place_of_real() -> None:
    sizes = {"attention": AttentionConfig(2), "feed_forward": FeedForwardConfig(16)}
    config = ModelConfig(vocab=11, d_model=8, layers=1, context=9, moe=MoEConfig(3, 2), **sizes)
    tokens, ones = torch.ones(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.long)
    for model, given, message in (
        (Transformer(config), {"token_mask": ones, "attention_mask": ones}, "instead of attention_mask"),
        (Transformer(config.with_(stack="encoder")), {"token_mask": ones}, "only for a decoder"),
        (Transformer(config), {"token_mask": ones[:1]}, r"expected \(2, 5\), one for each token"),
    ):
        with pytest.raises(ValueError, match=message):
            model(tokens, **given)


def test_a_gradient_is_differentiated_again_or_says_that_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a penalty on the gradient's norm, the derivative is right up to a size limit, and raises above it."""

    def penalised(logits: torch.Tensor) -> torch.Tensor:
        targets = torch.tensor([[1, 0, IGNORE], [4, 2, 3]])
        [first] = torch.autograd.grad(cross_entropy_sum(logits, targets)[0], logits, create_graph=True)
        return first.square().sum()

    logits = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(penalised, logits)
    monkeypatch.setattr(losses, "ON_CPU", losses.Limits(whole=29, chunk=10))
    with pytest.raises(RuntimeError, match="cannot be differentiated twice.* at most 29 .*got 30"):
        penalised(logits)
