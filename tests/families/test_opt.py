"""OPT: its table of positions, and rejected settings; `test_releases` tests the equality with `transformers`."""

import pytest
import torch
from families.compared import PUBLISHED, TOKENS, ids, refused, release
from safetensors.torch import load_file, save_file

from companion.families.pretrained import load_pretrained

(PATH,) = [path for path in PUBLISHED if path.stem == "opt-125m"]


@torch.no_grad()
def test_the_two_first_rows_of_positions_are_not_read(tmp_path):
    ours, theirs = release(PATH, 1, tmp_path)
    table = theirs.model.decoder.embed_positions.weight
    assert table.shape[0] == ours.config.context + 2 and torch.equal(ours.positions.weight, table[2:])
    path = tmp_path / "model.safetensors"
    save_file(load_file(path) | {"model.decoder.embed_positions.weight": table[:2].contiguous()}, path)
    with pytest.raises(ValueError, match=r"embed_positions.weight has shape \(2, 24\): .* asks for \(34, 24\)"):
        load_pretrained(tmp_path)


@torch.no_grad()
def test_norms_behind_and_no_biases_are_read_too(tmp_path):
    """These are the layers of OPT-350M, without its narrow embedding."""
    _, theirs = release(PATH, 1, tmp_path, do_layer_norm_before=False, enable_bias=False)
    tokens = ids(2, TOKENS, 1)
    torch.testing.assert_close(load_pretrained(tmp_path)(tokens).logits, theirs(tokens).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"word_embed_proj_dim": 12}, "word_embed_proj_dim=12: expected 24, as hidden_size"),
        ({"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine=False: expected true"),
        ({"_remove_final_layer_norm": True}, "_remove_final_layer_norm=True: expected false"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_refused_by_name(change, named, tmp_path):
    refused("opt-125m", change, named, tmp_path)
