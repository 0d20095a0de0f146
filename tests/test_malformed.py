"""Random malformed configurations, calls, files and command lines either work or are rejected in one sentence.

A rejection is a `ValueError` that names what is wrong, or for a command, exit code 2, one error on standard error, and
unchanged files. Everything else is a fault, above all a traceback from deep inside PyTorch, a wrong result, or NaN. The
cases are the same on every machine, and hypothesis shrinks each failure to a minimal one.
"""

import copy
import hashlib
import json
import math
import os
import struct
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from companion import AttentionConfig, FeedForwardConfig, KVCache, ModelConfig, Sampling, Transformer, complete
from companion.commands.main import main
from companion.data.batches import TrainingBatches
from companion.data.tokenizer import BytePairTokenizer
from companion.files.models import load_model, save_model
from companion.generation.beam import beam_search
from companion.generation.logit_rules import Rules
from companion.layers.attention import attend
from companion.layers.routing import route
from companion.training.run_folder import RunFolder
from companion.training.settings import TextSettings, flag
from companion.training.trainer import Trainer, TrainingConfig
from companion_school.course.grading.answers import cells_of

pytestmark = pytest.mark.usefixtures("unchecked")
NUMBERS = [0, -1, 1, 2, 3, 7, 0.0, -0.0, 0.5, 2.0, 1e-45, 1e300, 10**12, 10**400, math.inf, -math.inf, math.nan]
OTHERS = [None, True, False, "", "no", "0", "1e3", "x" * 300, "\0", "ü", [], [1], {}, {"a": 1}, [[]]]
odd = st.one_of(st.sampled_from(NUMBERS), st.sampled_from(OTHERS), st.integers(-5, 40), st.text(max_size=6))


def cases(count):
    """Return a decorator that runs a test on `count` random cases, the same ones each time."""

    def decorated(strategy):
        def over(test):
            phases = [Phase.generate, Phase.shrink]
            quick = settings(
                max_examples=count, database=None, deadline=None, phases=phases, suppress_health_check=list(HealthCheck)
            )
            return seed(0)(quick(given(strategy)(test)))

        return over

    return decorated


@st.composite
def changed(draw, good, most=2):
    """Draw a good JSON object with some fields, also of inner objects, odd, missing or unknown; and their names."""
    value, names = copy.deepcopy(good), []
    for _ in range(draw(st.integers(0, most))):
        place = value
        while True:
            name = draw(st.sampled_from([*sorted(place), "colour"]))
            names.append(name)
            inner = place.get(name)
            if not isinstance(inner, dict) or not inner or draw(st.booleans()):
                break
            place = inner
        if draw(st.integers(0, 5)) == 0 and name in place:
            del place[name]
        else:
            place[name] = copy.deepcopy(draw(odd))
    return value, names


@st.composite
def damaged(draw, good):
    """Draw a file that was truncated or extended, or in which some bytes differ."""
    data = bytearray(good)
    how, at = draw(st.sampled_from(["flip", "cut", "insert", "other"])), draw(st.integers(0, max(0, len(good) - 1)))
    if how == "flip":
        data[at : at + 1] = bytes([draw(st.integers(0, 255))])
    elif how == "cut":
        del data[at:]
    elif how == "insert":
        data[at:at] = draw(st.binary(min_size=1, max_size=8))
    else:
        data = draw(st.sampled_from([b"", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b"9" * 5000]))
    return bytes(data)


def text(value):
    return json.dumps(value).encode("utf-8", "surrogatepass")


REJECTED = object()


def tried(call, names):
    """Return the result of a call, or `REJECTED` if it raises a `ValueError` that contains one of the names."""
    try:
        return call()
    except ValueError as error:
        assert any(name in str(error) for name in names), f"rejected without one of {names}: {error}"
        assert len(str(error)) < 2000
        return REJECTED


def state_of(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


# Configurations

CONFIG = ModelConfig(
    11, 12, 2, context=9, attention=AttentionConfig(3, 1, d_head=4, d_v=5), feed_forward=FeedForwardConfig(8)
)
GOOD = json.loads(CONFIG.to_json())
MIXTURE = GOOD | {"moe": {"experts": 3, "top_k": 2, "capacity": 1.5, "noise": 0.1}}
LONG = GOOD | {"dropout": 0.1, "norm": GOOD["norm"] | {"placement": "both"}}
LONG["attention"] = GOOD["attention"] | {"window": {"width": 2, "pattern": [True, False], "base": 100.0}, "sinks": True}
LONG["positions"] = GOOD["positions"] | {
    "scaling": {"kind": "yarn", "factor": 2.0, "original": 4, "slow": 1.0, "fast": 9.0, "magnitude": 1.1}
}
ENCODER = GOOD | {"stack": "encoder", "norm": GOOD["norm"] | {"kind": "layer", "placement": "post"}}
ENCODER["positions"] = GOOD["positions"] | {"kind": "learned"}
ENCODER["embedding"] = GOOD["embedding"] | {"segments": 2, "pooled": True, "classes": 2, "norm": True, "head": "masked"}
FIELDS = [field.name for field in fields(ModelConfig)]
INNER = ["heads", "kv_heads", "d_head", "top_k", "pooled", "bias", "segments", "config"]


@cases(250)(st.sampled_from([GOOD, MIXTURE, LONG, ENCODER]).flatmap(changed))
def test_a_configuration_makes_a_model_that_runs_or_is_rejected(case):
    data, names = case
    config = tried(lambda: ModelConfig.from_json(json.dumps(data)), [*names, *FIELDS, *INNER])
    if config is REJECTED:
        return
    assert ModelConfig.from_json(config.to_json()) == config
    model = tried(lambda: Transformer(config), [f"{name}=" for name in names])  # it may not fit into memory
    if model is not REJECTED:
        tokens = torch.zeros(1, min(3, config.context), dtype=torch.long)
        source = {"source": tokens} if config.stack == "encoder_decoder" else {}
        assert model(tokens, **source).logits.shape[:2] == tokens.shape


# Calls

torch.manual_seed(0)
MODEL = Transformer(CONFIG).eval()
IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
Q, K, V = torch.rand(2, 4, 3, 8), torch.rand(2, 2, 5, 8), torch.rand(2, 2, 5, 6)
DTYPES = [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32, torch.float16, torch.complex64]


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.sampled_from([0, 1, 1, 2, 2, 3, 4, 5]), max_size=5))
    values = torch.randint(-1, draw(st.sampled_from([2, 6, 30])), shape, generator=torch.Generator().manual_seed(1))
    return values.to(draw(st.sampled_from(DTYPES)))


@torch.no_grad()
def logits(**choices):
    return MODEL(**{"tokens": IDS} | choices).logits


def rows(**choices):
    """Return the logits of the same call, computed one row at a time."""
    tokens, found = choices.pop("tokens", IDS), []
    for row in range(len(tokens)):
        own = {n: v[row : row + 1] if v is not None and v.ndim > 1 and len(v) == len(tokens) else v
               for n, v in choices.items()}  # fmt: skip
        found.append(logits(tokens=tokens[row : row + 1], **own))
    return torch.cat(found)


def written(**choices):
    choices = {"prompts": [[1, 2], [3]], "max_new_tokens": 3} | choices
    return torch.tensor([float(i) for row in complete(MODEL, choices.pop("prompts"), **choices) for i in [*row, -1]])


def drawn(sampling):
    return sampling.probabilities(torch.tensor([[1.0, 5.0, 5.0, -math.inf, -3e38]]))


@torch.no_grad()
def cached(length):
    return MODEL(IDS[:, :length], cache=KVCache.create(CONFIG, 2, 9)).cache


def beams(**choices):
    choices = {"width": 2, "max_new_tokens": 3} | choices
    return torch.tensor([beam.log_probability for beam in beam_search(MODEL, [[1]], **choices)[0]])


CALLS = {  # pairs of results that must be equal: the same call, written in another way
    "tokens": lambda value: (logits(tokens=value), rows(tokens=value)),
    "positions": lambda value: (logits(positions=value), rows(positions=value)),
    "mask": lambda value: (logits(mask=value), rows(mask=value)),
    "segments": lambda value: (logits(segments=value), logits()),
    "source": lambda value: (logits(source=value), logits()),
    "cache": lambda value: (logits(cache=value), logits()),
    "lengths": lambda value: (cached(4).rewind(value).lengths * 1.0, torch.as_tensor(value).expand(2) * 1.0),
    "q": lambda value: (attend(value, K, V), attend(value, K, V, backend="reference")),
    "k": lambda value: (attend(Q, value, V), attend(Q, value, V, backend="reference")),
    "v": lambda value: (attend(Q, K, value), attend(Q, K, value, backend="reference")),
    "stop": lambda value: (written(stop=value), written(stop=list(value))),
    "prompts": lambda value: (written(prompts=value), written(prompts=[list(ids) for ids in value])),
    "max_new_tokens": lambda value: (written(max_new_tokens=value), written(max_new_tokens=int(value or 7))),
    "seed": lambda value: (written(seed=value), written(seed=int(value))),
    "temperature": lambda value: (drawn(Sampling(temperature=value)), drawn(Sampling(float(value)))),
    "top_k": lambda value: (drawn(Sampling(top_k=value)), drawn(Sampling(top_k=value))),
    "top_p": lambda value: (drawn(Sampling(top_p=value)), drawn(Sampling(top_p=value))),
    "min_p": lambda value: (drawn(Sampling(min_p=value)), drawn(Sampling(min_p=value))),
    "no_repeat": lambda value: (written(rules=Rules(no_repeat=value)), written(rules=Rules(no_repeat=int(value)))),
    "width": lambda value: (beams(width=value), beams(width=int(value))),
    "length_penalty": lambda value: (beams(length_penalty=value), beams(length_penalty=float(value))),
    "rows": lambda value: (cached(4).select(value).lengths * 1.0, torch.full((len(value),), 4.0)),
    "route": lambda value: (route(Q, value).weights, route(Q, int(value)).weights),
    "batch": lambda value: (KVCache.create(CONFIG, value, 3).keys[0], torch.zeros(min(value, 10**6), 1, 3, 4)),
}
SAYS = {"prompts": ["prompt"], "route": ["top_k"], "batch": ["batch", "memory"], "no_repeat": ["no_repeat", "rules"]}
SAYS |= {"k": ["k ", "k=", "v "], "q": ["q ", "q=", "k "]}


@cases(250)(st.tuples(st.sampled_from(sorted(CALLS)), st.one_of(odd, tensors(), tensors())))
def test_a_call_with_one_odd_argument_is_right_or_is_rejected(case):
    name, value = case
    result = tried(lambda: CALLS[name](value), SAYS.get(name, [name]))
    if result is not REJECTED:
        one, other = result
        assert not one.isnan().any() and one.shape == other.shape and torch.allclose(one, other, atol=1e-4)


# Files

TRAINED = replace(CONFIG, vocab=270)


def trainer():
    torch.manual_seed(4)
    batches = TrainingBatches([torch.arange(60) * 5 % 22 + 1], context=9, batch=2, seed=8)
    return Trainer(Transformer(TRAINED), batches, TrainingConfig(9, warmup=2))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the files of a run with two updates, by name."""
    folder, one = RunFolder(tmp_path_factory.mktemp("run") / "good"), trainer()
    record = {"settings": TextSettings().what_matters(), "updates": 9, "evaluations": 2, "precision": "fp32"}
    record |= {"text": {"title": "a text", "fingerprint": "0"}, "bytes_per_token": 2.5, "parameters": one.parameters}
    tokenizer = BytePairTokenizer.train(["the cat and the other cat"], 260)
    folder.create(record, {"tokenizer.json": tokenizer.to_json()})
    for _ in range(2):
        update = one.update()
        folder.log({"update": update.number, "loss": update.loss, "tokens": update.tokens, "seconds": 0.1})
    folder.save(one, error=3.5)
    folder.finish({"bits_per_byte": 3.5, "perplexity": 10.0, "tokens": 40, "bytes": 80})
    return {str(path.relative_to(folder.path)): path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}


@cases(70)(st.data())
def test_a_run_with_a_malformed_file_is_continued_or_rejected_and_left_alone(run, tmp_path_factory, data):
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    name = data.draw(st.sampled_from(sorted(run)))
    good = run[name]
    edited = changed(json.loads(good)).map(lambda made: text(made[0])) if name.endswith("run.json") else damaged(good)
    for other, content in {**run, name: data.draw(edited)}.items():
        (folder.path / other).parent.mkdir(parents=True, exist_ok=True)
        (folder.path / other).write_bytes(content)
    before = state_of(folder.path)

    def use():
        folder.record()["updates"], folder.result(), folder.tokenizer()
        folder.restore(trainer(), lambda said: None)

    if tried(use, [str(folder.path)]) is REJECTED:
        assert state_of(folder.path) == before


@cases(150)(st.data())
def test_a_malformed_models_folder_is_loaded_as_it_says_or_rejected(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("model")
    save_model(folder, MODEL)
    name = data.draw(st.sampled_from(["config.json", "model.safetensors", "header"]))
    path = folder / name.replace("header", "model.safetensors")
    good = path.read_bytes()
    if name == "config.json" and data.draw(st.booleans()):
        path.write_bytes(text(data.draw(changed(json.loads(good)))[0]))
    elif name == "header":
        (size,) = struct.unpack("<Q", good[:8])
        header = text(data.draw(changed(json.loads(good[8 : 8 + size])))[0])
        length = data.draw(st.sampled_from([len(header)] * 6 + [0, 8, len(header) - 1, 2**40, 2**63]))
        path.write_bytes(struct.pack("<Q", length) + header + good[8 + size :])
    else:
        path.write_bytes(data.draw(damaged(good)))
    before = state_of(folder)
    model = tried(lambda: load_model(folder), [str(folder)])
    assert state_of(folder) == before
    if model is not REJECTED:
        assert model.config == ModelConfig.from_json((folder / "config.json").read_text("utf-8"))


CELL = {"cell_type": "code", "metadata": {}, "source": ["x = 1\n", "y = 2"], "outputs": []}
NOTEBOOK = {"cells": [CELL, CELL | {"cell_type": "markdown"}], "nbformat": 4}


@cases(100)(st.one_of(damaged(text(NOTEBOOK)), changed(NOTEBOOK).map(lambda made: text(made[0]))))
def test_a_malformed_notebook_is_read_or_rejected(content):
    cells = tried(lambda: cells_of("ada.ipynb", content), ["ada.ipynb"])
    assert cells is REJECTED or cells == cells_of("ada.ipynb", text(json.loads(content.decode("utf-8-sig"))))


# Command lines

COMMANDS = {
    ("train", "--data", "text.txt"): [f"--{flag(field)}" for field in fields(TextSettings)],
    ("account",): ["--config", "--chip", "--run"],
    ("generate", "--prompt", "a"): ["--run", "--checkpoint", "--tokens", "--temperature", "--top-k", "--seed"],
    ("evaluate",): ["--run", "--data", "--device"],
    ("grade", "folder"): ["--seed-file", "--pset", "--jobs", "--time", "--memory", "--exercises"],
    ("course", "release", "week1", "--exercises", "9.99"): ["--seed-file", "--questions"],
}
WORDS = st.one_of(odd.map(lambda value: value if isinstance(value, str) else json.dumps(value)), st.text(max_size=6))


def interrupted(*_):
    """Stop a run whose flags are right before it begins."""
    raise KeyboardInterrupt


@cases(60)(
    st.sampled_from(sorted(COMMANDS)).flatmap(lambda c: st.tuples(st.just(c), st.sampled_from(COMMANDS[c]), WORDS))
)
def test_a_command_with_one_odd_flag_ends_with_one_line(capsys, monkeypatch, tmp_path_factory, case):
    command, name, value = case
    home = tmp_path_factory.mktemp("home")
    monkeypatch.chdir(home)
    Path("text.txt").write_text("the cat sat on the mat. " * 50, "utf-8")
    os.mkdir("folder")
    monkeypatch.setattr("companion.training.run.open_task", interrupted)
    code = main([*command, f"{name}={value}"])
    said = capsys.readouterr().err
    assert (code == 130 and command[0] == "train") or (
        code == 2 and said.count(": error: ") == 1 and len(said) < 3000
    ), (code, said)
    assert sorted(os.listdir()) == ["folder", "text.txt"]
