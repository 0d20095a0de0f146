"""Text from outside: with a byte order mark, in UTF-16, with control characters, or not text at all."""

import codecs
import json
from pathlib import Path

import pytest

from companion import ModelConfig
from companion.commands.many_prompts import read_prompts
from companion.commands.runs import read_config
from companion.commands.settings_file import read_settings
from companion.config.model import AttentionConfig, FeedForwardConfig
from companion.data.chat_template import load_chat_template
from companion.data.conversations import read_conversations
from companion.data.corpora import read_corpus
from companion.data.tokenizer import BytePairTokenizer
from companion.ground.reading import lines_of, read_json, text_of

CONFIG = ModelConfig(13, 8, 1, 6, AttentionConfig(2), FeedForwardConfig(12))
TALK = json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})
TEXT = "The sea is wide, and nobody swims it twice.\n" * 40

READ = {
    "letter.txt": (TEXT, lambda path: [document_ids.text for document_ids in read_corpus([path]).documents]),
    "prompts.txt": ("The sea\nand nobody\n", lambda path: read_prompts(str(path))),
    "prompts.jsonl": ('{"prompt": "a"}\n{"prompt": "b"}\n', lambda path: read_prompts(str(path))),
    "talks.jsonl": (TALK + "\n" + TALK, lambda path: read_conversations([path])),
    "model.json": (CONFIG.to_json(), lambda path: read_config(str(path))),
    "flags.yaml": ("steps: 3\n", lambda path: read_settings(str(path))),
    "chat_template.jinja": ("{{ messages[0].content }}", lambda path: load_chat_template(path.parent).source),
    "tokenizer.json": (
        BytePairTokenizer.train([TEXT], vocab=300).to_json(),
        lambda path: BytePairTokenizer.load(path).to_json(),
    ),
    "config.json": ('{"d_model": 8}', read_json),
}
"""Each kind of text file that a user hands in, what stands in it, and what reads it."""


@pytest.mark.parametrize("name", READ)
def test_a_byte_order_mark_is_no_part_of_the_text_and_utf16_is_called_so(tmp_path, monkeypatch, name):
    text, read = READ[name]
    monkeypatch.chdir(tmp_path)  # a message shortens a long path
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    wanted = read(path)
    path.write_text(text, encoding="utf-8-sig")
    assert path.read_bytes().startswith(codecs.BOM_UTF8) and read(path) == wanted
    for encoding in ("utf-16", "utf-32"):  # the encodings that Windows shells write
        path.write_text(text, encoding=encoding)
        with pytest.raises(ValueError, match=f"(?s){name}.*it is in {encoding.upper()}"):
            read(path)


def test_a_mark_in_the_middle_is_a_letter_of_the_text_and_a_nul_byte_is_no_text():
    assert text_of("a\ufeffb".encode()) == "a\ufeffb"
    assert text_of(codecs.BOM_UTF16_BE[:1].decode("latin-1").encode()) == "\u00fe"
    with pytest.raises(UnicodeError, match="a NUL byte at offset 1"):
        text_of(b"a\0b")


def test_a_line_ends_where_a_file_ends_it_and_not_where_python_would(tmp_path):
    """JSON may contain U+2028 unescaped, and a prompt may contain a form feed."""
    assert lines_of("a\u2028b\fc\x1dd\r\ne\rf") == ["a\u2028b\fc\x1dd", "e", "f"]
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "two\u2028lines"}\n', encoding="utf-8")
    assert [asked.prompt for asked in read_prompts(str(path))] == ["two\u2028lines"]
    path.write_text('{"prompt": "a", "seed": 1, "seed": 2}\n', encoding="utf-8")
    with pytest.raises(ValueError, match="line 1: .*the field 'seed' occurs twice"):
        read_prompts(str(path))
