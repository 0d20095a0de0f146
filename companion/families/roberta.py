"""RoBERTa (Liu et al. 2019) and XLM-R (Conneau et al. 2020) as published (lesson 13).

Both are variants of BERT with different tensor names, and their positions begin after the padding id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from companion.config.model import ModelConfig
from companion.families import bert
from companion.families.llama import changed
from companion.files.published.config_fields import rows
from companion.files.published.family import Family, Preset

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields
    from companion.files.published.state_dict import StateDictMapper

UNUSED = 2
"""Rows at the start of the position table that no token reads, because positions begin after the padding id, 1."""
FIELDS = bert.FIELDS | rows(
    """
    max_position_embeddings          used                    context, and the two rows that no token reads
    pad_token_id                     must be 1
    """
)


def _config(fields: Fields, given: Mapping[str, Tensor]) -> ModelConfig:
    config, rows_ = bert.configuration(fields, given), fields.take("max_position_embeddings")
    if config.embedding.head == "masked" and config.feed_forward.activation != "gelu":
        raise fields.refuse("hidden_act", fields.take("hidden_act"), "'gelu', which the head always uses")
    if rows_ <= UNUSED:
        raise fields.refuse("max_position_embeddings", rows_, f"a whole number > {UNUSED}, the rows that are not read")
    return config.with_(context=rows_ - UNUSED)


def _says(config: ModelConfig) -> Mapping[str, Any]:
    masked = config.embedding.head == "masked"
    name = "RobertaForMaskedLM" if masked else "RobertaModel"
    return {"max_position_embeddings": config.context + UNUSED, "architectures": [name]}


def _says_xlm(config: ModelConfig) -> Mapping[str, Any]:
    said = _says(config)
    return {**said, "architectures": [f"XLM{name}" for name in said["architectures"]]}


def _place(mapper: StateDictMapper, config: ModelConfig) -> None:
    bert.place(mapper, config, unused=UNUSED)


_PIECES = {
    "roberta.": "bert.",
    "lm_head.dense.": "cls.predictions.transform.dense.",
    "lm_head.layer_norm.": "cls.predictions.transform.LayerNorm.",
    "lm_head.decoder.": "cls.predictions.decoder.",
    "lm_head.bias": "cls.predictions.bias",
}
"""RoBERTa's names, and BERT's names for the same tensors."""
FAMILIES = tuple(
    Family(
        kind,
        FIELDS,
        _config,
        _place,
        bert.rename,
        writes=False,
        architecture=architecture,
        spelled=bert.spelled,
        says=says,
        ends=bert.bert_ends,
        pieces=_PIECES,
        unread=True,
    )
    for kind, architecture, says in (
        ("roberta", "RobertaForMaskedLM", _says),
        ("xlm-roberta", "XLMRobertaForMaskedLM", _says_xlm),
    )
)


def _roberta(d_model: int, layers: int, heads: int, vocab: int) -> ModelConfig:
    plain = bert.preset(d_model, layers, heads).with_(vocab=vocab)
    return changed(plain, norm={"eps": 1e-5}, embedding={"segments": 1, "pooled": False, "classes": 0})


PRESETS = {
    "roberta-base": Preset(2019, 124_695_897, _roberta(768, 12, 12, 50265)),
    "roberta-large": Preset(2019, 355_410_009, _roberta(1024, 24, 16, 50265)),
    "xlm-roberta-base": Preset(2019, 278_293_650, _roberta(768, 12, 12, 250002)),
}
"""These are the models as pretrained, with the masked-token head. The parameter counts leave out the two position rows
that no token reads."""
