"""Levels of int4 on disk are loaded unchanged, for exactly the weights for which they were chosen."""

import pytest
import torch
from models import drawn

from companion.config.model import AttentionConfig, FeedForwardConfig, ModelConfig
from companion.files.int4 import load_levels, save_levels
from companion.files.models import load_tensors, save_tensors
from companion.quantization.calibration import calibrate
from companion.quantization.weights import four_bit_layers, prepared, rounded_of, step_bytes

PLAIN = ModelConfig(77, 64, 2, 40, AttentionConfig(4, 2), FeedForwardConfig(96, "swiglu"))


def layers_of(model):
    return [layer for group in four_bit_layers(model) for layer in group]


def model_of(seed: int = 0, config: ModelConfig = PLAIN):
    model = drawn(config, seed=seed, std=0.15).eval()
    with torch.no_grad():  # a channel to balance, only in the first layer
        model.decoder.blocks[0].attention_norm.weight[5] *= 64
    return model


@pytest.fixture
def kept(tmp_path):
    model = model_of()
    torch.manual_seed(1)
    tokens = torch.randint(77, (6, 40))
    calibrate(model, tokens)
    save_levels(tmp_path / "levels.safetensors", model)
    return model, tokens, tmp_path / "levels.safetensors"


def test_what_is_read_back_is_what_was_chosen(kept) -> None:
    model, tokens, path = kept
    again = model_of()
    with torch.no_grad():
        plain = prepared(again, "int4")(tokens).logits
        assert load_levels(path, again) == len(layers_of(again)) == 14
        chosen = prepared(again, "int4")
        assert torch.equal(chosen(tokens).logits, prepared(model, "int4")(tokens).logits)
        assert not torch.equal(chosen(tokens).logits, plain)
    for ours, theirs in zip(layers_of(model), layers_of(again), strict=True):
        for one, other in zip(*rounded_of([ours]), *rounded_of([theirs]), strict=True):
            assert (one is other is None) or (torch.equal(one, other) and one.dtype == other.dtype)
    balanced = {layer for layer in layers_of(model) if rounded_of([layer])[0].factor is not None}
    assert 3 <= len(balanced) < 14 and model.decoder.blocks[0].attention.query in balanced
    # Five bits per weight, as a decode step reads them, and two bytes per input of a balanced layer
    numbers = sum(layer.weight.numel() for layer in layers_of(model))
    assert sum(tensor.nbytes for tensor in load_tensors(path).values()) == numbers * 5 // 8 + sum(
        2 * layer.in_features for layer in balanced
    )
    assert numbers * 5 // 8 < step_bytes(chosen)


def test_levels_of_other_weights_and_other_files_are_refused(kept, tmp_path) -> None:
    model, _, path = kept
    with pytest.raises(ValueError, match="query.weight|query differs in values or dtype from the weights"):
        load_levels(path, model_of(seed=1))
    with pytest.raises(ValueError, match="differs in values or dtype"):
        load_levels(path, model_of().bfloat16())
    with pytest.raises(ValueError, match=r"expected levels for exactly this model's layers; .* is not one of them"):
        load_levels(path, model_of(config=PLAIN.with_(layers=1)))
    with pytest.raises(ValueError, match="expected a calibrated model that has not been changed since; decoder"):
        save_levels(tmp_path / "other.safetensors", model_of())
    save_tensors(tmp_path / "other.safetensors", model.state_dict())
    with pytest.raises(ValueError, match="expected int4 levels in groups of 32, got another safetensors file"):
        load_levels(tmp_path / "other.safetensors", model)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="expected a complete safetensors file"):
        load_levels(path, model)
