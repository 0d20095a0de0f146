"""Published releases at small sizes, with tokenizers.

`companion inspect` describes them, and `companion generate` gives the same text as `transformers` with the settings in
their folders.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_tokenizers import byte_level, two_languages, with_spaces_marked
from theirs import transformers

from companion.commands.main import main
from companion.config.model import AttentionConfig, FeedForwardConfig, ModelConfig
from companion.data.published_tokenizers import load_tokenizer
from companion.files.models import save_model
from companion.transformer import Transformer

PUBLISHED = Path(__file__).parents[1] / "published"
PROMPT = "She sells sea shells by the shore"
SMALL = {
    **{"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4},
    **{"intermediate_size": 40, "max_position_embeddings": 64, "max_window_layers": 3, "d_model": 24},
    **{f"{stack}_layers": 2 for stack in ("encoder", "decoder")},
    **{f"{stack}_attention_heads": 4 for stack in ("encoder", "decoder")},
    **{f"{stack}_ffn_dim": 30 for stack in ("encoder", "decoder")},
}
KINDS = {"smollm2-135m": byte_level, "qwen2.5-0.5b": byte_level, "tinyllama-1.1b": with_spaces_marked}
KINDS |= {"opus-mt-en-de": two_languages}
SAYS = {
    "smollm2-135m": {"bos_token_id": 0, "eos_token_id": 0, "transformers_version": "4.40.1"},
    "qwen2.5-0.5b": {"do_sample": False, "repetition_penalty": 1.3, "eos_token_id": [0, 1], "max_new_tokens": 14},
    "tinyllama-1.1b": {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "max_length": 40},
}
"""What each folder says of writing, as such releases do, with ids that its tokenizer has."""


def make(name: str, folder: Path) -> None:
    folder.mkdir()
    vocab = KINDS[name](folder)
    fields = json.loads((PUBLISHED / f"{name}.json").read_text())
    small = fields | {field: value for field, value in SMALL.items() if field in fields} | {"vocab_size": vocab}
    small |= {"torch_dtype": "float32"}  # because `transformers` computes in this dtype
    says = SAYS.get(name)
    if name == "opus-mt-en-de":
        ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": vocab - 1, "decoder_start_token_id": vocab - 1}
        ids |= {"forced_eos_token_id": 0, "bad_words_ids": [[vocab - 1]]}
        small |= ids | {"decoder_vocab_size": vocab, "num_hidden_layers": 2}
        says = ids | {"num_beams": 4, "max_length": 30, "renormalize_logits": True, "_from_model_config": True}
    elif KINDS[name] is byte_level:  # random bytes are not text
        tokenizer = load_tokenizer(folder)
        plain = [i for i in range(vocab) if (text := tokenizer.decode([i])).isascii() and text.isprintable()]
        says = says | {"suppress_tokens": sorted(set(range(1, vocab)) - set(plain))}
    small |= {field: value for field, value in (says or {}).items() if field in fields}
    config = transformers.CONFIG_MAPPING[fields["model_type"]].from_dict(small)
    torch.manual_seed(2)
    theirs = getattr(transformers, fields["architectures"][0])(config).float().eval()
    with torch.no_grad():
        for parameter_name, parameter in theirs.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.5 if "embed" in parameter_name or "shared" in parameter_name else 0.3)
    theirs.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(small))
    (folder / "generation_config.json").write_text(json.dumps(says))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("made")
    for name in KINDS:
        make(name, home / name)
    return home


@pytest.fixture
def home(made: Path, tmp_path: Path, monkeypatch) -> Path:
    """Copy the folder into the working directory, so that a test may change it."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def say(name: str, **fields) -> None:
    path = Path(name) / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def text_of(name: str, **settings) -> str:
    """Return what `transformers` generates after the prompt with the folder's settings."""
    ours = load_tokenizer(name)
    ids = ours.encode(PROMPT)
    kind = transformers.MarianMTModel if name.startswith("opus") else transformers.AutoModelForCausalLM
    theirs = kind.from_pretrained(name)
    (row,) = theirs.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), **settings).tolist()
    return ours.decode([i for i in row if i < ours.vocab])


def run(capsys, *flags: str) -> tuple[int, str, str]:
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    code = main(list(flags))
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out, said.err


def write(capsys, name: str, *flags: str) -> str:
    code, out, err = run(capsys, "generate", "--checkpoint", name, "--prompt", PROMPT, *flags)
    assert code == 0, err
    return out


def refused(capsys, *flags: str) -> str:
    code, out, err = run(capsys, *flags)
    assert code == 2 and out == "", (out, err)
    return err


@pytest.mark.parametrize("name", KINDS)
def test_a_release_writes_what_transformers_writes(name, home, capsys) -> None:
    """Decoding is greedy unless the folder asks for beam search, with its penalties, banned and forced ids, and
    lengths.
    """
    greedy = [] if name.startswith(("opus", "qwen")) else ["--temperature", "0"]
    long = {} if "max_new_tokens" in SAYS.get(name, {}) or name.startswith(("opus", "tiny")) else {"max_new_tokens": 20}
    tokens = ["--tokens", "20"] if long else []
    assert write(capsys, name, *greedy, *tokens) == text_of(name, **long) + "\n"


def test_flags_say_otherwise(home, capsys) -> None:
    name = "qwen2.5-0.5b"
    told = write(capsys, name, "--repetition-penalty", "1", "--tokens", "9")
    assert (
        told == text_of(name, repetition_penalty=1.0, max_new_tokens=9) + "\n" != write(capsys, name, "--tokens", "9")
    )
    search = write(capsys, name, "--beams", "3")
    assert search == text_of(name, num_beams=3) + "\n"
    drawn = {write(capsys, name, "--temperature", "1", "--min-p", least, "--seed", "5") for least in ("0", "0.9")}
    assert len(drawn) == 2
    assert write(capsys, "opus-mt-en-de", "--beams", "1") != write(capsys, "opus-mt-en-de")


@pytest.mark.parametrize(
    ("name", "settings", "same"),
    [
        ("smollm2-135m", {"no_repeat_ngram_size": 1}, False),
        ("tinyllama-1.1b", {"min_new_tokens": 12, "suppress_tokens": [5, 9]}, False),
        ("smollm2-135m", {"num_beams": 3, "length_penalty": 2.0, "early_stopping": True}, False),
        ("opus-mt-en-de", {"num_beams": 3, "length_penalty": 0.3, "early_stopping": "never", "min_length": 9}, False),
        ("smollm2-135m", {"typical_p": 1.0, "num_assistant_tokens": 3, "cache_implementation": "static"}, True),
    ],
)
def test_settings_of_a_folder_are_followed(name, settings, same, home, capsys) -> None:
    flags = [] if "num_beams" in settings else ["--temperature", "0"]
    most = {} if name.startswith("opus") else {"max_new_tokens": 20}
    tokens = ["--tokens", "20"] if most else []
    usual = write(capsys, name, "--temperature", "0", *tokens)
    say(name, **settings)
    found = write(capsys, name, *flags, *tokens)
    if not same:  # a neutral setting here may not be neutral there: a static cache compiles
        assert found == text_of(name, **most) + "\n"
    assert (found == usual) == same


@pytest.mark.parametrize("name", ["smollm2-135m", "tinyllama-1.1b"])
def test_texts_that_end_a_text(name, home, capsys) -> None:
    ours = load_tokenizer(name)
    greedy = ["--temperature", "0", "--repetition-penalty", "1", "--tokens", "20"]
    free = write(capsys, name, *greedy).removesuffix("\n")
    added = free.removeprefix(PROMPT)
    assert len(added) > 8
    for text in (added[3:5], added[5:8], "nowhere"):
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{name}/tokenizer.json")
        wanted = text_of(
            name, stop_strings=text, tokenizer=theirs, repetition_penalty=1.0, max_new_tokens=20, do_sample=False
        )
        found = write(capsys, name, *greedy, "--stop", text)
        assert found == wanted + "\n" and (text in found[len(PROMPT) :]) == (text != "nowhere")
        say(name, stop_strings=[text, "elsewhere"])
        assert write(capsys, name, *greedy) == found
        assert write(capsys, name, *greedy, "--prompt", PROMPT).count(wanted) == 2
        say(name, stop_strings=None)
    special = next(one for one in ("<|endoftext|>", "</s>") if one in ours.spell(range(5)))
    say(name, stop_strings=special, eos_token_id=None)
    assert write(capsys, name, *greedy).startswith(PROMPT)


def test_a_text_ends_a_search_and_a_prompt_of_ids_too(home, capsys) -> None:
    name = "smollm2-135m"
    ours = load_tokenizer(name)
    free = write(capsys, name, "--temperature", "0", "--tokens", "20").removeprefix(PROMPT)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{name}/tokenizer.json")
    wanted = text_of(name, num_beams=2, stop_strings=free[4:6], tokenizer=theirs, max_new_tokens=20, length_penalty=0.0)
    flags = ["--beams", "2", "--length-penalty", "0", "--tokens", "20", "--stop", free[4:6]]
    assert write(capsys, name, *flags) == wanted + "\n"
    ids = ours.encode(PROMPT)
    flags = ["--checkpoint", name, "--temperature", "0", "--tokens", "20", "--prompt-ids", " ".join(map(str, ids))]
    code, told, _ = run(capsys, "generate", *flags, "--stop", free[4:6])
    assert code == 0 and ours.decode(map(int, told.split())) == write(
        capsys, name, "--temperature", "0", "--tokens", "20", "--stop", free[4:6]
    ).removesuffix("\n")
    (home / name / "tokenizer.json").unlink()
    assert "--stop: expected a tokenizer, which is needed to find texts" in refused(
        capsys, "generate", *flags, "--stop", "x"
    )


REFUSED = [
    ({"typical_p": 0.4}, [], "generation_config.json: typical_p=0.4: expected 1.0 or null"),
    ({"num_beams": 3, "do_sample": True}, [], "num_beams=3 with do_sample=True (beam sampling)"),
    ({"eos_token_id": 9999}, [], "eos_token_id: 9999: expected a token id from 0 to"),
    ({"max_length": 3}, [], "expected fewer tokens than the 3 that the checkpoint's max_length allows"),
    ({"min_p": "x"}, [], "min_p='x': expected a number from 0 to 1"),
    ({"min_length": 9}, [], "min_length=9: expected 0 or min_new_tokens"),
    (
        {"no_repeat_ngram_size": 1, "suppress_tokens": [*range(310)]},
        ["--tokens", "40"],
        "rules: every token is excluded",
    ),
    ({}, ["--min-p", "2"], "--min-p 2: expected a number from 0 to 1"),
    ({}, ["--repetition-penalty", "0"], "repetition_penalty=0.0: expected a number from 0.001"),
    ({}, ["--stop", ""], "--stop '': expected at least one character"),
    ({}, ["--beams", "2", "--min-p", "0.1"], "--min-p cannot be used together with --beams"),
    ({}, ["--dtype", "fp8"], "--dtype fp8: expected one of fp32, bf16, fp16"),
]


@pytest.mark.parametrize(("says", "flags", "message"), REFUSED)
def test_bad_settings_are_refused_by_name(says, flags, message, home, capsys) -> None:
    say("smollm2-135m", **says)
    code, _, err = run(capsys, "generate", "--checkpoint", "smollm2-135m", "--prompt", PROMPT, *flags)
    assert code == 2 and message in err


def test_weights_that_are_not_numbers_or_of_two_dtypes(home, capsys) -> None:
    name = "smollm2-135m"
    path = home / name / "model.safetensors"
    tensors = load_file(path)
    one = "model.layers.1.mlp.up_proj.weight"
    usual = write(capsys, name, "--temperature", "0", "--tokens", "5")
    tensors[one] = tensors[one].double()
    save_file(tensors, path)
    flags = ["generate", "--checkpoint", name, "--prompt", PROMPT, "--temperature", "0", "--tokens", "5"]
    assert "is float64: expected one dtype, or dtype= to convert to" in refused(capsys, *flags)
    assert write(capsys, name, *flags[5:], "--dtype", "fp32") == usual
    tensors[one] = tensors[one].float()
    tensors[one][3, 5] = torch.inf
    save_file(tensors, path)
    assert f"{one} has 1 of" in refused(capsys, *flags)


# inspect


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "smollm2-135m",
            ["A decoder of 3 layers", "6 heads of 4, which share 2", "is_llama_config  ", "ignored (by hand)"],
        ),
        (
            "qwen2.5-0.5b",
            ["attention.output_bias  False", "The most probable token each time", "a repetition penalty of 1.3"],
        ),
        ("opus-mt-en-de", ["An encoder-decoder of 2 layers", "Beam search with 4 beams", "_num_labels", "begins with"]),
        (
            "tinyllama-1.1b",
            ["The most probable token each time", "top-k 50", "at most 40 tokens, including the prompt"],
        ),
    ],
)
def test_inspect_says_what_a_release_is(name, words, home, capsys) -> None:
    code, out, err = run(capsys, "inspect", name)
    assert code == 0 and err == ""
    flat = " ".join(out.split())
    for word in words:
        assert " ".join(word.split()) in flat, out
    fields = json.loads((home / name / "config.json").read_text())
    assert all(f"\n  {field} " in out for field in fields)
    assert f"{sum(t.numel() for t in load_file(home / name / 'model.safetensors').values()):,} parameters" in flat or (
        name == "opus-mt-en-de"
    )
    assert "Tokenizer: found, with" in flat and "REFUSED" not in out


def test_inspect_says_the_same_to_a_program(home, capsys) -> None:
    code, out, _ = run(capsys, "inspect", "qwen2.5-0.5b", "--json")
    found = json.loads(out)
    assert code == 0 and found["kind"] == "qwen2" and found["refused"] == []
    assert found["model"]["layers"] == 3 and found["parameters"] == sum(
        tensor.numel() for tensor in load_file(home / "qwen2.5-0.5b" / "model.safetensors").values()
    )
    fields = {one["name"]: one for one in found["fields"]}
    assert fields["num_hidden_layers"]["value"] == 3 and all(one["refused"] is None for one in found["fields"])
    assert found["writing"]["source"] == "generation_config.json" and found["writing"]["left_out"]["top_k"] == 50
    assert found["tensors"] == {"float32": sum(found["tensors"].values())}
    config = home / "qwen2.5-0.5b" / "config.json"
    config.write_text(config.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": NaN'))
    code, out, err = run(capsys, "inspect", "qwen2.5-0.5b", "--json")
    found = json.loads(out, parse_constant=lambda name: 1 / 0)  # JSON itself does not have this value
    assert code == 2 and found["model"] is None and "rms_norm_eps" in found["refused"][0] and "rms_norm_eps" in err
    assert next(one for one in found["fields"] if one["name"] == "rms_norm_eps")["value"] == "NaN"


def test_inspect_says_what_is_refused_and_exits_with_2(home, capsys) -> None:
    path = home / "qwen2.5-0.5b" / "config.json"
    good = json.loads(path.read_text())
    path.write_text(json.dumps({**good, "use_mrope": True, "colour": 3, "rms_norm_eps": 1.5}))
    say("qwen2.5-0.5b", typical_p=0.2)
    (home / "qwen2.5-0.5b" / "tokenizer.json").unlink()
    code, out, err = run(capsys, "inspect", "qwen2.5-0.5b")
    assert code == 2 and "config.json: use_mrope=True: expected false" in err and "and 2 more, listed above" in err
    for word in (
        "REFUSED: must be false",
        "REFUSED: not known here",
        "REFUSED: must be 1.0 or null",
        "Tokenizer: missing",
    ):
        assert word in out
    path.write_text(json.dumps(good | {"rms_norm_eps": 1.5}))
    assert "rms_norm_eps=1.5: expected a number from 0 to 0.1" in run(capsys, "inspect", "qwen2.5-0.5b")[2]
    tensors = load_file(home / "smollm2-135m" / "model.safetensors")
    tensors["model.norm.weight"][2] = torch.nan
    save_file(tensors, home / "smollm2-135m" / "model.safetensors")
    code, out, err = run(capsys, "inspect", "smollm2-135m")
    assert (
        code == 2 and "model.norm.weight has 1 of 24 elements that are NaN or infinite" in err and "A decoder of" in out
    )
    del tensors["model.norm.weight"]
    save_file(tensors, home / "smollm2-135m" / "model.safetensors")
    assert "missing model.norm.weight" in run(capsys, "inspect", "smollm2-135m")[2]


def test_inspect_knows_models_of_companion_and_refuses_what_is_no_folder(home, capsys) -> None:
    sizes = {"attention": AttentionConfig(2), "feed_forward": FeedForwardConfig(5)}
    save_model(home / "own", Transformer(ModelConfig(vocab=7, d_model=8, layers=1, context=9, **sizes)))
    code, out, _ = run(capsys, "inspect", "own")
    assert code == 0 and "own: a model of companion" in out and "A decoder of 1 layer" in out
    assert "FOLDER nowhere: expected a folder" in refused(capsys, "inspect", "nowhere")
    (home / "empty").mkdir()
    assert "config.json: expected the model's configuration, found no such file" in refused(capsys, "inspect", "empty")
    (home / "empty" / "config.json").write_text('{"model_type": "t6"}')
    assert "model_type='t6': expected one of bart, bert, cohere" in refused(capsys, "inspect", "empty")
