"""The Python interface: configurations, and calls with one argument that is not right."""

from __future__ import annotations

import copy
import json
import math
import tempfile
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import torch
from hypothesis import strategies as st

from companion import (
    AttentionConfig,
    FeedForwardConfig,
    KVCache,
    ModelConfig,
    Sampling,
    Transformer,
    complete,
    load_pretrained,
)
from companion.data.batches import TrainingBatches
from companion.files.models import save_model
from companion.generation.beam import beam_search
from companion.generation.logit_rules import Rules
from companion.layers.attention import attend
from companion.layers.positions import rotate
from companion.layers.routing import route
from companion.training.trainer import Trainer, TrainingConfig
from fuzz.odd import changed, odd
from fuzz.oracle import REFUSED, WORKS, Fault, Kind, is_refused, refused

GOOD = json.loads(
    ModelConfig(
        11, 12, 2, context=9, attention=AttentionConfig(3, 1, d_head=4, d_v=5), feed_forward=FeedForwardConfig(8)
    ).to_json()
)
GOOD["moe"] = {"experts": 3, "top_k": 2, "capacity": 1.5, "noise": 0.1}
LONG = json.loads(json.dumps(GOOD)) | {"dropout": 0.1}
LONG["attention"] |= {"window": {"width": 2, "pattern": [True, False], "base": 100.0}, "qk_norm": "head"}
LONG["attention"] |= {"score_cap": 3.0, "score_width": 4.0, "sinks": True, "gate": "head"}
LONG["positions"] |= {
    "scaling": {"kind": "yarn", "factor": 2.0, "original": 4, "slow": 1.0, "fast": 9.0, "magnitude": 1.1}
}
LONG["embedding"] |= {"scaled": True, "logit_cap": 3.0}
LONG["norm"] |= {"placement": "both"}
LISTS = json.loads(json.dumps(GOOD)) | {"residual": 0.3}
LISTS["positions"] |= {
    "scaling": {"kind": "longrope", "factor": 2.0, "original": 4, "short": [1.0, 1.5], "long": [2, 3]}
}
LISTS["embedding"] |= {"multiplier": 3.0, "logit_divisor": 2.0}
ENCODER = json.loads(json.dumps(GOOD)) | {"stack": "encoder", "moe": None}
ENCODER["embedding"] |= {"segments": 2, "pooled": True, "classes": 2, "norm": True, "head": "masked"}
ENCODER["norm"] |= {"kind": "layer", "placement": "post"}
ENCODER["positions"] |= {"kind": "learned"}


def _in_python(kind: Any, data: Any) -> Any:
    """The configuration that JSON describes, built by calling the classes."""
    hints, values = get_type_hints(kind), {}
    for name, value in data.items():
        inner = [hint for hint in (hints[name], *get_args(hints[name])) if is_dataclass(hint)] if name in hints else []
        values[name] = _in_python(inner[0], value) if inner and isinstance(value, dict) else value
        kinds = (hints.get(name), *get_args(hints.get(name)))
        if isinstance(value, list) and any(get_origin(hint) is tuple for hint in kinds):  # of which JSON has none
            values[name] = tuple(value)
    return kind(**values)


def _configuration(case: tuple[dict[str, Any], list[str]]) -> str:
    data, names = case
    names = [
        *names,
        *(f.name for f in fields(ModelConfig)),
        "heads",
        "kv_heads",
        "d_head",
        "top_k",
        "pooled",
        "bias",
        "segments",
    ]
    read = refused(lambda: ModelConfig.from_json(json.dumps(data)), [*names, "config"])
    try:
        built: Any = _in_python(ModelConfig, data)
    except (ValueError, TypeError) as error:  # Python itself refuses names of arguments
        if isinstance(error, TypeError) and "argument" not in str(error):
            raise
        built = REFUSED
    if is_refused(read) != is_refused(built) or (not is_refused(read) and read != built):
        raise Fault(f"from JSON {read}, in Python {built}")
    if is_refused(read):
        return REFUSED
    if ModelConfig.from_json(read.to_json()) != read:
        raise Fault("the round trip through JSON gives another configuration")
    torch.manual_seed(0)
    model = refused(lambda: Transformer(read), [f"{name}=" for name in names])
    if is_refused(model):  # this machine has no room for it
        return REFUSED
    tokens = torch.zeros(1, min(3, read.context), dtype=torch.long)
    source = {"source": tokens} if read.stack == "encoder_decoder" else {}
    model(tokens, **source)
    with torch.no_grad():
        cache = None if read.stack == "encoder" else KVCache.create(read, 1, 4)
        model.eval()(tokens, cache=cache, **source)
    return WORKS


_configurations = st.sampled_from([GOOD, LONG, LISTS, ENCODER]).flatmap(changed)
configurations = Kind("configurations, from JSON and in Python", _configurations, _configuration, 250)

_CONFIG = ModelConfig.from_json(json.dumps({**GOOD, "moe": None}))
torch.manual_seed(0)
_MODEL = Transformer(_CONFIG).eval()
_IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
_Q, _K, _V = torch.rand(2, 4, 3, 8), torch.rand(2, 2, 5, 8), torch.rand(2, 2, 5, 6)
_DTYPES = [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32, torch.float16, torch.complex64]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Small ones of any dtype, with up to five axes, some of them empty."""
    shape = draw(st.lists(st.sampled_from([0, 1, 1, 2, 2, 3, 4, 5]), max_size=5))
    values = torch.randint(-1, draw(st.sampled_from([2, 6, 30])), shape, generator=torch.Generator().manual_seed(1))
    return values.to(draw(st.sampled_from(_DTYPES)))


anything = st.one_of(odd, tensors(), tensors())


def _cache(length: int) -> KVCache:
    with torch.no_grad():
        return _MODEL(_IDS[:, :length], cache=KVCache.create(_CONFIG, 2, 9)).cache


def _forward(**changes: Any) -> torch.Tensor:
    with torch.no_grad():
        return _MODEL(**{"tokens": _IDS} | changes).logits


def _by_rows(**changes: Any) -> torch.Tensor:
    """The same call, a row at a time."""
    tokens = changes.get("tokens", _IDS)
    rows = []
    for row in range(len(tokens)):
        own = {"tokens": tokens[row : row + 1]}
        for name, value in changes.items():
            if name != "tokens" and value is not None:
                batched = value.ndim > 1 and value.shape[0] == len(tokens)
                own[name] = value[row : row + 1] if batched else value
        rows.append(_forward(**own))
    return torch.cat(rows)


CALLS = {
    "tokens": lambda value: (_forward(tokens=value), _by_rows(tokens=value)),
    "positions": lambda value: (_forward(positions=value), _by_rows(positions=value)),
    "mask": lambda value: (_forward(mask=value), _by_rows(mask=value)),
    "real": lambda value: (_forward(real=value), _by_rows(real=value)),
    "segments": lambda value: (_forward(segments=value), _forward()),
    "source": lambda value: (_forward(source=value), _forward()),
    "cache": lambda value: (_forward(cache=value), _forward()),
    "lengths": lambda value: (_cache(4).rewind(value).lengths * 1.0, torch.as_tensor(value).expand(2) * 1.0),
    "q": lambda value: (attend(value, _K, _V), attend(value, _K, _V, backend="reference")),
    "k": lambda value: (attend(_Q, value, _V), attend(_Q, value, _V, backend="reference")),
    "v": lambda value: (attend(_Q, _K, value), attend(_Q, _K, value, backend="reference")),
    "stop": lambda value: (_written(stop=value), _written(stop=list(value))),
    "sampling": lambda value: (_written(sampling=value), _written()),
    "prompts": lambda value: (_written(prompts=value), _written(prompts=[list(ids) for ids in value])),
    "max_new_tokens": lambda value: (
        _written(max_new_tokens=value),
        _written(max_new_tokens=7 if value is None else int(value)),
    ),
    "seed": lambda value: (_written(seed=value), _written(seed=int(value))),
    "streams": lambda value: (_written(streams=value), _written(streams=list(value or [0, 1]))),
    "rules": lambda value: (_written(rules=value), _written()),
    "temperature": lambda value: (_drawn(Sampling(temperature=value)), _drawn(Sampling(float(value)))),
    "top_k": lambda value: (_drawn(Sampling(top_k=value)), _drawn(Sampling(top_k=value))),
    "top_p": lambda value: (_drawn(Sampling(top_p=value)), _drawn(Sampling(top_p=value))),
    "min_p": lambda value: (_drawn(Sampling(min_p=value)), _drawn(Sampling(min_p=value))),
    "repetition_penalty": lambda value: (
        _written(rules=Rules(repetition_penalty=value)),
        _written(rules=Rules(repetition_penalty=float(value))),
    ),
    "no_repeat": lambda value: (_written(rules=Rules(no_repeat=value)), _written(rules=Rules(no_repeat=int(value)))),
    "width": lambda value: (_beams(width=value), _beams(width=int(value))),
    "length_penalty": lambda value: (_beams(length_penalty=value), _beams(length_penalty=float(value))),
    "early_stopping": lambda value: (_beams(early_stopping=value), _beams(early_stopping=value)),
    "rows": lambda value: (_cache(4).select(value).lengths * 1.0, torch.full((len(value),), 4.0)),
    "route": lambda value: (route(_Q, value).weights, route(_Q, int(value)).weights),
    "bias": lambda value: (route(_Q, 2, bias=value).weights, route(_Q, 2, bias=copy.deepcopy(value)).weights),
    "angles": lambda value: (rotate(_Q, value), rotate(_Q, copy.deepcopy(value))),
    "device": lambda value: (_loaded(device=value), _loaded()),
    "dtype": lambda value: (_loaded(dtype=value), _loaded()),
    "name": lambda value: (load_pretrained(value).embedding.weight, _loaded()),
    "batch": lambda value: (KVCache.create(_CONFIG, value, 3).keys[0], torch.zeros(min(value, 10**6), 1, 3, 4)),
}


def _written(**choices: Any) -> torch.Tensor:
    given = {"prompts": [[1, 2], [3]], "max_new_tokens": 3} | choices
    return torch.tensor([i for row in complete(_MODEL, given.pop("prompts"), **given) for i in [*row, -1]]) * 1.0


@cache
def _saved() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    save_model(folder, _MODEL)
    return folder


def _loaded(**choices: Any) -> torch.Tensor:
    return load_pretrained(_saved(), **choices).embedding.weight.float()


def _drawn(sampling: Sampling) -> torch.Tensor:
    return sampling.probabilities(torch.tensor([[1.0, 5.0, 5.0, -math.inf, -3e38]]))


def _beams(**choices: Any) -> torch.Tensor:
    given = {"width": 2, "max_new_tokens": 3} | choices
    return torch.tensor([beam.log_probability for beam in beam_search(_MODEL, [[1]], **given)[0]])


_SAID = {"lengths": ["lengths"], "batch": ["batch", "memory"], "temperature": ["temperature"], "prompts": ["prompt"]}
_SAID |= {"route": ["top_k"], "angles": ["angles"], "name": ["name", "expected a folder"]}
_SAID |= {"no_repeat": ["no_repeat", "rules"]}
_SAID |= {
    "max_new_tokens": ["max_new_tokens"],
    "real": ["real", "mask"],
    "k": ["k ", "k=", "v "],
    "q": ["q ", "q=", "k "],
}


def _call(case: tuple[str, Any]) -> str:
    name, value = case
    result = refused(lambda: CALLS[name](value), _SAID.get(name, [name]))
    if is_refused(result):
        return REFUSED
    one, other = result
    finite = one if one.dtype == torch.bool else one[~one.isnan()]
    if len(finite.flatten()) != one.numel():
        raise Fault("it gives NaN")
    if one.shape != other.shape or not torch.allclose(one, other, atol=1e-4):
        raise Fault("it gives other numbers than the same call written another way")
    return WORKS


calls = Kind("calls from Python with one odd argument", st.tuples(st.sampled_from(sorted(CALLS)), anything), _call, 350)


def _update(**changes: Any) -> float:
    """The loss of the first update of a training with these settings."""
    torch.manual_seed(0)
    batches = TrainingBatches([torch.arange(40) * 3 % 11], context=9, batch=2, seed=0)
    return Trainer(Transformer(_CONFIG), batches, TrainingConfig(**{"updates": 3, "warmup": 1} | changes)).update().loss


def _training(case: tuple[str, Any]) -> str:
    name, value = case
    loss = refused(lambda: _update(**{name: value}), [name])
    if is_refused(loss):
        return REFUSED
    if name != "accumulate" and loss != _update():
        raise Fault("the first loss, which it does not bear on, is another one")
    return WORKS


_settings = st.tuples(st.sampled_from([f.name for f in fields(TrainingConfig)]), odd).filter(
    lambda case: case[0] != "accumulate" or not isinstance(case[1], int) or case[1] < 9  # more takes its time
)
training = Kind("settings of a Trainer", _settings, _training, 40)
KINDS = [configurations, calls, training]
