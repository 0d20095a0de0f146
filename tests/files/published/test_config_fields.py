"""The tables of config fields have a row for every field that is written."""

import json
import re
from pathlib import Path

import pytest
import transformers

from companion.families.registry import families
from companion.files.published.config_fields import WRITING, alike, left_behind

PUBLISHED = sorted((Path(__file__).parents[2] / "published").glob("*.json"))


def test_a_neutral_field_says_who_wrote_it():
    every = {name: policy for family in families().values() for name, policy in family.table.items()} | WRITING
    wrote = re.compile(r"\d\.\d|by hand|chooses the reader|the same")
    assert all(wrote.search(policy.note) for policy in every.values() if policy.kind == "ignored")


def without_a_rule(kind, fields):
    """Return the fields that neither a row of the family nor a rule for all families covers."""
    table = families()[kind].table
    return {name for name, value in fields.items() if name not in table and left_behind(name, value) is None}


@pytest.mark.parametrize("kind", families())
def test_all_that_transformers_writes_has_a_row(kind):
    """The fields are those of the installed version; earlier versions are in `tests/published`."""
    said = transformers.CONFIG_MAPPING[kind]().to_dict()
    assert not without_a_rule(kind, {name: value for name, value in said.items() if value is not None})
    assert without_a_rule(kind, {"a_new_field": 3}) == {"a_new_field"}


@pytest.mark.parametrize("path", PUBLISHED, ids=[path.stem for path in PUBLISHED])
def test_all_that_a_release_says_has_a_row(path):
    fields = json.loads(path.read_text())
    assert not without_a_rule(fields["model_type"], fields)


def test_rows_of_a_kind_come_before_those_it_shares():
    bases = {kind: families()[kind].table["rope_theta"].default for kind in ("llama", "mistral", "mixtral")}
    assert bases == {"llama": 10000.0, "mistral": 10000.0, "mixtral": 1e6}
    assert families()["mixtral"].table["num_key_value_heads"].default == 8  # the default of Mistral
    assert families()["gemma3_text"].table["attn_logit_softcapping"].values == (None,)
    assert families()["bert"].table["temperature"].kind == "writing"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [(1, 1.0, True), (1, True, False), (0, False, False), (None, False, False), ([], [], True), ("a", "b", False)],
)
def test_values_of_json_are_alike(one, other, same):
    assert alike(one, other) is same
