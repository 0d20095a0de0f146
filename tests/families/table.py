"""Print a table of the supported families: `python -m families.table`, in the folder `tests`.

For each release of `tests/published`, at small sizes and with random weights, it shows the largest difference of our
logits from those of `transformers` (for the whole text, and for pieces of it with a cache), the largest logit, and
whether both generate the same text greedily. `test_releases` asserts what is printed here.
"""

import argparse
import random
import tempfile
from pathlib import Path

import torch
from families.compared import PUBLISHED, TOKENS, ids, in_pieces, release, texts, transformers

from companion import KVCache
from companion.files.models import read_config
from companion.ground.display import table

HEAD = ("release", "model_type", "largest logit", "difference", "from a cache", "greedy text")


@torch.no_grad()
def differences(path, seed):
    """Return the row of a release with weights from one seed: kind, largest logit, two differences, and text."""
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = release(path, seed, Path(folder))
        kind = read_config(Path(folder))["model_type"]
    tokens, extra = ids(3, TOKENS, seed), {}
    if ours.config.stack == "encoder":
        wanted = theirs(tokens).logits
        return kind, wanted.abs().max(), (ours(tokens).logits - wanted).abs().max(), None, None
    if ours.config.stack == "encoder_decoder":
        source = ids(3, TOKENS, seed + 9)
        extra, wanted = {"source": ours.encode(source)}, theirs(source, decoder_input_ids=tokens).logits
    else:
        wanted = theirs(tokens).logits
    whole = (ours(tokens, **extra).logits - wanted).abs().max()
    pieces = in_pieces(ours, tokens, KVCache.create(ours.config, 3, TOKENS), random.Random(seed), **extra)
    same = len({str(text) for text in texts(ours, theirs)}) == 1
    return kind, wanted.abs().max(), whole, (pieces - wanted).abs().max(), same


def rows(paths, seeds):
    """Return a row for each release, with the largest differences over all seeds."""
    for path in paths:
        found = [differences(path, seed) for seed in range(seeds)]
        largest, whole, pieces = (
            None if of_one[0] is None else float(max(of_one)) for of_one in list(zip(*found, strict=True))[1:4]
        )
        same = [row[4] for row in found]
        text = "-" if same[0] is None else "the same" if all(same) else f"other in {same.count(False)}"
        kept = "-" if pieces is None else f"{pieces:.1e}"
        yield path.stem, found[0][0], f"{largest:.2f}", f"{whole:.1e}", kept, text


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("releases", nargs="*", help="names of files in tests/published; all of them if there is none")
    parser.add_argument("--seeds", type=int, default=3, help="how many models of each release")
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    paths = [path for path in PUBLISHED if not given.releases or path.stem in given.releases]
    print(table([HEAD, *rows(paths, given.seeds)], left=(0, 1, 5), width=None))


if __name__ == "__main__":
    main()
