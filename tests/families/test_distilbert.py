"""DistilBERT: its heads and rejected settings; `test_releases` tests the equality with `transformers`."""

import pytest
import torch
from families.compared import PUBLISHED, ids, refused, release
from safetensors.torch import load_file, save_file

from companion.families.pretrained import load_pretrained


@torch.no_grad()
def test_an_encoder_alone_has_no_head(tmp_path):
    """`DistilBertModel` saves it without a prefix, and its logits are products with the embedding table."""
    (path,) = [path for path in PUBLISHED if path.stem == "distilbert-base"]
    _, theirs = release(path, 1, tmp_path)
    tensors = {
        name.removeprefix("distilbert."): tensor
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
        if not name.startswith("vocab_")
    }
    save_file(tensors, tmp_path / "model.safetensors")
    alone, tokens = load_pretrained(tmp_path), ids(2, 9, 0)
    stream = theirs.distilbert(tokens).last_hidden_state
    torch.testing.assert_close(alone.features(tokens).stream, stream, atol=1e-5, rtol=1e-5)
    wanted = stream @ theirs.distilbert.embeddings.word_embeddings.weight.T
    torch.testing.assert_close(alone(tokens).logits, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sinusoidal_pos_embds": True}, "sinusoidal_pos_embds=True: expected false"),
        ({"activation": "mish"}, "activation='mish': expected one of"),
        ({"tie_weights_": False}, "tie_weights_=False: expected true"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_refused_by_name(change, named, tmp_path):
    refused("distilbert-base", change, named, tmp_path)
