"""Chat templates give the same text as `transformers`, and bad conversations are rejected."""

import json
import sys

import pytest
from transformers import PreTrainedTokenizerFast

from companion.data import chat_template
from companion.data.chat_template import ChatTemplate, conversation, load_chat_template
from companion.ground.time_limit import at_most, within

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}"
)
HEADED = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "You help." %}
{%- endif %}
{{- "<|start|>system<|end|>\\n\\n" + system_message + "<|eot|>" }}
{%- for message in messages %}
    {%- if message.content == "skip" %}{% continue %}{% endif %}
    {{- '<|start|>' + message['role'] + '<|end|>\\n\\n' + message['content'] | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant<|end|>\\n\\n' }}{%- endif %}"""
COUNTED = (
    "{%- set ns = namespace(last=-1) %}{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 "
    "%}{%- endif %}{%- endfor %}{%- for m in messages %}{{- m.role }}:{{ m.content | tojson }}"
    "{%- if loop.index0 == ns.last %}!{%- endif %}{{ '\n' }}{%- endfor %}"
    "{%- if enable_thinking is defined and enable_thinking is false %}<think></think>{%- endif %}"
)
SPOKEN = (
    "{%- for m in messages %}\n  {%- if m.role == 'assistant' %}\n  {% generation %}{{ m.content }}{{ eos_token }}"
    "{% endgeneration %}\n  {%- else %}<{{ m.role }}>{{ m.content }}{%- endif %}\n{%- endfor %}"
)
TEMPLATES = {"chatml": CHATML, "marked": MARKED, "headed": HEADED, "counted": COUNTED, "spoken": SPOKEN}
TALK = ("Who are you?", "A model, <b>small</b> & “quoted”.", "skip", " Of whom? ", "Und auf Deutsch: schön\n")


def theirs(template):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level_tokenizer(), bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = template
    return tokenizer


def byte_level_tokenizer():
    from tokenizers import Tokenizer, models

    return Tokenizer(models.BPE())


@pytest.mark.parametrize("system", [None, "Be brief."])
@pytest.mark.parametrize("answer", [True, False])
@pytest.mark.parametrize("turns", [1, 3, 5])
@pytest.mark.parametrize("name", TEMPLATES)
def test_conversations_are_written_as_transformers_writes_them(name, turns, answer, system, tmp_path):
    if name == "marked" and system:
        system = None  # this template raises for a system message, see below
    tokenizer = theirs(TEMPLATES[name])
    tokenizer.save_pretrained(tmp_path)
    messages = conversation(TALK[:turns], system)
    found = load_chat_template(tmp_path)
    expected = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=answer)
    assert found.write(messages, answer=answer) == expected and len(expected) > 10


def test_further_words_reach_the_template(tmp_path):
    theirs(COUNTED).save_pretrained(tmp_path)
    found, messages = load_chat_template(tmp_path), conversation(["Hi"])
    assert found.write(messages, enable_thinking=False).endswith("<think></think>")
    assert not found.write(messages, enable_thinking=True).endswith("</think>")


def test_a_template_is_found_where_folders_have_it(tmp_path):
    assert load_chat_template(tmp_path) is None
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(json.dumps({"bos_token": {"content": "<s>", "lstrip": False}, "model_max_length": 7}))
    assert load_chat_template(tmp_path) is None
    settings.write_text(json.dumps({"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}one"}))
    assert load_chat_template(tmp_path).write(conversation(["a"])) == "<s>one"
    many = [{"name": "tool_use", "template": "two"}, {"name": "default", "template": "three"}]
    settings.write_text(json.dumps({"bos_token": "<s>", "chat_template": many}))
    assert load_chat_template(tmp_path).write(conversation(["a"])) == "three"
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}four")
    assert load_chat_template(tmp_path).write(conversation(["a"])) == "<s>four"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, "tokenizer_config.json: chat_template=5: expected the text of a template"),
        ([{"name": "tool_use", "template": "a"}], "chat_template: expected one named 'default', got tool_use"),
        ({"a": 1}, "expected the text of a template"),
    ],
)
def test_settings_that_are_no_template_are_refused(given, said, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": given}))
    with pytest.raises(ValueError, match="tokenizer_config.json") as refused:
        load_chat_template(tmp_path)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{% for %}", "expected a Jinja template (line 1"),
        (MARKED, "the template rejects this conversation: Conversation roles must alternate"),
        ("{{ messages[0].content.__class__.__mro__ }}", "rejects this conversation: access to attribute '__class__'"),
        ("{% set _ = messages.append(1) %}", "rejects this conversation"),
        ("{{ 1 // 0 }}", "rejects this conversation"),
        ("{{ nothing.here }}", "rejects this conversation: 'nothing' is undefined"),
    ],
)
def test_what_a_template_may_not_do_is_said(source, said, tmp_path):
    template = ChatTemplate(source, tmp_path / "chat_template.jinja")
    with pytest.raises(ValueError, match="chat_template.jinja") as refused:
        template.write(conversation(["Hi"], system="Be brief."))
    assert said in str(refused.value)


NOTHING_ENDS = "did not finish within"
ENDLESS = [
    ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", NOTHING_ENDS),
    ("{{ lipsum(n=10000000) }}", NOTHING_ENDS),
    ("{% macro f(n) %}{{ f(n - 1) + f(n - 1) if n }}{% endmacro %}{{ f(99) }}", NOTHING_ENDS),
    ("{{ messages[0].content * 15_000_000 }}", "expected at most 20,000,000 characters"),
]
if sys.platform == "linux":  # only Linux can limit memory
    ENDLESS += [
        (source, "needs more than 256 MiB")
        for source in (
            "{{ ('x' * 10**10) | length }}",
            "{{ (messages[0].content * 10**10) | length }}",
            "{{ 'x'.center(10**10) }}",
            "{{ '%9999999999d' % 3 }}",
            "{{ '{:>9999999999}'.format(3) }}",
            "{% set n = namespace(s='x') %}{% for i in range(50) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
            "{{ [0] * 10**9 }}",
        )
    ]


@pytest.mark.parametrize(("source", "said"), ENDLESS)
def test_a_template_without_end_or_measure_is_stopped(source, said, tmp_path, monkeypatch):
    monkeypatch.setattr(chat_template, "SECONDS", 0.3 if said == NOTHING_ENDS else 10)
    monkeypatch.setattr(chat_template, "MEMORY", 1 << 28)
    template = ChatTemplate(source, tmp_path / "chat_template.jinja")
    with pytest.raises(ValueError, match=r"^\S*chat_template\.jinja: [\w ]*" + said):
        template.write(conversation(["Hi"]))
    assert ChatTemplate(CHATML, tmp_path / "fine.jinja").write(conversation(["Hi"])).startswith("<|im_start|>user")
    with at_most(60), within(1 << 29):  # the limits are restored
        assert len(bytes(3 << 27)) == 3 << 27


@pytest.mark.parametrize("turns", [[], ["a", "b"]])
def test_a_conversation_ends_with_the_user(turns):
    expected = rf"turns: expected an odd number \(the user has the first and the last\), got {len(turns)}"
    with pytest.raises(ValueError, match=expected):
        conversation(turns)


def test_no_message_is_no_conversation(tmp_path):
    with pytest.raises(ValueError, match="messages: expected at least one, got none"):
        ChatTemplate("a", tmp_path / "t").write([])
