"""Small tokenizers of the kinds that published models have, written into a folder."""

import json
from pathlib import Path

import sentencepiece
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

LINES = [
    "The quick brown fox jumps over the lazy dog.",
    "She sells sea shells by the sea shore; the shells she sells are sea shells.",
    "Ein kleiner Frosch fragt den Lehrer um Rat, und der Lehrer fragt den Frosch.",
]


def byte_level(folder: Path) -> int:
    """Write GPT-2's kind of tokenizer, and return its number of tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<|endoftext|>"], initial_alphabet=letters, show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer.get_vocab_size()


def with_spaces_marked(folder: Path) -> int:
    """Write LLaMA's kind: the first space of a text is added by the tokenizer, and <s> begins it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    special = ["<unk>", "<s>", "</s>"]
    tokenizer.train_from_iterator(
        LINES, trainers.BpeTrainer(vocab_size=90, special_tokens=special, show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer.get_vocab_size()


def two_languages(folder: Path) -> int:
    """Write Marian's kind."""
    (folder / "text").write_text("\n".join(LINES * 5), "utf-8")
    vocab = ["</s>", "<unk>"]
    for side, size in (("source", 50), ("target", 54)):
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "text"), model_prefix=str(folder / side), vocab_size=size, minloglevel=2
        )
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
        (folder / f"{side}.vocab").unlink()
        model = sentencepiece.SentencePieceProcessor(str(folder / f"{side}.spm"))
        vocab += [piece for i in range(3, len(model)) if (piece := model.IdToPiece(i)) not in vocab]
    (folder / "text").unlink()
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate([*vocab, "<pad>"])}), "utf-8")
    return len(vocab) + 1
