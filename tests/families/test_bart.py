"""BART: both inputs, early files and rejected settings; `test_releases` tests the equality with `transformers`."""

import pytest
import torch
from families.compared import PUBLISHED, ids, refused, release
from safetensors.torch import load_file, save_file

from companion.families.pretrained import load_pretrained

(PATH,) = [path for path in PUBLISHED if path.stem == "bart-base"]


@torch.no_grad()
def test_each_stack_has_its_own_positions_from_the_third_row_on(tmp_path):
    ours, theirs = release(PATH, 1, tmp_path)
    for own, stack in ((ours.source_positions, theirs.model.encoder), (ours.positions, theirs.model.decoder)):
        assert len(own.weight) == ours.config.context and torch.equal(own.weight, stack.embed_positions.weight[2:])


@torch.no_grad()
def test_a_file_without_prefixes_and_without_a_bias_is_read_as_its_stacks_are(tmp_path):
    """`BartModel` saves this format, and BART-base is released in it."""
    _, theirs = release(PATH, 1, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    plain = {name.removeprefix("model."): value for name, value in tensors.items() if name != "final_logits_bias"}
    table = plain["shared.weight"]
    plain |= {f"{stack}.embed_tokens.weight": table.clone() for stack in ("encoder", "decoder")}
    save_file(plain, tmp_path / "model.safetensors")
    ours, tokens = load_pretrained(tmp_path), ids(2, 9, 0)
    assert ours.config.embedding.head == "linear"
    wanted = theirs(tokens, decoder_input_ids=tokens).logits - theirs.final_logits_bias
    torch.testing.assert_close(ours(tokens, source=tokens).logits, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"decoder_layers": 2}, "decoder_layers=2: expected 3, as encoder_layers"),
        ({"normalize_before": True}, "normalize_before=True: expected false"),
        ({"normalize_embedding": False}, "normalize_embedding=False: expected true"),
        ({"static_position_embeddings": True}, "static_position_embeddings=True: expected false"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=False: expected true"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_refused_by_name(change, named, tmp_path):
    refused("bart-base", change, named, tmp_path)
