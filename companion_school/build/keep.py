"""A learner's model as a folder that every command takes: `companion generate --checkpoint my/transformer`.

The weights of the stages 2 to 5 have the names and shapes of the library's, so the library's own export writes them in
the layout of LLaMA. The merges of stage 1 become a `tokenizer.json` that gives the same ids.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from companion import AttentionConfig, FeedForwardConfig, ModelConfig, Transformer
from companion.config.model import NormConfig, PositionConfig
from companion.data.tokenizer import byte_symbols
from companion.families.export import export_model
from companion.ground.atomic import write_atomic
from companion_school.build.isolated_modules import World

END = 0
"""The id that ends a text: byte 0, which no text has."""
PROBES = ("Once upon a time,\n there lived a mole named Mila.", "naïve 東京 \U0001f40d 3.14  !?", "x_y\n\n  end ")


def save(folder: Path, code: World, model: Any, merges: Sequence[tuple[int, int]], context: int) -> list[str]:
    """Write a learner's model and tokenizer into a folder.

    Args:
        folder: where to; files of another name stay.
        code: the learner's files, of which the tokenizer's are asked.
        model: a `Transformer` of stage 5, trained.
        merges: those of its tokenizer.
        context: the longest text it was trained on, in tokens.

    Returns:
        The names of the files.

    Raises:
        ValueError: if the model has other weights than those of the stages 2 to 5, or the tokenizer cannot be written
            in this form.
    """
    tokenizer = tokenizer_of(code, merges)
    config = model.config
    mine = Transformer(
        ModelConfig(
            vocab=config.vocab,
            d_model=config.d_model,
            layers=config.layers,
            context=context,
            attention=AttentionConfig(config.heads, config.kv_heads),
            feed_forward=FeedForwardConfig(config.d_ff),
            positions=PositionConfig(base=config.base),
            norm=NormConfig(eps=1e-6),
        )
    )
    try:
        mine.load_state_dict({name: tensor.float().cpu() for name, tensor in model.state_dict().items()})
    except RuntimeError as error:
        what = "expected the weights of the stages 2 to 5, which the course's commands can read"
        raise ValueError(f"the model cannot be saved: {what}, got others: {error}") from None
    export_model(folder, mine, kind="llama", further={"eos_token_id": END})
    write_atomic(folder / "tokenizer.json", tokenizer.to_str(pretty=True) + "\n")
    symbol = tokenizer.id_to_token(END)
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": symbol, "model_max_length": context}
    write_atomic(folder / "tokenizer_config.json", json.dumps(about, indent=2) + "\n")
    says = {"eos_token_id": END, "do_sample": True, "temperature": 0.7, "top_p": 0.9}
    write_atomic(folder / "generation_config.json", json.dumps(says, indent=2) + "\n")
    return ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]


def tokenizer_of(code: World, merges: Sequence[tuple[int, int]]) -> Tokenizer:
    """The tokenizer of a learner's merges in the form that others read.

    Raises:
        ValueError: if it would give other ids than the learner's `encode`.
    """
    symbols = [symbol for _, symbol in sorted(byte_symbols().items())]
    pairs = []
    for left, right in merges:
        pairs.append((symbols[left], symbols[right]))
        symbols.append(symbols[left] + symbols[right])
    if len(set(symbols)) < len(symbols):
        raise ValueError("the tokenizer cannot be saved: two of its merges spell the same token")
    tokenizer = Tokenizer(models.BPE({symbol: id for id, symbol in enumerate(symbols)}, pairs))
    pattern = Regex(code["tokenizer"].PIECE.pattern)
    split = pre_tokenizers.Split(pattern, "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(symbols[END], special=True, normalized=False)])
    for text in PROBES:
        mine, theirs = list(code["tokenizer"].encode(text, list(merges))), tokenizer.encode(text).ids
        if mine != theirs:
            raise ValueError(f"the tokenizer cannot be saved: it gives {theirs} for {text!r}, and your encode {mine}")
    return tokenizer


def logits_agree(folder: Path, model: Any, ids: Sequence[int]) -> bool:
    """Whether the model in a folder gives the logits of the learner's, up to rounding."""
    from companion import load_pretrained

    given = torch.tensor([list(ids)])
    with torch.no_grad():
        theirs = load_pretrained(folder)(given).logits
        mine = model.cpu()(given)
    return torch.allclose(mine.float(), theirs.float(), atol=1e-3, rtol=1e-3)
