"""Policies for the fields of a published folder. Loading, error messages and `companion inspect` follow them.

A row contains a field, its policy, and a note that says where the value goes or who wrote the field:

    used                 the value becomes part of the model; the file must have it
    used = DEFAULT       the same, but a file may leave it out, which means DEFAULT
    must be VALUE        other values are rejected, as the model would compute something else; a file may leave it out
    must match FIELD     our models have a single value for both fields
    ignored              has no effect on logits or texts, so any value is accepted
    writing              affects not the logits but how text is generated from them (see `WRITING`)

The policy depends on how a field can affect the generated text. A field without a row may change the model, so it is
rejected with an error that names it. The exceptions are fields that are null and fields that `left_behind` recognizes,
such as dropout rates, which matter only in training, and metadata of the tools that wrote the file. The rows of each
family are in its file in `companion/families`, and they take precedence over the rows in this file, which apply to
every release. This file also contains the rows about generation, which apply to generation_config.json or, without such
a file, to config.json.

The two versions after an ignored field are the first and the last version of `transformers` that are known to write it,
out of 2.2, 2.9, 3.0, 3.5, 4.0, 4.6, 4.10, 4.18, 4.22, 4.26, 4.30, 4.33, 4.36, 4.40, 4.44, 4.46, 4.48, 4.51, 4.53, 4.55,
4.57 and 5.0; `on` means that the newest of these versions still writes it. Fields marked "by hand" were added by the
publishers of a model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from companion.generation.sampling import Sampling
from companion.ground.fields import is_number

Kind = Literal["used", "must be", "must match", "ignored", "writing"]
_REQUIRED = object()


@dataclass(frozen=True)
class Policy:
    """The policy for a field.

    Attributes:
        name: The field.
        kind: The kind of policy (see the table at the top of this module).
        note: For a used field, where its value goes; for an ignored field, who wrote it.
        values: The allowed values if the kind is "must be".
        equals: The other field if the kind is "must match".
        default: The value that applies if the field is missing. Without a default, the field is required.
    """

    name: str
    kind: Kind
    note: str = ""
    values: tuple[Any, ...] = ()
    equals: str = ""
    default: Any = _REQUIRED

    @property
    def required(self) -> bool:
        return self.default is _REQUIRED


_TOOLS = re.compile(
    r"(unsloth|axolotl)_\w+|transformers\.js_config|_?(use_)?flash_attn(_2)?(_enabled)?|_attn_implementation\w*"
)
_VERSION = re.compile(r"v?\d+(\.\d+)+\S*")


def left_behind(name: str, value: Any) -> Policy | None:
    """Return the policy of a field that does not affect the text of any model, or `None` for any other field.

    Examples are metadata of the tools that wrote the file, version numbers of libraries, and dropout rates.
    """
    if _TOOLS.fullmatch(name):
        return Policy(name, "ignored", "a note of the tool that wrote it")
    if name.endswith("_version") and isinstance(value, str) and _VERSION.fullmatch(value):
        return Policy(name, "ignored", "the version of a library")
    if is_dropout(name) and is_number(value) and 0 <= value < 1:
        return Policy(name, "ignored", "for training; text is generated without dropout")
    return None


QUANTIZED = ("quantization_config", "quantization", "compression_config")
"""Fields that say how weights were quantized, in transformers, MLX and early releases of compressed-tensors."""
UNQUANTIZED = "expected a release in bf16, fp16 or fp32, or a GGUF file"
_METHODS = {"bitsandbytes": "bitsandbytes", "fbgemm_fp8": "FP8", "finegrained_fp8": "FP8", "modelopt": "ModelOpt"}


def quantized_by(name: str, said: Any) -> str:
    """Describe a quantization in a few words, given the value `said` of one of the fields `QUANTIZED`."""
    said = said if isinstance(said, Mapping) else {}
    method = said.get("quant_method", "MLX" if name == "quantization" else said.get("format"))
    four, eight = (said.get(f"load_in_{bits}bit") or said.get(f"_load_in_{bits}bit") for bits in (4, 8))
    if method is None and (four or eight):
        method = "bitsandbytes"
    if not isinstance(method, str):
        return "by an unknown method"
    bits = said.get("bits", said.get("w_bit", 4 if four else 8 if eight else None))
    known = _METHODS.get(method, method if "-" in method else method.upper())
    return f"{known}, {bits} bits" if isinstance(bits, int) else known


def is_dropout(name: str) -> bool:
    """Return whether a field has the name of a dropout rate."""
    return name.endswith(("_pdrop", "layerdrop")) or "dropout" in name


def alike(value: Any, other: Any) -> bool:
    """Return whether two JSON values are equal, where 1 equals 1.0 but not true."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def rows(table: str) -> dict[str, Policy]:
    """Parse a table with one policy per line, and return the policies keyed by field."""
    found = {}
    for line in filter(str.strip, table.splitlines()):
        name, _, rest = line.strip().partition(" ")
        says, _, note = rest.strip().partition("  ")
        found[name] = _row(name, says, note.strip())
    return found


def _row(name: str, says: str, note: str) -> Policy:
    says, _, default = says.partition(" = ")
    known = {"default": json.loads(default)} if default else {}
    if says.startswith("must be "):
        return Policy(name, "must be", note, values=tuple(map(json.loads, says[8:].split(" or "))))
    if says.startswith("must match "):
        return Policy(name, "must match", note, equals=says[11:], **known)
    assert says in ("used", "ignored", "writing"), says
    return Policy(name, says, note, **known)  # type: ignore[arg-type]


def of_a_family(own: Mapping[str, Policy]) -> dict[str, Policy]:
    """Return all rows for a family's config.json: its own rows and, for other fields, those for every release."""
    return {**{name: Policy(name, "writing") for name in WRITING}, **EVERY, **own}


EVERY = rows(
    """
    model_type                       ignored                 chooses the reader
    is_encoder_decoder               must be false
    architectures                    ignored                 2.9 on; the tensors say which ends there are
    transformers_version             ignored                 4.6 on
    torch_dtype                      ignored                 4.10 on; the file's own tensors say it
    dtype                            ignored                 4.57 on; the file's own tensors say it
    _name_or_path                    ignored                 3.5 on
    name_or_path                     ignored                 3.5 on
    _commit_hash                     ignored                 4.22 on
    _attn_implementation_autoset     ignored                 4.46 to 4.53
    attn_implementation              ignored                 4.36 on
    _experts_implementation          ignored                 5.0 on
    auto_map                         ignored                 by hand; the code that it names is not run
    model_parallel                   ignored                 by hand; where its layers ran
    use_sdpa                         ignored                 by hand; the same attention in another kernel
    max_sequence_length              ignored                 by hand, of LLaMA; max_position_embeddings says it
    compression_ratio                must be null or 1.0
    quantization_config              must be null or {}
    quantization                     must be null or {}
    compression_config               must be null or {}
    use_cache                        ignored                 2.9 on
    initializer_range                ignored                 2.2 on
    gradient_checkpointing           ignored                 3.0 to 4.57
    chunk_size_feed_forward          ignored                 3.5 on; the same sums in pieces
    torchscript                      ignored                 2.2 to 4.57
    use_bfloat16                     ignored                 2.2 to 4.57; TensorFlow's
    tf_legacy_loss                   ignored                 4.22 to 4.57; TensorFlow's
    xla_device                       ignored                 2.9 to 4.53
    output_past                      ignored                 2.2
    output_attentions                ignored                 2.2 on
    output_hidden_states             ignored                 2.2 on
    return_dict                      ignored                 3.5 on
    finetuning_task                  ignored                 2.2 to 4.57
    task_specific_params             ignored                 2.9 to 4.57; for pipelines
    tokenizer_class                  ignored                 3.5 to 4.57
    problem_type                     ignored                 4.6 on
    id2label                         ignored                 2.9 on
    label2id                         ignored                 2.9 on
    num_labels                       ignored                 2.2 to 4.53
    _num_labels                      ignored                 2.9 to 3.0, as a property
    classifier_dropout               ignored                 4.6 on; of heads that are not read
    bos_token_id                     writing
    eos_token_id                     writing
    pad_token_id                     writing
    sep_token_id                     ignored                 3.5 to 4.57
    unk_token_id                     ignored                 by hand
    pruned_heads                     must be {}
    tie_encoder_decoder              must be false
    add_cross_attention              must be false
    cross_attention_hidden_size      must be null
    prefix                           must be null or ""
    """
)
"""Fields of every release."""

WRITING = rows(
    """
    bos_token_id                     used = null            what a decoder's text begins with
    decoder_start_token_id           used = null            what a translation begins with
    eos_token_id                     used = null            what ends a text; one, or several
    pad_token_id                     used = null            what pads a batch; nothing here needs it
    do_sample                        used = false           draw, or take the most probable token
    num_beams                        used = 1               beam_search(width)
    length_penalty                   used = 1.0             beam_search(length_penalty)
    early_stopping                   used = false           beam_search(early_stopping)
    max_new_tokens                   used = null            maximum number of new tokens
    max_length                       used = 20              the same, including the prompt; 20 means not set
    min_new_tokens                   used = null            Rules.min_new_tokens
    min_length                       used = 0               the same, including the prompt; only for translators
    repetition_penalty               used = 1.0             Rules.repetition_penalty
    no_repeat_ngram_size             used = 0               Rules.no_repeat
    bad_words_ids                    used = null            Rules.never; single tokens
    suppress_tokens                  used = null            Rules.never
    forced_eos_token_id              used = null            Rules.last
    renormalize_logits               used = false           Rules.renormalised
    stop_strings                     used = null            texts that end a text; one, or several
    begin_suppress_tokens            must be null or []
    forced_bos_token_id              must be null
    forced_decoder_ids               must be null or []
    force_words_ids                  must be null or []
    constraints                      must be null or []
    sequence_bias                    must be null or {} or []
    typical_p                        must be 1.0 or null
    epsilon_cutoff                   must be 0.0 or null
    eta_cutoff                       must be 0.0 or null
    top_h                            must be null
    encoder_repetition_penalty       must be 1.0 or null
    encoder_no_repeat_ngram_size     must be 0 or null
    exponential_decay_length_penalty must be null
    diversity_penalty                must be 0.0 or null
    num_beam_groups                  must be 1 or null
    penalty_alpha                    must be null or 0.0
    guidance_scale                   must be null or 1.0
    dola_layers                      must be null
    watermarking_config              must be null
    token_healing                    must be false or null
    remove_invalid_values            must be false or null
    num_return_sequences             must be 1 or null
    max_time                         must be null
    use_mtp                          must be null or false
    generation_kwargs                must be {} or null
    use_cache                        ignored                 4.26 on
    cache_implementation             ignored                 4.40 on
    cache_config                     ignored                 4.44 on
    max_cache_len                    ignored                 5.0 on
    return_legacy_cache              ignored                 4.44 to 4.57
    output_attentions                ignored                 4.26 on
    output_hidden_states             ignored                 4.26 on
    output_scores                    ignored                 4.26 on
    output_logits                    ignored                 4.40 on
    return_dict_in_generate          ignored                 4.26 on
    low_memory                       ignored                 4.33 on
    compile_config                   ignored                 4.48 on
    disable_compile                  ignored                 4.51 on
    prefill_chunk_size               ignored                 4.51 on
    continuous_batching_config       ignored                 5.0 on
    is_assistant                     ignored                 5.0 on; the next seven: the same text in fewer steps
    num_assistant_tokens             ignored                 4.36 on
    num_assistant_tokens_schedule    ignored                 4.36 on
    assistant_confidence_threshold   ignored                 4.46 on
    assistant_early_exit             ignored                 4.48 on
    assistant_lookbehind             ignored                 4.48 on
    target_lookbehind                ignored                 4.48 on
    assistant_ensemble_weight        ignored                 5.0 on
    speculation_type                 ignored                 5.0 on
    prompt_lookup_num_tokens         ignored                 4.40 on
    max_matching_ngram_size          ignored                 4.40 on
    _from_model_config               ignored                 4.26 on
    _commit_hash                     ignored                 4.26 on
    transformers_version             ignored                 4.26 on
    """
) | {f.name: Policy(f.name, "used", f"Sampling.{f.name}", default=f.metadata["left_out"]) for f in fields(Sampling)}
"""Fields that say how text is generated. Their defaults follow the released code."""
