"""The first difference of a learner's code is located by tensor, file and line, whatever the names of the variables."""

import time

import pytest

from companion_school.build.bugs import BUGS, is_named
from companion_school.build.first_difference import first_difference, where
from companion_school.build.parts import references
from companion_school.build.scenes import scenes
from companion_school.build.scenes.training import trained
from companion_school.build.stages import STAGES
from companion_school.build.stubs import reference, stub

FUSED = """
import torch
from torch import nn


def causal(queries, keys):
    return torch.arange(queries)[:, None] + keys - queries >= torch.arange(keys)


def cut(x, heads):
    return x.reshape(x.shape[0], x.shape[1], heads, -1).permute(0, 2, 1, 3)


class Attention(nn.Module):
    def __init__(self, d_model, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, d = heads, kv_heads, d_model // heads
        self.query, self.output = (nn.Linear(d_model, d_model, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(d_model, kv_heads * d, bias=False) for _ in range(2))

    def forward(self, x, source=None, mask=None, turn=None, cache=None):
        s = x if source is None else source
        kv = torch.cat([self.key.weight, self.value.weight]) @ s.mT
        k, v = (cut(y.mT, self.kv_heads) for y in kv.chunk(2, dim=1))
        q = cut(x @ self.query.weight.T, self.heads)
        if turn:
            q, k = turn(q), turn(k)
        if cache is not None:
            k, v = cache.extend(k, v)
        q = q.unflatten(1, (self.kv_heads, -1)) * q.shape[-1] ** -0.5
        w = torch.einsum("bkgqd,bktd->bkgqt", q, k)
        if mask is not None:
            hidden = ~mask.expand(len(w), 1, *w.shape[-2:])[:, :, None]
            w = w + torch.zeros(w.shape).masked_fill(hidden, -1e9)
        e = torch.exp(w - w.amax(-1, keepdim=True))
        e = e / e.sum(-1, keepdim=True)
        y = torch.einsum("bkgqt,bktd->bkgqd", e, v)
        return self.output(y.flatten(1, 2).permute(0, 2, 1, 3).flatten(2))
"""


def sources(stage, **changed):
    return references(STAGES[stage]) | changed


def folder(tmp_path, stage, **changed):
    for module, text in sources(stage, **changed).items():
        (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")
    return tmp_path


def attention_with(old, new):
    text = references(STAGES[2])["attention"]
    assert text.count(old) == 1
    return text.replace(old, new)


def named(name):
    return next(bug for bug in BUGS if bug.name == name)


@pytest.fixture(scope="module")
def placed():
    """Return for each bug, by name, if the reported tensor is right and if the line is."""
    found = {bug: first_difference(bug.stage, bug.sources) for bug in BUGS}
    return {
        bug.name: (parts.node is not None and is_named(bug, parts.node.key), bug.is_placed(parts.origin))
        for bug, parts in found.items()
        if parts is not None
    }


@pytest.mark.parametrize("stage", [*range(2, 11), *range(12, 19)])
def test_the_reference_parts_nowhere(stage):
    assert first_difference(stage, sources(stage)) is None


@pytest.mark.parametrize(
    "name",
    [
        "scale missing",
        "queries turned, keys not",
        "turned the other way",
        "norm after instead of before",
        "cache position stuck at 0",
        "decay on the embedding",
        "softmax before top-k not renormalised",
        "cross-attention's mask forgotten",
        "capacity counted by tokens",
        "rotated after caching",
        "untied head left out",
        "learned positions not added",
        "nothing taken off",
        "corrected from p",
        "levels cut off",
        "scale lost",
        "lens without the norm",
    ],
)
def test_a_bug_of_each_stage_is_placed_at_its_tensor_and_line(name, placed):
    tensor, line = placed[name]
    assert tensor and line


def test_the_sentence_names_what_agrees_the_line_and_what_would_mend_it(tmp_path):
    bug = named("queries turned, keys not")
    said = where(5, folder(tmp_path, 5, **bug.sources))
    lead = "Compared step by step with the course's code, in block 0: "
    assert said.startswith(f"{lead}the keys in heads before rotation, the positions of the tokens")
    assert "are the same" in said and "the keys after rotation differ: " in said
    assert "attention.py, between line" in said
    assert said.endswith("They are right once keys are rotated like queries.")


def test_a_later_stage_names_the_earlier_file(tmp_path):
    said = where(5, folder(tmp_path, 5, **named("scale missing").sources))
    assert "attention.py, line 12, in attend" in said


def test_a_file_that_is_known_to_be_right_is_not_blamed(tmp_path):
    text = references(STAGES[10])["published"]
    wrong = text.replace('normed=fields["model_type"] == "qwen3"', "normed=False").replace(
        "return model, renamed(tensors, names)",
        "return model, {n: x for n, x in renamed(tensors, names).items() if '.norm.' not in n or 'decoder.norm' in n}",
    )
    found = first_difference(10, sources(10, published=wrong), only=scenes(10)[1:])
    assert found.origin.place.file == "attention.py"  # where the queries that should have been normed are computed
    said = where(10, folder(tmp_path, 10, published=wrong), itself=True)
    assert "the queries differ" in said and "attention.py" not in said


@pytest.mark.parametrize("stage", [5, 7, 8, 9])
def test_right_code_that_is_written_otherwise_parts_nowhere(stage):
    assert first_difference(stage, sources(stage, attention=FUSED)) is None


@pytest.mark.parametrize(
    "old, new, tensor, line",
    [
        ("e.sum(-1", "e.sum(-2", "merged", None),  # rows that do not add up to 1 are not recognized as weights
        (" * q.shape[-1] ** -0.5", "", "weights", None),  # without a softmax no scores are found
        ("~mask", "mask", "weights", None),
        ("[self.key.weight, self.value.weight]", "[self.value.weight, self.key.weight]", "", None),
        (".flatten(1, 2).permute(0, 2, 1, 3).flatten(2)", ".flatten(1, 2).reshape(x.shape)", "merged",
         "return self.output(y.flatten(1, 2).reshape(x.shape))"),
    ],
)  # fmt: skip
def test_bugs_in_code_that_is_written_otherwise_are_not_blamed_on_what_agrees(old, new, tensor, line):
    text = FUSED.replace(old, new)
    found = first_difference(5, sources(5, attention=text))
    assert found.node.key.endswith(tensor) and found.origin.place.file == "attention.py"
    assert not line or text.splitlines()[found.origin.place.line - 1].strip() == line


@pytest.mark.parametrize(
    "body, said",
    [
        ("return None", "None instead of a tensor"),
        ("return q, k", "2 results instead of a tensor"),
        ("return q[0]", "the shape is (4, 7, 6) instead of (2, 4, 7, 6)"),
        ("raise KeyError('lost')", "KeyError: 'lost'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("return attend(q, k, v)", "RecursionError"),
        ("return q.bfloat16()", "the heads' outputs differ"),
    ],
)
def test_whatever_attend_gives_is_told(tmp_path, body, said):
    text = attention_with("scores = q @ k.mT / math.sqrt(q.shape[-1])", body)
    assert said in where(2, folder(tmp_path, 2, attention=text))


def test_float32_on_the_way_is_no_parting():
    new = "scores = (q.float() @ k.float().mT / math.sqrt(q.shape[-1])).double()"
    assert (
        first_difference(5, sources(5, attention=attention_with("scores = q @ k.mT / math.sqrt(q.shape[-1])", new)))
        is None
    )


def test_a_loop_without_an_end_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("companion_school.build.first_difference.SECONDS", 0.5)
    text = attention_with("scores = q @ k.mT / math.sqrt(q.shape[-1])", "while True:\n        pass")
    start = time.monotonic()
    assert "it did not end" in where(2, folder(tmp_path, 2, attention=text))
    assert time.monotonic() - start < 60


def test_files_that_cannot_be_read_are_told(tmp_path):
    assert "no file model.py" in where(5, tmp_path)
    assert "SyntaxError" in where(2, folder(tmp_path, 2, attention="def attend(:"))
    assert "not written yet" in where(2, folder(tmp_path, 2, attention=stub(2)))


def test_every_bug_is_placed(placed):
    missed = [name for name, (tensor, line) in placed.items() if not (tensor and line)]
    assert len(placed) == len(BUGS) >= 40 and len(missed) <= len(BUGS) // 10, missed


def test_bugs_show_in_whole_trainings():
    shown = [bug for bug in BUGS if bug.training]
    found = {bug.name: first_difference(bug.stage, bug.sources, only=(trained,)) for bug in shown}
    assert len(shown) >= 5
    assert all(found[bug.name].node.key.startswith(bug.training) for bug in shown), found


def test_a_run_that_ends_early_is_not_said_to_have_reached_a_later_update(tmp_path):
    changed = reference(6)
    for old, new in (
        ("return peak * min(1, update / max(1, warmup))", "return peak * min(1, update / warmup)"),
        ("adam.step(rate_at(update, ", "adam.step(rate_at(update - 1, "),
    ):
        assert changed.count(old) == 1
        changed = changed.replace(old, new)
    said = where(6, folder(tmp_path, 6, training=changed), itself=True)
    assert "ZeroDivisionError" in said and "update 3" not in said


@pytest.mark.parametrize("given", ["self.cross_norm(x), source, mask", "source, self.cross_norm(x)"])
def test_a_right_tensor_in_the_wrong_place_is_found_where_it_is_passed(given):
    text = references(STAGES[8])["translation"].replace("self.cross_norm(x), source, seen", given)
    found = first_difference(8, sources(8, translation=text), file="translation.py")
    assert found.origin.place.function == "CrossBlock.forward"
    assert given in text.splitlines()[found.origin.place.line - 1]
