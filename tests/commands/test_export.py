"""`companion export` and `companion generate --prompts`.

`transformers` loads the exported runs and checkpoints and generates the same text, and each prompt of a batch gets the
same text as when it is generated separately.
"""

import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch
from small_tokenizers import LINES, with_spaces_marked
from theirs import llama, transformers

from companion.commands.main import main
from companion.data.published_tokenizers import load_tokenizer
from companion.ground.display import printable
from companion.training.run_folder import RunFolder


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Make a folder with a run, and with a published checkpoint and its tokenizer."""
    home = tmp_path_factory.mktemp("trained")
    (home / "book.txt").write_text("\n".join(LINES * 9), "utf-8")
    small = ["--d-model", "16", "--layers", "2", "--heads", "4", "--kv-heads", "2", "--context", "32", "--vocab", "280"]
    run = ["--data", str(home / "book.txt"), "--out", str(home / "run"), "--batch", "2", "--steps", "3"]
    assert main(["train", *small, *run]) == 0
    (home / "llama").mkdir()
    size = with_spaces_marked(home / "llama")
    llama(vocab_size=size, max_position_embeddings=64, bos_token_id=1, eos_token_id=2).save_pretrained(home / "llama")
    return home


@pytest.fixture
def home(trained: Path, tmp_path: Path, monkeypatch) -> Path:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(capsys, *arguments: str) -> str:
    assert main([*arguments]) == 0
    return capsys.readouterr().out


def refused(capsys, *arguments: str) -> str:
    assert main([*arguments]) == 2
    told = capsys.readouterr()
    assert told.out == "" and "Traceback" not in told.err
    return told.err


def test_transformers_writes_with_a_run_what_generate_writes(home: Path, capsys) -> None:
    line = said(capsys, "export", "out", "--run", "run")
    assert line == (
        "out: a llama (LlamaForCausalLM): config.json, generation_config.json, model.safetensors, tokenizer.json, "
        "tokenizer_config.json\n"
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained("out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained("out")
    run = RunFolder("run")
    ids = tokenizer("The lazy fox").input_ids
    assert ids == [run.tokenizer().separator, *run.tokenizer().encode("The lazy fox")]
    assert tokenizer.eos_token_id == theirs.generation_config.eos_token_id == run.tokenizer().separator
    with torch.no_grad():
        tokens = torch.tensor([ids])
        torch.testing.assert_close(theirs(tokens).logits, run.model()(tokens).logits, rtol=1e-4, atol=1e-5)
    (row,) = theirs.generate(tokens, do_sample=False, max_new_tokens=9).tolist()
    assert said(
        capsys, "generate", "--run", "run", "--prompt", "The lazy fox", "--tokens", "9", "--temperature", "0"
    ) == (tokenizer.decode(row, skip_special_tokens=True) + "\n")
    drawn = ["--prompt", "The lazy fox", "--tokens", "9", "--seed", "5"]  # a run samples by default
    texts = [said(capsys, "generate", *source, *drawn) for source in (["--run", "run"], ["--checkpoint", "out"])]
    assert texts[0] == texts[1]


def test_a_run_and_a_checkpoint_become_one_file_with_their_tokenizer(home: Path, capsys) -> None:
    line = said(capsys, "export", "run.gguf", "--run", "run", "--gguf", "F32")
    assert re.fullmatch(r"run.gguf: a llama of llama.cpp, in F32, [\d.]+ kB\n", line)
    greedy = ["--prompt", "The lazy fox", "--tokens", "9", "--temperature", "0"]
    texts = [said(capsys, "generate", *source, *greedy) for source in (["--run", "run"], ["--checkpoint", "run.gguf"])]
    assert texts[0] == texts[1]
    said(capsys, "export", "back", "--checkpoint", "run.gguf")
    assert said(capsys, "generate", "--checkpoint", "back", *greedy) == texts[0]
    for flags, message in (
        (["out", "--gguf", "F16"], "FOLDER out: with --gguf, expected the name of a new file that ends in .gguf"),
        (["run.gguf", "--gguf", "F16"], "FOLDER run.gguf: with --gguf, expected the name of a new file"),
        (["o.gguf", "--gguf", "F16", "--dtype", "bf16"], "--dtype cannot be used together with --gguf"),
        (["o.gguf", "--gguf", "Q4_K"], "--gguf Q4_K: expected one of"),
        (
            ["o.gguf", "--gguf", "F16", "--checkpoint", "llama"],
            "tokenizer.json: model.type='BPE'|pre_tokenizer: expected",
        ),
    ):
        assert re.search(message, refused(capsys, "export", *flags, *([] if "llama" in flags else ["--run", "run"])))
    assert not Path("o.gguf").exists()


def test_a_checkpoint_is_measured_as_transformers_measures_it(home: Path, capsys) -> None:
    text = "\n".join(LINES)
    Path("page.txt").write_text(text, "utf-8")
    measured = ["evaluate", "--checkpoint", "llama", "--data", "page.txt", "--json"]
    found = json.loads(said(capsys, *measured, "--context", "16", "--weights", "fp32"))
    theirs = transformers.AutoModelForCausalLM.from_pretrained("llama")
    ids = load_tokenizer("llama").encode(text)
    assert ids[0] == 1 and len(ids) > 40
    losses, done = [], 0
    while done < len(ids) - 1:  # the window moves by half of its length, and only the new tokens are scored
        end = min(16 if done == 0 else done + 8, len(ids) - 1)
        first = max(0, end - 16)
        with torch.no_grad():
            logits = theirs(torch.tensor([ids[first:end]])).logits[0, done - first :]
        losses += torch.nn.functional.cross_entropy(logits, torch.tensor(ids[done + 1 : end + 1]), reduction="none")
        done = end
    nats = float(sum(losses))
    assert found["tokens"] == len(losses) == len(ids) - 1 and found["bytes"] == len(text.encode())
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / len(text.encode()), rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(nats / len(losses)), rel=1e-5)
    assert found["weights_bits_per_byte"] == pytest.approx(found["bits_per_byte"], rel=1e-5)
    assert set(found["baselines"]) == {"xz -9, held-out text alone"}
    assert "Perplexity" in said(capsys, *measured[:-1])
    for flags, message in (
        ([], "--data: expected text on which to measure the --checkpoint, got none"),
        (["--data", "page.txt", "--context", "99"], "--context 99: expected 2 to 64 tokens, the model's context"),
        (["--data", "page.txt", "--run", "run"], "--run cannot be used together with --checkpoint"),
    ):
        assert message in refused(capsys, "evaluate", "--checkpoint", "llama", *flags)
    assert "--context needs --checkpoint" in refused(capsys, "evaluate", "--run", "run", "--context", "9")


def test_get_is_suggested_for_a_name_that_a_hub_may_know_and_not_for_a_file(home: Path, capsys) -> None:
    error = refused(capsys, "export", "out", "--checkpoint", "nobody/nothing")
    assert "--checkpoint nobody/nothing: expected a folder with config.json and model.safetensors, or a GGUF" in error
    assert "`companion get nobody/nothing`" in error
    assert "companion get" not in refused(capsys, "export", "out", "--checkpoint", "somewhere/model.gguf")
    assert not Path("out").exists()


def test_a_checkpoint_is_written_as_what_it_was_or_as_another_kind(home: Path, capsys) -> None:
    for kind, flags in (("llama", []), ("mistral", ["--as", "mistral", "--dtype", "bf16"])):
        told = said(capsys, "export", kind + "-out", "--checkpoint", "llama", *flags)
        assert told.startswith(f"{kind}-out: a {kind} ") and "tokenizer.json" in told
        fields = json.loads(Path(kind + "-out", "config.json").read_text())
        assert fields["eos_token_id"] == 2 and fields["dtype"] == ("bfloat16" if flags else "float32")
    greedy = ["--prompt", "The lazy fox", "--tokens", "9", "--temperature", "0"]
    texts = [said(capsys, "generate", "--checkpoint", name, *greedy) for name in ("llama", "llama-out")]
    assert texts[0] == texts[1]


def test_what_cannot_be_exported_is_refused(home: Path, capsys) -> None:
    assert "expected a new or empty folder" in refused(capsys, "export", "run")
    assert "--checkpoint cannot be used together with --run" in refused(
        capsys, "export", "o", "--checkpoint", "llama", "--run", "run"
    )
    error = refused(capsys, "export", "o", "--checkpoint", "llama", "--as", "gemma2")
    assert "the model cannot be written: " in error and "norm.placement='pre': expected 'both'" in error
    assert not Path("o").exists()


def many(capsys, text: str, *flags: str, name: str = "prompts.txt") -> list[dict]:
    Path(name).write_text(text, "utf-8")
    lines = said(capsys, "generate", "--prompts", name, *flags).splitlines()
    return [json.loads(line) for line in lines]


def test_prompts_of_a_file_are_written_at_once_as_each_alone(home: Path, capsys) -> None:
    flags = ["--run", "run", "--tokens", "7", "--seed", "3"]
    prompts = ["The lazy fox", "She sells", "Ein", "She sells sea shells"]
    found = many(capsys, "\n".join(prompts), *flags, "--batch-size", "3")
    wanted = said(capsys, "generate", *flags, *(flag for prompt in prompts for flag in ("--prompt", prompt)))
    texts = re.split(r"\n?\n?\[\d\] ", wanted[:-1])[1:]
    assert [printable(one["prompt"] + one["text"]) for one in found] == texts  # JSON contains them unchanged
    objects = [
        {"prompt": "The lazy fox", "temperature": 0, "tokens": 5},
        {"prompt": "long " * 90},
        {"prompt": "The lazy fox", "stop": ["o"], "seed": 8, "top_k": 3},
    ]
    first, long, last = many(capsys, "\n".join(map(json.dumps, objects)), *flags[:2], name="prompts.jsonl")
    greedy = said(capsys, "generate", "--run", "run", "--prompt", "The lazy fox", "--tokens", "5", "--temperature", "0")
    assert printable(first["prompt"] + first["text"]) + "\n" == greedy
    assert "tokens including the begin and end tokens; expected at most 31" in long["error"]
    assert last["text"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a", "heat": 2}', "line 1: 'heat': expected one of prompt, stop, tokens, seed, min_p, "),
        ('{"prompt": "a"}\n\n{"prompt": "a", "temperature": -1}', "line 3: temperature=-1"),
        ('{"prompt": "a", "tokens": 0}', "line 1: tokens=0: expected a whole number >= 1"),
        ('{"prompt": "a", "stop": "b"}', "line 1: stop='b': expected a list of texts"),
        ('{"prompt": ""}', 'line 1: expected an object with a non-empty "prompt"'),
        ("nothing", "line 1: expected a JSON object"),
        ("\n", "expected one prompt per line, found none"),
    ],
)
def test_a_file_of_prompts_that_cannot_be_is_refused(text, message, home: Path, capsys) -> None:
    Path("p.jsonl").write_text(text, "utf-8")
    assert message in refused(capsys, "generate", "--run", "run", "--prompts", "p.jsonl")


def test_prompts_stand_alone(capsys) -> None:
    assert "--prompts cannot be used together with --beams" in refused(
        capsys, "generate", "--prompts", "p", "--beams", "2"
    )
    assert "--batch-size needs --prompts" in refused(capsys, "generate", "--prompt", "p", "--batch-size", "2")
    assert "cannot be read" in refused(capsys, "generate", "--prompts", "none.txt")
