"""Sizing: the formulas for models that fit on no machine are tested on a small one."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from companion import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LinearConfig,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
    Transformer,
    WindowConfig,
)
from companion.costs.account import cache_bytes, parameters, serve_bytes, train_flops, weights_bytes
from companion.costs.chips import CHIPS
from companion.costs.sizing import (
    LONGEST_ROW,
    device_bytes,
    fewest_devices,
    kept,
    memories,
    row_tokens,
    train_cost,
)
from companion.families.registry import preset, systems


@pytest.mark.parametrize("name", systems())
def test_presets_have_as_many_parameters_as_the_model_on_the_meta_device(name):
    with torch.device("meta"):
        model = Transformer(preset(name))
    assert sum(p.numel() for p in model.parameters()) == parameters(preset(name)).total


SMALL = ModelConfig(
    vocab=96,
    d_model=64,
    layers=3,
    context=48,
    attention=AttentionConfig(heads=4, kv_heads=2),
    feed_forward=FeedForwardConfig(d_ff=128),
)
KINDS = {
    "llama": SMALL,
    "gpt": SMALL.with_(
        attention=AttentionConfig(heads=4, bias=True),
        feed_forward=FeedForwardConfig(d_ff=256, activation="gelu_tanh", bias=True),
        positions=PositionConfig("learned"),
        norm=NormConfig("layer"),
    ),
    "experts": SMALL.with_(moe=MoEConfig(4, 2), embedding=EmbeddingConfig(tied=False)),
    "experts in some layers": SMALL.with_(
        layers=5, moe=MoEConfig(4, 2, pattern=(False, False, True), shared=1, shared_d_ff=48, plain_d_ff=192)
    ),
    "linear attention in some layers": SMALL.with_(
        layers=6, attention=AttentionConfig(4, kv_heads=2, linear=LinearConfig((True, True, True, False), d_head=8))
    ),
    "bert": SMALL.with_(
        stack="encoder",
        norm=NormConfig("layer", "post"),
        positions=PositionConfig("learned"),
        embedding=EmbeddingConfig(norm=True, segments=2, head="masked", pooled=True, classes=2),
    ),
    "2017": SMALL.with_(stack="encoder_decoder", norm=NormConfig("layer", "post")),
    "gemma": SMALL.with_(
        layers=4,
        attention=AttentionConfig(
            heads=4, kv_heads=2, qk_norm="head", window=WindowConfig(9, (True, False), base=50.0)
        ),
        feed_forward=FeedForwardConfig(d_ff=128, activation="geglu_tanh"),
        norm=NormConfig("rms", "both", unit_offset=True),
        embedding=EmbeddingConfig(scaled=True, rounded=True, logit_softcap=30.0),
    ),
}


def really_saved(model, tokens, rows):
    """Return the bytes that autograd saves in a forward pass of this model on real tensors, without the parameters."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage
        return tensor

    ids = torch.randint(model.config.vocab, (rows, tokens))
    extra = {"source": ids} if model.config.stack == "encoder_decoder" else {}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x), torch.autocast("cpu", torch.bfloat16):
        logits = model(ids, **extra).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids.flatten(), reduction="sum")
    size = sum(storage.nbytes() for storage in saved.values())
    loss.backward()  # the saved tensors must have been alive until here
    return size


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_what_is_kept_is_what_a_real_forward_pass_keeps(config):
    here = kept(config, 40)
    real = really_saved(Transformer(config), tokens=40, rows=5)
    assert here.activations(5) + here.copies() == pytest.approx(real, rel=1e-3)


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_autocast_keeps_two_bytes_for_each_number_of_a_matrix(config):
    matrices = sum(
        p.numel()
        for name, p in Transformer(config).named_parameters()
        if p.ndim > 1 and not name.startswith(("positions", "segments", "pooler", "classifier"))
    )
    if not config.embedding.tied:
        matrices -= config.vocab * config.d_model  # the embedding table is indexed and not multiplied
    # Biases, which are cast too, and the angles of rotary positions are small compared with the matrices.
    assert kept(config, 40).copies() == pytest.approx(2 * matrices, rel=0.08)
    big = preset("gpt2-xl")
    assert kept(big, 1024).copies() == pytest.approx(2 * parameters(big).total, rel=0.01)


def test_with_recomputation_only_what_enters_the_layers_is_kept(monkeypatch):
    model = Transformer(SMALL)
    plain = really_saved(model, tokens=40, rows=5)
    for block in model.decoder.blocks:
        forward = block.forward

        def again(x, *, forward=forward, **rest):
            return checkpoint(lambda x: forward(x, **rest), x, use_reentrant=True)

        monkeypatch.setattr(block, "forward", again)
    recomputed = really_saved(model, tokens=40, rows=5)
    here = kept(SMALL, 40)
    # What remains: the layers' inputs, the tensors outside the layers, and the copies of the weights there
    expected = 5 * (SMALL.layers * here.entry + here.rest) + here.rest_copies
    assert recomputed == pytest.approx(expected, rel=0.02) and recomputed < plain / 2
    assert here.activations(5, activation_checkpointing=True) == 5 * (3 * here.entry + here.layer + here.rest)
    assert here.copies(activation_checkpointing=True) == here.layer_copies + here.rest_copies


def test_sixteen_bytes_a_parameter_divided_by_the_devices():
    count = parameters(SMALL).total
    for devices in (1, 2, 7):
        assert device_bytes(SMALL, "data", devices).state == 16 * count
        assert device_bytes(SMALL, "shard", devices).state == 16 * -(-count // devices)
    # Rajbhandari et al. 2020, figure 1: 7.5 billion parameters take 120 GB, or 1.9 GB on each of 64 devices.
    config = preset("llama-7b")
    scale = 7.5e9 / parameters(config).total
    assert scale * device_bytes(config, "data", 64).state / 1e9 == pytest.approx(120)
    assert scale * device_bytes(config, "shard", 64).state / 1e9 == pytest.approx(1.875, rel=1e-4)


def test_experts_are_divided_by_their_number_and_the_rest_as_it_is_told():
    config = KINDS["experts"]
    experts = 3 * 4 * 3 * 64 * 128  # layers, experts, matrices, d_model, d_ff
    others = parameters(config).total - experts
    assert device_bytes(config, "experts", 8).state == 16 * others + 4 * experts
    assert device_bytes(config, "experts+shard", 8).state == 2 * others + 4 * experts
    whole, part = device_bytes(config, "data", 8), device_bytes(config, "experts", 8)
    assert whole.copies - part.copies == 2 * experts * 3 // 4
    assert whole.activations == part.activations and part.gathered == 0
    shared = config.with_(moe=MoEConfig(4, 2, shared=1))  # experts that every token visits stay on every device
    assert device_bytes(shared, "experts", 4).state == 16 * (others + experts // 4) + 4 * experts


def test_what_sharding_gathers_by_hand():
    block = 64 * (4 + 2) * (16 + 16) + 3 * 64 * 128 + 2 * 64
    outside = 96 * 64 + 64  # the tied table and the last norm
    assert parameters(SMALL).total == 3 * block + outside
    assert device_bytes(SMALL, "shard", 4).gathered == 4 * (3 * block + 2 * outside)
    assert device_bytes(SMALL, "shard", 1).gathered == device_bytes(SMALL, "data", 4).gathered == 0
    here = device_bytes(SMALL, "shard", 4, rows=3, tokens=20)
    assert here.total == here.state + here.copies + here.gathered + kept(SMALL, 20).activations(3)


@pytest.mark.parametrize("name", ["llama-7b", "llama-2-70b"])
def test_experts_cannot_be_spread_where_there_are_none(name):
    with pytest.raises(ValueError, match="devices=1, way='experts\\+shard': expected a mixture of experts"):
        device_bytes(preset(name), "experts+shard", 1)


@pytest.mark.parametrize(
    ("name", "way"),
    [("llama-7b", "shard"), ("llama-2-70b", "shard"), ("mixtral-8x7b", "shard"), ("mixtral-8x7b", "experts+shard")],
)
def test_the_fewest_devices_are_enough_and_fewer_are_not(name, way):
    config, memory = preset(name), 141e9
    step = 8 if way == "experts+shard" else 1
    found = fewest_devices(config, way, memory, activation_checkpointing=True)
    assert found is not None and found % step == 0
    assert device_bytes(config, way, found, activation_checkpointing=True).total <= 0.9 * memory
    fewer = found - step
    assert fewer == 0 or device_bytes(config, way, fewer, activation_checkpointing=True).total > 0.9 * memory
    assert fewest_devices(config, way, memory, activation_checkpointing=True, usable=1) <= found


def test_where_no_number_of_devices_is_enough():
    assert fewest_devices(preset("gpt2"), "data", 24e9) == 1
    assert fewest_devices(preset("llama-7b"), "data", 80e9) is None  # more devices do not help
    assert fewest_devices(preset("llama-2-70b"), "shard", 80e9) is None  # the weights' copies take 138 GB
    assert fewest_devices(preset("llama-2-70b"), "shard", 80e9, activation_checkpointing=True) is not None


def test_the_cost_of_training():
    gpt3 = train_cost(preset("gpt3-175b"), 300e9)
    assert gpt3.rule == pytest.approx(3.14e23, rel=0.002)  # Brown et al. 2020, table D.1
    assert 1 < gpt3.flops / gpt3.rule < 1.05  # with attention in addition
    assert gpt3.flops == pytest.approx(300e9 * train_flops(preset("gpt3-175b"), 2048) / 2048)
    mixtral = train_cost(preset("mixtral-8x7b"))
    assert mixtral.tokens == 20 * 12_879_925_248 and mixtral.rule == 6 * 12_879_925_248 * mixtral.tokens
    # Each token of an encoder-decoder goes through one stack, so about half of 6 N D operations are needed.
    both = train_cost(preset("transformer-big"), 1e9)
    assert both.flops == pytest.approx(1e9 * train_flops(preset("transformer-big"), 512, source=512) / 1024)
    assert 0.4 < both.flops / both.rule < 0.7


def test_days_by_hand():
    cost = train_cost(SMALL, 1e9)
    assert cost.days(4, 0.5, cost.flops) == pytest.approx(1 / (2 * 86_400))
    with pytest.raises(ValueError, match=r"share=1\.5: expected a fraction of the peak"):
        cost.days(4, 1.5, 1e12)
    with pytest.raises(ValueError, match="devices=0: expected a whole number >= 1"):
        cost.days(0, 0.5, 1e12)


def test_serving_is_weights_and_cache():
    half = torch.bfloat16
    assert serve_bytes(SMALL, dtype=half) == weights_bytes(SMALL, half) + cache_bytes(SMALL, 48, dtype=half)
    assert serve_bytes(SMALL, batch=3, tokens=7, dtype=half) == weights_bytes(SMALL, half) + 3 * cache_bytes(
        SMALL, 7, dtype=half
    )
    assert serve_bytes(KINDS["bert"], batch=9, dtype=half) == weights_bytes(KINDS["bert"], half)
    two = KINDS["2017"]
    assert serve_bytes(two, dtype=half) == weights_bytes(two, half) + cache_bytes(two, 48, source=48, dtype=half)


def test_every_chip_is_in_the_list_of_its_size_of_memory():
    assert sum(map(len, memories().values())) == len(CHIPS) and list(memories()) == sorted(memories())
    assert all(20e9 < size < 200e9 for size in memories())


def test_long_contexts_are_cut_to_train_on():
    assert row_tokens(SMALL) == 48 and row_tokens(preset("mixtral-8x7b")) == LONGEST_ROW


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: device_bytes(SMALL, "data", 0), "devices=0: expected a whole number >= 1"),
        (lambda: device_bytes(SMALL, "data", 1, rows=0), "rows=0: expected a whole number >= 1"),
        (lambda: device_bytes(KINDS["experts"], "experts", 6), "expected a multiple of the 4 experts"),
        (lambda: fewest_devices(SMALL, "data", 1e9, usable=0), "usable=0: expected a fraction"),
        (lambda: train_cost(SMALL, -1), "tokens=-1: expected a number > 0"),
        (lambda: kept(SMALL, 0), "tokens=0: expected a whole number >= 1"),
    ],
)
def test_what_makes_no_sense_is_refused(call, message):
    with pytest.raises(ValueError) as caught:
        call()
    assert message in str(caught.value)
