"""Published tokenizers, loaded from a model's folder, give the same ids and texts as `transformers`."""

import json
import sys
from random import Random

import pytest
import sentencepiece
from theirs import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from companion.data.chat_template import load_chat_template
from companion.data.chat_tokens import Dialect
from companion.data.published_tokenizers import MarianTokenizer, TextStream, load_tokenizer

LINES = [
    "The quick brown fox jumps over the lazy dog.",
    "Ein kleiner Frosch fragt den Lehrer um Rat, und der Lehrer fragt den Frosch.",
    "She sells sea shells by the sea shore; the shells she sells are sea shells.",
    "naïve café, 42 apples & 17 pears: Grüße aus Köln!",
]
TEXTS = [*LINES, "an unseen word: zyzzyva", " two  spaces", "", "emoji 🙂 and 漢字"]


def byte_pairs(folder):
    """Put a byte-level BPE, like GPT-2's, into a new Tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    folder.mkdir(exist_ok=True)
    return tokenizer


@pytest.fixture(scope="module")
def marian_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("marian")
    (folder / "text").write_text("\n".join(LINES * 5), "utf-8")
    vocab = ["</s>", "<unk>", ">>deu<<"]
    for side in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "text"),
            model_prefix=str(folder / side),
            vocab_size=65 if side == "source" else 74,
            model_type="unigram",
            minloglevel=2,
        )
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
        model = sentencepiece.SentencePieceProcessor(str(folder / f"{side}.spm"))
        vocab += [piece for i in range(3, len(model)) if (piece := model.IdToPiece(i)) not in vocab]
    vocab.remove("z")  # a piece without an id
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate([*vocab, "<pad>"])}), "utf-8")
    return folder


def test_gpt2s_first_form_and_tokenizer_json_give_the_ids_of_transformers(tmp_path):
    trained = byte_pairs(tmp_path / "first")
    trained.model.save(str(tmp_path / "first"))
    (tmp_path / "json").mkdir()
    trained.save(str(tmp_path / "json" / "tokenizer.json"))
    theirs = transformers.GPT2Tokenizer.from_pretrained(tmp_path / "first")
    first, later = load_tokenizer(tmp_path / "first"), load_tokenizer(tmp_path / "json")
    for text in [*TEXTS, "end<|endoftext|>start"]:
        ids = theirs(text).input_ids
        assert first.encode(text) == later.encode(text) == ids
        expected = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert first.decode(ids) == later.decode(ids) == expected
        assert "<|endoftext|>" in text or first.decode(ids) == text
    assert first.vocab == later.vocab == 330


def test_berts_word_pieces_get_their_special_tokens(tmp_path):
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.normalizer = normalizers.BertNormalizer(lowercase=True)
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trained.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trained.train_from_iterator(
        LINES, trainers.WordPieceTrainer(vocab_size=90, special_tokens=special, show_progress=False)
    )
    trained.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    trained.enable_truncation(5)
    trained.enable_padding(length=40)
    trained.save(str(tmp_path / "tokenizer.json"))
    ours = load_tokenizer(tmp_path)
    ids = ours.encode("The Lazy [MASK].")
    assert ids[0] == 2 and ids[-1] == 3 and 4 in ids and 0 not in ids
    assert len(ours.encode(LINES[2])) > 10  # not truncated
    assert ours.decode(ours.encode("the lazy dog")) == "the lazy dog"


def test_marians_ids_and_texts_are_those_of_transformers(marian_folder):
    theirs, ours = transformers.MarianTokenizer.from_pretrained(marian_folder), load_tokenizer(marian_folder)
    assert isinstance(ours, MarianTokenizer)
    for text in [*TEXTS, ">>deu<< " + LINES[0]]:
        ids = theirs(text).input_ids
        assert ours.encode(text) == ids
        assert ids[-1] == ours.stop == 0
        expected = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert ours.decode([*ids, ours.pad]) == expected
    assert 1 in ours.encode("zyzzyva") and ours.vocab == len(theirs)
    assert ours.decode(ours.encode(LINES[2])) == LINES[2]


def test_a_stream_never_gives_half_a_character_and_ends_with_the_whole_text(tmp_path, marian_folder):
    byte_pairs(tmp_path).save(str(tmp_path / "tokenizer.json"))
    for tokenizer in (load_tokenizer(tmp_path), load_tokenizer(marian_folder)):
        for text in TEXTS:
            ids = tokenizer.encode(text)
            stream = TextStream(tokenizer)
            parts = [stream.push(i) for i in ids]
            assert "\ufffd" not in "".join(parts)
            assert "".join(parts) + stream.finish() == tokenizer.decode(ids)
    ids = load_tokenizer(tmp_path).encode("漢")
    stream = TextStream(load_tokenizer(tmp_path))
    assert [stream.push(i) for i in ids[:-1]] == [""] * (len(ids) - 1) and len(ids) > 1
    assert stream.finish() == "\ufffd"


def test_what_is_missing_or_damaged_is_named(tmp_path, marian_folder, monkeypatch):
    with pytest.raises(
        ValueError, match=r"expected tokenizer.json, vocab.json with merges.txt, or source.spm; found none"
    ):
        load_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text("a b c d\n")
    with pytest.raises(ValueError, match=r"vocab.json: expected a file that maps tokens to ids, found none"):
        load_tokenizer(tmp_path)
    wrong = {"{": "expected JSON", "[1]": "expected an object", '{"a": "b"}': "expected an object"}
    wrong |= {"[" * 100_000: "expected JSON, .* nested too deeply", '{"a": 1, "a": 2}': "expected JSON, .* twice"}
    for text, said in wrong.items():
        (tmp_path / "vocab.json").write_text(text)
        with pytest.raises(ValueError, match=rf"vocab.json: {said}"):
            load_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    with pytest.raises(ValueError, match=r"merges.txt: expected the merges of vocab.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer.json: expected a tokenizer"):
        load_tokenizer(tmp_path)
    # the library panics, and what it raises is not an Exception
    panics = {"type": "BPE", "continuing_subword_prefix": "##", "vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": panics}))
    with pytest.raises(ValueError, match=r"tokenizer.json: expected a tokenizer .* damaged \(.*slice"):
        load_tokenizer(tmp_path)
    (tmp_path / "source.spm").write_bytes(b"not one")
    with pytest.raises(ValueError, match=r"source.spm: expected a SentencePiece model, but the file is damaged"):
        load_tokenizer(tmp_path)
    for name in ("source.spm", "vocab.json"):
        (tmp_path / name).write_bytes((marian_folder / name).read_bytes())
    with pytest.raises(ValueError, match=r"target.spm: expected a SentencePiece model, found no such file"):
        load_tokenizer(tmp_path)
    (tmp_path / "target.spm").write_bytes((marian_folder / "target.spm").read_bytes())
    with pytest.raises(ValueError, match=r"ids: 999 is not a token; expected ids from 0 to"):
        load_tokenizer(tmp_path).decode([999])
    (tmp_path / "vocab.json").write_text('{"<unk>": 0, "</s>": 1}')
    with pytest.raises(ValueError, match=r"vocab.json: expected the token <pad>, found none"):
        load_tokenizer(tmp_path)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ValueError, match=r"needs sentencepiece; pip install 'executable-transformer\[published\]'"):
        load_tokenizer(tmp_path)


class Everything(TextStream):
    """A stream that decodes the whole text again each time."""

    def _let_go(self, text):
        pass


def test_a_stream_decodes_the_last_tokens_and_gives_what_decoding_everything_gives(tmp_path, marian_folder):
    byte_pairs(tmp_path).save(str(tmp_path / "tokenizer.json"))
    random = Random(3)
    for tokenizer in (load_tokenizer(tmp_path), load_tokenizer(marian_folder)):
        decoded: list[int] = []
        decode = tokenizer.decode
        long = [
            i for _ in range(40) for i in tokenizer.encode(random.choice(TEXTS)) if i != getattr(tokenizer, "stop", -1)
        ]
        noise = random.choices(range(tokenizer.vocab), k=400)
        for ids, before in ((long, []), (long[30:], long[:30]), (noise, long)):
            whole = Everything(tokenizer, before)
            expected = [*map(whole.push, ids), whole.finish()]
            tokenizer.decode = lambda ids, n=decoded, own=decode: n.append(len(ids)) or own(ids)
            stream = TextStream(tokenizer, before)
            decoded.clear()
            got = [*map(stream.push, ids), stream.finish()]
            tokenizer.decode = decode
            assert got == expected
            if ids is not noise:
                assert len(ids) > 300 and max(decoded) < 50


@pytest.mark.parametrize(
    "kind",
    [
        models.WordLevel({"a": 0}, unk_token="[UNK]"),
        models.WordPiece({"a": 0}, unk_token="[UNK]"),
        models.Unigram([("a", -1.0)]),
    ],
    ids=lambda kind: type(kind).__name__,
)
def test_a_text_that_a_tokenizer_has_nothing_for_is_refused(kind, tmp_path):
    tokenizer = Tokenizer(kind)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode("a a") == [0, 0]
    with pytest.raises(ValueError, match="tokenizer: cannot encode this text"):
        load_tokenizer(tmp_path).encode("a zzz")


QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ODD = [
    "return x.y\n\n  print(1234)",
    "<|im_start|>user\nHi<|im_end|>\n",
    "e\u0301 é",
    "don't I'LL",
    "a  b\t\tc\r\n\r\n",
    "x<think>y</think> z",
]


def first_form(folder, cls, **files):
    """Return a folder as `save_pretrained` of a slow tokenizer leaves it."""
    trained = byte_pairs(folder)
    trained.model.save(str(folder))
    for name, said in ({"tokenizer_config": {"tokenizer_class": cls}} | files).items():
        (folder / f"{name}.json").write_text(json.dumps(said))
    return len(json.loads((folder / "vocab.json").read_text()))


@pytest.mark.parametrize("form", ["listed", "older"])
@pytest.mark.parametrize("cls", ["Qwen2Tokenizer", "Qwen2TokenizerFast", "GPT2Tokenizer", "GPT2TokenizerFast"])
def test_the_first_form_is_read_by_the_rules_of_its_family(cls, form, tmp_path):
    """The added tokens are listed in tokenizer_config.json, or in the files of older releases."""
    count = first_form(tmp_path, cls)
    made = {"special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
    names = [*QWEN[1:], "<think>"]
    if form == "listed":
        tokens = {str(count + i): {**made, "content": name, "special": name in QWEN} for i, name in enumerate(names)}
        config = {"added_tokens_decoder": {"0": {**made, "content": QWEN[0]}, **tokens}, "eos_token": QWEN[2]}
        first_form(tmp_path, cls, tokenizer_config={"tokenizer_class": cls, **config})
    else:
        added = {name: count + i for i, name in enumerate(names)}
        marks = {"eos_token": QWEN[2], "bos_token": {**made, "content": QWEN[1]}}
        first_form(tmp_path, cls, added_tokens=added, special_tokens_map=marks)
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    for text in [*TEXTS, *ODD]:
        ids = theirs(text).input_ids
        assert ours.encode(text) == ids, text
        decoded = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert ours.decode(ids) == decoded and ours.spell(ids) == theirs.decode(ids)
    assert ours.encode("<|im_start|>") == [count] and ours.vocab == count + 3


def test_the_first_form_of_another_family_is_refused_by_name(tmp_path):
    first_form(tmp_path, "RobertaTokenizer")
    with pytest.raises(ValueError, match=r"tokenizer_class='RobertaTokenizer': expected GPT2Tokenizer or Qwen2Token"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("places", [(330, 331), (335, 400), (331, 332)])
def test_ids_may_have_holes(places, tmp_path):
    """Added tokens follow the pieces, perhaps after a gap, and every encoded id can be decoded and streamed."""
    trained = byte_pairs(tmp_path)
    said = json.loads(trained.to_str())
    pieces = sorted(said["model"]["vocab"].items(), key=lambda one: one[1])
    said["model"]["vocab"] |= {f"\u2581{i}": place for i, place in enumerate(places)}
    assert len(pieces) == 330
    (tmp_path / "tokenizer.json").write_text(json.dumps(said))
    theirs, ours = Tokenizer.from_file(str(tmp_path / "tokenizer.json")), load_tokenizer(tmp_path)
    assert ours.vocab == places[1] + 1
    for ids in ([*places, 70, 71], [70, places[1], 80]):
        assert ours.decode(ids) == theirs.decode(ids)
        stream = TextStream(ours)
        assert "".join([stream.push(id) for id in ids] + [stream.finish()]) == theirs.decode(ids)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 0}')
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert Dialect.of(tmp_path).answer([70, 71, places[1] + 1]) == theirs.decode([70, 71]).strip()
    hole = next((id for id in range(330, places[1]) if id not in places), None)
    if hole is not None:
        assert ours.decode([70, hole, 71]) == ours.decode([70, 71])


SPECIAL = [
    ({}, {"bos_token": "<b>", "eos_token": {"content": "<e>"}}),
    ({"bos_token": "<a>"}, {"bos_token": "<b>", "eos_token": "<e>"}),
    ({"bos_token": "<a>", "eos_token": None, "added_tokens_decoder": {}}, {"bos_token": "<b>", "eos_token": "<e>"}),
    ({"bos_token": {"content": "<a>", "__type": "AddedToken"}}, {}),
]


@pytest.mark.parametrize(("settings", "marks"), SPECIAL)
def test_special_tokens_of_older_folders_reach_the_template(settings, marks, tmp_path):
    byte_pairs(tmp_path).save(str(tmp_path / "tokenizer.json"))
    template = "{{ bos_token }}hi{{ eos_token }}"
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, **settings}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(marks))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    talk = [{"role": "user", "content": "x"}]
    wanted = theirs.apply_chat_template(talk, tokenize=False)
    assert load_chat_template(tmp_path).write(talk) == wanted
