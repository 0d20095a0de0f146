"""Runs in the format of earlier versions."""

import json
from pathlib import Path


def forget_digests(run: Path) -> None:
    """Turn a run into one from before its files had digests; such a run may have been edited by hand."""
    for path in (run / "run.json", run / "result.json", *run.glob("checkpoints/*/state.json")):
        if path.exists():
            kept = {name: value for name, value in json.loads(path.read_text()).items() if name != "digest"}
            path.write_text(json.dumps(kept))
