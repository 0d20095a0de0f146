"""Results of long runs are computed once and then read from files."""

import json

from authoring.records.stored import stored


def test_a_result_is_made_once_and_read_from_then_on(tmp_path, capsys):
    file, calls = tmp_path / "runs" / "one.json", []

    def make():
        calls.append(1)
        return {"bits": 1.5, 7: [0.25]}

    assert stored(file, make) == stored(file, make) == json.loads(file.read_text("utf-8")) == {"bits": 1.5, "7": [0.25]}
    assert len(calls) == 1 and capsys.readouterr().out.count("1.5") == 1
