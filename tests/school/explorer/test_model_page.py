"""Your own models on the explorer's page: what Python records of them, and which ones the page computes."""

import base64
import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load

from companion.commands.main import main
from companion.config.model import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LatentConfig,
    LinearConfig,
    ModelConfig,
    MoEConfig,
    PositionConfig,
    WindowConfig,
)
from companion.data.number_words import task
from companion.data.tokenizer import BytePairTokenizer
from companion.transformer import Transformer
from companion_school.build.isolated_modules import World
from companion_school.build.parts import references
from companion_school.build.stages import STAGES
from companion_school.explorer import explore
from companion_school.explorer.activations import inside
from companion_school.explorer.model_page import model_page, reading

TOKENIZER = BytePairTokenizer.train(["the mole went to the pond and the mole was wet"] * 9, vocab=280)
BASE = {"vocab": TOKENIZER.vocab, "d_model": 24, "layers": 3, "context": 40}
NETWORK = FeedForwardConfig(36)
KINDS = {
    "window, cap, sinks, learned places": ModelConfig(
        **BASE,
        attention=AttentionConfig(4, 2, softcap=20.0, window=WindowConfig(3, (True, False)), sinks=True),
        feed_forward=FeedForwardConfig(36, "gelu"),
        positions=PositionConfig("learned"),
        embedding=EmbeddingConfig(tied=False),
    ),
    "latent": ModelConfig(**BASE, attention=AttentionConfig(4, latent=LatentConfig(8, 4)), feed_forward=NETWORK),
    "linear": ModelConfig(
        **BASE, attention=AttentionConfig(4, linear=LinearConfig((True, False))), feed_forward=NETWORK
    ),
    "shared expert": ModelConfig(
        **BASE, attention=AttentionConfig(4), feed_forward=NETWORK, moe=MoEConfig(5, 2, shared=1, pattern=(False, True))
    ),
}
TEXT = "the mole went to the pond"


def held(page):
    """Return the header and the tensors of the model in a page."""
    file = base64.b64decode(re.search(r'explorerModels \?\?= \{\}\)\.yours = "([^"]+)"', page)[1])
    size = int.from_bytes(file[:8], "little")
    said = json.loads(file[8 : 8 + size])["__metadata__"]
    return {name: json.loads(text) for name, text in said.items()}, load(file)


def rows(said, tensors, name):
    """Return the rows that are recorded under a name."""
    return torch.split(tensors[name], said["recorded"]["sizes"][name])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_recorded_of_attention_is_what_the_layers_made_of_it(kind):
    model = Transformer(KINDS[kind]).eval()
    tokens = [TOKENIZER.separator, *TOKENIZER.encode(TEXT)]
    found = inside(model, tokens)
    layers = [name.removesuffix(".weights") for name in found if name.endswith("attention.weights")]
    assert len(layers) == (1 if kind == "linear" else 3)
    for name in layers:
        layer = model.get_submodule(name)
        torch.testing.assert_close(layer.output(torch.stack(found[f"{name}.heads"])), torch.stack(found[name]))
        for i, row in enumerate(found[f"{name}.weights"]):
            assert row.shape == (4 * (i + 1),) and (row.view(4, -1).sum(-1) <= 1.0001).all()
    block = "decoder.blocks.1"
    added = torch.stack(found[f"{block}.after_attention"]) - torch.stack(found["decoder.blocks.0"])
    torch.testing.assert_close(added, torch.stack(found[f"{block}.attention"]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_holds_the_pass_of_a_model_that_it_does_not_compute(kind):
    model = Transformer(KINDS[kind]).train()
    said, tensors = held(explore(model, TOKENIZER, TEXT).page)
    recorded, tokens = said["recorded"], [TOKENIZER.separator, *TOKENIZER.encode(TEXT)]
    assert model.training and recorded["tokens"] == {"encoder": [], "decoder": tokens}
    assert [said["pieces"][i] for i in tokens] == ["⏎", *(TOKENIZER.decode([i]) for i in tokens[1:])]
    with torch.no_grad():
        logits = model.eval()(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(torch.stack(rows(said, tensors, "logits")), logits, atol=1e-5, rtol=1e-4)
    last = recorded["lens"]["decoder.blocks.2"][-1]
    chances = logits[-1].softmax(-1)
    assert [id for id, _ in last] == chances.topk(3).indices.tolist()
    assert np.allclose([p for _, p in last], chances.topk(3).values, atol=1e-5)
    assert recorded["counts"] == {"layers": 3, "heads": 4, "experts": 5 if kind == "shared expert" else 0}
    kept = {"latent": 0, "linear": 1}.get(kind, 3)
    assert len(recorded["kept"]) == kept


def test_a_plain_decoder_travels_with_its_weights_as_they_are():
    model = Transformer(ModelConfig(**BASE, attention=AttentionConfig(4, 2), feed_forward=NETWORK))
    said, tensors = held(model_page(model, TOKENIZER, TEXT).html)
    assert "recorded" not in said and said["pairs"]["separator"] == TOKENIZER.separator
    assert tensors.keys() == model.state_dict().keys()
    assert all(torch.equal(tensors[name], weight) for name, weight in model.state_dict().items())


def test_an_encoder_decoder_writes_and_both_of_its_sides_are_recorded():
    words = task("de", "en")
    config = ModelConfig(
        words.vocab, 24, 2, words.longest, AttentionConfig(4), FeedForwardConfig(36, "gelu"), stack="encoder_decoder"
    )
    said, tensors = held(model_page(Transformer(config).eval(), words, "einundzwanzig").html)
    tokens = said["recorded"]["tokens"]
    assert tokens["encoder"] == words.encode(21)[0] and 1 <= len(tokens["decoder"]) <= 40
    for name in ("encoder.blocks.1.attention", "decoder.blocks.1.cross"):
        [first, *_] = rows(said, tensors, f"{name}.weights")
        assert torch.allclose(first.view(4, len(tokens["encoder"])).sum(-1), torch.ones(4))


@pytest.mark.parametrize(("stage", "change"), [(5, None), (9, "put_experts"), (12, "put_latents")])
def test_a_transformer_of_your_own_is_shown(stage, change):
    code = World(references(STAGES[stage]), STAGES[stage].module, {})
    sizes = {"vocab": TOKENIZER.vocab, "d_model": 24, "layers": 2, "heads": 4, "kv_heads": 2, "d_ff": 36}
    model = code["model"].Transformer(code["model"].Config(**sizes))
    if change is not None:
        model = getattr(code, change)(model, 8, 2)
    said, tensors = held(model_page(model, TOKENIZER, TEXT).html)
    counts, tokens = said["recorded"]["counts"], torch.tensor([said["recorded"]["tokens"]["decoder"]])
    assert (counts["layers"], counts["heads"]) == (2, 4)
    torch.testing.assert_close(torch.stack(rows(said, tensors, "logits")), model(tokens)[0], atol=1e-5, rtol=1e-4)
    for row in rows(said, tensors, "decoder.blocks.1.attention.weights"):
        assert torch.allclose(row.view(4, -1).sum(-1), torch.ones(4))
    if change == "put_experts":
        assert all(row.shape == (2,) for row in rows(said, tensors, "decoder.blocks.0.feed_forward.experts"))


@pytest.mark.parametrize(
    ("changes", "text", "message"),
    [
        ({"stack": "encoder"}, TEXT, "expected a decoder or an encoder-decoder"),
        ({"residual": 0.5}, "", "expected a text with at least one token"),
        ({"residual": 0.5, "context": 4}, TEXT, "expected at most 4 tokens, the model's context"),
    ],
)
def test_what_cannot_be_shown_is_refused(changes, text, message):
    config = ModelConfig(**BASE, attention=AttentionConfig(4), feed_forward=NETWORK).with_(**changes)
    with pytest.raises(ValueError, match=message):
        model_page(Transformer(config), TOKENIZER, text)


def test_a_model_whose_blocks_have_other_names_is_refused():
    with pytest.raises(ValueError, match="expected a model whose first block is named decoder"):
        inside(torch.nn.Linear(3, 4), [1, 2])


def test_the_text_of_a_published_tokenizer_is_read_as_it_spells_it():
    class Words:
        def encode(self, text):
            return [3, 7]

        def decode(self, ids):
            return "|".join(map(str, ids))

    config = ModelConfig(**BASE, attention=AttentionConfig(4), feed_forward=NETWORK)
    given = reading(Transformer(config), Words(), "any")
    assert (list(given.tokens), given.source, given.piece(7)) == ([3, 7], (), "7")
    with pytest.raises(ValueError, match="start=None: expected a whole number"):
        reading(Transformer(config.with_(stack="encoder_decoder")), Words(), "any")


def test_the_command_writes_the_courses_models_and_refuses_what_is_no_folder(tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["explore", "--out", str(out)]) == 0
    page = out.read_text("utf-8")
    assert page.startswith("<!DOCTYPE html>") and all(
        f".{name} = " in page for name in ("story", "experts", "translator")
    )
    assert not re.search(r'(?:src|href)="?http', page)
    assert main(["explore", str(tmp_path / "none")]) == 2
    assert (
        "none: expected a folder with config.json and model.safetensors, or a GGUF file, found none"
        in capsys.readouterr().err
    )
    assert main(["explore", "--text", "any"]) == 2
    assert "--text needs a FOLDER" in capsys.readouterr().err
    assert main(["explore", "--port", "8000", "--out", str(out)]) == 2
    assert "--port 8000: only allowed for a page that Python serves" in capsys.readouterr().err
