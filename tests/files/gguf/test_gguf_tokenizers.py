"""Tokenizers in GGUF files give the ids of `transformers` and `sentencepiece` on a thousand difficult strings each."""

import json
import os
import random

import gguf
import gguf_files
import pytest
import sentencepiece
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import transformers

from companion import load_pretrained
from companion.data.chat_template import load_chat_template
from companion.data.published_tokenizers import load_tokenizer
from companion.files.gguf.container import opened
from companion.files.gguf.folder import published_folder
from companion.files.gguf.tokenizers import CONTROL, NORMAL, PRE_TOKENIZERS, USER, Vocabulary, tokenizer_metadata
from companion.files.published.generation_config import read_writing

SIGNS = [
    *"abcdefghijklmnopqrstuvwxyzABCDEXYZ0123456789", *" \n\t\r\u00a0\u3000\u2028\u200b",
    *".,;:!?'\"()[]{}<>|/\\-_=+*&^%$#@~`", *"äöüßéñçğİıſǅﬁ", "e\u0301", "o\u0308", "\u0301", "\u202e", "\ufeff", "\x00",
    *"東京日本語한국어العربيةहिन्दी", "\U0001f40d", "\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\x7f",
    "½", "²", "٣", "Ⅷ", "▁", "Ġ", "Ċ", "  ", "   ", "\n\n", "\r\n", " \n ", "12345", "3.14", "1,000,000",
    "it's", "I'M", "they'LL", "'s", "'ſ", "don't", "http://a.b/c?d=e", "def f(x):\n    return x",
    "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "<tool>", "[INST]", "<0x0A>",
    "the quick brown fox", " shells", "shells", " sea", "Frosch", " den Lehrer",
]  # fmt: skip


def hostile(count=1000, seed=7):
    """Return strings of everything that may confuse a tokenizer."""
    made = random.Random(seed)
    yield from ("", " ", "  a", "a ", "\n", "▁a", " <s>", "<s> a", "a<tool> b")
    for _ in range(count - 9):
        yield "".join(made.choices(SIGNS, k=made.choice((1, 2, 3, 5, 8, 20, 60))))


LINES = [
    "The quick brown fox jumps over the lazy dog. It's 12345 and 3.14, isn't it? They'LL say I'M 20 years old.",
    "She sells sea shells by the sea shore; the shells she sells are sea shells.\n\n  def f(x):\n    return x + 1\r\n",
    "Ein kleiner Frosch fragt den Lehrer um Rat, und der Lehrer fragt den Frosch. 東京 日本語 naïve café",
] * 4


def byte_level(pre):
    """Return the keys of a byte-level BPE that was trained with this pre-tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    blank = json.loads(Tokenizer(models.BPE()).to_str())
    tokenizer.pre_tokenizer = Tokenizer.from_str(
        json.dumps(blank | {"pre_tokenizer": PRE_TOKENIZERS[pre]})
    ).pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>"]
    tokenizer.train_from_iterator(
        LINES,
        trainers.BpeTrainer(vocab_size=420, special_tokens=special, initial_alphabet=letters, show_progress=False),
    )
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    types = [CONTROL] * 3 + [USER] + [NORMAL] * (len(tokens) - 4)
    merges = [" ".join(pair) for pair in model["merges"]]
    keys = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": merges}
    return keys | {"bos_token_id": 1, "eos_token_id": 2, "padding_token_id": 0, "add_bos_token": pre == "llama-bpe"}


def written(path, keys, template=None):
    """Write a file with a tokenizer and a model's name."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    for key, value in keys.items():
        gguf_files.add(writer, f"tokenizer.ggml.{key}", value)
    if template is not None:
        writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def in_folder(path, folder):
    """Convert the tokenizer of a file to the form of a published folder."""
    for name, text in Vocabulary(opened(path)).files().items():
        (folder / name).write_text(text, encoding="utf-8")
    return load_tokenizer(folder)


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2", "tekken", "gpt-4o"])
def test_byte_level_ids_are_those_of_transformers(pre, tmp_path):
    ours = in_folder(written(tmp_path / "m.gguf", byte_level(pre)), tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    if pre == "smollm":  # transformers reads this as GPT-2's, but the released tokenizer splits off digits first
        digits = pre_tokenizers.Digits(individual_digits=True)
        level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, level])
    begins = [1] if pre == "llama-bpe" else []
    for text in hostile():
        wanted = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text) == begins + wanted, repr(text)
        assert ours.decode(wanted) == theirs.decode(
            wanted, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


@pytest.fixture(scope="module", params=[True, False], ids=["prefix", "no prefix"])
def pieces(request, tmp_path_factory):
    """Return a trained SentencePiece model, and the keys that llama.cpp's converter makes of it."""
    home = tmp_path_factory.mktemp("pieces")
    (home / "text").write_text("\n".join(" ".join(line.split()) for line in LINES), "utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(home / "text"), model_prefix=str(home / "m"), vocab_size=400, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=request.param,
        user_defined_symbols=["<tool>"], control_symbols=["[INST]"], minloglevel=2, allow_whitespace_only_pieces=True,
    )  # fmt: skip
    model = sentencepiece.SentencePieceProcessor(str(home / "m.model"))
    ids = range(len(model))
    kinds = [3 if model.IsControl(i) else 6 if model.IsByte(i) else 1 for i in ids]
    kinds[0], kinds[model.PieceToId("<tool>")] = 2, 4
    keys = {"model": "llama", "tokens": list(map(model.IdToPiece, ids)), "scores": list(map(model.GetScore, ids))}
    keys |= {"token_type": kinds, "unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return model, keys | {"add_space_prefix": request.param}


def test_ids_of_pieces_are_those_of_sentencepiece(pieces, tmp_path):
    model, keys = pieces
    ours = in_folder(written(tmp_path / "m.gguf", keys), tmp_path)
    for text in hostile():
        if not any(mark in text for mark in ("<s>", "</s>", "<unk>", "[INST]", "<0x0A>", "<tool>")):  # control tokens
            assert ours.encode(text) == [1, *model.EncodeAsIds(text)], repr(text)
            assert ours.decode(ours.encode(text)) == model.DecodeIds(model.EncodeAsIds(text)), repr(text)
    assert ours.encode("a<tool>b")[-2] == keys["tokens"].index("<tool>")


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2", "tekken", "gpt-4o"])
def test_a_tokenizer_comes_back_from_its_json(pre, tmp_path):
    keys = byte_level(pre)
    in_folder(written(tmp_path / "m.gguf", keys), tmp_path)
    again = tokenizer_metadata((tmp_path / "tokenizer.json").read_text("utf-8"), len(keys["tokens"]))
    assert {name: again[name] for name in ("model", "pre", "tokens", "token_type", "merges", "add_bos_token")} == {
        name: keys[name] for name in ("model", "pre", "tokens", "token_type", "merges", "add_bos_token")
    }


def test_pieces_come_back_from_their_json(pieces, tmp_path):
    _, keys = pieces
    (tmp_path / "again").mkdir()
    first = in_folder(written(tmp_path / "m.gguf", keys), tmp_path)
    again = tokenizer_metadata((tmp_path / "tokenizer.json").read_text("utf-8"), len(keys["tokens"]))
    second = in_folder(written(tmp_path / "again.gguf", again), tmp_path / "again")
    assert again["token_type"] == keys["token_type"] and again["add_space_prefix"] == keys["add_space_prefix"]
    assert all(first.encode(text) == second.encode(text) for text in hostile(300))


def test_template_and_stops_are_those_of_the_file(tmp_path):
    keys = byte_level("smollm") | {"eot_token_id": 4}
    config = transformers.LlamaConfig(
        vocab_size=len(keys["tokens"]), hidden_size=24, num_hidden_layers=1, num_attention_heads=3, intermediate_size=8
    )
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    tokenizer = keys | {"tokenizer.chat_template": template}
    gguf_files.write(tmp_path / "m.gguf", gguf_files.drawn(config), tokenizer=tokenizer)
    folder = published_folder(tmp_path / "m.gguf")
    written_text = load_chat_template(folder).write([{"role": "user", "content": "Hi"}])
    assert written_text == "<|im_start|>user\nHi<|im_end|>\n"
    assert load_tokenizer(folder).encode(written_text, special=False)[:1] == [1]
    assert read_writing(folder).special.stop == {2, 4, 0}, "its own, that of a turn, and <|endoftext|>"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"model": "bert"}, "tokenizer.ggml.model='bert': expected 'gpt2' .* or 'llama'"),
        ({"pre": "klingon"}, "tokenizer.ggml.pre='klingon': expected one of gpt-2, "),
        ({"pre": None}, "tokenizer.ggml.pre='default': expected one of gpt-2, "),
        ({"eos_token_id": 9999}, "tokenizer.ggml.eos_token_id=9999: expected an id from 0 to 3.."),
        ({"merges": ["q z"]}, "tokenizer.ggml.merges='q z': expected two tokens that merge into a third"),
        ({"token_type": [1, 2]}, "tokenizer.ggml.token_type=2: expected one for each of the 4.. tokens"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_rejected_by_name_and_the_model_runs_on_ids(change, message, tmp_path):
    keys = byte_level("smollm") | change
    config = transformers.LlamaConfig(
        vocab_size=len(keys["tokens"]), hidden_size=24, num_hidden_layers=1, num_attention_heads=3, intermediate_size=8
    )
    gguf_files.write(tmp_path / "m.gguf", gguf_files.drawn(config), tokenizer=keys)
    with pytest.raises(ValueError, match=f"m.gguf: {message}"):
        load_tokenizer(published_folder(tmp_path / "m.gguf"))
    assert load_pretrained(tmp_path / "m.gguf").config.layers == 1
