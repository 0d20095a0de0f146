"""The scripts of `companion completion`, executed by a shell that completes what a user has typed."""

import shutil
import subprocess

import pytest

from companion.commands.main import COMMANDS, main

TRY = """
. ./companion.bash
try() {
  COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_LINE="$*"; COMPREPLY=()
  _shtab_companion companion "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
  echo "${COMPREPLY[*]}"
}
try companion ""
try companion gen
try companion generate --wei
try companion generate --weights in
try companion train --precision b
try companion course rel
try companion course release --quest
try companion generate --checkpoint fol
"""


def test_bash_completes_commands_flags_choices_and_folders(tmp_path, capsys) -> None:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "companion.bash").write_text(capsys.readouterr().out)
    (tmp_path / "folder").mkdir()
    bash = shutil.which("bash")
    assert bash is not None
    said = subprocess.run([bash, "-c", TRY], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    every, *found = said.splitlines()
    assert set(COMMANDS) <= set(every.split())
    assert found == ["generate", "--weights", "int8 int4", "bf16", "release", "--questions", "folder"]


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_the_scripts_of_other_shells_know_every_command(shell, capsys) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(command in script for command in COMMANDS) and "int8" in script


def test_a_shell_that_is_not_known_is_refused(capsys) -> None:
    assert main(["completion", "fish"]) == 2
    assert "SHELL fish: expected one of bash, zsh, tcsh" in capsys.readouterr().err
