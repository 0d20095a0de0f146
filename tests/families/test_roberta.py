"""RoBERTa and XLM-R: their position tables and heads; `test_releases` tests the equality with `transformers`."""

import pytest
import torch
from families.compared import PUBLISHED, ids, refused, release
from safetensors.torch import load_file, save_file

from companion.families.pretrained import load_pretrained

(PATH,) = [path for path in PUBLISHED if path.stem == "roberta-base"]


@torch.no_grad()
def test_the_two_first_rows_of_positions_are_not_read(tmp_path):
    ours, theirs = release(PATH, 1, tmp_path)
    table = theirs.roberta.embeddings.position_embeddings.weight
    assert ours.config.context == table.shape[0] - 2 and torch.equal(ours.positions.weight, table[2:])
    with pytest.raises(ValueError, match="expected at most context=30"):
        ours(torch.full((1, 31), 5))


@torch.no_grad()
def test_an_encoder_alone_has_a_pooler_and_no_head(tmp_path):
    """`RobertaModel` saves it without a prefix; early files also contain the numbered positions."""
    _, theirs = release(PATH, 1, tmp_path)
    tensors = {
        name.removeprefix("roberta."): tensor
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
        if not name.startswith("lm_head.")
    }
    tensors |= {"pooler.dense.weight": torch.randn(24, 24), "pooler.dense.bias": torch.randn(24)}
    save_file(tensors | {"embeddings.position_ids": torch.arange(32)[None]}, tmp_path / "model.safetensors")
    alone, tokens = load_pretrained(tmp_path), ids(2, 9, 0)
    assert alone.config.embedding.pooled and alone.config.embedding.head == "linear"
    stream = alone.features(tokens).stream
    torch.testing.assert_close(stream, theirs.roberta(tokens).last_hidden_state, atol=1e-5, rtol=1e-5)
    wanted = (stream[:, 0] @ tensors["pooler.dense.weight"].T + tensors["pooler.dense.bias"]).tanh()
    torch.testing.assert_close(alone.pool(stream), wanted)


@pytest.mark.parametrize("name", ["roberta-base", "xlm-roberta-base"])
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"pad_token_id": 0}, "pad_token_id=0: expected 1"),
        ({"hidden_act": "relu"}, "hidden_act='relu': expected 'gelu', which the head always uses"),
        ({"max_position_embeddings": 2}, "max_position_embeddings=2: expected a whole number > 2"),
        ({"is_decoder": True}, "is_decoder=True: expected false"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_refused_by_name(name, change, named, tmp_path):
    refused(name, change, named, tmp_path)
