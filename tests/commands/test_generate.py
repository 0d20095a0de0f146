"""`companion generate` with published checkpoints gives the same text and ids as `transformers`."""

import json
import re
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from small_tokenizers import LINES, byte_level, two_languages, with_spaces_marked
from theirs import bert, gpt2, llama, marian, mixtral, transformers

from companion.commands.main import main
from companion.commands.writer import from_run, own_dtype
from companion.config.model import AttentionConfig, FeedForwardConfig, ModelConfig
from companion.data.published_tokenizers import load_tokenizer
from companion.files.models import save_model
from companion.ground.display import printable
from companion.quantization.matmul_kernels import possible
from companion.training.run_folder import RunFolder
from companion.transformer import Transformer

PROMPTS = ["The lazy fox", "She sells sea shells by the shore"]
TOKENS = 12


def make(name: str, folder: Path) -> None:
    if name == "gpt2":  # its table has rows that no token uses
        size = byte_level(folder)
        theirs = gpt2(vocab_size=size + 4, n_positions=64, bos_token_id=0, eos_token_id=0)
    elif name == "marian":
        size = two_languages(folder)
        theirs = marian(vocab_size=size, pad_token_id=size - 1, decoder_start_token_id=size - 1)
    else:
        size = with_spaces_marked(folder)
        family = {"llama": llama, "mixtral": mixtral}[name]
        theirs = family(vocab_size=size, max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
    # With random weights, their tied tables and strong biases make them repeat one token
    if name in ("gpt2", "marian"):
        with torch.no_grad():
            for parameter, value in theirs.named_parameters():
                if parameter.endswith("bias"):
                    value *= 0.1
                elif "decoder" in parameter and "out_proj" in parameter:
                    value *= 0.2
                elif ".wpe." in parameter:
                    value *= 4
            if name == "marian":
                theirs.final_logits_bias.mul_(0.1)
    theirs.save_pretrained(folder)


FAMILIES = ["gpt2", "llama", "mixtral", "marian"]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Make a folder with one checkpoint of each family."""
    home = tmp_path_factory.mktemp("made")
    for name in FAMILIES:
        (home / name).mkdir()
        make(name, home / name)
    return home


@pytest.fixture
def home(made: Path, tmp_path: Path, monkeypatch) -> Path:
    """Copy the folder into the working directory, so that a test may change it."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def say(folder: Path, **fields) -> None:
    """Add settings to the folder's generation config."""
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def new_ids(folder: Path, ids: list[int], **settings) -> list[int]:
    """Return the ids that `transformers` adds to a prompt, or generates for a source."""
    kind = transformers.MarianMTModel if folder.name == "marian" else transformers.AutoModelForCausalLM
    theirs = kind.from_pretrained(folder)
    settings = {"max_new_tokens": TOKENS, "do_sample": False, "num_beams": 1} | settings
    (row,) = theirs.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), **settings).tolist()
    return row[1:] if folder.name == "marian" else row[len(ids) :]


def text_of(folder: Path, prompt: str, **settings) -> str:
    """Return the same as text, after the prompt if the model continues it."""
    if folder.name == "marian":
        tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    else:
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    ids = tokenizer(prompt).input_ids
    new = new_ids(folder, ids, **settings)
    ids = new if folder.name == "marian" else [*ids, *new]
    ours = load_tokenizer(folder)
    return ours.decode([i for i in ids if i < ours.vocab])


def write(capsys, *flags: str) -> str:
    assert main(["generate", *flags]) == 0
    return capsys.readouterr().out


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(capsys, *flags: str) -> str:
    before = contents(Path())
    code = main(["generate", *flags])
    assert code == 2
    assert contents(Path()) == before, "something was written"
    said = capsys.readouterr()
    assert said.out == "" and "Traceback" not in said.err
    return said.err


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_text_is_that_of_transformers_up_to_the_stop_ids(name, home: Path, capsys) -> None:
    folder = home / name
    flags = ["--checkpoint", name, "--tokens", str(TOKENS), "--temperature", "0"]
    texts = [printable(text_of(folder, prompt)) for prompt in PROMPTS]
    assert [write(capsys, *flags, "--prompt", prompt) for prompt in PROMPTS] == [f"{text}\n" for text in texts]
    assert name == "marian" or all(t.startswith(p) and len(t) > len(p) for t, p in zip(texts, PROMPTS, strict=True))
    both = [flag for prompt in PROMPTS for flag in ("--prompt", prompt)]
    assert write(capsys, *flags, *both) == f"[1] {texts[0]}\n\n[2] {texts[1]}\n"
    # Now stop at a token that it generates on the way, and at another one that it does not generate.
    ids = load_tokenizer(folder).encode(PROMPTS[1])
    written = new_ids(folder, ids)
    stop = next(token for i, token in enumerate(written) if i > 1 and token not in written[:i])
    unused = next(token for token in range(40) if token not in written)
    say(folder, eos_token_id=[unused, stop])
    shorter = printable(text_of(folder, PROMPTS[1]))
    assert new_ids(folder, ids) == written[: written.index(stop) + 1] != written
    assert write(capsys, *flags, "--prompt", PROMPTS[1]) == f"{shorter}\n"


@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_forbidden_ids_are_never_written_and_the_last_may_be_forced(name, home: Path, capsys) -> None:
    folder = home / name
    ids = load_tokenizer(folder).encode(PROMPTS[0])
    flags = ["--checkpoint", name, "--tokens", str(TOKENS), "--temperature", "0"]
    free = new_ids(folder, ids)
    last = 7 if name == "marian" else 321  # for GPT-2, an id of the table that has no text
    say(folder, bad_words_ids=[[free[0]], [free[1]]], forced_eos_token_id=last)
    bound = new_ids(folder, ids)
    assert free[0] not in bound and free[1] not in bound and bound[-1] == last
    assert write(capsys, *flags, "--prompt", PROMPTS[0]) == printable(text_of(folder, PROMPTS[0])) + "\n"
    said = write(capsys, *flags, "--prompt-ids", " ".join(map(str, ids)))
    assert [int(i) for i in said.split()] == (bound if name == "marian" else [*ids, *bound])


@pytest.mark.parametrize("name", FAMILIES)
def test_without_a_tokenizer_ids_go_in_and_ids_come_out(name, home: Path, capsys) -> None:
    for file in ("tokenizer.json", "source.spm", "target.spm", "vocab.json"):
        (home / name / file).unlink(missing_ok=True)
    error = refused(capsys, "--checkpoint", name, "--prompt", "The ")
    assert "found none; without a tokenizer, use --prompt-ids, which reads and prints token ids" in error
    new = new_ids(home / name, [5, 17, 3])
    flags = ["--checkpoint", name, "--tokens", str(TOKENS), "--temperature", "0", "--prompt-ids", "5, 17 3"]
    before = "" if name == "marian" else "5, 17 3 "
    assert write(capsys, *flags) == f"{before}{' '.join(map(str, new))}\n"
    assert "expected a whole number from 0 to" in refused(capsys, *flags[:-1], "5 999")


@pytest.mark.parametrize("name", ["gpt2", "marian"])
@pytest.mark.parametrize("penalty", [None, 0.0, 3.0])
def test_beams_find_the_text_that_transformers_finds(name, penalty, home: Path, capsys) -> None:
    folder = home / name
    ids = load_tokenizer(folder).encode(PROMPTS[0])
    stop = new_ids(folder, ids)[3]
    say(folder, eos_token_id=[stop, 0])
    search = {"num_beams": 3} | ({} if penalty is None else {"length_penalty": penalty})
    flags = ["--beams", "3", *([] if penalty is None else ["--length-penalty", str(penalty)])]
    said = write(capsys, "--checkpoint", name, "--tokens", str(TOKENS), *flags, "--prompt", PROMPTS[0])
    assert said == printable(text_of(folder, PROMPTS[0], **search)) + "\n"


def test_a_checkpoint_that_does_not_say_otherwise_takes_the_most_probable_token_as_released_code_does(
    home: Path, capsys
) -> None:
    for name, usual, other in (("marian", "0", "0.8"), ("gpt2", "0", "0.8")):
        flags = ["--checkpoint", name, "--prompt", PROMPTS[1], "--seed", "3", "--tokens", "20"]
        assert write(capsys, *flags) == write(capsys, *flags, "--temperature", usual)
        assert write(capsys, *flags) != write(capsys, *flags, "--temperature", other)
    say(home / "gpt2", do_sample=True)
    flags = ["--checkpoint", "gpt2", "--prompt", PROMPTS[1], "--seed", "3", "--tokens", "20"]
    drawn = write(capsys, *flags)
    assert drawn == write(capsys, *flags, "--temperature", "1", "--top-k", "50")
    assert drawn == write(capsys, *flags, "--top-p", "1") != write(capsys, *flags, "--top-k", "0")
    # A translation ends at the context (40) at the latest; a continuation goes past it (64).
    long = write(capsys, "--checkpoint", "marian", "--prompt-ids", "5 9 0", "--tokens", "500")
    assert len(long.split()) <= 39
    say(home / "gpt2", eos_token_id=None, bad_words_ids=[[0]])
    more = write(capsys, "--checkpoint", "gpt2", "--prompt-ids", "5 9 3", "--tokens", "100")
    assert len(more.split()) == 103


def test_a_run_takes_beams_and_ids_too(home: Path, capsys) -> None:
    Path("book.txt").write_text("\n".join(LINES * 9), "utf-8")
    small = ["--d-model", "16", "--layers", "1", "--heads", "2", "--context", "16", "--vocab", "280", "--batch", "2"]
    assert main(["train", "--data", "book.txt", "--out", "runs/one", *small, "--steps", "2"]) == 0
    capsys.readouterr()
    flags = ["--prompt", "The ", "--tokens", "4"]
    one = write(capsys, "--beams", "1", "--length-penalty", "0", *flags)
    assert one == write(capsys, "--temperature", "0", *flags) and one.startswith("The ")
    both = write(capsys, "--beams", "2", *flags, "--prompt", "Ein")
    assert both.startswith("[1] The ") and "\n\n[2] Ein" in both
    assert write(capsys, "--beams", "2", "--tokens", "100", "--prompt-ids", "9").count(" ") <= 15
    assert len(write(capsys, "--prompt-ids", "9 8", "--tokens", "3").split()) <= 5
    checkpoint = next(Path("runs/one/checkpoints").iterdir())
    told = write(capsys, "--checkpoint", str(checkpoint), "--prompt-ids", "9 8", "--tokens", "3", "--seed", "4")
    assert told.startswith("9 8 ")
    run, cpu = RunFolder("runs/one"), torch.device("cpu")
    assert {p.dtype for p in from_run(run, cpu).model.parameters()} == {torch.float32}
    assert {p.dtype for p in from_run(run, cpu, dtype=torch.bfloat16).model.parameters()} == {torch.bfloat16}
    assert write(capsys, "--dtype", "bf16", "--temperature", "0", *flags).startswith("The ")
    error = refused(capsys, "--beams", "2", "--prompt", "The lazy dog " * 9)
    assert "expected at most 15, so that another one fits in a context of 16" in error


def test_on_a_gpu_a_run_writes_in_the_precision_it_was_trained_in() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    told = [own_dtype(precision, device) for device in (gpu, cpu) for precision in ("bf16", "tf32", "fp32")]
    assert told == [torch.bfloat16] + 5 * [torch.float32]


def test_weights_in_another_form_write_and_are_measured(home: Path, capsys) -> None:
    Path("book.txt").write_text("\n".join(LINES * 9), "utf-8")
    small = ["--d-model", "32", "--layers", "1", "--heads", "2", "--context", "16", "--vocab", "280", "--batch", "2"]
    assert main(["train", "--data", "book.txt", "--out", "runs/one", *small, "--steps", "2"]) == 0
    capsys.readouterr()
    flags = ["--prompt", "The ", "--tokens", "9", "--temperature", "0"]
    assert write(capsys, "--weights", "fp32", *flags) == write(capsys, *flags)
    assert write(capsys, "--weights", "auto", *flags, "--prompt", "Ein").startswith("[1] The ")
    assert main(["evaluate", "--data", "book.txt", "--weights", "fp16"]) == 0
    number = r"([-+\d.e]+)"
    line = rf"weights in fp16: {number} bits per byte, {number}%; .* no logit changes by more than {number}\.\n"
    told = re.search(line, capsys.readouterr().out)
    assert told is not None and abs(float(told[2])) < 0.2 and 0 < float(told[3]) < 0.1
    for wrong, message in (
        (["--calibrate", "book.txt"], "--calibrate book.txt needs --weights int4"),
        (["--weights", "int8", "--levels", "l"], "--levels l needs --weights int4, got int8"),
        (["--weights", "int4", "--levels", "l"], "--levels l: expected an existing file with levels, or --calibrate"),
    ):
        for command in (["evaluate"], ["generate", *flags]):
            assert main([*command, *wrong]) == 2 and message in capsys.readouterr().err
    if possible("int4", "cpu"):
        chosen = ["--weights", "int4", "--levels", "l.safetensors"]
        assert main(["evaluate", "--data", "book.txt", "--calibrate", "book.txt", *chosen]) == 0
        said = capsys.readouterr().out
        assert re.search(
            r"int4      7 matrices, calibrated on [\d,]+ tokens: squared error of their outputs 0.\d+%", said
        )
        assert "With weights in int4: " in said
        assert main(["generate", *chosen, *flags]) == 0
        assert "int4: 7 matrices, with the levels from l.safetensors." in capsys.readouterr().err


def test_the_fast_form_is_taken_where_it_pays_and_said(home: Path, capsys, monkeypatch) -> None:
    from companion.quantization import weights

    flags = ["generate", "--checkpoint", "llama", "--prompt", PROMPTS[0], "--tokens", "17", "--temperature", "0"]
    told = {}
    for least in (weights.PAYS_FROM_WEIGHTS, 0):
        monkeypatch.setattr(weights, "PAYS_FROM_WEIGHTS", least)
        monkeypatch.setattr(weights, "quicker", lambda form: True)
        for more in ([], ["--weights", "none"], ["--tokens", "16"]):
            capsys.readouterr()
            assert main([*flags, *more]) == 0
            told[least, len(more), *more[1:]] = capsys.readouterr()
    for (least, more, *_), (out, err) in told.items():
        assert ("weights: a copy in fp32, laid out for decoding" in err) == (least == more == 0)
        assert out
    assert told[0, 0].out == told[0, 2, "none"].out


def test_a_form_that_this_processor_cannot_do_is_refused(home: Path, capsys, monkeypatch) -> None:
    from companion.quantization import weights

    monkeypatch.setattr(weights, "possible", lambda form, device: form != "int4")
    error = refused(capsys, "--checkpoint", "gpt2", "--prompt", "a", "--weights", "int4")
    said = "weights='int4': PyTorch has no matrix product in this format for this processor (cpu)"
    assert f"{said}; the available formats are fp32, fp16, bf16, int8" in error


def test_a_model_of_a_hub_is_fetched_only_when_asked(home: Path, capsys, monkeypatch) -> None:
    asked = []

    def fetched(name, *, local_files_only=False, **_):
        if local_files_only:
            raise FileNotFoundError(name)
        asked.append(name)
        return home / "llama"

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetched)
    flags = ["--checkpoint", "some/llama", "--prompt", PROMPTS[0], "--tokens", "3", "--temperature", "0"]
    error = refused(capsys, *flags)
    assert "--checkpoint some/llama: expected a folder" in error and "`companion get some/llama` fetches" in error
    assert not asked
    assert write(capsys, *flags, "--download") == text_of(home / "llama", PROMPTS[0], max_new_tokens=3) + "\n"
    assert asked == ["some/llama"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--checkpoint", "gpt2", "--run", "runs/one", "--prompt", "a"],
            "--checkpoint cannot be used together with --run",
        ),
        (["--download", "--prompt", "a"], "--download: expected a --checkpoint to fetch, got none"),
        (["--checkpoint", "gpt2"], "--prompt: expected text to continue, got none"),
        (
            ["--checkpoint", "gpt2", "--prompt", "a", "--prompt-ids", "1"],
            "--prompt-ids cannot be used together with --prompt",
        ),
        (["--checkpoint", "gpt2", "--prompt-ids", "5 x"], "--prompt-ids '5 x': expected token ids such as \"5 17 3\""),
        (["--checkpoint", "gpt2", "--prompt-ids", ""], "--prompt-ids '': expected token ids"),
        (["--checkpoint", "gpt2", "--prompt", "a " * 90], "expected at most 64, the model's context"),
        (["--checkpoint", "marian", "--prompt", "a " * 90], "expected at most 40, the model's context"),
        (["--checkpoint", "gpt2", "--prompt", "a", "--beams", "0"], "--beams 0: expected a whole number >= 1"),
        (["--checkpoint", "gpt2", "--prompt", "a", "--length-penalty", "1"], "--length-penalty needs --beams"),
        (["--prompt", "a", "--beams", "2", "--top-k", "3"], "--top-k cannot be used together with --beams"),
        (["--prompt", "a", "--beams", "2", "--compile"], "--compile cannot be used together with --beams"),
        (["--prompt", "a", "--beams", "2", "--weights", "int8"], "--weights cannot be used together with --beams"),
        (
            ["--prompt", "a", "--weights", "int3"],
            "--weights int3: expected one of fast, none, fp32, fp16, bf16, int8, int4, auto",
        ),
        (
            ["--checkpoint", "gpt2", "--prompt", "a", "--beams", "2", "--length-penalty", "1e9"],
            "length_penalty=1000000000.0",
        ),
        (["--checkpoint", "nowhere", "--prompt", "a"], "--checkpoint nowhere: expected a folder with config.json"),
        (["--checkpoint", "empty", "--prompt", "a"], "config.json: expected the model's configuration"),
        (
            ["--checkpoint", "bert", "--prompt", "a"],
            "--checkpoint bert: expected a model that generates text, got one of type bert",
        ),
        (["--checkpoint", "encoder", "--prompt-ids", "1"], "stack='encoder'"),
        (["--checkpoint", "startless", "--prompt-ids", "1"], "expected decoder_start_token_id"),
        (["--checkpoint", "damaged", "--prompt", "a"], "expected a complete safetensors file"),
    ],
)
def test_bad_input_is_refused_by_name_and_nothing_is_written(flags, message, home: Path, capsys) -> None:
    (home / "empty").mkdir()
    bert().save_pretrained(home / "bert")
    sizes = {"attention": AttentionConfig(2), "feed_forward": FeedForwardConfig(5)}
    for folder, stack in (("encoder", "encoder"), ("startless", "encoder_decoder")):
        save_model(
            home / folder, Transformer(ModelConfig(vocab=7, d_model=8, layers=1, context=9, stack=stack, **sizes))
        )
    shutil.copytree(home / "llama", home / "damaged")
    weights = home / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert message in refused(capsys, *flags)


def test_a_draft_writes_the_same_text_and_says_how_much_was_accepted(home: Path, capsys) -> None:
    """LLaMA's text with drafts from Mixtral, which has other weights and the same tokenizer."""
    flags = ["--checkpoint", "llama", "--tokens", "30", "--temperature", "0", "--prompt", PROMPTS[0]]
    alone = write(capsys, *flags)
    for draft, accepted in (("ngram", None), ("mixtral", None), ("llama", "(100%)")):
        assert main(["generate", *flags, "--draft", draft]) == 0
        said = capsys.readouterr()
        assert said.out == alone
        counted = re.fullmatch(
            r"draft: (\d+) of (\d+) proposed tokens? accepted (\(\d+%\)), [\d.]+ tokens per pass\n", said.err
        )
        assert counted is not None, said.err
        assert int(counted[1]) <= int(counted[2])
        assert accepted in (None, counted[3])
    several = [*flags, "--prompt", PROMPTS[1], "--weights", "fp32"]
    assert write(capsys, *several) == write(capsys, *several, "--draft", "mixtral")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--draft", "gpt2"], "--draft gpt2: expected a model with the same tokenizer"),
        (["--draft", "bert"], "--draft bert: expected a model that generates text"),
        (["--draft", "nowhere"], "--draft nowhere: expected ngram, medusa, or the folder of a run or"),
        (["--draft", "ngram", "--compile"], "--draft cannot be used together with --compile"),
        (["--draft", "ngram", "--beams", "2"], "--draft cannot be used together with --beams"),
    ],
)
def test_a_draft_that_cannot_propose_is_refused(flags, message, home: Path, capsys) -> None:
    bert().save_pretrained(home / "bert")
    assert message in refused(capsys, "--checkpoint", "llama", "--prompt", PROMPTS[0], *flags)


def test_a_draft_by_ids_must_have_as_many(home: Path, capsys) -> None:
    said = refused(capsys, "--checkpoint", "llama", "--prompt-ids", "5 6", "--draft", "gpt2")
    assert "draft has vocab=" in said and "the model's vocabulary" in said


CHAT = (
    "{% for m in messages %}{{ '<s>' + m['role'] + ' ' + m['content'] + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant ' }}{% endif %}"
)


@pytest.mark.parametrize("system", [None, "dog"])
@pytest.mark.parametrize("turns", [["sea shells"], ["sea", "by", "fox"]])
def test_a_conversation_is_answered_as_transformers_answers_it(turns, system, home, capsys):
    folder = home / "llama"
    (folder / "chat_template.jinja").write_text(CHAT)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    tokenizer.chat_template = CHAT
    messages = [{"role": ("user", "assistant")[n % 2], "content": turn} for n, turn in enumerate(turns)]
    messages = messages if system is None else [{"role": "system", "content": system}, *messages]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids.count(1) == len(messages) + 1, "no other <s> than the template's"
    expected = load_tokenizer(folder).decode(new_ids(folder, ids, max_new_tokens=TOKENS))
    flags = [flag for turn in turns for flag in ("--prompt", turn)] + (["--system", system] if system else [])
    assert main(["generate", "--checkpoint", "llama", "--chat", *flags, "--tokens", str(TOKENS)]) == 0
    assert capsys.readouterr().out.strip() == expected.strip()


def test_a_template_that_is_not_used_is_named(home, capsys):
    (home / "llama" / "chat_template.jinja").write_text(CHAT)
    assert main(["generate", "--checkpoint", "llama", "--prompt", "sea", "--tokens", "2"]) == 0
    assert "has a chat template: use --chat." in capsys.readouterr().err
    assert main(["inspect", "llama"]) == 0
    assert "Chat template: found in chat_template.jinja" in capsys.readouterr().out
    (home / "llama" / "chat_template.jinja").write_text("{% for %}")
    assert main(["inspect", "llama"]) == 0
    assert "Chat template: cannot be used. (llama/chat_template.jinja: expected" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--prompt", "a"], "--chat: expected a model whose folder has a chat template, found none"),
        (["--prompt-ids", "5"], "--chat cannot be used together with --prompt-ids"),
        (["--prompt", "a", "--beams", "2"], "--chat cannot be used together with --beams"),
    ],
)
def test_a_conversation_that_cannot_be_is_refused(flags, said, home, capsys):
    assert main(["generate", "--checkpoint", "gpt2", "--chat", *flags]) == 2
    assert said in capsys.readouterr().err


def test_a_conversation_needs_a_model_that_answers_and_the_users_turn_last(home, capsys):
    assert main(["generate", "--chat", "--prompt", "a"]) == 2
    assert (
        "expected a run of the task tune in runs/, found none; create one with `companion tune`"
        in capsys.readouterr().err
    )
    assert main(["generate", "--checkpoint", "gpt2", "--prompt", "a", "--system", "b"]) == 2
    assert "--system needs --chat" in capsys.readouterr().err
    (home / "llama" / "chat_template.jinja").write_text(CHAT)
    assert main(["generate", "--checkpoint", "llama", "--chat", "--prompt", "a", "--prompt", "b"]) == 2
    assert (
        "expected an odd number of --prompt flags (the user has the first and the last), got 2"
        in capsys.readouterr().err
    )
