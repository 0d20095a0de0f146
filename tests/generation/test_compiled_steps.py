"""Compiled decode steps are traced once, compiled once per shape of model, stored, and loaded without tracing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from companion import AttentionConfig, FeedForwardConfig, ModelConfig, NormConfig, Transformer
from companion.generation import compiled_steps
from companion.generation.prefill_decode import prefill
from companion.quantization.weights import prepared

CONFIG = ModelConfig(37, 64, 2, 300, AttentionConfig(4, kv_heads=2), FeedForwardConfig(96))

TRACED = """
import sys

import torch

from companion import *
from companion.config.model import MoEConfig, WindowConfig
from companion.generation import prefill_decode, compiled_steps
from companion.generation.generate import complete

made = {}
compiled_steps._make = lambda file, *step: made.update({file: compiled_steps._traced(*step).module()})
compiled_steps._read = lambda file: file in made and (lambda given: [made[file](given)]) or None
prefill_decode._compiled = lambda: sys.exit("a step went another way")
compiled_steps.keep_programs()
config = ModelConfig(37, 64, 1, 150, AttentionConfig(4, kv_heads=2), FeedForwardConfig(96))
prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 1, 2]]


def same(kept, config, *lengths, **asked):
    made.clear()
    for seed, new in enumerate(lengths):
        torch.manual_seed(seed)
        model = Transformer(config)
        expected = complete(model, max_new_tokens=new, **asked)
        assert complete(model, max_new_tokens=new, **asked, compile=True) == expected, (config, new)
    assert len(made) == kept, (config, len(made))


# All buckets, and the context's end.
same(1, config.with_(positions=PositionConfig("learned")), 143, 9, prompts=prompts)
same(1, config, 70, 9, prompts=[[1, 2]], weights="int8")
# One before a row is longer than the window, and one from there on; there are fewer columns than slots, then.
local = AttentionConfig(4, kv_heads=2, window=WindowConfig(20, (True, False)))
same(2, config.with_(attention=local, layers=2, context=300, moe=MoEConfig(4, 2)), 131, 90, prompts=prompts)
latents = AttentionConfig(4, latent=LatentConfig(24, 8), window=WindowConfig(20, (True, False)))
same(2, config.with_(attention=latents, layers=2, context=300), 131, prompts=prompts)
linear = AttentionConfig(4, linear=LinearConfig((True, False), d_head=8, d_v=12))
same(1, config.with_(attention=linear, layers=2, context=300), 131, prompts=prompts)
both = config.with_(stack="encoder_decoder")
same(1, both, 70, 9, source=[[1, 2, 3], [4, 5, 6, 7]], prompts=[[1], [2, 3]])
same(1, both, 5, source=[[6]], start=1)  # one key broadcasts, so this is another step
"""


TRACED_ONCE = """
from functools import partial

import torch
from torch._dynamo.backends.debugging import aot_eager_decomp_partition as follow

from companion import AttentionConfig, FeedForwardConfig, ModelConfig, Transformer
from companion.generation.generate import complete

traced = []
torch.compile = partial(torch.compile, backend=lambda graph, given: traced.append(graph) or follow(graph, given))
model = Transformer(ModelConfig(17, 16, 1, 300, AttentionConfig(2), FeedForwardConfig(24)))
asked = {"prompts": [[1, 2, 3], [4]], "max_new_tokens": 70}
assert complete(model, **asked, compile=True) == complete(model, **asked)
assert len(traced) == 1, len(traced)
"""

WRITTEN = """
import sys

import torch

from companion import AttentionConfig, FeedForwardConfig, ModelConfig, Transformer
from companion.generation.generate import complete
from companion.generation.compiled_steps import keep_programs

torch.manual_seed(0)
model = Transformer(ModelConfig(17, 16, 1, 300, AttentionConfig(2), FeedForwardConfig(24)))
keep_programs()
asked = {"prompts": [[1, 2, 3]], "max_new_tokens": 70}
assert complete(model, **asked, compile=True) == complete(model, **asked)
print("torch._dynamo" in sys.modules or "torch._inductor" in sys.modules)
"""

EACH_BY_ITSELF = """
import multiprocessing
import os
import runpy
import sys

import torch._dynamo.backends.debugging
import torch._inductor.compile_fx
import torch.export


def run(file):
    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)  # which the compiler sets as it is loaded
    os.dup2(os.open(file + ".told", os.O_WRONLY | os.O_CREAT), 2)
    runpy.run_path(file)


if __name__ == "__main__":
    processes = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
    for file in sys.argv[1:]:
        process = processes.Process(target=run, args=(file,))
        process.start()
        process.join()
        with open(file + ".code", "w") as code:
            print(process.exitcode, file=code)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Run each of the texts in a process of its own, without the type checks, through which nothing can be traced.

    If processes can be forked, the compiler is loaded only once, because that takes as long as the runs themselves.
    """
    folder = tmp_path_factory.mktemp("home")
    (folder / "temporary").mkdir()
    files = {name: folder / f"{name}.py" for name in ("traced", "traced_once", "written")}
    for file, text in zip(files.values(), (TRACED, TRACED_ONCE, WRITTEN), strict=True):
        file.write_text(text, encoding="utf-8")
    (each := folder / "each.py").write_text(EACH_BY_ITSELF, encoding="utf-8")
    subprocess.run([sys.executable, each, *files.values()], env=environment(folder), check=True, timeout=600)
    return folder


def environment(home: Path) -> dict[str, str]:
    others = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    # Unoptimized code without vector instructions takes half as long to compile, and its speed does not matter here.
    plainly = {
        "TORCHINDUCTOR_VEC_ISA_OK": "0",
        "AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL": "O0",
        "AOT_INDUCTOR_ENABLE_LINE_TABLES": "0",
    }
    return others | plainly | {"COMPANION_HOME": str(home), "TMPDIR": str(home / "temporary")}


def test_a_program_is_named_after_the_source_of_every_part_that_is_compiled_into_it():
    for form in ("fp32", "int8", "int4"):
        parts = prepared(Transformer(CONFIG), form).modules()
        packages = {type(part).__module__.split(".")[1] for part in parts if type(part).__module__[:10] == "companion."}
        assert packages - {"transformer"} <= {*compiled_steps.TRACED}


def went_well(home: Path, name: str) -> None:
    assert (home / f"{name}.py.code").read_text() == "0\n", (home / f"{name}.py.told").read_text()


def test_one_traced_step_serves_all_buckets_lengths_and_models_of_a_shape(home):
    """This does not run the compiler itself."""
    went_well(home, "traced")


def test_the_compiled_step_is_traced_once_for_all_buckets(home):
    went_well(home, "traced_once")


def test_the_second_process_neither_traces_nor_compiles(home):
    went_well(home, "written")
    (file,) = home.rglob("step.pt2")
    asked = {"env": environment(home), "capture_output": True, "text": True, "timeout": 600}
    told = subprocess.run([sys.executable, "-c", WRITTEN], **asked)
    assert (told.returncode, told.stdout, told.stderr) == (0, "False\n", "")
    assert not [path for path in home.rglob("*") if path.suffix in (".pch", ".gch")], "headers take the longest"
    assert [entry.name for entry in file.parents[1].iterdir()] == [file.parent.name], "nothing half written is left"
    whole = file.read_bytes()
    assert compiled_steps._read(file) is not None
    middle = whole.index(b"\x7fELF" if b"\x7fELF" in whole else b"main") + 200
    for damaged in (whole[:-1000], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :], b""):
        file.write_bytes(damaged)
        assert compiled_steps._read(file) is None
    file.unlink()
    assert compiled_steps._read(file) is None


def names(folder: Path, model: Transformer, prompts: list[list[int]], slots: int) -> str:
    """Return the name of the program for a model's first step."""
    kept = compiled_steps.Programs(folder, model)
    with torch.inference_mode():
        _, cache, _ = prefill(model, prompts, None, slots, 64)
        cache = cache.rounded(model.config.context)
        given = compiled_steps.program_inputs(kept.weights, torch.zeros(len(prompts), dtype=torch.long), cache, None)
        free = compiled_steps._free(len(kept.weights), given, cache, None)
        return compiled_steps._name(model, list(kept.weights), given, free, compiled_steps.situation(cache, None))


def test_a_program_is_named_after_all_that_it_is_made_for(tmp_path, monkeypatch):
    model = Transformer(CONFIG).eval()
    first = names(tmp_path, model, [[1, 2]], 192)
    assert names(tmp_path, Transformer(CONFIG).eval(), [[1] * 70], 256) == first
    others = [
        names(tmp_path, model, [[1, 2], [3]], 192),
        names(tmp_path, Transformer(CONFIG).eval().bfloat16(), [[1, 2]], 192),
        names(tmp_path, Transformer(CONFIG.with_(norm=NormConfig(eps=1e-3))).eval(), [[1, 2]], 192),
        names(tmp_path, prepared(model, "int8"), [[1, 2]], 192),
        names(tmp_path, prepared(model, "int4"), [[1, 2]], 192),
    ]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    others.append(names(tmp_path, model, [[1, 2]], 192))
    monkeypatch.undo()
    monkeypatch.setattr(compiled_steps, "_here", lambda: ("another PyTorch",))
    others.append(names(tmp_path, model, [[1, 2]], 192))
    assert len({first, *others}) == 1 + len(others)


def step(kept: compiled_steps.Programs) -> torch.Tensor | None:
    with torch.inference_mode():
        _, cache, _ = prefill(kept.model, [[1, 2, 3]], None, 192, 64)
        return kept.logits(torch.tensor([4]), cache.rounded(kept.model.config.context), None)


def test_what_a_name_cannot_tell_is_compiled_in_the_usual_way(tmp_path, monkeypatch):
    """Test a hook, another package's layer, a step that PyTorch cannot trace, and a program that rejects its inputs."""
    found = []
    monkeypatch.setattr(
        compiled_steps, "_read", lambda file: found.append(file) or (lambda given: [torch.zeros(1, 37)])
    )
    model = Transformer(CONFIG).eval()
    assert step(compiled_steps.Programs(tmp_path, model)) is not None and len(found) == 1
    hook = model.decoder.register_forward_hook(lambda *seen: None)
    assert step(compiled_steps.Programs(tmp_path, model)) is None
    hook.remove()

    class Mine(nn.Linear):
        pass

    Mine.__module__ = "elsewhere"
    model.decoder.blocks[1].attention.output = Mine(64, 64, bias=False)
    assert step(compiled_steps.Programs(tmp_path, model)) is None
    assert len(found) == 1
    model = Transformer(CONFIG).eval()

    def refuses(given):
        raise RuntimeError("another size")

    monkeypatch.setattr(compiled_steps, "_read", lambda file: found.append(file) or refuses)
    kept = compiled_steps.Programs(tmp_path, model)
    assert step(kept) is None and step(kept) is None
    assert len(found) == 2, "it is asked once"
    monkeypatch.setattr(compiled_steps, "_read", lambda file: None)
    monkeypatch.setattr(compiled_steps, "_make", lambda *step: 1 / 0)
    assert step(compiled_steps.Programs(tmp_path, model)) is None


def test_programs_are_kept_in_a_folder_of_their_own(monkeypatch, tmp_path):
    model = Transformer(CONFIG)
    monkeypatch.setattr(compiled_steps, "_kept", None)
    assert compiled_steps.programs_of(model) is None
    monkeypatch.setenv("COMPANION_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # monkeypatch restores it afterwards, whatever its value then
    assert compiled_steps.keep_programs() == tmp_path / "home" / "compiled"
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    assert Path(cache_dir()) == tmp_path / "home" / "compiled" and Path(cache_dir()).is_dir()
    kept = compiled_steps.programs_of(model)
    assert kept is not None and kept.folder == tmp_path / "home" / "compiled" / "steps"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "mine"))  # a folder that the user has set is used
    assert compiled_steps.keep_programs() == Path(cache_dir()) == tmp_path / "mine"
    if os.name == "posix":
        (tmp_path / "mine" / "steps").chmod(0o777)  # no program is run from a folder that others can write to
        assert compiled_steps.keep_programs() == tmp_path / "mine" and compiled_steps.programs_of(model) is None
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COMPANION_HOME", str(tmp_path / "file"))
    assert compiled_steps.keep_programs() is None and "TORCHINDUCTOR_CACHE_DIR" not in os.environ
