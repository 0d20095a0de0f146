"""Files of conversations, and the rows that a model's template makes of them, in which only answers are scored."""

import json

import pytest
from data.test_chat_template import CHATML, HEADED, MARKED
from small_tokenizers import LINES, byte_level
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from companion.data.chat_tokens import PLAIN, Dialect, dialect_files, dialect_in, files_of_run
from companion.data.conversations import read_conversations, read_preferences
from companion.data.tokenizer import BytePairTokenizer
from companion.data.verifiable import checkable

USER, ANSWER = {"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Seven."}
TALK = {"messages": [{"role": "system", "content": "Be brief."}, USER, ANSWER, USER, ANSWER]}
PAIR = {"prompt": [USER], "chosen": "Seven.", "rejected": "Nine."}


def written(folder, *lines):
    path = folder / "talks.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), "utf-8")
    return [str(path)]


def test_conversations_are_read_in_their_order_and_empty_lines_are_none(tmp_path):
    found = read_conversations(written(tmp_path, TALK, "", {"messages": [USER, ANSWER], "id": 3}))
    assert [len(one.messages) for one in found] == [5, 2] and found[1].where.endswith(": line 3")


def test_preferences_may_be_written_in_all_forms_of_trl(tmp_path):
    whole = {"chosen": [USER, ANSWER], "rejected": [USER, {"role": "assistant", "content": "Nine."}]}
    lists = {"prompt": [USER], "chosen": [ANSWER], "rejected": [{"role": "assistant", "content": "Nine."}]}
    found = read_preferences(written(tmp_path, PAIR, whole, lists, PAIR | {"prompt": "How many?"}))
    assert len({(one.prompt[0]["content"], one.chosen, one.rejected) for one in found}) == 1


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "line 2: expected a JSON object, got other text"),
        ("[1]", r"line 2: expected a JSON object, got \[1\]"),
        ({"text": "x"}, "line 2: expected \"messages\", got 'text'"),
        (PAIR, "line 2: expected .*a file of preferences is for --method dpo"),
        ({"messages": []}, r"line 2: messages: expected a list of turns, got \[\]"),
        ({"messages": [USER]}, "line 2: messages: expected at least one assistant turn"),
        ({"messages": [ANSWER, USER]}, r"line 2: messages\[0\]: expected a user or system turn first"),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, r"messages\[1\]: role='tool': expected one of system"),
        (
            {"messages": [USER, {"role": "assistant", "content": " "}]},
            r"messages\[1\]: content=' ': expected a non-empty string",
        ),
        (
            {"messages": [USER, "Seven."]},
            r'messages\[1\]: expected an object with "role" and "content", got \'Seven.\'',
        ),
    ],
)
def test_a_line_that_is_no_conversation_is_named(line, sentence, tmp_path):
    with pytest.raises(ValueError, match=r"--data .*talk.*: (line 2: )?" + sentence):
        read_conversations(written(tmp_path, TALK, line))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ({"prompt": "x", "chosen": "y"}, 'expected "prompt", "chosen" and "rejected"'),
        (PAIR | {"rejected": "Seven."}, "expected two different answers, got the same one twice"),
        (PAIR | {"prompt": [USER, ANSWER]}, "prompt: expected the last turn to be the user's"),
        ({"chosen": "a", "rejected": "b"}, 'expected a "prompt", or "chosen" and "rejected" that differ'),
        (PAIR | {"chosen": [USER]}, "chosen: expected the last turn to be the assistant's"),
    ],
)
def test_a_line_that_is_no_preference_is_named(line, sentence, tmp_path):
    with pytest.raises(ValueError, match="line 1: " + sentence):
        read_preferences(written(tmp_path, line))


def test_files_that_are_not_there_empty_or_no_text_are_named(tmp_path):
    with pytest.raises(ValueError, match="--data nowhere.jsonl: cannot be read"):
        read_conversations(["nowhere.jsonl"])
    with pytest.raises(ValueError, match="the file is empty"):
        read_conversations(written(tmp_path, " "))
    (tmp_path / "talks.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="expected a text file in UTF-8"):
        read_conversations([tmp_path / "talks.jsonl"])


# how a model reads conversations


@pytest.fixture(scope="module")
def plain() -> Dialect:
    return dialect_in(files_of_run(BytePairTokenizer.train(LINES, vocab=300), 64))


def test_answers_alone_are_scored_and_stand_behind_what_is_asked(plain):
    (row,) = plain.rows(TALK["messages"])
    scored = [token for token, here in zip(row.ids, row.scored, strict=True) if here]
    assert plain.tokenizer.spell(scored) == " Seven.<|document|> Seven.<|document|>"
    asked = plain.prompt(TALK["messages"][:2])
    assert row.ids[: len(asked)] == asked and not any(row.scored[: len(asked)]) and row.scored[len(asked)]
    assert plain.tokenizer.spell(row.ids).startswith(
        "<|document|>System: Be brief.\nUser: How many?\nAssistant: Seven."
    )
    assert plain.answer(scored[: len(scored) // 2]) == "Seven."


def dialect(folder, template, **said):
    folder.mkdir(exist_ok=True)
    byte_level(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0, **said}))
    (folder / "chat_template.jinja").write_text(template)
    return Dialect.of(folder)


def test_a_template_that_forgets_earlier_answers_gives_a_row_for_each(tmp_path):
    forgets = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content if loop.last else '-' }}<|endoftext|>"
        "{% else %}[{{ m.content }}]{% endif %}{% endfor %}"
    )
    rows = dialect(tmp_path, forgets).rows([USER, ANSWER, USER, ANSWER])
    assert [sum(row.scored) for row in rows] == [sum(rows[0].scored)] * 2 and len(rows) == 2


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        (
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            "expected an answer to end with one of the end-of-text tokens",
        ),
        (
            "{% for m in messages %}{{ m.content }}{% endfor %}{{ '!' if add_generation_prompt }}",
            "expected the formatted answer to continue",
        ),
    ],
)
def test_a_template_from_which_nothing_can_be_learned_is_named(template, sentence, tmp_path):
    with pytest.raises(ValueError, match=f"chat_template.jinja: {sentence}"):
        dialect(tmp_path, template).rows([USER, ANSWER])


def test_a_published_folder_without_a_template_gets_the_plain_one(tmp_path):
    byte_level(tmp_path)
    with pytest.raises(ValueError, match="expected eos_token_id"):
        dialect_files(tmp_path)
    (tmp_path / "config.json").write_text('{"eos_token_id": 0, "model_type": "gpt2"}')
    files = dialect_files(tmp_path)
    assert files["chat_template.jinja"] == PLAIN
    (row,) = dialect_in(files).rows([USER, ANSWER])
    assert dialect_in(files).tokenizer.spell(row.ids) == "User: How many?\nAssistant: Seven.<|endoftext|>"


ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
PHI = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
TEMPLATES = {"chatml": CHATML, "llama-2": MARKED, "llama-3": HEADED, "zephyr": ZEPHYR, "phi": PHI, "plain": PLAIN}
MARKS = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>", "<|eot|>", "<|assistant|>"]
ENDS = ["</s>", "<|im_end|>", "<|end|>", "<|eot|>"]
SPACES = {
    "byte-level (GPT-2, Llama 3, Qwen)": (None, lambda: pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "byte-level with a space first (Falcon, BART)": (None, lambda: pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "Prepend (Llama 2, Mistral 7B, TinyLlama, Phi-3)": (
        lambda: normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        None,
    ),
    "Metaspace, first (Llama 2 as 5.x saves it)": (None, lambda: pre_tokenizers.Metaspace(prepend_scheme="first")),
    "Metaspace, always (T5, Gemma 1 by llama)": (None, lambda: pre_tokenizers.Metaspace(prepend_scheme="always")),
    "Metaspace, never (Gemma)": (None, lambda: pre_tokenizers.Metaspace(prepend_scheme="never")),
}


@pytest.mark.parametrize("strips", [False, True])
@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("name", TEMPLATES)
def test_rows_are_the_whole_text_and_the_mask_is_the_answers(name, kind, strips, tmp_path):
    """Test each way in which tokenizers treat a text's first space; special tokens may absorb the space after them."""
    normalizer, before = SPACES[kind]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    if normalizer is not None:
        tokenizer.normalizer = normalizer()
    if before is not None:
        tokenizer.pre_tokenizer = before()
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "▁", "\n"]
    marks = [AddedToken(mark, special=True, normalized=False, rstrip=strips) for mark in MARKS]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=marks, initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATES[name])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    stop = [MARKS.index(mark) for mark in ENDS]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": stop}))
    read = Dialect.of(tmp_path)
    talk = [USER, ANSWER, USER, {"role": "assistant", "content": "the sea: shells"}]
    rows = read.rows(talk)
    text = read.template.write(talk, answer=False)
    *_, last = rows
    assert last.ids == read.encode(text)
    asked = read.prompt(talk[:-1])
    assert last.ids[: len(asked)] == asked, "what is read before an answer is what generation reads"
    spans = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(text, add_special_tokens=False).offsets
    answers = [(text.index(one["content"], at), one["content"]) for one, at in ((talk[1], 0), (talk[3], 0))]
    covered = set()
    for start, content in answers if len(rows) == 1 else answers[1:]:
        start -= name == "plain"  # its answers begin with a space
        ended = min(at for mark in ENDS if (at := text.find(mark, start + len(content))) >= 0)
        covered |= {place for place, span in enumerate(spans) if start < span[1] and span[0] <= ended}
    assert {place for place, here in enumerate(last.scored) if here} == covered


def test_transformers_writes_and_cuts_the_same(tmp_path):
    import transformers

    for name, text in files_of_run(BytePairTokenizer.train(LINES, vocab=300), 64).items():
        (tmp_path / name).write_text(text, "utf-8")
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), Dialect.of(tmp_path)
    for messages in (TALK["messages"][:2], TALK["messages"][:4]):
        text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert theirs(text, add_special_tokens=False)["input_ids"] == ours.prompt(messages)


# problems that a function checks


@pytest.mark.parametrize("name", ["sums", "names"])
def test_worked_answers_are_right_wrong_ones_are_not_and_held_out_ones_are_apart(name):
    import numpy as np

    task, random = checkable(name), np.random.default_rng(0)
    learn, held = task.problems(300, 1), task.problems(50, 1, held_out=True)
    assert learn == task.problems(300, 1) and not {one.prompt for one in learn} & {one.prompt for one in held}
    for one in learn:
        assert task.reward(one, one.worked) == task.reward(one, one.straight) == 1.0
        assert task.reward(one, task.wrong(one, random)) == 0.0
        assert task.reward(one, "") == task.reward(one, "; ") == 0.0
    with pytest.raises(ValueError, match="expected one of sums, names"):
        checkable("products")


def test_a_sum_is_worked_column_by_column():
    every = {one.prompt: one.worked for one in checkable("sums").problems(20_000, 0)}
    assert every["4 7 + 3 8"] == "7 + 8 = 1 5; 4 + 3 + 1 = 8; 8 5"
    assert every["6 1 + 9 7"] == "1 + 7 = 8; 6 + 9 = 1 5; 1 5 8"
