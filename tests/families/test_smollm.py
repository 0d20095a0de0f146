"""SmolLM 3: its additions to LLaMA change the logits; `test_releases` tests the equality with `transformers`."""

import json

import torch
import transformers
from families.compared import PUBLISHED, TOKENS, ids, seen_in_the_logits, tiny

from companion.families.pretrained import load_pretrained


def test_a_layer_that_does_not_turn_is_seen_in_the_logits(tmp_path):
    seen_in_the_logits("smollm3-3b", "positions", {"pattern": (True,)}, tmp_path)


@torch.no_grad()
def test_a_release_in_which_no_layer_turns_is_read_too(tmp_path):
    (path,) = [path for path in PUBLISHED if path.stem == "smollm3-3b"]
    fields = tiny(json.loads(path.read_text()))
    fields["no_rope_layers"] = [0] * fields["num_hidden_layers"]
    theirs = transformers.SmolLM3ForCausalLM(transformers.SmolLM3Config.from_dict(fields)).float().eval()
    theirs.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(fields))
    ours, tokens = load_pretrained(tmp_path), ids(2, TOKENS, 0)
    assert ours.config.positions.kind == "none"
    torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits, rtol=1e-4, atol=1e-5)
