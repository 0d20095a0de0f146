"""Types for users: a file with every public name passes `mypy --strict` and runs."""

import ast
import subprocess
import sys
from pathlib import Path

import torch
import user

import companion

FILE = Path(user.__file__)
ROOT = FILE.parents[1]


def test_the_file_uses_every_public_name():
    tree = ast.parse(FILE.read_text(encoding="utf-8"))
    [line] = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "companion"]
    below = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert {entry.name for entry in line.names} == set(companion.__all__) <= below


def test_it_runs(tmp_path):
    torch.manual_seed(0)
    model = companion.Transformer(user.config()).eval()
    written = user.written(model, tmp_path / "model")
    assert len(written[0]) == 3 and len(written) == 5
    assert user.tuned(companion.Transformer(user.config().with_(moe=None)), tmp_path).isfinite()
    assert user.layers(torch.randn(2, 5, 16)).shape == (2, 5, 16)
    assert user.given(model, torch.zeros(2, 5, dtype=torch.long)).shape == (2, 5, user.config().vocab)
    assert user.attended(companion.FeedForward(16, user.config().feed_forward), torch.randn(2, 5, 16)).shape[-1] == 16
    full, _, tiled, *_ = user.attention()
    torch.testing.assert_close(full, tiled)


STRICT = """
[[tool.mypy.overrides]]
module = ["user", "wrong"]
disallow_any_generics = true
disallow_subclassing_any = true
disallow_untyped_calls = true
disallow_untyped_defs = true
disallow_incomplete_defs = true
disallow_untyped_decorators = true
warn_return_any = true
implicit_reexport = false
strict_equality = true
extra_checks = true
"""
"""What `--strict` adds to our own settings, for these two files: what else they import is read with the settings of
`make types`, and found in its cache."""


def test_mypy_strict_finds_nothing_and_would_find_a_wrong_type(tmp_path):
    wrong = tmp_path / "wrong.py"
    text = FILE.read_text(encoding="utf-8").replace("first: int | None = step[0]", "first: str = step[0]")
    wrong.write_text(text, encoding="utf-8")
    settings = tmp_path / "settings.toml"
    settings.write_text((ROOT / "pyproject.toml").read_text(encoding="utf-8") + STRICT, encoding="utf-8")
    flags = ["--config-file", str(settings), "--no-error-summary", "--no-pretty"]
    call = [sys.executable, "-m", "mypy", *flags, str(FILE), str(wrong)]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
    faults = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert faults and all("wrong.py" in fault for fault in faults), done.stdout + done.stderr
    assert "Incompatible types in assignment" in faults[0]
