"""A published encoder: its sentence vectors equal those of `transformers`, and are similar for similar sentences."""

import torch

SENTENCES = [
    "A man is playing a guitar on stage.",
    "Someone performs music with a string instrument.",
    "The stock market fell sharply today.",
    "Shares lost much of their value this morning.",
]


@torch.no_grad()
def vectors(states, mask):
    """Return the mean of the states of a sentence's tokens, scaled to length 1."""
    sums = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return torch.nn.functional.normalize(sums, dim=-1)


def test_sentence_vectors_are_those_of_transformers_and_near_where_meanings_are(minilm):
    rows = [minilm.tokenizer.encode(one) for one in SENTENCES]
    given = minilm.their_tokenizer(SENTENCES, padding=True, return_tensors="pt")
    assert [row[: int(n)] for row, n in zip(given.input_ids.tolist(), given.attention_mask.sum(1), strict=True)] == rows
    mask = given.attention_mask.bool()
    with torch.no_grad():
        theirs = vectors(minilm.theirs(**given).last_hidden_state, mask)
        ours = vectors(minilm.ours.features(given.input_ids, attention_mask=mask)[0], mask)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    near = ours @ ours.T
    assert near[0, 1] > 0.5 and near[2, 3] > 0.5
    assert near[:2, 2:].abs().max() < 0.2
