"""The model of lesson 00: all intermediate results in the companion's modules.

They are compared with numbers that were calculated independently with 40-digit arithmetic. Claims of the lesson's
source that need more than a notebook cell are tested here too.
"""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import BertConfig, GPT2Config, LlamaConfig

from companion import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    ModelConfig,
    MoEConfig,
    Transformer,
    attention_weights,
    rotary_angles,
    rotate,
)
from companion_school.study import micro_example

IDS = torch.tensor([[1, 5, 9]])
# fmt: off
EXPECTED = {
    "X": [[1.6, -0.8, 0.4, 0.2], [-0.4, 0.2, 1.2, 1.8], [0.6, 1.4, 1.8, -1.2]],
    "queries": [[[-0.7, 1.3], [-0.2, 1.9], [-1.7, 1.5]], [[-1.8, 1.6], [1.1, -1.6], [1.0, 1.0]]],
    "keys": [[[2.9, -0.6], [1.5, -3.0], [0.4, 1.1]], [[-0.6, 1.4], [0.8, 2.8], [-1.1, 2.6]]],
    "values": [[[-0.8, -0.4], [1.4, 1.4], [-0.7, 1.5]], [[-0.9, -1.3], [-0.7, 0.7], [2.0, 3.5]]],
    "rotated queries": [[[-0.7, 1.3], [-1.7069, 0.8583], [-0.6565, -2.17]],
                        [[-1.8, 1.6], [1.9407, 0.0611], [-1.3254, 0.4932]]],
    "rotated keys": [[[2.9, -0.6], [3.3349, -0.3587], [-1.1667, -0.094]],
                     [[-0.6, 1.4], [-1.9239, 2.186], [-1.9064, -2.0822]]],
    "weights": [[[1, 0, 0], [0.5935, 0.4065, 0], [0.2172, 0.1226, 0.6602]],
                [[1, 0, 0], [0.8560, 0.1440, 0], [0.1525, 0.6935, 0.1540]]],
    "joined": [[-0.8, -0.4, -0.9, -1.3], [0.0943, 0.3317, -0.8712, -1.0121], [-0.4643, 1.075, -0.3147, 0.8263]],
    "attention": [[-2.5, 1.3, 0.4, -0.9], [-0.586, 0.5395, 0.1409, -1.3438], [1.437, -0.7603, -1.141, -0.2487]],
    "added": [[-0.9, 0.5, 0.8, -0.7], [-0.986, 0.7395, 1.3409, 0.4562], [2.037, 0.6397, 0.659, -1.4487]],
    "normed": [[-1.2163, 0.3379, 1.0812, -1.419], [-1.0503, 0.3939, 1.4283, 0.729], [1.5299, 0.2402, 0.495, -1.632]],
    "router": [[2.6354, 1.419, -1.0812, 2.9732], [5.4237, 4.3733, 1.1228, 3.2664],
               [-1.6915, -0.1617, -1.3918, -0.5545]],
    "shares": [[0.5837, 0.4163], [0.7408, 0.2592], [0.597, 0.403]],
    "experts": [[0.4244, -1.735, -0.8283, 0.5329], [-0.6071, -0.626, 0.0679, -0.724], [0.9796, 0.0911, -2.617, 2.5258]],
    "added again": [[-0.7919, -1.3971, 0.2529, -0.8862], [-1.6574, -0.2321, 1.4962, 0.005],
                    [2.5095, 0.3313, -2.122, 0.8939]],
    "final": [[-0.8554, -1.5091, 0.2732, -0.9572], [-1.4766, -0.2068, 1.333, 0.0045],
              [1.4667, 0.1937, -1.2403, 0.5224]],
    "logits": [[0, -0.1218, -2.0724, -0.9762, -1.1333, -0.6774, -1.1099, -0.9674, -0.1633, -0.4928],
               [0, -0.8315, 0.0908, -0.4367, -0.2362, 1.0784, -0.9023, -1.6777, 0.7462, 0.6093],
               [0, 0.9001, 0.3997, 0.5428, 0.5113, -0.5479, 0.9455, 1.8365, -0.8979, -0.8541]],
    "p": [[0.1856, 0.1643, 0.0234, 0.0699, 0.0598, 0.0943, 0.0612, 0.0705, 0.1576, 0.1134],
          [0.0874, 0.0380, 0.0957, 0.0564, 0.0690, 0.2568, 0.0354, 0.0163, 0.1842, 0.1607],
          [0.0538, 0.1323, 0.0802, 0.0925, 0.0897, 0.0311, 0.1384, 0.3373, 0.0219, 0.0229]],
}
# fmt: on
EXPERT_ANSWERS = {  # (word, expert): this expert's output for the word
    (0, 3): [1.2332, -2.4664, -1.419, 1.419],
    (0, 0): [-0.7095, -0.7095, 0, -0.7095],
    (1, 0): [-0.9111, -0.9111, 0, -0.9111],
    (1, 1): [0.262, 0.189, 0.262, -0.189],
    (2, 1): [1.641, 0.1526, -3.282, 3.1293],
    (2, 3): [0, 0, -1.632, 1.632],
}  # fmt: skip


def decimals(tensor):
    """Return nested lists with the four decimals that the lesson prints; -0.0 becomes 0.0."""
    numbers = tensor.detach().double()
    flat = [round(x, 4) + 0.0 for x in numbers.flatten().tolist()]
    return torch.tensor(flat, dtype=torch.float64).view(numbers.shape).tolist()


def calculated(dtype):
    """Return the intermediate results, recorded in the companion's modules while the model runs."""
    model = micro_example.model(micro_example.weights(dtype))
    block = model.decoder.blocks[0]
    seen = {}

    def keep(module, before, after):
        def hook(_, given, result):
            seen[before] = given[0][0]
            seen[after] = (result[0] if isinstance(result, tuple) else result)[0]

        module.register_forward_hook(hook)

    keep(block.attention, "X", "attention")
    keep(block.attention.output, "joined", "attention")
    keep(block.attention_norm, "added", "normed")
    keep(block.feed_forward, "normed", "experts")
    keep(block.feed_forward.router, "normed", "router")
    keep(block.feed_forward_norm, "added again", "final")
    out = model(IDS)

    def split(projection):
        return projection(seen["X"]).view(3, 2, 2).transpose(0, 1)

    parts = (block.attention.query, block.attention.key, block.attention.value)
    seen |= dict(zip(("queries", "keys", "values"), map(split, parts), strict=True))
    q, k, v = block.attention.project(seen["X"][None], torch.arange(3))
    torch.testing.assert_close(v[0], seen["values"])
    seen |= {"rotated queries": q[0], "rotated keys": k[0], "weights": attention_weights(q, k, causal=True)[0]}
    seen |= {"shares": out.routing[0].weights[0], "logits": out.logits[0], "p": out.logits[0].softmax(-1)}
    return seen, out.routing[0], block.feed_forward


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_intermediate_result_to_four_decimals(dtype):
    seen, routing, moe = calculated(dtype)
    assert set(seen) == set(EXPECTED)
    for name, expected in EXPECTED.items():
        assert decimals(seen[name]) == expected, name
    assert (routing.experts[0] + 1).tolist() == [[4, 1], [1, 2], [2, 4]]
    for (word, expert), expected in EXPERT_ANSWERS.items():
        assert decimals(moe.expert(expert, seen["normed"][word : word + 1])[0]) == expected, (word, expert)


def test_pre_norm_with_the_same_weights_is_another_model():
    out = micro_example.model(placement="pre")(IDS)
    assert round(out.logits[0, 2].softmax(-1)[7].item(), 4) == 0.2370
    assert (out.routing[0].experts[0] + 1).tolist() == [[1, 2], [1, 2], [2, 4]]


def test_parameters_are_counted():
    counts = [sum(x.numel() for x in micro_example.model(placement=p).parameters()) for p in ("post", "pre")]
    assert counts == [224, 228]
    assert sum(x.numel() for x in micro_example.weights()) == 224


def test_printed_router_scores_can_be_reached_after_attention():
    """Claim S2-60: this router gives the printed scores, but not from the normalized counting table."""
    seen, _, _ = calculated(torch.float64)
    scores = torch.tensor([[2.1, 0.5, 1.3, 3.5], [4.2, 3.1, 1.1, 0.9], [0.8, 4.5, 2.5, 3.3]], dtype=torch.float64)
    router = torch.linalg.pinv(seen["normed"]) @ scores
    expected = [
        [0.1416, 2.2300, 0.7150, 0.1145],
        [0.7831, 1.0657, 0.4539, 0.4530],
        [2.5566, 3.2705, 1.3651, 1.3272],
        [0.5331, 0.4818, -0.3808, -1.4456],
    ]
    assert decimals(router) == expected
    assert torch.allclose(seen["normed"] @ router, scores, atol=1e-12)


def test_vocabularies_of_published_models():
    """Claim S2-05: real vocabularies are not all between 50,000 and 300,000; BERT's and LLaMA's are smaller."""
    sizes = [config().vocab_size for config in (BertConfig, LlamaConfig, GPT2Config)]
    assert sizes == [30522, 32000, 50257]
    assert sum(size < 50000 for size in sizes) == 2


def test_scaling_keeps_the_softmax_out_of_saturation_when_heads_are_wide():
    """Claim S2-33: dividing by sqrt(d_k) stabilizes gradients for wide heads; at width 4 it hardly matters."""
    generator = torch.Generator().manual_seed(0)

    def median_slope(width, scale):
        q, k = (torch.randn(64, width, generator=generator, dtype=torch.float64) for _ in range(2))
        p = (q @ k.T * scale).softmax(-1)
        slopes = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]  # the softmax's Jacobian for each row
        return slopes.flatten(1).norm(dim=1).median()

    wide, narrow = 1024, 4
    assert median_slope(wide, wide**-0.5) > 50 * median_slope(wide, 1.0)
    assert median_slope(narrow, narrow**-0.5) < 3 * median_slope(narrow, 1.0)


class Moved(TorchDispatchMode):
    """Count the elements that operations read and write."""

    numbers = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        written = operation(*args, **(kwargs or {}))
        self.numbers += sum(x.numel() for x in tree_leaves((args, kwargs, written)) if isinstance(x, torch.Tensor))
        return written


def test_a_simpler_formula_is_not_a_faster_one():
    """Claim S2-47: RMSNorm may be faster or slower than LayerNorm, depending on the kernels.

    Written out in PyTorch, RMSNorm computes half as much as the fused LayerNorm but moves more than three times as many
    elements. The machine decides which of these matters: it takes from 1.0 times as long, with PyTorch's kernels
    without vector instructions, to 10 times, with newly allocated memory.
    """
    x, gain, bias = torch.randn(4096, 1024), torch.ones(1024), torch.zeros(1024)
    with Moved() as written_out:
        rms = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * gain
    with Moved() as fused:
        F.layer_norm(x, (1024,), gain, bias)
    assert_close(rms, F.rms_norm(x, (1024,), gain, 1e-6))
    assert written_out.numbers > 3 * fused.numbers


def test_many_more_parameters_than_are_used():
    """Claims S2-56, S2-57, S2-68: Mixtral's experts are as wide as a dense network; a token uses two of eight."""
    mixtral = ModelConfig(
        vocab=32000, d_model=4096, layers=32, context=32768,
        attention=AttentionConfig(heads=32, kv_heads=8), feed_forward=FeedForwardConfig(14336),
        embedding=EmbeddingConfig(tied=False), moe=MoEConfig(experts=8, top_k=2),
    )  # fmt: skip
    with torch.device("meta"):
        model = Transformer(mixtral)
    total = sum(x.numel() for x in model.parameters())
    moes = [block.feed_forward for block in model.decoder.blocks]
    experts = sum(x.numel() for moe in moes for x in (moe.gate, moe.inner, moe.outer))
    assert total == 46_702_792_704
    assert total - experts * 6 // 8 == 12_879_925_248
    one = experts // (32 * 8)
    assert one == 3 * 4096 * 14336  # as large as a dense network
    assert one * 2 + 8 * 4096 < one * 8  # two experts and the router, whatever the number of experts


def test_rotating_values_would_break_the_shift():
    """Claims S2-20, S2-26: scores only depend on the distance, which rotated values would violate."""
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 2, 5, 6, generator=g, dtype=torch.float64) for _ in range(3))

    def look(start, turn_values):
        angles = rotary_angles(torch.arange(5) + start, 6, dtype=torch.float64)
        weights = attention_weights(rotate(q, angles), rotate(k, angles), causal=True)
        return weights @ (rotate(v, angles) if turn_values else v)

    assert torch.allclose(look(0, False), look(137, False), atol=1e-12)
    assert (look(0, True) - look(137, True)).abs().max() > 0.5


def test_the_trained_twin_has_learned_its_sentences_and_answers_what_they_leave_open():
    """With two decimals, it is certain where its ten sentences are, and splits the probability where they differ."""
    w, ids = micro_example.trained(), micro_example.sentences()
    model = Transformer(replace(micro_example.config(), moe=None)).double().eval()
    single = micro_example.weights()._replace(**{name: part for name, part in w._asdict().items() if name[0] != "W"})
    state = micro_example.state(single._replace(Wq=w.Wq, Wk=w.Wk, Wv=w.Wv, Wo=w.Wo))
    named = {name: part for name, part in state.items() if "feed_forward." not in name}
    inner, outer = "decoder.blocks.0.feed_forward.inner.weight", "decoder.blocks.0.feed_forward.outer.weight"
    model.load_state_dict(named | {inner: w.W1.T, outer: w.W2.T})
    logits = model(ids[:, :-1]).logits
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
    assert 0.3229 < loss < 0.33  # the minimum: of 29 words, four are one of two and six one of three

    def say(text):
        return model(torch.tensor([[micro_example.VOCABULARY.index(x) for x in text.split()]])).logits[0, -1]

    for text, word in (
        ("hello world the world is", "good"),
        ("hello boss the boss is", "happy"),
        ("hello ai is", "new"),
    ):
        assert micro_example.VOCABULARY[say(text).argmax()] == word  # this text was not in the training data
