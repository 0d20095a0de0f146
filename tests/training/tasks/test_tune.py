"""Losses for fine-tuning: what a run may change, and that padding changes nothing."""

import json
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from models import drawn
from small_tokenizers import byte_level
from theirs import transformers

from companion import AttentionConfig, FeedForwardConfig, ModelConfig, MoEConfig
from companion.data.batches import IGNORE
from companion.families.adapters import adapt, merged_model
from companion.layers.balance import switch_loss, z_loss
from companion.layers.low_rank import low_rank_layers, without_adapters
from companion.training.fine_tuning import Tuner
from companion.training.hyperparameters import TrainingConfig
from companion.training.settings import TuneSettings
from companion.training.tasks.tune import _pair_loss, _sampled_loss, answer_loss, open_tune

BALANCED = MoEConfig(6, 2, gating="sigmoid", shared=1, balanced=True)
CONFIG = ModelConfig(41, 24, 2, 64, AttentionConfig(4, 2), FeedForwardConfig(20), moe=BALANCED)
SETTINGS = SimpleNamespace(epochs=2, clip_ratio=0.2, strength=0.1, lengths="answer", tokens=9, group=2)
LOSSES = {
    "sft": answer_loss,
    "dpo": partial(_pair_loss, beta=0.1),
    "grpo": partial(_sampled_loss, settings=SETTINGS),
}


def batch(method, number=0, padding=0):
    """Return four rows of unequal lengths, each with a question and a scored answer, and the method's other inputs.

    padding: number of additional padding positions in each row.
    """
    draw = torch.Generator().manual_seed(number)
    width, lengths = 17, [17, 5, 11, 8]
    tokens = torch.randint(3, 41, (4, width), generator=draw)
    targets = torch.randint(3, 41, (4, width), generator=draw)
    for row, length in enumerate(lengths):
        tokens[row, length:], targets[row, length:], targets[row, : length // 2] = 0, IGNORE, IGNORE
    tokens = torch.cat([tokens, tokens.new_zeros(4, padding)], 1)
    targets = torch.cat([targets, targets.new_full((4, padding), IGNORE)], 1)
    if method == "sft":
        return tokens, targets
    numbers = torch.zeros(4, width + padding)
    if method == "dpo":
        return tokens.view(2, 2, -1), targets.view(2, 2, -1), torch.zeros(2, 2), torch.ones(2, dtype=torch.long)
    advantages, rewards = torch.tensor([1.0, -1.0, 0.5, -0.5]), torch.tensor([1.0, 0.0, 1.0, 0.0])
    return tokens, targets, numbers - 3.7, numbers - 3.6, advantages, rewards, torch.ones(4, dtype=torch.long)


@pytest.mark.parametrize("method", LOSSES)
@pytest.mark.parametrize("targets", ["attention", "all"])
def test_an_adapter_run_changes_nothing_but_the_adapters(method, targets):
    """After twenty updates with experts balanced by a bias, all other tensors and buffers are unchanged.

    Without its adapters, the model is the reference of DPO and GRPO, so it must still equal the initial model.
    """
    model = drawn(CONFIG, std=0.2)
    tokens = torch.randint(3, 41, (2, 13), generator=torch.Generator().manual_seed(1))
    start = model.eval()(tokens).logits.detach()
    adapt(model, 3, targets=targets)
    own = {f"{name}.{part}" for name in low_rank_layers(model) for part in ("down", "up")}
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config = TrainingConfig(20, learning_rate=0.01, warmup=1, bias_rate=0.1, balance_loss=0.01)
    tuner = Tuner(model, lambda number: batch(method, number), config, loss=LOSSES[method])
    for _ in range(20):
        tuner.update()
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == own
    with without_adapters(model):
        assert torch.equal(model.eval()(tokens).logits, start)
    assert (model(tokens).logits - start).abs().max() > 0.1 * start.std()


def test_the_adapters_of_a_run_have_the_names_of_the_folder_that_it_starts_from(tmp_path):
    """A Phi-3 is a Mistral with fused matrices; the run, and one that starts from it, use the names of its parts."""
    sizes = {"vocab_size": 340, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "pad_token_id": 0}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 96, "eos_token_id": 0}
    transformers.Phi3ForCausalLM(transformers.Phi3Config(**sizes)).save_pretrained(tmp_path / "phi")
    byte_level(tmp_path / "phi")
    talk = {"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "The fox."}]}
    (tmp_path / "talks.jsonl").write_text(json.dumps(talk))
    settings = TuneSettings(start=str(tmp_path / "phi"), data=(str(tmp_path / "talks.jsonl"),), rank=2, batch=1)
    task = open_tune(settings)
    trainer = task.trainer(1, torch.device("cpu"), "fp32")
    trainer.update()
    names = {name.rpartition(".lora_")[0].rpartition(".")[2] for name in trainer.weights()}
    assert names == {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}
    assert merged_model(trainer.model).published_kind == "phi3"


def test_a_run_of_all_weights_still_moves_the_bias():
    model = drawn(CONFIG, std=0.2)
    tuner = Tuner(model, lambda number: batch("sft", number), TrainingConfig(2, warmup=1, bias_rate=0.1))
    tuner.update()
    assert all(block.feed_forward.bias.abs().sum() > 0 for block in model.decoder.blocks)


@pytest.mark.parametrize("gating", ["sigmoid", "softmax_topk"])
@pytest.mark.parametrize("method", LOSSES)
def test_padding_changes_no_loss_no_bias_and_no_gradient(method, gating):
    """The same rows are padded to 17 positions and to 17 + 32.

    The test compares the experts' counts, both balancing losses, the gradients, and bias and weights after an update.
    """
    made = []
    for padding in (0, 32):
        moe = MoEConfig(6, 2, gating=gating, balanced=True, capacity=9.0)
        model = drawn(CONFIG.with_(moe=moe), std=0.2)
        scored = LOSSES[method](model, *batch(method, padding=padding))
        balance = [loss(one) for one in scored.routing for loss in (switch_loss, z_loss)]
        (scored.nats + sum(balance)).backward()
        gradients = [p.grad for p in model.parameters()]
        config = TrainingConfig(1, warmup=1, bias_rate=0.1, balance_loss=0.1, z_loss=0.1)
        tuner = Tuner(model, partial(batch, method, padding=padding), config, loss=LOSSES[method])
        update = tuner.update()
        counts = [one.counts for one in scored.routing]
        made.append((counts, [scored.nats, *balance], gradients, [*model.state_dict().values()], update))
    for alone, padded in zip(*((*one[:2], one[3]) for one in made), strict=True):
        torch.testing.assert_close(padded, alone, rtol=1e-5, atol=1e-6)
    for alone, padded in zip(made[0][2], made[1][2], strict=True):  # sums, which round like their largest entries
        torch.testing.assert_close(padded, alone, rtol=1e-5, atol=1e-6 * max(1.0, alone.abs().max().item()))
    assert made[0][4].tokens == made[1][4].tokens and sum(made[0][0][0]) == 2 * (17 + 5 + 11 + 8)
