"""Misused arguments: one sentence names the argument, what came and what was expected.

Without these checks, errors came from deep inside PyTorch, or the results were meaningless.
"""

import copy
import math

import pytest
import torch
from models import drawn

from companion import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    KVCache,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
    RMSNorm,
    Sampling,
    Transformer,
    beam_search,
    complete,
    load_pretrained,
)
from companion.data.batches import EvaluationBatches, TrainingBatches
from companion.data.packing import PackedBatches
from companion.generation.generate import Rules, generate_long
from companion.ground.arguments import assert_in_range, check_device
from companion.layers.attention import attend
from companion.layers.positions import rotary_angles, rotate
from companion.layers.routing import route, within_capacity
from companion.training.losses import cross_entropy_sum
from companion.training.trainer import Trainer, TrainingConfig


def config(**changes):
    fields = {"vocab": 17, "d_model": 12, "layers": 2, "context": 16}
    parts = {"attention": AttentionConfig(3, 1, d_head=4, d_v=5), "feed_forward": FeedForwardConfig(8)}
    return ModelConfig(**fields | parts | changes)


MODELS = {
    "decoder": drawn(config()),
    "encoder": drawn(config(stack="encoder", embedding=EmbeddingConfig(segments=2))),
    "both": drawn(config(stack="encoder_decoder")),
    "deeper": drawn(config(stack="encoder_decoder", layers=3)),
    "learned": drawn(config(positions=PositionConfig("learned"))),
    "nan": drawn(config()),
}
for model in MODELS.values():
    model.eval()
torch.nn.init.constant_(MODELS["nan"].decoder.norm.weight, math.nan)
MODELS["late nan"] = copy.deepcopy(MODELS["learned"])  # its learned positions are NaN after the prompt
torch.nn.init.constant_(MODELS["late nan"].positions.weight[2:], math.nan)
IDS = torch.randint(0, 17, (2, 5), generator=torch.Generator().manual_seed(0))
Q, K, V = torch.rand(2, 4, 5, 8), torch.rand(2, 2, 6, 8), torch.rand(2, 2, 6, 3)


def forward(kind="decoder", tokens=IDS, **inputs):
    with torch.no_grad():
        return MODELS[kind](tokens, **inputs)


def empty(**changes):
    return KVCache.create(config(**changes), 2, 9)


def filled():
    return forward(cache=empty()).cache


def write(prompts=((1, 2),), kind="decoder", **choices):
    return complete(MODELS[kind], [list(ids) for ids in prompts], **choices)


def trained(**changes):
    given = {"model": MODELS["decoder"], "batches": lambda number: (IDS, IDS), "config": TrainingConfig(2)}
    return Trainer(**given | changes)


def batches(kind, **changes):
    return kind([IDS[0], IDS[1]], **{"context": 4, "batch": 2, "seed": 0} | changes)


MISUSES = {
    "float ids": (
        lambda: forward(tokens=IDS.float()),
        "tokens is float32 of shape (2, 5): expected a tensor of whole numbers, (batch, token)",
    ),
    "boolean ids": (lambda: forward(tokens=IDS > 3), "tokens is bool"),
    "bytes": (lambda: forward(tokens=IDS.to(torch.uint8)), "tokens is uint8"),
    "a list": (lambda: forward(tokens=[[1, 2]]), "tokens=[[1, 2]]: expected a tensor"),
    "one axis": (lambda: forward(tokens=IDS[0]), "tokens has shape (5,): expected two axes"),
    "no token": (lambda: forward(tokens=IDS[:, :0]), "tokens has shape (2, 0): expected at least one"),
    "no row": (lambda: forward(tokens=IDS[:0]), "tokens has shape (0, 5): expected at least one"),
    "too large an id": (
        lambda: forward(tokens=IDS * 0 + 17),
        "tokens[0, 0] is 17: expected a whole number from 0 to 16",
    ),
    "an ignored id": (lambda: forward(tokens=IDS * 0 - 100), "tokens[0, 0] is -100"),
    "an id of the source": (lambda: forward("both", source=IDS + 17), "source[0, 0] is"),
    "a float source": (lambda: forward("both", source=IDS.float()), "source is float32"),
    "a source that is text": (lambda: forward("both", source="ja"), "source='ja': expected a tensor"),
    "a source of another batch": (lambda: forward("both", source=IDS[:1]), "source has batch=1: expected 2"),
    "a memory of another batch": (
        lambda: forward("both", source=MODELS["both"].encode(IDS[:1])),
        "source has batch=1: expected 2",
    ),
    "a memory of a deeper model": (
        lambda: forward("both", source=MODELS["deeper"].encode(IDS)),
        "source comes from a model with 3 layers, expected 2",
    ),
    "one position": (lambda: forward(positions=torch.tensor([3])), "positions has token=1: expected 5, as in tokens"),
    "float positions": (
        lambda: forward(positions=torch.arange(5.0)),
        "positions is float32 of shape (5,): expected a tensor of whole numbers",
    ),
    "positions of another batch": (
        lambda: forward(positions=torch.arange(5).expand(3, 5)),
        "positions has shape (3, 5): expected",
    ),
    "positions beyond the learned": (
        lambda: forward("learned", positions=torch.arange(5) + 12),
        "positions[4] is 16: expected a whole number from 0 to 15",
    ),
    "segments of another shape": (
        lambda: forward("encoder", segments=IDS[:1]),
        "segments has batch=1: expected 2, as in tokens",
    ),
    "a segment too many": (lambda: forward("encoder", segments=IDS * 0 + 2), "segments[0, 0] is 2"),
    "float segments": (lambda: forward("encoder", segments=IDS.float()), "segments is float32"),
    "a mask one key too long": (
        lambda: forward(mask=torch.ones(1, 1, 5, 6, dtype=torch.bool)),
        "mask has shape (1, 1, 5, 6): expected (batch, head, token, key), (2, 3, 5, 5)",
    ),
    "a mask of another batch": (
        lambda: forward(mask=torch.ones(3, 1, 5, 5, dtype=torch.bool)),
        "mask has shape (3, 1, 5, 5)",
    ),
    "whole numbers of a mask": (
        lambda: forward(mask=torch.full((1, 1, 5, 5), 2)),
        "mask is int64 of shape (1, 1, 5, 5) with values from 2 to 2: expected 1 for visible positions and 0",
    ),
    "a mask to add, as whole numbers": (
        lambda: forward(mask=-10000 * torch.ones(5, 5, dtype=torch.int32).triu(1)[None, None]),
        "with values from -10000 to 0: expected 1 for visible positions",
    ),
    "floating ones and zeros": (
        lambda: forward(mask=torch.ones(1, 1, 5, 5).tril()),
        "mask is float32 of shape (1, 1, 5, 5) of ones and zeros: expected booleans, as from mask.bool()",
    ),
    "a mask that is no number": (
        lambda: forward(mask=torch.zeros(5, 5).fill_diagonal_(math.nan)[None, None]),
        "mask is float32 of shape (1, 1, 5, 5) with values up to nan: expected finite values to add to the scores",
    ),
    "a mask that adds infinity": (
        lambda: attend(Q, K, V, mask=torch.full((1, 1, 5, 6), math.inf)),
        "with values up to inf: expected finite values to add to the scores, or -infinity",
    ),
    "a complex mask": (lambda: forward(mask=torch.ones(1, 1, 5, 5, dtype=torch.complex64)), "mask is complex64"),
    "whole numbers of padding": (
        lambda: forward(attention_mask=torch.tensor([[1, 1, 2, 0, 0]])),
        "attention_mask is int64 of shape (1, 5) with values from 0 to 2: expected 1 for tokens that are not padding",
    ),
    "padding to add": (
        lambda: forward("encoder", attention_mask=torch.tensor([[0.0, 0.0, 0.0, -1e9, -1e9]])),
        "attention_mask is float32 of shape (1, 5) with values from -1e+09 to 0: expected 1",
    ),
    "padding to add, and none": (
        lambda: forward("encoder", attention_mask=torch.zeros(2, 5)),
        "and all zero: expected True",
    ),
    "padding that is no number": (
        lambda: forward("encoder", attention_mask=torch.full((2, 5), math.nan)),
        "with values from nan to nan: expected 1",
    ),
    "padding of a source to add": (
        lambda: MODELS["both"].encode(IDS, attention_mask=torch.full((2, 5), -1.0)),
        "with values from -1 to -1: expected 1",
    ),
    "padding in a list": (
        lambda: forward(attention_mask=[[1, 1, 0]]),
        "attention_mask=[[1, 1, 0]]: expected a tensor, (batch, key)",
    ),
    "a cache that is none": (lambda: forward(cache=[]), "cache=[]: expected a KVCache"),
    "a cache of a deeper model": (lambda: forward(cache=empty(layers=3)), "cache has layers=3"),
    "a cache of other heads": (
        lambda: forward(cache=empty(attention=AttentionConfig(3, 3, d_head=4, d_v=5))),
        "kv_head=3, d_head=4, d_v=5: expected layers=2, kv_head=1",
    ),
    "a cache that another model filled": (lambda: forward("learned", cache=filled()), "it was filled by another model"),
    "a cache of another batch": (lambda: forward(tokens=IDS[:1], cache=empty()), "tokens has batch=1: expected 2"),
    "a cache of a model": (lambda: KVCache.create(MODELS["decoder"], 2, 9), "expected a ModelConfig"),
    "a cache of 2.0 rows": (lambda: KVCache.create(config(), 2.0, 9), "batch=2.0: expected a whole number"),
    "rewinding by halves": (lambda: filled().rewind(2.5), "lengths=2.5: expected a whole number"),
    "rewinding beyond all numbers": (
        lambda: filled().rewind(10**30),
        "lengths=1000000000000000000000000000000: expected",
    ),
    "rewinding to truth": (lambda: filled().rewind(True), "lengths=True"),
    "rewinding to floats": (lambda: filled().rewind(torch.tensor([1.0, 2.0])), "lengths is float32"),
    "rewinding three of two": (lambda: filled().rewind(torch.tensor([1, 2, 3])), "lengths is int64 of shape (3,)"),
    "a row too many": (
        lambda: filled().select(torch.tensor([0, 9])),
        "rows=[0, 9]: expected row indices from 0 to 1",
    ),
    "a row before the first": (lambda: filled().select(torch.tensor([-1])), "rows=[-1]: expected row indices"),
    "a name too long for a path": (lambda: load_pretrained("x" * 5000), "expected a folder with config.json"),
    "selecting by truth": (lambda: filled().select(torch.tensor([True, False])), "rows=bool"),
    "values without a key": (lambda: attend(Q, K, V[:, :, :5]), "v has key=5: expected 6, as in k"),
    "no heads of keys": (
        lambda: attend(Q, K[:, :0], V[:, :0]),
        "k has kv_head=0: expected a divisor of head=4, as in q",
    ),
    "heads of values": (lambda: attend(Q, K, V[:, :1]), "v has kv_head=1: expected 2, as in k"),
    "keys of one row": (lambda: attend(Q, K[:1], V[:1]), "k has batch=1: expected 2, as in q"),
    "keys of another width": (lambda: attend(Q, K[..., :4], V), "k has d_head=4: expected 8, as in q"),
    "queries of three axes": (
        lambda: attend(Q[0], K, V),
        "q has shape (4, 5, 8): expected four axes, (batch, head, query, d_head); q[None] is a batch of one",
    ),
    "whole-number queries": (lambda: attend(Q.long(), K, V), "q is int64"),
    "three dtypes": (lambda: attend(Q.double(), K, V), "k is float32 of shape (2, 2, 6, 8): expected float64, like q"),
    "attend's mask": (lambda: attend(Q, K, V, mask=torch.ones(2, 4, 5, 7, dtype=torch.bool)), "mask has shape"),
    "attend's dropout": (lambda: attend(Q, K, V, dropout=math.nan), "dropout=nan"),
    "angles of one pair": (
        lambda: rotate(Q, rotary_angles(torch.arange(5), 2)),
        "angles has shape (5, 1): expected (token, pair), (5, 4), or (batch, token, pair) with batch=2",
    ),
    "angles that are none": (
        lambda: rotate(Q, 0.5),
        "angles=0.5: expected a floating tensor, (..., token, pair) or a Rotation",
    ),
    "angles of another batch": (
        lambda: rotate(Q, torch.rand(3, 5, 4)),
        "angles has shape (3, 5, 4): expected (token, pair), (5, 4), or (batch, token, pair)",
    ),
    "a folder without a name": (lambda: load_pretrained(""), "name='': expected a folder"),
    "top_k of True": (lambda: route(torch.rand(3, 4), True), "top_k=True"),
    "top_k of 2.0": (lambda: route(torch.rand(3, 4), 2.0), "top_k=2.0"),
    "a bias of three for four": (
        lambda: route(torch.rand(3, 4), 2, bias=torch.rand(3)),
        "bias has expert=3: expected 4, as in logits",
    ),
    "whole-number logits": (
        lambda: route(torch.ones(3, 4).long(), 2),
        "logits is int64 of shape (3, 4): expected a floating tensor, (..., expert)",
    ),
    "logits that are no numbers": (
        lambda: route(torch.tensor([[1.0, math.nan, 2.0]]), 2),
        "logits is float32 of shape (1, 3) with values up to nan: expected finite values or -infinity",
    ),
    "an infinite logit": (lambda: route(torch.tensor([[1.0, math.inf]]), 1), "with values up to inf: expected finite"),
    "a window of no token": (lambda: attend(Q, K, V, window=0), "window=0: expected a whole number >= 1"),
    "a layer of another width": (
        lambda: MODELS["decoder"].decoder.blocks[0].attention(torch.rand(2, 5, 10)),
        "x has d_model=10: expected 12, as here",
    ),
    "a gain of another width": (lambda: RMSNorm(6)(torch.rand(2, 1)), "x has d_model=1: expected 6, as here"),
    "stop=5": (lambda: write(stop=5), "stop=5: expected a list of token ids"),
    "stop as text": (lambda: write(stop="ab"), "stop='ab': expected a list"),
    "sampling=0.7": (lambda: write(sampling=0.7), "sampling=0.7: expected a Sampling, such as"),
    "rules=5": (lambda: write(rules=5), "rules=5: expected Rules"),
    "a row too few": (lambda: complete(MODELS["decoder"], [1, 2, 3]), "prompts[0]=1: expected a list of token ids"),
    "prompts as text": (lambda: complete(MODELS["decoder"], "abc"), "prompts='abc': expected a list of rows"),
    "prompts as a tensor": (lambda: complete(MODELS["decoder"], IDS), "prompts.tolist() converts a tensor"),
    "a float id in a prompt": (lambda: write([[1.5]]), "prompts[0]: token id 1.5"),
    "no model": (lambda: complete("gpt2", [[1]]), "model='gpt2': expected a Transformer"),
    "no model at length": (lambda: generate_long(3, [[1]], max_new_tokens=2), "model=3: expected a Transformer"),
    "generators=5": (lambda: write(generators=5), "generators=5: expected a list"),
    "half a step": (lambda: write(max_new_tokens=2.5), "max_new_tokens=2.5"),
    "compile='no'": (lambda: write(compile="no"), "compile='no': expected True or False"),
    "greedy on NaN": (lambda: write(kind="nan", sampling=Sampling(0)), "logits of row 0 at step 0: expected finite"),
    "drawing from NaN": (lambda: write(kind="nan"), "logits of row 0 at step 0: expected finite"),
    "top_p on NaN": (lambda: write(kind="nan", sampling=Sampling(top_k=4, top_p=0.5)), "logits of row 0 at step 0"),
    "beams on NaN": (lambda: beam_search(MODELS["nan"], [[1]], width=2), "logits at step 0: expected finite"),
    "a last token after NaN": (
        lambda: write(kind="nan", max_new_tokens=1, rules=Rules(last=3)),
        "logits of row 0 at step 0: expected finite",
    ),
    "drawing a last token after NaN": (
        lambda: write(kind="nan", max_new_tokens=1, rules=Rules(last=3), sampling=Sampling(top_p=0.5)),
        "logits of row 0 at step 0: expected finite",
    ),
    "beams that end after NaN": (
        lambda: beam_search(MODELS["nan"], [[1]], width=2, max_new_tokens=1, rules=Rules(last=3)),
        "logits at step 0: expected finite",
    ),
    "prepared weights on NaN": (
        lambda: write(kind="late nan", weights="fp32", sampling=Sampling(0), max_new_tokens=3),
        "logits of row 0 at step 1: expected finite",
    ),
    "at length on NaN": (
        lambda: list(generate_long(MODELS["nan"], [[1]], max_new_tokens=20)),
        "logits of row 0 at step 0: expected finite",
    ),
    "beams without end": (
        lambda: beam_search(MODELS["decoder"], [[1]], width=10**12),
        "width=1000000000000: the cache of its beams needs",
    ),
    "half a beam": (lambda: beam_search(MODELS["decoder"], [[1]], width=2.5), "width=2.5"),
    "early_stopping=1": (
        lambda: beam_search(MODELS["decoder"], [[1]], width=2, early_stopping=1),
        "early_stopping=1: expected True, False or 'never'",
    ),
    "length_penalty": (
        lambda: beam_search(MODELS["decoder"], [[1]], width=2, length_penalty="x"),
        "length_penalty='x'",
    ),
    "never=5": (lambda: Rules(never=5), "never=5: expected token ids"),
    "last='x'": (lambda: Rules(last="x"), "last=['x']: expected token ids"),
    "a temperature of text": (lambda: Sampling("hot"), "temperature='hot': expected a number >= 0"),
    "a temperature of truth": (lambda: Sampling(True), "temperature=True"),
    "half a top_k": (lambda: Sampling(top_k=2.5), "top_k=2.5"),
    "top_p as text": (lambda: Sampling(top_p="x"), "top_p='x'"),
    "tied='no'": (lambda: EmbeddingConfig(tied="no"), "tied='no': expected True or False"),
    "bias='no'": (lambda: AttentionConfig(2, bias="no"), "bias='no': expected True or False"),
    "scaled=1": (lambda: EmbeddingConfig(scaled=1), "scaled=1: expected True or False"),
    "no feed_forward": (lambda: config(feed_forward=None), "feed_forward=None: expected a FeedForwardConfig"),
    "moe=3": (lambda: config(moe=3), "moe=3: expected a MoEConfig"),
    "infinite eps": (lambda: NormConfig(eps=math.inf), "eps=inf: expected a finite number"),
    "eps as text": (lambda: NormConfig(eps="1e-6"), "eps='1e-6'"),
    "infinite base": (lambda: PositionConfig(base=math.inf), "base=inf"),
    "a base beyond floats": (lambda: PositionConfig(base=10**400), "expected a finite number"),
    "infinite noise": (lambda: MoEConfig(2, 1, noise=math.inf), "noise=inf"),
    "infinite capacity": (lambda: MoEConfig(2, 1, capacity=math.inf), "capacity=inf"),
    "a kind that is a list": (lambda: NormConfig(kind=["rms"]), "kind=['rms']: expected one of"),
    "dropout of truth": (lambda: config(dropout=False), "dropout=False: expected a finite number"),
    "a number of 5,000 digits": (lambda: config(vocab=-(10**5000)), "vocab=a very long int"),
    "a model of a dictionary": (lambda: Transformer({"vocab": 3}), "config={'vocab': 3}: expected a ModelConfig"),
    "an unknown field": (lambda: config().with_(colour=3), "colour=3: expected one of the fields vocab"),
    "a folder that is a number": (lambda: load_pretrained(3), "name=3: expected"),
    "a dtype as text": (lambda: load_pretrained(".", dtype="bf16"), "dtype='bf16': expected a floating-point dtype"),
    "a whole-number dtype": (lambda: load_pretrained(".", dtype=torch.int8), "dtype=torch.int8: expected a floating"),
    "no device": (lambda: load_pretrained(".", device="gpu"), "device='gpu': expected"),
    "training no model": (lambda: trained(model="x"), "model='x': expected a Transformer"),
    "training without a configuration": (lambda: trained(config=3), "config=3: expected a TrainingConfig"),
    "training on a list": (lambda: trained(batches=[IDS]), "batches=[tensor("),
    "training in fp8": (lambda: trained(precision="fp8"), "precision='fp8'"),
    "training compile='no'": (lambda: trained(compile="no"), "compile='no'"),
    "a learning rate of text": (lambda: TrainingConfig(2, learning_rate="x"), "learning_rate='x'"),
    "a learning rate that fp32 does not have": (
        lambda: TrainingConfig(2, learning_rate=1e300),
        "learning_rate=1e+300: expected at most 3.4e+37, so that an update can be represented in fp32",
    ),
    "one of whole digits": (lambda: TrainingConfig(2, learning_rate=10**200), "learning_rate=1e+200: expected at most"),
    "one that the first step makes too large": (
        lambda: TrainingConfig(2, learning_rate=1e30, beta1=1 - 1e-12),
        "learning_rate=1e+30: expected at most 3.4e+26",
    ),
    "a context of text": (lambda: batches(TrainingBatches, context="9"), "context='9': expected a whole number >= 1"),
    "a batch of 2.0": (lambda: batches(TrainingBatches, batch=2.0), "batch=2.0: expected a whole number >= 1"),
    "packed by half": (lambda: batches(PackedBatches, context=4.5), "context=4.5: expected a whole number >= 1"),
    "a stride of 1.5": (
        lambda: EvaluationBatches([IDS[0]], context=4, stride=1.5),
        "stride=1.5: expected a whole number from 1 to context=4",
    ),
    "causal=None": (lambda: attend(Q, K, V, causal=None), "causal=None: expected True or False"),
    "beta2 as a list": (lambda: TrainingConfig(2, beta2=[0.9]), "beta2=[0.9]: expected a finite number"),
    "a schedule that is a list": (lambda: TrainingConfig(2, schedule=["x"]), "schedule=['x']: expected one of"),
    "targets the other way round": (
        lambda: cross_entropy_sum(torch.rand(2, 3, 7), torch.zeros(3, 2, dtype=torch.long)),
        "targets is int64 of shape (3, 2): expected int64 of shape (2, 3)",
    ),
    "a target too large": (
        lambda: cross_entropy_sum(torch.rand(2, 3, 7), torch.full((2, 3), 7)),
        "expected ids from 0 to 6, or -100",
    ),
}


@pytest.mark.parametrize(("misuse", "sentence"), MISUSES.values(), ids=MISUSES)
def test_a_misuse_gets_a_sentence_that_names_the_argument(unchecked, misuse, sentence):
    with pytest.raises(ValueError) as caught:
        misuse()
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("temperature", [1e-45, 1e-40, 1e-30, 1e-7])
def test_the_smallest_temperatures_are_nearly_greedy(temperature):
    logits = torch.tensor([[1.0, 5.0, 5.0, -math.inf], [3e38, -3e38, 0.0, 0.0]])
    likely = Sampling(temperature).probabilities(logits)
    torch.testing.assert_close(likely, torch.tensor([[0.0, 0.5, 0.5, 0.0], [1.0, 0.0, 0.0, 0.0]]))
    assert write(sampling=Sampling(temperature)) == write(sampling=Sampling(0))


def test_the_largest_temperatures_draw_all_alike_but_what_is_ruled_out():
    logits = torch.tensor([[1.0, 5.0, -3.0, -math.inf]])
    third = torch.full((1, 3), 1 / 3)
    for temperature in (1e30, 10**30, 1e300):
        torch.testing.assert_close(Sampling(temperature).probabilities(logits)[:, :3], third)
        assert Sampling(temperature).probabilities(logits)[0, 3] == 0


def test_the_smallest_shares_keep_the_likeliest_token():
    logits = torch.tensor([[1.0, 5.0, 3.0, -math.inf], [2.0, 0.0, 0.0, 2.0]])
    for share in (1e-3, 1e-46, 1e-300):  # the last two are 0 in float32
        likely = Sampling(top_p=share).probabilities(logits)
        torch.testing.assert_close(likely, torch.tensor([[0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]))


def test_a_number_that_no_device_has_is_refused_by_name():
    with pytest.raises(ValueError, match=r"device=1\d{30}: expected cpu, cuda, cuda:1 or mps"):
        check_device(10**30)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_numbers_to_add_may_be_more_precise_than_what_they_are_added_to(dtype):
    added = torch.zeros(1, 1, 5, 6)
    added[..., 2] = -1.5
    q, k, v = (x.to(dtype) for x in (Q, K, V))
    formula = attend(q, k, v, mask=added, backend="reference")
    torch.testing.assert_close(formula, attend(q, k, v, mask=added), rtol=2e-2, atol=2e-2)
    assert not torch.allclose(formula, attend(q, k, v), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("cap", [1e20, 10**30, 1e300])
def test_a_cap_that_nothing_reaches_caps_nothing(cap):
    capped = attend(Q, K, V, softcap=cap)
    torch.testing.assert_close(capped, attend(Q, K, V))


def test_a_cache_may_be_emptied_and_given_to_another_model():
    cache = filled().rewind(0)
    other = drawn(config(), seed=1).eval()
    with torch.no_grad():
        torch.testing.assert_close(other(IDS, cache=cache).logits, other(IDS, cache=empty()).logits)


@pytest.mark.parametrize("capacity", [1e-300, 1e-30, 1e-9, 1.1, 1e9, 1e300, 0.12345678901234567])
def test_any_finite_capacity_can_be_counted(capacity):
    routing = route(torch.rand(2, 7, 3, generator=torch.Generator().manual_seed(0)), 2)._replace(
        attention_mask=torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    )
    kept = within_capacity(routing, capacity)[routing.attention_mask]
    places = min(22, max(1, math.ceil(capacity * 22 / 3)))
    chosen = routing.experts[routing.attention_mask]
    assert [int(kept[chosen == e].sum()) for e in range(3)] == [min(places, int((chosen == e).sum())) for e in range(3)]


def test_nothing_is_asked_of_a_device_that_would_have_to_be_waited_for():
    """The meta device is a stand-in: reading a value from it raises an error."""
    model, tokens = Transformer(config()).to("meta"), IDS.to("meta")
    cache = KVCache.create(config(), 2, 9, device="meta")
    with torch.no_grad():
        assert model(tokens, positions=torch.arange(5, device="meta"), cache=cache).logits.shape == (2, 5, 17)


DTYPES = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.float32, torch.bfloat16, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_padding_said_by_ones_and_zeros_is_padding(kind, dtype):
    attention_mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    expected = MODELS[kind](IDS, attention_mask=attention_mask.bool()).logits
    assert torch.equal(MODELS[kind](IDS, attention_mask=attention_mask.to(dtype)).logits, expected)
    assert not torch.equal(MODELS[kind](IDS).logits[0], expected[0]) or kind == "decoder"
    memory = MODELS["both"].encode(IDS, attention_mask=attention_mask.to(dtype))
    assert memory.attention_mask is not None and torch.equal(memory.attention_mask, attention_mask.bool())


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if not dtype.is_floating_point], ids=str)
def test_a_mask_of_ones_and_zeros_is_one_of_true_and_false(dtype):
    torch.manual_seed(3)
    table = torch.rand(2, 1, 5, 5) > 0.4
    expected = MODELS["encoder"](IDS, mask=table).logits
    assert torch.equal(MODELS["encoder"](IDS, mask=table.to(dtype)).logits, expected)
    q, k, v = torch.randn(3, 2, 3, 5, 4)
    for backend in ("reference", "sdpa"):
        for causal in (False, True):
            settings = {"causal": causal, "backend": backend}
            found = attend(q, k, v, mask=table.to(dtype), **settings)
            assert torch.equal(found, attend(q, k, v, mask=table, **settings))
    with pytest.raises(ValueError, match="of ones and zeros: expected booleans"):
        attend(q, k, v, mask=table.float())
    added = torch.zeros(1, 1, 5, 5).masked_fill(~table[:1], -math.inf)
    torch.testing.assert_close(attend(q, k, v, mask=added), attend(q, k, v, mask=table[:1]))
    nothing_added, all_seen = torch.zeros(1, 1, 5, 5), torch.ones(1, 1, 5, 5) > 0
    torch.testing.assert_close(attend(q, k, v, mask=nothing_added), attend(q, k, v, mask=all_seen))


def test_a_device_checks_ids_without_waiting_and_says_what_was_wrong():
    """On the CPU, which has nothing to wait for, the error is raised at once."""
    assert_in_range("tokens", torch.tensor([[0, 6, 3]]), 7)
    for wrong in (7, -1):
        with pytest.raises(RuntimeError, match="^tokens: expected whole numbers from 0 to 6"):
            assert_in_range("tokens", torch.tensor([[0, wrong, 3]]), 7)
