"""Medusa heads: each learns the token at its distance, and their drafts never change a text."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from models import drawn

from companion import (
    AttentionConfig,
    Draft,
    FeedForwardConfig,
    LinearConfig,
    ModelConfig,
    Transformer,
    WindowConfig,
    load_model,
    save_model,
)
from companion.costs.account import counted_flops, forward_flops, parameters, train_flops
from companion.data.batches import IGNORE
from companion.families.export import export_model
from companion.generation.generate import Rules, complete, generate
from companion.generation.sampling import Sampling
from companion.generation.speculative import _OwnHeads
from companion.training.hyperparameters import TrainingConfig
from companion.training.losses import next_token_loss, packed_next_token_loss
from companion.training.trainer import Trainer

CONFIG = ModelConfig(7, 8, 2, 24, AttentionConfig(2, 1, d_head=4), FeedForwardConfig(10), medusa_heads=2)
LAYOUTS = [
    CONFIG.with_(medusa_heads=3, attention=replace(CONFIG.attention, window=WindowConfig(5, (True, False)))),
    CONFIG.with_(attention=AttentionConfig(2, d_head=4, linear=LinearConfig((True, False)))),
]


def test_the_loss_of_each_head_is_that_of_the_token_so_many_places_away():
    model = drawn(CONFIG).double().train()
    tokens = torch.tensor([[1, 2, 3, 4, 5], [6, 0, 1, 0, 1]])
    targets = torch.tensor([[2, 3, 4, 5, 6], [0, 1, IGNORE, 1, IGNORE]])
    scored = next_token_loss(model, tokens, targets, later=0.5)
    stream, expected = model.features(tokens).stream, 0.0
    for away, move in enumerate(model.medusa.moves, 1):
        log = model.head(stream + F.silu(move(stream))).log_softmax(-1)
        for row in range(2):
            for place in range(5 - away):
                right = int(targets[row, place + away])
                expected -= 0.0 if right == IGNORE else log[row, place, right].item()
    assert scored.beside.item() == pytest.approx(0.5 * expected)
    # The value for the log and for accepting a checkpoint
    assert scored.nats == next_token_loss(model.eval(), tokens, targets).nats
    assert next_token_loss(model, tokens, targets).beside is None


def test_what_they_are_learned_with_is_compiled_where_asked_for():
    """The model's own forward pass is not compiled, because it would not return a state for the heads."""
    trainer = Trainer(model := Transformer(CONFIG), lambda number: (), TrainingConfig(1), compile=True)
    assert trainer.model is model and all(block._compiled_call_impl for block in model.decoder.blocks)


def test_no_head_learns_what_stands_in_another_document():
    model = drawn(CONFIG).double().train()
    tokens, targets = torch.tensor([[1, 2, 3, 4, 5, 6]]), torch.tensor([[2, 3, 0, 5, 6, 0]])
    places = torch.tensor([[0, 1, 2, 0, 1, 2]])
    together = packed_next_token_loss(model, tokens, places, targets, hide="documents")
    alone = [next_token_loss(model, tokens[:, part], targets[:, part]) for part in (slice(3), slice(3, 6))]
    torch.testing.assert_close(together.beside, alone[0].beside + alone[1].beside)


def test_what_they_learned_is_accepted_and_kept(tmp_path):
    """The text is periodic, so the model and its heads can predict it if each has learned its own distance."""
    torch.manual_seed(0)
    model, texts = Transformer(CONFIG), torch.arange(25).repeat(4, 1) % 7
    texts = (texts + torch.arange(4)[:, None]) % 7
    batch = texts[:, :-1], texts[:, 1:]
    trainer = Trainer(model, lambda number: batch, TrainingConfig(60, learning_rate=0.05, warmup=5))
    for _ in range(60):
        trainer.update()
    save_model(tmp_path / "kept", model)
    model, draft, asked = load_model(tmp_path / "kept"), Draft("medusa", 4), {"max_new_tokens": 13}
    texts = complete(model, [[1, 2, 3], [2]], sampling=Sampling(0.0), draft=draft, **asked)
    assert texts == [[(first + i) % 7 for i in range(13)] for first in (4, 3)]
    assert draft.rate == 1 and draft.per_pass == 3
    with pytest.raises(ValueError, match="medusa_heads=2: expected 0"):
        export_model(tmp_path / "llama", model, kind="llama")


@pytest.mark.parametrize("config", LAYOUTS)
def test_the_text_is_the_models_own_and_heads_guess_from_what_its_last_token_comes_of(config, monkeypatch):
    model, accepted, proposed = drawn(config, std=0.3).double(), 0, 0
    possible, rules = _OwnHeads.possible, False

    def looked_at(self, rows, counts):
        for r, row in enumerate(rows):
            if not (row.done or rules):
                assert model.head(self.reader.stream[self.reader.last[r]]).argmax() == row.ids[-1]
        return possible(self, rows, counts)

    monkeypatch.setattr(_OwnHeads, "possible", looked_at)
    with torch.no_grad():
        for move in model.medusa.moves:
            move.weight *= 0.1  # close enough to the next token's logits for some drafts to be right
    for case in range(4):
        asked = {"max_new_tokens": 12 + case, "sampling": Sampling(0.0), "stop": {case} if case % 2 else ()}
        if rules := case > 1:
            asked["rules"] = Rules(never=[3], min_new_tokens=4, repetition_penalty=1.4)
        prompts, draft = [[1, 2, 3, 4, 5], [case], [6, 2]], Draft("medusa", 1 + case)
        alone = list(generate(model, prompts, **asked))
        assert list(generate(model, prompts, draft=draft, **asked)) == alone
        accepted, proposed = accepted + draft.accepted, proposed + draft.proposed
    assert 0 < accepted < proposed


def test_they_are_counted_where_they_take_part():
    plain = CONFIG.with_(medusa_heads=0)
    assert parameters(CONFIG).medusa_heads == 2 * (8 * 8 + 8)
    assert parameters(CONFIG).total == sum(p.numel() for p in Transformer(CONFIG).parameters())
    assert parameters(CONFIG).active == parameters(plain).total
    assert forward_flops(CONFIG, 9) == forward_flops(plain, 9)
    model, ids = Transformer(CONFIG), torch.zeros(3, 9, dtype=torch.long)

    def train():
        scored = next_token_loss(model, ids, ids)
        (scored.nats + (0 if scored.beside is None else scored.beside)).backward()

    heads = counted_flops(train)
    model.medusa = None
    assert heads - counted_flops(train) == train_flops(CONFIG, 9, batch=3) - train_flops(plain, 9, batch=3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CONFIG.with_(medusa_heads=-1), "medusa_heads=-1: expected a whole number >= 0"),
        (lambda: CONFIG.with_(stack="encoder_decoder"), "medusa_heads=2: expected 0; only a decoder has such heads"),
        (
            lambda: generate(drawn(CONFIG.with_(medusa_heads=0)), [[1]], draft="medusa"),
            "expected a model with medusa_heads",
        ),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
