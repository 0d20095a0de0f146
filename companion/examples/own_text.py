"""Train a decoder on a text of your own, save it in a folder, and generate text.

    python -m companion.examples.own_text letter.txt [FOLDER [UPDATES]]

`companion train --data letter.txt` does more: it survives being killed, evaluates the model, and can use several GPUs.
This example is the shortest way to train in your own program; 200 updates take about a minute on a laptop.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F

from companion import (
    AttentionConfig,
    FeedForwardConfig,
    ModelConfig,
    Sampling,
    Transformer,
    complete,
    load_model,
    save_model,
)
from companion.data.tokenizer import BytePairTokenizer

CONTEXT, BATCH = 64, 16


def train(ids: torch.Tensor, vocab: int, updates: int) -> Transformer:
    """Return a decoder trained for `updates` updates on windows of `ids` (token)."""
    config = ModelConfig(
        vocab=vocab,
        d_model=128,
        layers=3,
        context=CONTEXT,
        attention=AttentionConfig(heads=4, kv_heads=2),
        feed_forward=FeedForwardConfig(d_ff=344, activation="swiglu"),
    )
    model = Transformer(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    for update in range(1, updates + 1):
        starts = torch.randint(len(ids) - CONTEXT, (BATCH, 1))
        windows = ids[starts + torch.arange(CONTEXT + 1)]  # (batch, token), one token more than the model reads
        logits = model(windows[:, :-1]).logits
        loss = F.cross_entropy(logits.mT, windows[:, 1:])  # each token predicts the next one
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 50 == 0 or update == updates:
            print(f"update {update:4}: {loss.item():.2f} nats a token")
    return model.eval()


def main(path: str, folder: str = "own-model", updates: str = "200") -> None:
    text = Path(path).read_text(encoding="utf-8")
    tokenizer = BytePairTokenizer.train([text], vocab=512)
    ids = torch.tensor(tokenizer.encode(text))
    print(f"{len(text):,} characters are {len(ids):,} tokens, with a vocabulary of {tokenizer.vocab}")
    torch.manual_seed(0)
    save_model(folder, train(ids, tokenizer.vocab, int(updates)))
    tokenizer.save(Path(folder) / "tokenizer.json")

    model, tokenizer = load_model(folder), BytePairTokenizer.load(Path(folder) / "tokenizer.json")  # in a later program
    [new] = complete(model, [tokenizer.encode(text[:20])], max_new_tokens=40, sampling=Sampling(temperature=0.8))
    print(text[:20] + tokenizer.decode(new))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
