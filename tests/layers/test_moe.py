"""Mixture of experts: routing, three implementations of the same function, capacity, and gradients."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from transformers import DeepseekV2Config, DeepseekV3Config, GptOssConfig, Llama4TextConfig, Qwen3MoeConfig
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP
from transformers.models.llama4.modeling_llama4 import Llama4TextMoe
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from companion import (
    AttentionConfig,
    FeedForward,
    FeedForwardConfig,
    KVCache,
    ModelConfig,
    MoE,
    MoEConfig,
    Transformer,
    route,
)
from companion.costs.account import counted_flops

GATINGS = ("topk_softmax", "softmax_topk", "softmax_topk_renormalised", "sigmoid", "sigmoid_topk")
RAW = ("softmax_topk", "sigmoid_topk")  # weights that are not normalized by their sum


def moe(activation="relu", experts=5, top_k=2, d_model=6, d_ff=7, seed=0, bias=False, **config):
    torch.manual_seed(seed)
    layer = MoE(d_model, FeedForwardConfig(d_ff, activation, bias), MoEConfig(experts, top_k, **config)).double()
    for name, parameter in layer.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    if layer.bias is not None:
        layer.bias += 0.1 * torch.randn(experts, dtype=torch.float64)
    return layer


def dense(layer, x, routing):
    """Apply every expert to every token and add up the weighted results: the formula, without sorting or skipping."""
    zeros = torch.zeros_like(routing.logits)
    visits = torch.ones_like(routing.weights) if routing.kept is None else routing.kept.to(routing.weights)
    visited, shares = (zeros.scatter(-1, routing.experts, values) for values in (visits, routing.weights))
    out = torch.zeros_like(x)
    for e in range(shares.shape[-1]):
        share = shares[..., e, None]
        asked = share * x if layer.config.weighted == "input" else x
        answer = layer.expert(e, asked.flatten(0, 1)).view_as(x)
        out = out + visited[..., e, None] * (answer if layer.config.weighted == "input" else share * answer)
    return out if layer.shared is None else out + layer.shared(x)


def results(layer, x, **call):
    """Return the output and the gradients of x and of every parameter."""
    torch.manual_seed(1)
    x = x.clone().requires_grad_()
    out, routing = layer(x, **call)
    towards = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)
    grads = torch.autograd.grad((out * towards).sum(), [x, *layer.parameters()], materialize_grads=True)
    return out, routing, grads


# Routing


def test_the_gatings_are_their_formulas():
    torch.manual_seed(0)
    logits = torch.randn(3, 4, 5, dtype=torch.float64)
    z, experts = logits.topk(2)
    p, s = logits.softmax(-1).gather(-1, experts), z.sigmoid()
    formulas = z.softmax(-1), p, p / p.sum(-1, keepdim=True), s / s.sum(-1, keepdim=True), s
    expected = dict(zip(GATINGS, formulas, strict=True))
    for gating, weights in expected.items():
        routing = route(logits, 2, gating)
        assert torch.equal(routing.experts, experts)
        torch.testing.assert_close(routing.weights, weights)
        assert routing.counts.sum() == 3 * 4 * 2
    torch.testing.assert_close(expected["topk_softmax"], expected["softmax_topk_renormalised"])
    assert (expected["softmax_topk"].sum(-1) < 1).all()
    assert not torch.allclose(expected["sigmoid"], expected["topk_softmax"], atol=1e-3)


@pytest.mark.parametrize("normalised", [True, False])
def test_a_released_router_normalises_its_weights_or_does_not(normalised):
    theirs = Qwen3MoeTopKRouter(
        Qwen3MoeConfig(hidden_size=6, num_experts=5, num_experts_per_tok=3, norm_topk_prob=normalised)
    )
    torch.manual_seed(0)
    torch.nn.init.normal_(theirs.weight)
    x = torch.randn(2, 4, 6)
    logits, weights, experts = theirs(x)
    ours = route(logits, 3, "softmax_topk_renormalised" if normalised else "softmax_topk")
    assert torch.equal(ours.experts, experts)
    torch.testing.assert_close(ours.weights, weights)


@pytest.mark.parametrize("best", [1, 2])
@pytest.mark.parametrize("biased", [False, True])
def test_a_token_chooses_among_the_experts_of_its_best_groups(best, biased):
    torch.manual_seed(0)
    logits, bias = torch.randn(3, 40, 12, dtype=torch.float64), 0.1 * torch.randn(12).double() if biased else None
    routing = route(logits, 3, "sigmoid", bias=bias, groups=4, top_groups=2, group_best=best, scale=2.5)
    torch.testing.assert_close(routing.weights.sum(-1), torch.full((3, 40), 2.5).double())
    differs = 0
    for row, chosen in zip(logits.flatten(0, 1), routing.experts.flatten(0, 1).tolist(), strict=True):
        scores = (row.sigmoid() + (0 if bias is None else bias)).tolist()
        groups = [sorted(range(g, g + 3), key=scores.__getitem__, reverse=True) for g in (0, 3, 6, 9)]
        groups.sort(key=lambda group: sum(scores[e] for e in group[:best]), reverse=True)
        assert chosen == sorted(groups[0] + groups[1], key=scores.__getitem__, reverse=True)[:3]
        differs += chosen != sorted(range(12), key=scores.__getitem__, reverse=True)[:3]
    assert differs > 10
    everything = route(logits, 3, "sigmoid", bias=bias, groups=4, top_groups=4, group_best=best)
    assert torch.equal(everything.experts, route(logits, 3, "sigmoid", bias=bias).experts)


def test_the_router_of_deepseek_v3_is_this_one():
    theirs = DeepseekV3TopkRouter(
        DeepseekV3Config(
            hidden_size=6,
            n_routed_experts=12,
            num_experts_per_tok=4,
            n_group=4,
            topk_group=2,
            routed_scaling_factor=2.5,
        )
    )
    torch.manual_seed(0)
    torch.nn.init.normal_(theirs.weight)
    torch.nn.init.normal_(theirs.e_score_correction_bias, std=0.3)
    logits, weights, experts = theirs(torch.randn(2, 40, 6))
    ours = route(logits, 4, "sigmoid", bias=theirs.e_score_correction_bias, groups=4, top_groups=2, scale=2.5)
    shares = torch.zeros_like(logits)
    torch.testing.assert_close(
        shares.scatter(-1, ours.experts, ours.weights), shares.scatter(-1, experts, weights), rtol=1e-5, atol=1e-6
    )


def test_the_router_of_deepseek_v2_is_this_one():
    theirs = DeepseekV2TopkRouter(
        DeepseekV2Config(
            hidden_size=6, n_routed_experts=12, num_experts_per_tok=4, n_group=4, topk_group=2,
            routed_scaling_factor=16.0, topk_method="group_limited_greedy", num_attention_heads=2,
            num_key_value_heads=2,
        )
    )  # fmt: skip
    torch.manual_seed(0)
    torch.nn.init.normal_(theirs.weight)
    logits, weights, experts = theirs(torch.randn(2, 40, 6))
    ours = route(logits, 4, "softmax_topk", groups=4, top_groups=2, group_best=1, scale=16.0)
    shares = torch.zeros_like(logits)
    torch.testing.assert_close(
        shares.scatter(-1, ours.experts, ours.weights), shares.scatter(-1, experts, weights), rtol=1e-5, atol=1e-6
    )


def test_the_experts_of_gpt_oss_are_these():
    theirs = GptOssMLP(GptOssConfig(hidden_size=8, num_local_experts=5, num_experts_per_tok=2, intermediate_size=12))
    torch.manual_seed(0)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    ours = MoE(8, FeedForwardConfig(12, "swiglu_clamped", bias=True), MoEConfig(5, 2, router_bias=True))
    experts = theirs.experts
    ours.load_state_dict(
        {
            "router.weight": theirs.router.weight, "router.bias": theirs.router.bias,
            "gate": experts.gate_up_proj[..., ::2], "gate_bias": experts.gate_up_proj_bias[..., ::2],
            "inner": experts.gate_up_proj[..., 1::2], "inner_bias": experts.gate_up_proj_bias[..., 1::2],
            "outer": experts.down_proj, "outer_bias": experts.down_proj_bias,
        }
    )  # fmt: skip
    x = 3 * torch.randn(2, 9, 8)
    assert (x @ ours.inner[0]).abs().max() > 7  # some values are clamped
    expected = theirs(x)[0]
    for way in ("loop", "grouped", "every"):
        torch.testing.assert_close(ours(x, experts=way)[0], expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(ours(x[:1, :2], experts="gather")[0], expected[:1, :2], rtol=1e-5, atol=1e-4)


def test_the_experts_of_llama_4_are_these():
    theirs = Llama4TextMoe(Llama4TextConfig(hidden_size=8, num_local_experts=5, intermediate_size=12))
    torch.manual_seed(0)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    ours = MoE(8, FeedForwardConfig(12), MoEConfig(5, 1, "sigmoid_topk", shared=1, weighted="input"))
    gate, inner = theirs.experts.gate_up_proj.chunk(2, -1)
    shared = theirs.shared_expert
    ours.load_state_dict(
        {
            "router.weight": theirs.router.weight, "gate": gate, "inner": inner, "outer": theirs.experts.down_proj,
            "shared.gate.weight": shared.gate_proj.weight, "shared.inner.weight": shared.up_proj.weight,
            "shared.outer.weight": shared.down_proj.weight,
        }
    )  # fmt: skip
    x = torch.randn(2, 9, 8)
    torch.testing.assert_close(ours(x)[0].flatten(0, 1), theirs(x)[0], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("gating", GATINGS)
def test_extreme_logits_give_finite_weights_and_gradients(gating):
    logits = torch.tensor([[-400.0, -300.0, -350.0], [300.0, 200.0, 299.0], [0.0, 0.0, 0.0]], requires_grad=True)
    routing = route(logits, 2, gating)
    assert routing.experts[:2].tolist() == [[1, 2], [0, 2]]  # sigmoids of 300 and 299 are the same float
    torch.testing.assert_close(routing.weights[0], torch.tensor([0.0 if gating == "sigmoid_topk" else 1.0, 0.0]))
    routing.weights[:, 0].sum().backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("gating", GATINGS)
def test_with_one_expert_a_token_only_the_raw_probability_teaches_the_router(gating):
    layer = moe(top_k=1, gating=gating)
    out, routing = layer(torch.randn(2, 4, 6, dtype=torch.float64))
    out.square().sum().backward()
    if gating in RAW:
        assert layer.router.weight.grad.abs().max() > 1e-3
    else:
        assert (routing.weights == 1).all()
        assert layer.router.weight.grad.abs().max() == 0


@pytest.mark.parametrize("gating", GATINGS)
def test_the_bias_changes_who_is_chosen_and_not_what_they_weigh(gating):
    torch.manual_seed(0)
    logits = torch.randn(7, 5, dtype=torch.float64)
    plain, none = route(logits, 2, gating), route(logits, 2, gating, bias=torch.zeros(5))
    assert torch.equal(plain.experts, none.experts)
    torch.testing.assert_close(plain.weights, none.weights)
    biased = route(logits, 2, gating, bias=torch.tensor([0.0, 0.0, 0.0, 2.0, 2.0]))
    assert biased.experts.sort(-1).values.tolist() == [[3, 4]] * 7
    scores = logits.sigmoid() if gating.startswith("sigmoid") else logits.softmax(-1)
    expected = scores.gather(-1, biased.experts)
    if gating not in RAW:
        expected = expected / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(biased.weights, expected)


def test_half_precision_logits_are_weighed_in_fp32():
    logits = torch.randn(4, 5).bfloat16()
    torch.testing.assert_close(route(logits, 2).weights, route(logits.float(), 2).weights)
    assert route(logits, 2).weights.dtype == torch.float32


def test_noise_moves_the_choice_in_training_and_never_in_evaluation():
    layer, x = moe(noise=5.0), torch.randn(3, 8, 6, dtype=torch.float64)
    one, other = layer(x)[1], layer(x)[1]
    assert not torch.equal(one.experts, other.experts)
    spread = torch.cat([(layer(x)[1].logits - layer.router(x)).flatten() for _ in range(50)])
    assert spread.std().item() == pytest.approx(5.0, rel=0.05) and abs(spread.mean().item()) < 0.3
    layer.eval()
    assert torch.equal(layer(x)[1].logits, layer.router(x))


# Statistics


def test_load_entropy_and_effective_experts_at_both_ends():
    even = route(torch.eye(4).repeat(3, 1) * 9, 1)
    assert even.load.tolist() == [0.25] * 4
    assert even.entropy.item() == pytest.approx(math.log(4)) and even.effective_experts.item() == pytest.approx(4)
    one = route(torch.tensor([0.0, 9.0, 0.0, 0.0]).repeat(5, 1), 1)
    assert one.load.tolist() == [0, 1, 0, 0]
    assert one.entropy.item() == 0 and one.effective_experts.item() == 1 and one.dropped.item() == 0
    nobody = route(torch.zeros(0, 4), 2)
    assert nobody.load.tolist() == [0] * 4 and nobody.dropped.item() == 0


@pytest.mark.parametrize("way", ["loop", "gather"])
def test_padding_is_computed_but_not_counted(way):
    layer, x = moe(experts=9).eval(), torch.randn(2, 2, 6, dtype=torch.float64)
    attention_mask = torch.tensor([[True, False], [True, True]])
    out, routing = layer(x, attention_mask=attention_mask, experts=way)
    plain, everything = layer(x, experts=way)
    assert torch.equal(out, plain)
    assert torch.equal(routing.counts, torch.bincount(routing.experts[attention_mask].flatten(), minlength=9))
    assert routing.counts.sum() == 6 and everything.counts.sum() == 8


# Three implementations


@st.composite
def cases(draw):
    experts = draw(st.integers(1, 6))
    return {
        "batch": draw(st.integers(1, 3)),
        "length": draw(st.integers(0, 6)),
        "d_model": 4 * draw(st.integers(1, 3)),
        "d_ff": 4 * draw(st.integers(1, 5)),
        "experts": experts,
        "top_k": draw(st.integers(1, experts)),
        "activation": draw(st.sampled_from(["relu", "gelu", "silu", "swiglu", "swiglu_clamped"])),
        "bias": draw(st.booleans()),
        "router_bias": draw(st.booleans()),
        "weighted": draw(st.sampled_from(["output", "input"])),
        "scale": draw(st.sampled_from([1.0, 2.5])),
        "gating": draw(st.sampled_from(GATINGS)),
        "shared": draw(st.integers(0, 2)),
        "capacity": draw(st.none() | st.sampled_from([0.3, 0.7, 1.0, 1.25])),
        "balanced": draw(st.booleans()),
        "padded": draw(st.booleans()),
        "all_to_one": draw(st.booleans()),
        "seed": draw(st.integers(0, 99)),
    }


CASE = {
    "batch": 2, "length": 5, "d_model": 8, "d_ff": 12, "experts": 4, "top_k": 2, "activation": "swiglu",
    "bias": False, "router_bias": False, "weighted": "output", "scale": 1.0,
    "gating": "topk_softmax", "shared": 1, "capacity": None, "balanced": False, "padded": False, "all_to_one": False,
    "seed": 0,
}  # fmt: skip


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(cases())
@example(CASE | {"length": 0})
@example(CASE | {"all_to_one": True, "top_k": 1})
@example(CASE | {"top_k": 4})
@example(CASE | {"bias": True, "weighted": "input", "capacity": 0.7, "activation": "swiglu_clamped"})
@example(CASE | {"all_to_one": True, "top_k": 1, "capacity": 0.3})
@example(CASE | {"batch": 1, "length": 2, "capacity": 0.3, "padded": True})
def test_all_ways_agree_with_the_formula_and_with_each_other_forward_and_backward(case):
    case = dict(case)
    shape = case.pop("batch"), case.pop("length"), case["d_model"]
    padded, all_to_one = case.pop("padded"), case.pop("all_to_one")
    layer = moe(**case)
    x = torch.randn(shape, dtype=torch.float64)
    if all_to_one:  # the other experts get no tokens if top_k is 1
        x = x.abs()
        with torch.no_grad():
            layer.router.weight[0] = 3.0
    attention_mask = torch.rand(shape[:2]) < 0.7 if padded else None

    out, routing, grads = results(layer, x, attention_mask=attention_mask, experts="loop")
    leaf = x.clone().requires_grad_()
    logits = layer.router(leaf)
    again = route(logits, case["top_k"], case["gating"], bias=layer.bias, scale=case["scale"])
    again = again._replace(kept=routing.kept)
    formula = dense(layer, leaf, again)
    torch.testing.assert_close(out, formula)
    towards = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)
    expected = torch.autograd.grad((formula * towards).sum(), [leaf, *layer.parameters()], materialize_grads=True)
    for a, b in zip(grads, expected, strict=True):
        torch.testing.assert_close(a, b)

    layer, x = layer.float(), x.float()
    out, routing, grads = results(layer, x, attention_mask=attention_mask, experts="loop")
    grouped, where, others = results(layer, x, attention_mask=attention_mask, experts="grouped")
    assert torch.equal(where.experts, routing.experts)
    for a, b in zip([grouped, *others], [out, *grads], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)  # the same products, with operands at other addresses
    if routing.experts.numel() <= case["experts"]:
        gathered, _, others = results(layer, x, attention_mask=attention_mask, experts="gather")
        torch.testing.assert_close(gathered, out, rtol=1e-5, atol=1e-6)
        for a, b in zip(others, grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(results(layer, x, attention_mask=attention_mask)[0], out, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_grouped_equals_the_loop_in_half_precision(dtype):
    layer = moe(d_model=16, d_ff=24, experts=6, top_k=3).to(dtype)
    x = torch.randn(2, 9, 16).to(dtype)
    loop, grouped = results(layer, x, experts="loop"), results(layer, x, experts="grouped")
    for a, b in zip([loop[0], *loop[2]], [grouped[0], *grouped[2]], strict=True):
        # a sum in another order may be rounded differently, which the next layer may amplify
        torch.testing.assert_close(a, b, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)


def test_products_are_computed_in_the_precision_that_autocast_asks_for():
    layer, x = moe(d_model=16, d_ff=24).float(), torch.randn(2, 9, 16)
    full = layer(x)[0]
    with torch.autocast("cpu", torch.bfloat16):
        loop, grouped = (layer(x, experts=way)[0] for way in ("loop", "grouped"))
    torch.testing.assert_close(loop, grouped, rtol=2**-6, atol=2**-8)  # bfloat16 has 8 bits of precision
    assert loop.dtype == torch.float32
    assert 0 < (loop - full).abs().max() < 0.05


def test_the_loop_has_the_right_gradient_in_fp64_also_with_dropped_tokens():
    layer = moe("swiglu", experts=3, d_model=4, d_ff=5, capacity=0.5, shared=1)
    with torch.no_grad():
        layer.router.weight *= 4  # away from ties, where a small step would change the choice
    x = torch.randn(1, 4, 4, dtype=torch.float64, requires_grad=True)
    assert layer(x)[1].dropped > 0
    assert torch.autograd.gradcheck(lambda x: layer(x)[0], x)


@pytest.fixture
def half_precision():
    """Use the one dtype in which PyTorch 2.13 supports grouped products of fake tensors."""
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("way", ["grouped", "gather"])
@pytest.mark.parametrize("capacity", [None, 1.1])
def test_fast_ways_never_wait_for_the_device(way, capacity, half_precision):
    """Fake tensors have shapes but no values, so whatever needs a value from the device raises an error."""

    def step(way):
        with FakeTensorMode():
            config = MoEConfig(16, 2, capacity=capacity, balanced=True, noise=0.1, shared=1)
            layer = MoE(8, FeedForwardConfig(24), config)
            x = torch.randn(2, 4, 8, requires_grad=True)
            out, routing = layer(x, attention_mask=torch.ones(2, 4, dtype=torch.bool), experts=way)
            out.sum().backward()
            return routing.load, routing.effective_experts, routing.dropped

    assert step(way)[0].shape == (16,)
    with pytest.raises(DataDependentOutputException):
        step("loop")


@pytest.mark.parametrize("way", ["loop", "grouped", "gather"])
def test_every_way_computes_the_visits_and_no_more(way):
    layer, x = moe("swiglu", d_model=8, d_ff=12, experts=6, shared=1).float(), torch.randn(1, 3, 8)
    router, networks = 2 * 8 * 6, (2 + 1) * 3 * 2 * 8 * 12
    assert counted_flops(lambda: layer(x, experts=way)) == 3 * (router + networks)
    x.requires_grad_()
    assert counted_flops(lambda: layer(x, experts=way)[0].sum().backward()) == 3 * 3 * (router + networks)


def test_a_compiled_layer_gives_the_same(unchecked):
    layer, x = moe("swiglu", d_model=8, d_ff=12).float(), torch.randn(2, 5, 8)
    for a, b in zip(results(torch.compile(layer, backend="aot_eager"), x)[2], results(layer, x)[2], strict=True):
        torch.testing.assert_close(a, b)


def test_a_way_that_cannot_serve_is_refused_by_name():
    x = torch.randn(2, 3, 6)
    with pytest.raises(ValueError, match="experts='grouped': expected float32, bfloat16 or float16, got torch.float64"):
        moe()(x.double(), experts="grouped")
    with pytest.raises(ValueError, match="multiples of 4 .16 bytes., got 6 and 7"):
        moe().float()(x, experts="grouped")
    with pytest.raises(ValueError, match="experts='gather': expected at most 5 visits, one for each expert, got 12"):
        moe().float()(x, experts="gather")


def test_an_unknown_way_and_an_unknown_gating_are_refused(unchecked):
    with pytest.raises(ValueError, match="experts='fast': expected 'auto'"):
        moe().float()(torch.randn(2, 3, 6), experts="fast")
    with pytest.raises(ValueError, match="gating='softmax': expected 'topk_softmax'"):
        route(torch.randn(2, 5), 2, "softmax")


# Capacity


def test_the_first_tokens_find_a_place_and_the_others_get_exactly_zero():
    layer = moe(experts=4, top_k=1, capacity=1.0)
    x = torch.rand(2, 4, 6, dtype=torch.float64)
    with torch.no_grad():
        layer.router.weight.zero_()[2] = 1.0  # every token goes to expert 2, whose capacity is 1.0 * 8 / 4
    out, routing = layer(x)
    assert routing.kept.flatten().tolist() == [True, True] + [False] * 6
    torch.testing.assert_close(out[0, :2], layer.expert(2, x[0, :2]))
    assert (out.flatten(0, 1)[2:] == 0).all()  # not the token itself, which the residual connection would add twice
    assert routing.dropped.item() == 6 / 8 and routing.counts.tolist() == [0, 0, 8, 0]
    assert layer.eval()(x)[1].kept is None  # in evaluation all tokens are served


def test_a_token_that_one_expert_dropped_keeps_its_other_weight():
    layer = moe(experts=3, top_k=2, capacity=0.5)  # the capacity is ceil(0.5 * 4 * 2 / 3) = 2
    x = torch.randn(1, 4, 6, dtype=torch.float64)
    out, routing = layer(x)
    assert routing.kept.sum() <= 6 and not routing.kept.all()
    for e in range(3):
        chose = (routing.experts == e).flatten(0, 1).any(-1).nonzero().flatten().tolist()
        kept = ((routing.experts == e) & routing.kept).flatten(0, 1).any(-1).nonzero().flatten().tolist()
        assert kept == chose[:2]
    torch.testing.assert_close(out, dense(layer, x, routing))
    assert torch.equal(routing.weights, route(routing.logits, 2).weights)


@pytest.mark.parametrize(("capacity", "tokens", "places"), [(1.0, 9, 3), (1.1, 30, 11), (0.29, 300, 29), (0.01, 3, 1)])
def test_places_are_the_share_as_written_rounded_up(capacity, tokens, places):
    layer = moe(experts=3, top_k=1, capacity=capacity)
    with torch.no_grad():
        layer.router.weight.zero_()[0] = 1.0
    assert layer(torch.rand(1, tokens, 6, dtype=torch.float64))[1].kept.sum() == places


def test_padding_takes_nobodys_place():
    layer = moe(experts=2, top_k=1, capacity=1.0)
    with torch.no_grad():
        layer.router.weight.zero_()[0] = 1.0
    x = torch.rand(1, 7, 6, dtype=torch.float64)
    attention_mask = torch.tensor([[False, False, True, True, True, True, False]])
    out, routing = layer(x, attention_mask=attention_mask)
    # Two of four tokens that are not padding
    assert routing.kept[..., 0].tolist() == [[True, True, True, True, False, False, True]]
    alone, where = layer(x[:, 2:6])
    torch.testing.assert_close(out[:, 2:6], alone)
    assert routing.dropped == where.dropped == 0.5


# The experts


@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
def test_an_expert_is_an_ordinary_feed_forward_network(activation):
    layer = moe(activation)
    twin = FeedForward(6, FeedForwardConfig(7, activation)).double()
    with torch.no_grad():
        twin.inner.weight.copy_(layer.inner[3].T)
        twin.outer.weight.copy_(layer.outer[3].T)
        if layer.gate is not None:
            twin.gate.weight.copy_(layer.gate[3].T)
    x = torch.randn(4, 6, dtype=torch.float64)
    torch.testing.assert_close(layer.expert(3, x), twin(x))


def test_shared_experts_are_networks_that_every_token_visits_with_weight_one():
    layer, x = moe("swiglu", shared=3), torch.randn(2, 4, 6, dtype=torch.float64)
    gates, inners = layer.shared.gate.weight.chunk(3), layer.shared.inner.weight.chunk(3)
    outers = layer.shared.outer.weight.chunk(3, dim=1)
    each = [F.linear(F.silu(F.linear(x, g)) * F.linear(x, i), o) for g, i, o in zip(gates, inners, outers, strict=True)]
    routed = moe("swiglu")
    routed.load_state_dict({name: p for name, p in layer.state_dict().items() if "shared" not in name})
    torch.testing.assert_close(layer(x)[0], routed(x)[0] + sum(each))


def test_experts_that_were_not_chosen_get_exactly_no_gradient():
    layer = moe()
    out, routing = layer(torch.randn(1, 2, 6, dtype=torch.float64))
    out.sum().backward()
    for e, count in enumerate(routing.counts.tolist()):
        assert (layer.inner.grad[e].abs().max() > 0) == (count > 0)
    assert layer.router.weight.grad.abs().max() > 0


def test_no_tokens_and_bad_sizes():
    for way in ("auto", "loop", "gather"):
        out, routing = moe()(torch.zeros(2, 0, 6, dtype=torch.float64), experts=way)
        assert out.shape == (2, 0, 6)
        assert routing.counts.tolist() == [0] * 5
    with pytest.raises(ValueError, match="top_k=6: expected a number from 1 to the 5 experts"):
        route(torch.randn(2, 5), 6)
    with pytest.raises(ValueError, match=r"top_k=4: expected at most experts=3"):
        MoEConfig(3, 4)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(groups=4), "groups=4: expected a divisor of experts=6"),
        (dict(groups=3, top_groups=4), "top_groups=4: expected at most groups=3"),
        (dict(groups=3, group_best=3), "group_best=3: expected at most the 2 experts of a group"),
        (dict(groups=3), "top_k=3: expected at most the 2 experts of 1 groups"),
        (dict(scale=0.0), "scale=0.0: expected a number > 0"),
    ],
)
def test_groups_and_a_scale_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        MoEConfig(6, 3, **wrong)
    with pytest.raises(ValueError, match=message):
        route(torch.randn(2, 6), 3, **wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(pattern=(False,)), "pattern=.*: expected at least one True"),
        (dict(plain_d_ff=3), "plain_d_ff=3: expected None, because no network has that width"),
        (dict(shared_d_ff=3), "shared_d_ff=3: expected None, because no network has that width"),
        (dict(shared=1, shared_d_ff=0), "shared_d_ff=0: expected a whole number >= 1"),
    ],
)
def test_widths_of_networks_that_are_not_there_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        MoEConfig(6, 3, **wrong)


# In a model


def test_a_pattern_says_which_layers_have_experts_and_widths_are_their_own():
    experts = MoEConfig(4, 2, shared=2, shared_d_ff=5, pattern=(False, True, True), plain_d_ff=9)
    config = ModelConfig(13, 8, 5, 16, AttentionConfig(2), FeedForwardConfig(12), moe=experts)
    net = Transformer(config).eval()
    networks = [block.feed_forward for block in net.decoder.blocks]
    assert [isinstance(network, MoE) for network in networks] == [False, True, True, False, True]
    assert config.mixtures == 3 and len(net(torch.zeros(1, 2, dtype=torch.long)).routing) == 3
    assert networks[0].inner.out_features == networks[3].inner.out_features == 9
    assert networks[1].shared.inner.out_features == 2 * 5 and networks[1].inner.shape == (4, 8, 12)
    assert config.with_(moe=replace(experts, plain_d_ff=None)).network(0) == (FeedForwardConfig(12), None)


MODEL = ModelConfig(
    13, 8, 2, 16, AttentionConfig(2), FeedForwardConfig(12), moe=MoEConfig(9, 2, shared=2, capacity=0.4, balanced=True)
)


def model(**changes):
    torch.manual_seed(0)
    return Transformer(MODEL.with_(**changes)).eval()


def test_a_layer_computes_in_its_own_way_unless_the_call_says_otherwise():
    net, tokens = model(), torch.randint(13, (2, 7))
    expected = net(tokens).logits
    for block in net.decoder.blocks:
        block.feed_forward.way = "loop"
    torch.testing.assert_close(net(tokens).logits, expected)
    layer = net.decoder.blocks[1].feed_forward
    layer.way = "gather"
    with pytest.raises(ValueError, match="experts='gather': expected at most 9 visits"):
        net(tokens)
    assert layer(torch.randn(2, 7, 8), experts="loop")[0].shape == (2, 7, 8)


def test_padding_that_the_model_is_told_of_is_not_counted_in_any_layer():
    tokens, attention_mask = torch.randint(13, (2, 5)), torch.tensor([[True] * 5, [False, False, True, True, True]])
    for net in (model(), model(stack="encoder")):
        assert [layer.counts.sum().item() for layer in net(tokens, attention_mask=attention_mask).routing] == [
            8 * 2
        ] * 2
    both = model(stack="encoder_decoder")
    memory = both.encode(tokens, attention_mask=attention_mask)
    assert [layer.counts.sum().item() for layer in both(tokens, source=memory).routing] == [8 * 2] * 2 + [10 * 2] * 2
    full = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()  # a causal mask says nothing about padding
    assert [layer.counts.sum().item() for layer in model()(tokens, mask=full).routing] == [10 * 2] * 2
    apart = (
        full & attention_mask[:, None, :, None]
    )  # neither does a mask in which a token sees nothing; only `attention_mask` does
    assert [layer.counts.sum().item() for layer in model()(tokens, mask=apart).routing] == [10 * 2] * 2
    assert [
        layer.counts.sum().item() for layer in model()(tokens, mask=apart, attention_mask=attention_mask).routing
    ] == [8 * 2] * 2


@torch.no_grad()
def test_with_a_cache_each_token_finds_its_own_place_in_the_mask():
    net, tokens = model(), torch.randint(13, (2, 5))
    attention_mask = torch.tensor([[True] * 5, [False, False, True, True, True]])
    whole = net(tokens, attention_mask=attention_mask)
    cache, counts, logits = KVCache.create(net.config, 2, 8), 0, []
    for start, stop in ((0, 1), (1, 4), (4, 5)):
        out = net(tokens[:, start:stop], attention_mask=attention_mask[:, :stop], cache=cache)
        cache, counts = out.cache, counts + out.routing[1].counts
        logits.append(out.logits)
    assert torch.equal(counts, whole.routing[1].counts) and counts.sum() == 8 * 2
    torch.testing.assert_close(torch.cat(logits, 1)[attention_mask], whole.logits[attention_mask], rtol=1e-4, atol=1e-5)


def test_shared_experts_start_as_small_as_all_that_writes_to_the_stream():
    net = model(d_model=64, layers=8, attention=AttentionConfig(4))
    shared, std = net.decoder.blocks[3].feed_forward.shared, math.sqrt(2 / (5 * 64))
    assert shared.inner.weight.std().item() == pytest.approx(std, rel=0.1)
    assert shared.outer.weight.std().item() == pytest.approx(std / math.sqrt(2 * 8), rel=0.1)


def test_a_compiled_layer_is_one_program_for_every_routing(unchecked):
    """This holds in fp32 too: a loop over the experts would be another program for each new number of their tokens."""
    torch._dynamo.reset()  # programs that other tests have compiled do not count
    layer = moe("swiglu", d_model=8, d_ff=12, experts=4).float()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, backend=counter)
    routings = set()
    for seed in range(6):
        x = torch.randn(2, 9, 8, generator=torch.Generator().manual_seed(seed))
        _, _, found = results(compiled, x)
        _, _, expected = results(layer, x)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)
        routings.add(tuple(layer(x)[1].counts.tolist()))
    assert len(routings) == 6 and counter.frame_count == 1
