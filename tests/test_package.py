"""The wheels and the sdist contain everything that the package reads at run time, and nothing that builds the course.

The build backend builds them from a copy and without a network; `make package` installs and tests them.
"""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from package.trial import Failed, blocks, commands, promised, refuse_other_version
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAGE = (ROOT / PROJECT["readme"]).read_text(encoding="utf-8")
SCHOOLS_PAGE = (ROOT / "school" / "README.md").read_text(encoding="utf-8")
STAYS = {"companion/README.md", "companion/data/texts/make.py"}
"""The index's page, which is in the metadata, and what made the frozen text from a history that no wheel has."""
ALSO_IN_THE_SDIST = {
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
    "MANIFEST.in",
    "PKG-INFO",
    "companion/README.md",
    "pyproject.toml",
    "setup.cfg",
}
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build both like `python -m build`: the sdist from a checkout with other files in it, and the wheel from that."""
    folder = tmp_path_factory.mktemp("a checkout, é")
    copy = folder / "checkout"
    shutil.copytree(ROOT / "companion", copy / "companion", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ALSO_IN_THE_SDIST:
        if (ROOT / name).is_file() and "/" not in name:
            shutil.copy(ROOT / name, copy)
    strays = ("authoring/build.py", "tests/test_strays.py", "notebooks/build.py", "tasks.py", "companion/notes.txt")
    for name in (*strays, "build/lib/companion/gone.py", "companion/layers/__pycache__/norms.cpython-311.pyc"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("")
    build("build_sdist", copy, folder)
    [sdist] = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        file.extractall(folder, filter="data")
    build("build_wheel", folder / sdist.name.removesuffix(".tar.gz"), folder)
    return folder


def build(what, source, into):
    done = subprocess.run([sys.executable, "-c", BUILD, what, str(into)], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(built):
    """Return the content of every file by its path."""
    [path] = built.glob("*.whl")
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist() if not name.endswith("/")}


@pytest.fixture(scope="module")
def metadata(wheel):
    [text] = [content for name, content in wheel.items() if name.endswith(".dist-info/METADATA")]
    return message_from_string(text.decode())


def package_files(package="companion"):
    """Return every file of the package in this checkout."""
    found = {path.relative_to(ROOT).as_posix() for path in (ROOT / package).rglob("*") if path.is_file()}
    return {name for name in found if "__pycache__" not in name} - STAYS


def test_the_wheel_holds_the_package_whole_and_nothing_else(wheel):
    wanted = package_files()
    assert {"companion/py.typed", "companion/__init__.pyi", "companion/data/texts/first_edition.json.xz"} <= wanted
    assert {name for name in wheel if ".dist-info/" not in name} == wanted
    assert all(wheel[name] == (ROOT / name).read_bytes() for name in wanted)


def test_the_sdist_holds_what_the_wheel_is_built_from(built):
    [path] = built.glob("*.tar.gz")
    with tarfile.open(path) as file:
        names = {name.partition("/")[2] for member in file.getmembers() if member.isfile() for name in [member.name]}
    assert {name for name in names if ".egg-info/" not in name} == package_files() | ALSO_IN_THE_SDIST


def test_the_schools_wheel_holds_the_school_whole_and_nothing_else(tmp_path):
    checkout = tmp_path / "checkout"
    for name in ("companion", "companion_school", "school"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", *(["build"] if name == "school" else []))
        shutil.copytree(ROOT / name, checkout / name, ignore=ignored)
    (checkout / "companion_school" / "notes.txt").touch()
    build("build_wheel", checkout / "school", tmp_path)
    [path] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as file:
        held = {name: file.read(name) for name in file.namelist() if not name.endswith("/")}
    wanted = package_files("companion_school")
    assert {"companion_school/questions/questions.json", "companion_school/build/equivalent.toml"} <= wanted
    assert {name for name in held if ".dist-info/" not in name} == wanted
    assert all(held[name] == (ROOT / name).read_bytes() for name in wanted)
    said = {
        name.partition(".dist-info/")[2]: content.decode() for name, content in held.items() if ".dist-info/" in name
    }
    assert "school = companion_school.commands:COMMANDS" in said["entry_points.txt"] and "licenses/LICENSE" in said


def test_the_wheel_says_what_it_is_and_what_it_needs(wheel, metadata):
    assert metadata["Version"] == PROJECT["version"]
    assert SpecifierSet(metadata["Requires-Python"]) == SpecifierSet(PROJECT["requires-python"])
    needed = {re.split(r"[\[>=]", line)[0] for line in metadata.get_all("Requires-Dist") if "extra ==" not in line}
    assert needed == {re.split(r"[\[>=]", line)[0] for line in PROJECT["dependencies"]}
    assert set(metadata.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    assert metadata["License-Expression"] == "MIT AND CC-BY-4.0"
    licences = {name.partition("/licenses/")[2] for name in wheel if "/licenses/" in name}
    assert licences == {"LICENSE", "companion/data/texts/LICENSE.md"}
    [entries] = [content.decode() for name, content in wheel.items() if name.endswith("entry_points.txt")]
    assert "companion = companion.commands.main:main" in entries


def test_the_index_shows_a_page_that_needs_no_repository(metadata):
    assert metadata.get_payload().strip() == PAGE.strip() and metadata["Description-Content-Type"] == "text/markdown"
    links = re.findall(r"\]\(([^)]+)\)", PAGE)
    # Links to files of the package, which the text also names
    there = [link for link in links if not link.startswith("https://")]
    assert "page.py" in there and len(there) < len(links)
    assert all((ROOT / "companion" / file).is_file() for file in there)
    assert f"pip install {PROJECT['name']}" in PAGE


def test_the_version_stands_in_one_place(wheel):
    """`companion doctor` and `--version` ask the installation; tests/test_repository.py checks the citation."""
    number = PROJECT["version"].encode()
    code = [name for name in wheel if name.endswith((".py", ".pyi"))]
    code = [name for name in code if not name.endswith("/catalogue.py")]  # from packages that bring models
    assert not [name for name in code if re.search(rb"[\"']" + re.escape(number) + rb"[\"']", wheel[name])]
    assert not [name for name in code if b"__version__ =" in wheel[name]]


def test_every_python_of_the_classifiers_is_one_that_may_install_it():
    numbers = [entry.rpartition(" ")[2] for entry in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", entry)]
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert all(number in allowed for number in numbers) and len(numbers) >= 3
    assert f">={numbers[0]}" in str(allowed)


def test_the_pages_examples_print_what_they_say(tmp_path, monkeypatch, capsys):
    """`make package` runs them, and the page's commands too, in an empty environment."""
    monkeypatch.setenv("COMPANION_HOME", str(tmp_path))
    examples = [example for page in (PAGE, SCHOOLS_PAGE) for example in blocks(page, "python")]
    promises = [promised(example) for example in examples]
    assert len(promises) == 2 and all(promises)
    for example in examples:
        (script := tmp_path / "example.py").write_text(example, encoding="utf-8")
        exec(compile(example, script, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.splitlines() == [line for lines in promises for line in lines]
    assert [words[1] for words in commands(PAGE)] == ["train", "generate", "account", "doctor"]


def test_a_tag_of_another_version_is_refused():
    refuse_other_version("", "1.2.0")
    refuse_other_version("v1.2.0", "1.2.0")
    with pytest.raises(Failed, match=r"tag 'v1\.2': expected 'v1\.2\.0'"):
        refuse_other_version("v1.2", "1.2.0")
