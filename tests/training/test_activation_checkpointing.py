"""Activation checkpointing and TF32 give the same gradients, and their switches are restored."""

import pytest
import torch

from companion.config.model import AttentionConfig, FeedForwardConfig, ModelConfig, MoEConfig, PositionConfig
from companion.ground.device import find_precision
from companion.training.activation_checkpointing import checkpoint_blocks
from companion.training.distributed.data_parallel import _WholeDraws
from companion.training.losses import next_token_loss
from companion.training.precision import autocast, tf32
from companion.training.trainer import Trainer, TrainingConfig
from companion.transformer import Transformer

SMALL = ModelConfig(
    11, 12, 3, context=20, attention=AttentionConfig(3, 1), feed_forward=FeedForwardConfig(20), dropout=0.2
)
MODELS = {
    "dense": SMALL,
    "experts": SMALL.with_(moe=MoEConfig(3, 2, capacity=1.0, noise=0.5)),
    "learned": SMALL.with_(positions=PositionConfig("learned")),
}


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_the_updates_are_the_same_bit_for_bit_and_less_is_kept(config):
    ends, kept = [], []
    for again in (False, True):
        torch.manual_seed(1)
        trainer = Trainer(
            Transformer(config),
            lambda number: tuple(torch.arange(3 * 19).view(3, 19).add(number) % 11 for _ in range(2)),
            TrainingConfig(updates=5, accumulate=2, warmup=1, balance_loss=0.0 if config.moe is None else 0.01),
            activation_checkpointing=again,
        )
        numbers = 0

        def keep(tensor):
            nonlocal numbers
            numbers += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            trainer._scored(0, trainer.batches(0))
        kept.append(numbers)
        updates = [trainer.update() for _ in range(3)]
        ends.append((updates, [p.clone() for p in trainer.model.parameters()]))
        names = list(trainer.weights())
    (plain, plain_weights), (twice, twice_weights) = ends
    assert plain == twice and names == list(Transformer(config).state_dict())
    assert all(torch.equal(a, b) for a, b in zip(plain_weights, twice_weights, strict=True))
    assert kept[1] < kept[0] / 2


def test_rows_of_several_processes_have_the_dropout_of_the_whole_batch_again():
    """The context that draws for all processes ends before the backward pass, which must draw the same again."""
    gradients = []
    tokens = torch.arange(2 * 9).view(2, 9) % 11
    for again in (False, True):
        torch.manual_seed(1)
        model = Transformer(SMALL)
        if again:
            checkpoint_blocks(model)
        torch.manual_seed(2)
        with _WholeDraws(1, 3, 5):
            nats = next_token_loss(model, tokens, tokens).nats
        nats.backward()
        gradients.append([p.grad for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_measuring_and_writing_need_no_second_pass():
    model = Transformer(SMALL).eval()
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        expected = model(tokens).logits
        checkpoint_blocks(model)
        passes = []
        model.decoder.blocks[0].attention.register_forward_hook(lambda *given: passes.append(1))
        assert torch.equal(model(tokens).logits, expected) and len(passes) == 1
    model(tokens).logits.sum().backward()
    assert len(passes) == 3


def test_tf32_is_on_inside_alone_and_for_a_gpu():
    products = torch.backends.cuda.matmul
    assert not products.allow_tf32
    for precision, on in (("tf32", True), ("fp32", False)):
        for block in (tf32(precision), autocast(torch.device("cpu"), precision)):
            with block:
                assert products.allow_tf32 == on
            assert not products.allow_tf32
    assert find_precision("tf32", torch.device("cuda")) == "tf32"
    with pytest.raises(ValueError, match="--precision tf32: expected fp32 or bf16 on cpu"):
        find_precision("tf32", torch.device("cpu"))


def test_a_backward_pass_in_tf32_is_inside_too():
    seen = []
    config = SMALL.with_(dropout=0.0)
    ids = torch.arange(6)[None]
    trainer = Trainer(Transformer(config), lambda _: (ids, ids), TrainingConfig(updates=2, warmup=0), precision="tf32")
    trainer.model.decoder.norm.register_full_backward_hook(
        lambda *given: seen.append(torch.backends.cuda.matmul.allow_tf32)
    )
    trainer.update()
    assert seen == [True] and not torch.backends.cuda.matmul.allow_tf32
