"""From text to tokens and back: exact, deterministic, and never splitting a character."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from companion.data.tokenizer import SEPARATOR, BytePairTokenizer

TEXT = "the cat sat on the mat; the café's cat naïvely sat there.\n\n" * 6 + "日本語のテキスト " * 4


@pytest.fixture(scope="module")
def tokenizer() -> BytePairTokenizer:
    return BytePairTokenizer.train([TEXT], vocab=300)


@settings(max_examples=150, deadline=None)
@given(st.text())
@example("")
@example(f"a document that says {SEPARATOR} in so many characters")
@example("\x00\ufeff\r\n\t \u2028 e\u0301 é \U0001f9ee\U0010ffff")
@example("   leading, trailing and    inner spaces   ")
def test_every_text_comes_back_exactly_whole_and_streamed(tokenizer: BytePairTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.separator not in ids
    assert sum(tokenizer.lengths()[i] for i in ids) == len(text.encode())
    stream = tokenizer.stream()
    pieces = [stream.push(i) for i in ids]
    assert "".join(pieces) + stream.finish() == text
    assert "\ufffd" in text or "\ufffd" not in "".join(pieces)


def test_a_stream_holds_a_character_back_until_it_is_whole() -> None:
    bytes_only = BytePairTokenizer.train(["x"], vocab=257)
    ids = bytes_only.encode("a€b")
    assert len(ids) == 5
    stream = bytes_only.stream()
    assert [stream.push(i) for i in ids] == ["a", "", "", "€", "b"]
    broken = bytes_only.stream()
    assert [broken.push(i) for i in ids[:3]] == ["a", "", ""]
    assert broken.finish() == "\ufffd"
    assert bytes_only.decode(ids[:3]) == "a\ufffd"


def test_merges_are_learned_up_to_the_vocabulary_and_make_text_shorter(tokenizer: BytePairTokenizer) -> None:
    assert tokenizer.vocab == 300
    assert len(tokenizer.encode(TEXT)) < len(TEXT.encode()) / 2
    assert BytePairTokenizer.train(["ab"], vocab=5000).vocab < 300  # no pair in it is repeated


def test_the_same_text_gives_the_same_tokens_in_another_process_and_threads(tokenizer: BytePairTokenizer) -> None:
    script = (
        "import sys, hashlib\nfrom companion.data.tokenizer import BytePairTokenizer\n"
        "text = sys.stdin.buffer.read().decode()\n"
        "print(hashlib.sha256(BytePairTokenizer.train([text], vocab=300).to_json().encode()).hexdigest())"
    )
    import hashlib

    wanted = hashlib.sha256(tokenizer.to_json().encode()).hexdigest()
    environment = {**os.environ, "RAYON_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "true", "PYTHONHASHSEED": "17"}
    run = subprocess.run([sys.executable, "-c", script], input=TEXT.encode(), env=environment, capture_output=True)
    assert run.stdout.decode().strip() == wanted, run.stderr.decode()


def test_saved_and_loaded_it_is_the_same_and_still_cannot_be_forged(tmp_path, tokenizer: BytePairTokenizer) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    loaded = BytePairTokenizer.load(path)
    assert loaded.to_json() == tokenizer.to_json()
    assert loaded.encode(TEXT + SEPARATOR) == tokenizer.encode(TEXT + SEPARATOR)
    assert loaded.separator not in loaded.encode(SEPARATOR)
    assert [entry.name for entry in tmp_path.iterdir()] == ["tokenizer.json"]


@pytest.mark.parametrize("content", ["", '{"version": "1.0"', "[]", b"\xff\xfe", json.dumps({"a": 1})])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path, content: str | bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=r"tokenizer\.json.*expected"):
        BytePairTokenizer.load(path)


def test_a_tokenizer_cut_in_half_missing_or_of_another_kind_is_refused(tmp_path, tokenizer: BytePairTokenizer) -> None:
    path = tmp_path / "half.json"
    text = tokenizer.to_json()
    path.write_text(text[: len(text) // 2], "utf-8")
    with pytest.raises(ValueError, match=r"half\.json"):
        BytePairTokenizer.load(path)
    with pytest.raises(ValueError, match="cannot be read"):
        BytePairTokenizer.load(tmp_path / "none.json")
    with pytest.raises(ValueError, match="separator|token"):
        BytePairTokenizer.from_json(text.replace(SEPARATOR, "<|other|>"))
    # the library panics, and what it raises is not an Exception
    panics = json.loads(text)
    panics["model"]["continuing_subword_prefix"] = "longer than any token"
    path.write_text(json.dumps(panics), "utf-8")
    with pytest.raises(ValueError, match=r"half\.json: tokenizer: expected the JSON of a byte-level BPE \(.*range"):
        BytePairTokenizer.load(path)


def test_bad_arguments_are_named(tokenizer: BytePairTokenizer) -> None:
    with pytest.raises(ValueError, match=r"vocab=256: expected at least 257"):
        BytePairTokenizer.train([TEXT], vocab=256)
    with pytest.raises(ValueError, match="lone surrogate at index 2"):
        tokenizer.encode("ab\ud800")
    with pytest.raises(ValueError, match=r"token=300: expected an id from 0 to 299"):
        tokenizer.decode([300])


def test_a_long_line_without_a_blank_is_learned_from_in_pieces() -> None:
    """A genome in a file is such a line; the time of the library's training is quadratic in the longest word."""
    genome = "".join("ACGT"[place * place % 7 % 4] for place in range(400_000))
    tokenizer = BytePairTokenizer.train([genome], vocab=280)
    ids = tokenizer.encode(genome)
    assert tokenizer.decode(ids) == genome
    assert len(ids) < len(genome) / 2
