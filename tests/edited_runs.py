"""Change files of a run, and give them digests that match again."""

import json
from pathlib import Path

from companion.training.checksummed_records import DIGEST, SEAL, checksum_of, checksummed


def edit_record(run: Path, **changes) -> None:
    """Change fields of a run's run.json; the digests of its other files stay valid."""
    path = run / "run.json"
    record = json.loads(path.read_text())
    seal = record.pop(DIGEST)
    path.write_text(json.dumps(checksummed({SEAL: seal, **record, **changes})))


def edit_state(checkpoint: Path, **changes) -> None:
    """Change fields of a checkpoint's state.json."""
    run = checksum_of(json.loads((checkpoint.parents[1] / "run.json").read_text()))
    path = checkpoint / "state.json"
    state = json.loads(path.read_text())
    del state[DIGEST]
    path.write_text(json.dumps(checksummed({**state, **changes}, run)))
