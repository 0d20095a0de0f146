"""Released configurations of many makers are read, or rejected for what they are.

Each line of `released.jsonl` describes a release: its name on the hub, the fields of its config.json, and either the
message of the rejection or, if its maker published it, the number of parameters.

All of them were written from memory of the public files, field by field and without a network, so none was compared
with the file on the hub. The evidence for them is:

- If a line has `parameters`, the sizes give exactly the remembered number of released parameters, which a wrong size
  would hardly do. The sizes in other lines are not checked.
- SmolLM2-1.7B-Instruct with its `transformers.js_config`, and Qwen3-Coder-480B with `qkv_bias`, `use_qk_norm` and
  `shared_expert_intermediate_size`, are quoted in public repositories, where these fields were seen.
- Not verified is whatever no test here depends on, such as `transformers_version`, `_name_or_path`,
  `initializer_range`, `torch_dtype` and the ids of special tokens; what is inside `transformers.js_config`; whether
  newer revisions of a repository have dropped a field; the divisors of Phi-3.5's longrope; `unsloth_version` and other
  fields that only some versions of a tool write; and the fields of Kimi-K2-Instruct that DeepSeek-V3's file does not
  have.
"""

import json
from pathlib import Path

import pytest

from companion.costs.account import parameters
from companion.families.inspected import read_card

RELEASED = [json.loads(line) for line in Path(__file__).with_name("released.jsonl").read_text("utf-8").splitlines()]
MAKERS = {release["release"].partition("/")[0] for release in RELEASED}


def test_there_are_fifty_of_different_makers():
    assert len({release["release"] for release in RELEASED}) == len(RELEASED) >= 50 and len(MAKERS) >= 30


@pytest.mark.parametrize("release", RELEASED, ids=[release["release"] for release in RELEASED])
def test_a_released_configuration_is_read_or_rejected_for_what_it_is(release):
    try:
        found = read_card(release["config"])
        refused, config = found.refused, found.config
    except ValueError as error:
        refused, config = [str(error)], None
    if "refused" in release:
        assert config is None and release["refused"] in refused[0]
        return
    assert refused == [] and config is not None
    if "parameters" in release:
        assert parameters(config).total == release["parameters"]
