"""BERT with any of its heads computes the same as `transformers`; unsupported settings are rejected."""

import pytest
import torch
import transformers
from families.compared import as_without, refused_by_name, same_function
from safetensors.torch import load_file, save_file
from theirs import bert

from companion.families.pretrained import load_pretrained

BERTS = {
    "bert, both heads": transformers.BertForPreTraining,
    "bert, masked tokens": transformers.BertForMaskedLM,
    "bert, no head": transformers.BertModel,
}


@pytest.mark.parametrize("head", BERTS.values(), ids=BERTS)
@torch.no_grad()
def test_logits_and_pooled_vector_equal_with_segments_and_padding(head, tmp_path):
    theirs = bert(head)
    theirs.save_pretrained(tmp_path)
    ours = load_pretrained(tmp_path)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    tokens, segments = torch.randint(0, 57, (3, 17)), torch.randint(0, 3, (3, 17))
    attention_mask = torch.arange(17) < torch.tensor([5, 17, 9])[:, None]
    for given in ({}, {"segments": segments}, {"segments": segments, "attention_mask": attention_mask}):
        names = {"segments": "token_type_ids", "attention_mask": "attention_mask"}
        expected = theirs(tokens, **{names[name]: value for name, value in given.items()})
        features = ours.features(tokens, **given)
        seen = (
            attention_mask if "attention_mask" in given else torch.ones_like(attention_mask)
        )  # outputs at padding do not matter
        if head is transformers.BertModel:
            torch.testing.assert_close(features.stream[seen], expected[0][seen], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(ours.pool(features.stream), expected.pooler_output, rtol=1e-5, atol=1e-5)
            continue
        logits = expected[0] if head is transformers.BertForMaskedLM else expected.prediction_logits
        assert logits.std() > 0.5
        torch.testing.assert_close(ours(tokens, **given).logits[seen], logits[seen], rtol=1e-5, atol=1e-5)
        if head is transformers.BertForPreTraining:
            scores = expected.seq_relationship_logits
            torch.testing.assert_close(ours.classify(features.stream), scores, rtol=1e-5, atol=1e-5)


def test_the_first_releases_of_bert_are_read_too(tmp_path):
    """They use the names gamma and beta, store the head's table again, and number the positions."""
    theirs = bert()
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in load_file(path).items()
    }
    table = tensors["bert.embeddings.word_embeddings.weight"]
    tensors |= {"cls.predictions.decoder.weight": table.clone(), "bert.embeddings.position_ids": torch.arange(24)[None]}
    save_file(tensors, path)
    same_function(load_pretrained(tmp_path), theirs)
    save_file(tensors | {"cls.predictions.decoder.weight": table + 1}, path)
    with pytest.raises(
        ValueError, match=r"cls.predictions.decoder.weight differs from bert.embeddings.word_embeddings.weight"
    ):
        load_pretrained(tmp_path)
    save_file({name: tensor for name, tensor in tensors.items() if "pooler" not in name}, path)
    with pytest.raises(ValueError, match=r"unexpected cls.seq_relationship.bias \(2,\)"):
        load_pretrained(tmp_path)


REFUSED = [
    ({"is_decoder": True}, "is_decoder=True"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
    ({"hidden_act": "mish"}, "hidden_act='mish'"),
    ({"type_vocab_size": -1}, "type_vocab_size=-1"),
]


@pytest.mark.parametrize(("change", "named"), REFUSED, ids=[named for _, named in REFUSED])
def test_a_field_that_would_change_the_function_is_refused_by_name(change, named, tmp_path):
    refused_by_name(bert(), change, named, tmp_path)


def test_a_field_left_out_has_its_published_default(tmp_path):
    as_without(
        bert(), ("layer_norm_eps", "hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob"), tmp_path
    )
