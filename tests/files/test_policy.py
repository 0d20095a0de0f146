"""The table of fields: what its docstring shows is what readers go by, and it has a row for all that is written."""

import json
import re
from pathlib import Path

import pytest
import transformers

from companion.files.published import table
from companion.files.published.policy import alike, kinds, policies, writing
from companion.files.published.pretrained import READERS

PUBLISHED = sorted((Path(__file__).parents[1] / "published").glob("*.json"))


def test_the_docstring_is_the_table():
    assert table.__doc__.endswith(table.TABLE)
    assert set(kinds()) == set(READERS)
    rows = re.findall(r"^    (\S+) +(taken|must be|must equal|neutral|writing)", table.TABLE, re.M)
    lines = [line for line in table.TABLE.splitlines() if line.startswith(" ")]
    assert len(rows) == len(lines) > 250
    assert max(map(len, lines)) <= 120


def test_a_neutral_field_says_who_wrote_it():
    every = {name: policy for kind in kinds() for name, policy in policies(kind).items()} | writing()
    wrote = re.compile(r"\d\.\d|by hand|chooses the reader|the same")
    assert all(wrote.search(policy.note) for policy in every.values() if policy.kind == "neutral")


@pytest.mark.parametrize("kind", kinds())
def test_all_that_transformers_writes_has_a_row(kind):
    """Of the version that is installed; those before it are in `tests/published`."""
    said = transformers.CONFIG_MAPPING[kind]().to_dict()
    assert not {name for name, value in said.items() if name not in policies(kind) and value is not None}


@pytest.mark.parametrize("path", PUBLISHED, ids=[path.stem for path in PUBLISHED])
def test_all_that_a_release_says_has_a_row(path):
    fields = json.loads(path.read_text())
    assert not {name for name, value in fields.items() if name not in policies(fields["model_type"])}


def test_rows_of_a_kind_come_before_those_it_shares():
    assert policies("llama")["rope_theta"].default == policies("mistral")["rope_theta"].default == 10000.0
    assert policies("mixtral")["rope_theta"].default == 1e6
    assert policies("mixtral")["num_key_value_heads"].default == 8  # of Mistral
    assert policies("gemma3_text")["attn_logit_softcapping"].values == (None,)
    assert policies("bert")["temperature"].kind == "writing"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [(1, 1.0, True), (1, True, False), (0, False, False), (None, False, False), ([], [], True), ("a", "b", False)],
)
def test_values_of_json_are_alike(one, other, same):
    assert alike(one, other) is same
