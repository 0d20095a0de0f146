"""Folders with something odd or damaged in them.

Each is either rejected in one sentence that names the problem, with nothing changed, or gives the logits that
`transformers` gives for the same folder. None crashes, and none silently becomes another model.
"""

import json
import math
import os
import shutil
import struct
from collections import Counter

import pytest
import torch
from safetensors.torch import load_file, save_file

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the import, so that nothing here tries to use a network
import transformers

from companion.families.pretrained import load_pretrained
from companion.families.registry import families
from companion.files.published import mismatch

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SIZES = {"vocab_size": 31, "max_position_embeddings": 20, "hidden_size": 16, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "intermediate_size": 12}
KIN = SIZES | {"num_key_value_heads": 2}
LOCAL, GLOBAL = "sliding_attention", "full_attention"
BASES = {
    "gpt2": (
        "GPT2LMHeadModel",
        {"vocab_size": 31, "n_positions": 20, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_ctx": 20},
    ),
    "bert": ("BertForPreTraining", SIZES),
    "marian": (
        "MarianMTModel",
        {
            **{"vocab_size": 31, "decoder_vocab_size": 31, "d_model": 16, "max_position_embeddings": 20},
            **{f"{stack}_layers": 2 for stack in ("encoder", "decoder")},
            **{f"{stack}_attention_heads": 4 for stack in ("encoder", "decoder")},
            **{f"{stack}_ffn_dim": 12 for stack in ("encoder", "decoder")},
            **{"pad_token_id": 30, "decoder_start_token_id": 30, "eos_token_id": 0, "forced_eos_token_id": 0},
            **{"num_hidden_layers": 2, "scale_embedding": True, "activation_function": "swish", "_num_labels": 3},
        },
    ),
    "llama": ("LlamaForCausalLM", KIN | {"rope_theta": 500.0, "rope_scaling": None, "is_llama_config": True}),
    "llama 3": (
        "LlamaForCausalLM",
        KIN
        | {
            "rope_parameters": {
                **{"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
                **{"original_max_position_embeddings": 10, "rope_theta": 500.0},
            }
        },
    ),
    "mistral": ("MistralForCausalLM", KIN | {"sliding_window": 5, "rope_theta": 500.0}),
    "mixtral": ("MixtralForCausalLM", KIN | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", KIN | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("Qwen3ForCausalLM", KIN | {"head_dim": 6, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        KIN | {"moe_intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True},
    ),
    "gemma2": ("Gemma2ForCausalLM", KIN | {"head_dim": 6, "query_pre_attn_scalar": 9, "sliding_window": 5}),
    "gemma3_text": (
        "Gemma3ForCausalLM",
        KIN | {"head_dim": 6, "query_pre_attn_scalar": 9, "sliding_window": 5, "sliding_window_pattern": 2},
    ),
    "olmo2": ("Olmo2ForCausalLM", KIN),
    "olmoe": ("OlmoeForCausalLM", KIN | {"num_experts": 4, "num_experts_per_tok": 2, "pad_token_id": 1}),
    "olmo3": ("Olmo3ForCausalLM", KIN | {"sliding_window": 5, "layer_types": [LOCAL, GLOBAL], "rope_theta": 500000.0}),
    "glm": ("GlmForCausalLM", KIN | {"head_dim": 8, "attention_bias": True, "pad_token_id": 0}),
    "glm4": ("Glm4ForCausalLM", KIN | {"head_dim": 8, "rms_norm_eps": 1e-05, "pad_token_id": 0}),
    "phi3": ("Phi3ForCausalLM", KIN | {"sliding_window": 5, "pad_token_id": 0}),
    "phi3 mini": (
        "Phi3ForCausalLM",
        KIN
        | {
            **{"hidden_size": 32, "partial_rotary_factor": 0.75, "original_max_position_embeddings": 10},
            **{"pad_token_id": 0},
            "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.5, 2.0], "long_factor": [1.0, 4.0, 9.0]},
        },
    ),
    "granite": (
        "GraniteForCausalLM",
        KIN
        | {
            **{"embedding_multiplier": 3.0, "attention_multiplier": 0.25, "residual_multiplier": 0.5},
            **{"logits_scaling": 2.0},
        },
    ),
    "granitemoehybrid": (
        "GraniteMoeHybridForCausalLM",
        KIN
        | {
            **{"layer_types": ["attention"] * 2, "num_local_experts": 0, "shared_intermediate_size": 12},
            **{"position_embedding_type": "rope", "mamba_n_heads": 4, "mamba_d_head": 8},
        },
    ),
    "exaone4": ("Exaone4ForCausalLM", KIN | {"sliding_window": 5, "sliding_window_pattern": 2}),
    "ernie4_5": ("Ernie4_5ForCausalLM", KIN | {"head_dim": 6, "tie_word_embeddings": False, "pad_token_id": 0}),
    "seed_oss": ("SeedOssForCausalLM", KIN | {"head_dim": 6, "attention_bias": True}),
    "qwen3_next": (
        "Qwen3NextForCausalLM",
        KIN
        | {
            **{"head_dim": 8, "moe_intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 2},
            **{"shared_expert_intermediate_size": 6, "full_attention_interval": 2, "rms_norm_eps": 0.01},
            **{"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 4},
            **{"linear_value_head_dim": 6, "linear_conv_kernel_dim": 3},
        },
    ),
    "kimi_linear": (
        "KimiLinearForCausalLM",
        SIZES
        | {
            **{"num_key_value_heads": 4, "moe_intermediate_size": 8, "num_experts": 4, "num_experts_per_token": 2},
            **{"qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5, "kv_lora_rank": 7, "pad_token_id": 0},
            **{"rms_norm_eps": 0.01, "model_max_length": 20, "routed_scaling_factor": 1.5},
            "linear_attn_config": {
                **{"kda_layers": [1], "full_attn_layers": [2], "head_dim": 4, "num_heads": 3},
                "short_conv_kernel_size": 3,
            },
        },
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", SIZES | {"rotary_pct": 0.5, "rotary_emb_base": 500}),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        {
            **{"vocab_size": 31, "max_position_embeddings": 20, "hidden_size": 16, "num_layers": 2, "num_heads": 4},
            **{"attention_types": [[["global", "local"], 1]], "window_size": 5},
        },
    ),
    "t5": (
        "T5ForConditionalGeneration",
        {
            **{"vocab_size": 31, "d_model": 16, "d_kv": 3, "d_ff": 12, "num_layers": 2, "num_heads": 4},
            **{"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6, "is_encoder_decoder": True},
            **{"feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0, "pad_token_id": 0, "n_positions": 20},
        },
    ),
    "modernbert": (
        "ModernBertForMaskedLM",
        SIZES | {"local_attention": 4, "global_attn_every_n_layers": 2, "pad_token_id": 0, "norm_bias": True},
    ),
    "smollm3": ("SmolLM3ForCausalLM", KIN | {"no_rope_layers": [1, 0], "pad_token_id": 0, "pretraining_tp": 2}),
}
"""A small release of each kind: its class, and the fields of its config.json beside the kind."""
IDS = torch.tensor([[1, 5, 9, 2, 17, 30, 4, 4, 8, 21, 11, 3, 25], [7, 0, 3, 3, 6, 12, 29, 18, 2, 10, 1, 14, 5]])


class Made(dict):
    """The logits of each model in `BASES`, whose folder is made when it is first needed."""

    def __init__(self, home):
        super().__init__()
        self.home = home

    def __missing__(self, name):
        cls, fields = BASES[name]
        kind, folder = name.partition(" ")[0], self.home / name
        torch.manual_seed(list(BASES).index(name))
        config = transformers.CONFIG_MAPPING[kind].from_dict({"bos_token_id": 1, "eos_token_id": 2, **fields})
        theirs = getattr(transformers, cls)(config).eval()
        with torch.no_grad():
            for parameter in theirs.parameters():
                parameter.normal_(std=0.4)
        if kind == "marian":
            for stack in (theirs.model.encoder, theirs.model.decoder):
                stack.embed_positions.weight.data.copy_(stack.embed_positions.create_weight())
        theirs.save_pretrained(folder)
        (folder / "config.json").write_text(json.dumps({"model_type": kind, "architectures": [cls], **fields}))
        (folder / "generation_config.json").unlink(missing_ok=True)
        self[name] = logits(load_pretrained(folder))
        torch.testing.assert_close(self[name], their_logits(folder), rtol=1e-4, atol=1e-4)
        return self[name]


@pytest.fixture(scope="module", autouse=True)
def shapes_made_once():
    """Cache the shapes of models with other field values, which explain why tensors do not match, for all folders."""
    made, make = {}, mismatch._shapes

    def shapes(family, config):
        if (key := (family.kind, config)) not in made:
            made[key] = make(family, config)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mismatch, "_shapes", shapes)
        yield


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Return the location of the folders of `BASES`, and the logits of each."""
    home = tmp_path_factory.mktemp("bases")
    return home, Made(home)


@torch.no_grad()
def logits(model):
    source = {"source": IDS} if model.config.stack == "encoder_decoder" else {}
    return model(IDS, **source).logits


@torch.no_grad()
def their_logits(folder):
    """Return the logits that `transformers` gives for a folder, or `None` if it cannot load it."""
    cls = json.loads((folder / "config.json").read_text())["architectures"][0]
    try:
        model, told = getattr(transformers, cls).from_pretrained(
            folder, output_loading_info=True, attn_implementation="eager"
        )
        if any(told.values()):
            return None  # it fills in missing weights with random numbers
        model = model.float().eval()
        return model(IDS, **({"decoder_input_ids": IDS} if model.config.is_encoder_decoder else {}))[0]
    except Exception:
        return None


def state(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def outcome(folder, usual, **how):
    """Load a folder and classify the result.

    Returns: "refused"; "same" if it gives the same logits as before; or "other" if it gives those of `transformers`.
    """
    before = state(folder)
    try:
        found = logits(load_pretrained(folder, **how))
    except ValueError as error:
        message = str(error)
        assert str(folder) in message and "\n" not in message and len(message) < 2000, message[:3000]
        assert any(word in message for word in ("expected", "missing", "unsupported", "does not match", "differ")), (
            message
        )
        return "refused"
    finally:
        assert state(folder) == before
    if found.shape == usual.shape and torch.allclose(found, usual, rtol=1e-4, atol=1e-4):
        return "same"
    theirs = their_logits(folder)
    assert theirs is not None, "used, although transformers takes it for nothing, and not the model it was"
    torch.testing.assert_close(found, theirs, rtol=1e-3, atol=1e-3)
    return "other"


class Folders:
    """Copies of a base folder, each with something odd in it; `finish` reports all failures."""

    def __init__(self, bases, name, tmp_path):
        home, usual = bases
        self.path, self.usual, self.name = tmp_path / "odd", usual[name], name  # this makes the folder
        shutil.copytree(home / name, self.path)
        self.good = json.loads((self.path / "config.json").read_text())
        self.weights = self.path / "model.safetensors"
        self.raw, self.tensors = self.weights.read_bytes(), load_file(self.weights)
        self.seen, self.faults = Counter(), []

    def config(self, **changes):
        changed = {key: value for key, value in {**self.good, **changes}.items() if value is not GONE}
        (self.path / "config.json").write_text(json.dumps(changed))

    def try_(self, label, expected=("refused", "same", "other"), **how):
        try:
            came = outcome(self.path, self.usual, **how)
            assert came in ([expected] if isinstance(expected, str) else expected), f"{came}, expected {expected}"
        except Exception as error:
            self.faults.append(f"{self.name}, {label}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        else:
            self.seen[came] += 1

    def save(self, tensors):
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, self.weights)

    def finish(self, least):
        assert not self.faults, "\n".join(self.faults)
        assert sum(self.seen.values()) >= least, self.seen


GONE = object()
ODD = [GONE, None, True, 2, 1e30, "x"]
OF_ALL = ("pruned_heads", "tie_encoder_decoder", "add_cross_attention", "cross_attention_hidden_size", "prefix")
"""Fields with one row for every kind: one kind of model is enough."""


@pytest.mark.parametrize("name", BASES)
def test_a_field_with_an_odd_value(name, bases, tmp_path):
    folders = Folders(bases, name, tmp_path)
    table, every = families()[folders.good["model_type"]].table, families()["gpt2"].table
    names = [one for one, policy in table.items() if policy.kind in ("used", "must be", "must match")]
    if name != "gpt2":
        names = [one for one in names if one not in OF_ALL]
    for field in names:
        numbers = field in folders.good and isinstance(folders.good[field], float)
        for value in ODD:
            if value is GONE and field not in folders.good:
                continue
            value = float(value) if numbers and value == 2 else value
            folders.config(**{field: value})
            if value not in (None, 2) or field not in ("attn_logit_softcapping", "final_logit_softcapping"):
                folders.try_(f"{field}={value}")  # here we accept an integer, but `transformers` does not
    folders.config(colour="red")
    folders.try_("a field that nobody knows", "refused")
    folders.config(colour=None)
    folders.try_("a field that nobody knows, null", "same")
    for policy in table.values():
        if policy.kind == "ignored" and policy.name != "model_type" and (name == "gpt2" or policy.name not in every):
            folders.config(**{policy.name: False})
            folders.try_(f"{policy.name}=False", "same")
    folders.finish(60)


LINEAR, YARN = {"rope_type": "linear", "factor": 2.0}, {"rope_type": "yarn", "factor": 2.0}
SHORT = {"original_max_position_embeddings": 10}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **SHORT}
TURNED = "other"
SCALINGS = [
    ({}, "same"), ({"rope_type": "default"}, "same"), ({"type": "default"}, "same"), (LINEAR, TURNED),
    ({"type": "linear", "factor": 2.0}, TURNED), ({"type": "linear", **LINEAR}, TURNED), (YARN, TURNED),
    (LLAMA3, TURNED),
    ({"rope_type": "dynamic", "factor": 2.0}, "same"), ({**YARN, **SHORT}, TURNED),
    ({**YARN, **SHORT, "beta_fast": 8.0, "beta_slow": 2.0}, TURNED), ({**YARN, **SHORT, "truncate": False}, TURNED),
    ({**YARN, **SHORT, "mscale": 0.7, "mscale_all_dim": 1.0}, TURNED), ({**YARN, **SHORT, "mscale": 0.7}, TURNED),
    ({**YARN, **SHORT, "attention_factor": 1.3}, TURNED), ({**YARN, **SHORT, "beta_fast": None}, TURNED),
    ({**LINEAR, "rope_theta": 500.0}, TURNED), ({**LINEAR, "type": "yarn"}, "refused"), ("linear", "refused"),
    ([LINEAR], "refused"), ({"rope_type": "linear"}, "refused"), ({**LINEAR, "factor": 0.5}, "refused"),
    ({**LINEAR, "factor": "2"}, "refused"), ({**LINEAR, "factor": math.nan}, "refused"),
    ({**LINEAR, "factor": True}, "refused"), ({**LINEAR, "colour": 1}, "refused"), ({**LINEAR, **SHORT}, "refused"),
    ({**LINEAR, "rope_theta": 700.0}, "refused"), ({**LINEAR, "rope_theta": "x"}, "refused"),
    ({**LINEAR, "partial_rotary_factor": 0.5}, "refused"), ({"partial_rotary_factor": 0.5}, "refused"),
    ({"rope_type": "dynamic", "factor": 2.0, **SHORT}, "refused"), ({**YARN, "truncate": "no"}, "refused"),
    ({**YARN, **SHORT, "beta_fast": 1, "beta_slow": 2}, "refused"), ({**YARN, **SHORT, "mscale": "x"}, "refused"),
    ({**YARN, "original_max_position_embeddings": 10.5}, "refused"),
    ({**YARN, **SHORT, "mscale": -20.0, "mscale_all_dim": 1.0}, "refused"),
    ({**LLAMA3, "low_freq_factor": 4.0, "high_freq_factor": 1.0}, "refused"),
    ({**LLAMA3, "low_freq_factor": 0}, "refused"),
    ({**LLAMA3, "original_max_position_embeddings": -1}, "refused"), ({**LLAMA3, "high_freq_factor": None}, "refused"),
    ({**LINEAR, "rope_type": "longrope"}, "refused"), ({"rope_type": "proportional"}, "refused"),
    ({"rope_type": None}, "refused"), ({"rope_type": 5}, "refused"), ({"rope_type": []}, "refused"),
    ({"mrope_section": [1, 1]}, "same"), ({"full_attention": LINEAR}, "refused"),
]  # fmt: skip
"""What a field for the scaling of rotary positions may say, and what becomes of it."""


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_a_scaling_of_rotary_positions(name, bases, tmp_path):
    folders = Folders(bases, name, tmp_path)
    usual = {"rope_theta": 500.0}
    folders.config(**usual)
    folders.usual = logits(load_pretrained(folders.path))
    for field in ("rope_scaling", "rope_parameters") if name == "llama" else ("rope_parameters",):
        for scaling, expected in SCALINGS:
            folders.config(**usual, **{"rope_scaling": GONE, "rope_parameters": GONE, field: scaling})
            folders.try_(f"{field}={scaling}", expected)
    folders.config(**usual, rope_scaling=LINEAR, rope_parameters=YARN)
    folders.try_("two scalings", "refused")
    folders.config(rope_theta=GONE, rope_scaling=GONE, rope_parameters={**LINEAR, "rope_theta": 500.0})
    folders.try_("a base beside the scaling", "other")
    folders.finish(len(SCALINGS))


def test_the_scalings_of_two_kinds_of_layers(bases, tmp_path):
    folders = Folders(bases, "gemma3_text", tmp_path)
    plain = {"rope_type": "default"}
    for scaling, expected in [
        ({"full_attention": plain, "sliding_attention": plain}, "same"),
        ({"full_attention": plain}, "same"),
        ({"full_attention": LINEAR, "sliding_attention": {**plain, "rope_theta": 700.0}}, "other"),
        ({"sliding_attention": LINEAR}, "refused"),
        ({"full_attention": 5}, "refused"),
        ({"full_attention": plain, "chunked_attention": plain}, "refused"),
        (LINEAR, "refused"),
    ]:
        folders.config(rope_parameters=scaling)
        folders.try_(scaling, expected)
    folders.config(rope_scaling={"type": "linear", "factor": 2.0})
    folders.try_("a kind as some versions overlook it", "refused")
    folders.config(rope_scaling=LINEAR)
    folders.try_("a scaling of the global layers", "other")
    folders.config(rope_theta=1e6, rope_parameters={"full_attention": {**plain, "rope_theta": 5e3}})
    folders.try_("two bases", "refused")
    folders.finish(10)


HUGE = {
    "gpt2": ("n_embd", "n_layer", "n_head", "n_positions", "vocab_size", "n_inner"),
    "marian": ("d_model", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"),
    "mixtral": ("num_local_experts", "num_experts_per_tok", "num_hidden_layers", "num_key_value_heads", "head_dim"),
    "qwen3_moe": ("num_experts", "moe_intermediate_size", "vocab_size", "hidden_size", "num_attention_heads"),
}
"""Sizes that take all memory where somebody makes what they say before looking at the file."""


@pytest.mark.parametrize("name", HUGE)
def test_sizes_that_nobody_has(name, bases, tmp_path):
    folders = Folders(bases, name, tmp_path)
    for field in HUGE[name]:
        for size in (10**9, 10**13, 10**30):
            folders.config(**{field: size})
            folders.try_(f"{field}={size}", "refused")
    folders.finish(3 * len(HUGE[name]))


@pytest.mark.parametrize("name", ["mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "smollm3", "olmo3", "exaone4"])
def test_kinds_of_layers(name, bases, tmp_path):
    folders = Folders(bases, name, tmp_path)
    for types in (
        [LOCAL, GLOBAL],
        [GLOBAL, LOCAL],
        [GLOBAL, GLOBAL],
        [LOCAL, LOCAL],
        [LOCAL],
        [LOCAL, GLOBAL, LOCAL],
        [],
        "x",
        [1, 2],
        ["chunked_attention", GLOBAL],
        [None, None],
    ):
        for more in ({}, {"use_sliding_window": True, "sliding_window": 4}, {"use_sliding_window": False}):
            if "use_sliding_window" in families()[folders.good["model_type"]].table or not more:
                folders.config(layer_types=types, **more)
                folders.try_(f"{types} {more}")
    for turning in ([1, 1], [0, 1], [0, 0], [1], [1, 0, 1], [2, 1], [True, False], "x", []):
        folders.config(no_rope_layers=turning)
        folders.try_(f"no_rope_layers={turning}", ("refused", "same", "other") if name == "smollm3" else "refused")
    folders.finish(20)


@pytest.mark.parametrize("name", ["gpt2", "bert", "marian", "llama", "mixtral", "gemma3_text"])
def test_tensors_that_are_damaged_or_of_another_kind(name, bases, tmp_path):
    folders = Folders(bases, name, tmp_path)
    tensors, names = folders.tensors, sorted(folders.tensors)
    for one in (names[0], names[len(names) // 2], names[-1]):
        kept = tensors[one]
        for dtype in (torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.int8, torch.bool, torch.complex64):
            folders.save({**tensors, one: kept.to(dtype)})
            folders.try_(f"{one} in {dtype}", "refused")
        for value in (math.nan, math.inf, -math.inf):
            wrong = kept.clone()
            wrong.view(-1)[kept.numel() // 2] = value
            folders.save({**tensors, one: wrong})
            folders.try_(f"{one} with {value}", "refused")
        folders.save({other: tensors[other] for other in names if other != one})
        folders.try_(f"{one} gone", "refused")
        for what, tensor in {
            "axis": kept[None],
            "shorter": kept[:-1],
            "empty": kept[:0],
            "longer": kept.repeat(2, *[1] * (kept.ndim - 1)),
        }.items():
            folders.save({**tensors, one: tensor})
            folders.try_(f"{one} {what}", "refused")
        folders.save({**tensors, f"{one}.more": kept})
        folders.try_(f"{one} and one more", "refused")
    folders.save({one: tensor * 1e5 for one, tensor in tensors.items()})
    folders.try_("too large for fp16", "refused", dtype=torch.float16)
    folders.finish(46)


@pytest.mark.parametrize("name", ["gpt2", "marian", "llama", "qwen3_moe"])
def test_tensors_are_converted_as_asked(name, bases, tmp_path):
    folders = Folders(bases, name, tmp_path)
    for stored in (torch.bfloat16, torch.float16, torch.float64, torch.float8_e5m2):
        mixed = {one: t.to(stored if i % 2 else torch.float32) for i, (one, t) in enumerate(folders.tensors.items())}
        folders.save(mixed)
        folders.try_(f"half of them in {stored}", "refused")
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            folders.save(mixed)
            found = load_pretrained(folders.path, dtype=dtype).state_dict()
            folders.save({one: tensor.to(dtype) for one, tensor in mixed.items()})
            for one, tensor in load_pretrained(folders.path).state_dict().items():
                assert found[one].dtype == tensor.dtype == dtype and torch.equal(found[one], tensor)
    folders.finish(4)


@pytest.mark.parametrize("name", ["gpt2", "marian", "llama", "mixtral"])
def test_a_file_that_is_no_whole_file_of_tensors(name, bases, tmp_path):
    folders = Folders(bases, name, tmp_path)
    raw, path = folders.raw, folders.weights
    for cut in (0, 1, 7, 8, 9, 100, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:cut])
        folders.try_(f"cut at {cut}", "refused")
    for data in (raw + b"x", struct.pack("<Q", 2**62) + raw[8:], bytes(8) + raw[8:], b"{}", raw[::-1], raw[:50] * 40):
        path.write_bytes(data)
        folders.try_(f"{data[:20]!r}", "refused")
    path.unlink()
    folders.try_("no weights", "refused")
    torch.save({}, folders.path / "pytorch_model.bin")
    folders.try_("a pickle", "refused")
    path.mkdir()
    folders.try_("a folder in its place", "refused")
    path.rmdir()
    path.symlink_to(path)
    folders.try_("a link to itself", "refused")
    folders.finish(18)


@pytest.mark.parametrize("name", ["gpt2", "marian", "llama", "mixtral"])
def test_shards(name, bases, tmp_path):
    folders = Folders(bases, name, tmp_path)
    tensors, names = folders.tensors, sorted(folders.tensors)
    files = [folders.path / f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    halves = [{one: tensors[one].clone() for one in names[i::2]} for i in (0, 1)]
    where = {one: files[i].name for i in (0, 1) for one in halves[i]}
    index = folders.path / "model.safetensors.index.json"

    def save(first=None, second=None, home=None):
        for file, half, more in zip(files, halves, (first, second), strict=True):
            save_file({**half, **{one: tensor.clone() for one, tensor in (more or {}).items()}}, file)
        index.write_text(json.dumps({"metadata": {}, "weight_map": where if home is None else home}))

    folders.weights.unlink()
    save()
    folders.try_("as they should be", "same")
    stale = names[0]
    save(second={stale: tensors[stale]})
    folders.try_("the same tensor twice", "same")
    save(second={stale: tensors[stale] + 1})
    folders.try_("a stale copy in the later file", "refused")
    save(first={names[1]: tensors[names[1]] * 2})
    folders.try_("a stale copy in the earlier file", "refused")
    save(second={stale: tensors[stale][..., :1]})
    folders.try_("a stale copy of another shape", "refused")
    save(second={"ghost": tensors[stale]})
    folders.try_("a tensor that belongs nowhere", "refused")
    for what, home in {
        "a tensor that is nowhere": {**where, "ghost": files[0].name},
        "another folder": {**where, stale: f"../{files[0].name}"},
        "no text": {**where, stale: 5},
        "a name of two lines": {**where, "a\nb": files[0].name},
        "a file of two lines": {**where, stale: "a\nb"},
        "a name without end": {**where, "a" * 10_000: files[0].name},
        "nothing": {},
        "a list": [where],
        "a file that is not there": {**where, stale: "model-00003-of-00003.safetensors"},
    }.items():
        save(home=home)
        folders.try_(f"an index of {what}", "refused")
    whole = json.dumps({"weight_map": where}).encode()
    for text in (
        b"[" * 100_000,
        b"{",
        b"5",
        b'{"weight_map": {"a": "b", "a": "c"}}',
        b"",
        whole.replace(b"{", b"\xf7", 1),
    ):
        index.write_bytes(text)
        folders.try_(f"an index that is {text[:20]!r}", "refused")
    save()
    folders.save(tensors)
    folders.try_("one file and the index of two", "refused")
    folders.weights.unlink()
    shutil.copy(files[0], files[1])
    folders.try_("one shard twice", "refused")
    files[1].unlink()
    folders.try_("one shard gone", "refused")
    folders.finish(20)


@pytest.mark.parametrize("name", ["gpt2", "bert", "gemma2"])
def test_a_configuration_that_is_none(name, bases, tmp_path):
    folders = Folders(bases, name, tmp_path)
    path = folders.path / "config.json"
    good = path.read_bytes()
    texts = [b"", b"{", b"[]", b"5", b"null", b"[" * 100_000, b"9" * 5000, good[:-1], good[: len(good) // 2], good * 2]
    texts += [good.decode().encode("utf-16"), b"\xff" + good, b'{"model_type": "gpt2", "model_type": "bert"}', b"{}"]
    texts += [good.replace(b'"model_type"', b'"type"'), good.replace(name.encode(), b"t5"), b'{"model_type": null}']
    texts += [b'{"model_type": []}', b'{"model_type": {"a": 1}}', b'{"model_type": "%s"}' % name.encode()]
    for text in texts:
        path.write_bytes(text)
        folders.try_(text[:40], "refused")
    path.unlink()
    folders.try_("no configuration", "refused")
    path.mkdir()
    folders.try_("a folder in its place", "refused")
    folders.finish(22)


def test_weights_of_experts_that_are_not_made_to_sum_to_one(bases, tmp_path):
    folders = Folders(bases, "qwen3_moe", tmp_path)
    for value in (False, GONE):
        folders.config(norm_topk_prob=value)
        folders.try_(f"norm_topk_prob={value}", "other")
    folders.finish(2)


CALLED = sorted({name.partition(" ")[0] for name in BASES})


@pytest.mark.parametrize("name", BASES)
def test_one_kind_called_another(name, bases, tmp_path):
    """Either a field or a tensor reveals it, or both kinds compute the same function of these weights."""
    folders = Folders(bases, name, tmp_path)
    for kind in CALLED:
        if kind != folders.good["model_type"]:
            folders.config(model_type=kind, architectures=[BASES[kind][0]])
            folders.try_(f"called {kind}")
    folders.finish(len(CALLED) - 1)


@pytest.mark.parametrize("name", ["gpt2", "bert", "marian", "qwen2", "mixtral"])
def test_tensors_by_other_names(name, bases, tmp_path):
    folders = Folders(bases, name, tmp_path)
    tensors = folders.tensors
    one = next(name for name in sorted(tensors) if "." in name)
    for prefix in ("module.", "_orig_mod.", "model.", "base_model.model."):
        folders.save({prefix + old: tensor for old, tensor in tensors.items()})
        folders.try_(f"all behind {prefix}", "same" if prefix in ("module.", "_orig_mod.") else "refused")
    others = [
        one.upper(),
        f"{one} ",
        f" {one}",
        one.replace(".", "/"),
        f"{one}\n",
        f"{one}\u2028",
        "",
        "\x00",
        "ä" * 9000,
    ]
    for other in others:
        folders.save({(other if old == one else old): tensor for old, tensor in tensors.items()})
        folders.try_(f"one called {other[:40]!r}", "refused")
        folders.save({**tensors, other: tensors[one]})
        folders.try_(f"one more, called {other[:40]!r}", "refused")
    folders.save({old: tensor.T.contiguous() if tensor.ndim == 2 else tensor for old, tensor in tensors.items()})
    folders.try_("all matrices transposed", "refused")
    folders.save({old: tensor for old, tensor in tensors.items() if "norm" not in old.lower() and ".ln_" not in old})
    folders.try_("no norms", "refused")
    folders.finish(20)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_header_that_lies(name, bases, tmp_path):
    folders = Folders(bases, name, tmp_path)
    length = struct.unpack("<Q", folders.raw[:8])[0]
    header, data = json.loads(folders.raw[8 : 8 + length]), folders.raw[8 + length :]
    one, two = sorted(key for key in header if key != "__metadata__")[:2]
    begin, end = header[one]["data_offsets"]

    def write(text, data=data):
        text = text if isinstance(text, bytes) else json.dumps(text).encode()
        folders.weights.write_bytes(struct.pack("<Q", len(text)) + text + data)

    def changed(**entry):
        return {**header, one: {**header[one], **entry}}

    for what, text, expected in (
        ("spaces behind it", json.dumps(header).encode() + b" " * 64, "same"),
        ("no metadata", {key: value for key, value in header.items() if key != "__metadata__"}, "same"),
        ("metadata of another library", {**header, "__metadata__": {"format": "tf"}}, "same"),
        ("metadata that is a number", {**header, "__metadata__": 5}, "refused"),
        ("metadata of numbers", {**header, "__metadata__": {"step": 5}}, "refused"),
        ("a dtype that nobody knows", changed(dtype="F31"), "refused"),
        ("a dtype without end", changed(dtype="F" * 10_000), "refused"),
        ("a shape of many axes", changed(shape=[1] * 10_000), "refused"),
        ("names that are long", {key.ljust(500, "x"): entry for key, entry in header.items()}, "refused"),
        ("a dtype of half the bytes", changed(dtype="F16"), "refused"),
        ("whole numbers in the place of floating ones", changed(dtype="I32"), "refused"),
        ("a shape with more numbers", changed(shape=[999, 999]), "refused"),
        ("a shape below nothing", changed(shape=[-1, 4]), "refused"),
        ("a shape of halves", changed(shape=[1.5]), "refused"),
        ("a shape beyond all bounds", changed(shape=[2**62, 2**62]), "refused"),
        ("a shape that is text", changed(shape="16"), "refused"),
        ("no shape", {**header, one: {"dtype": "F32", "data_offsets": [begin, end]}}, "refused"),
        ("an entry that is a number", {**header, one: 7}, "refused"),
        ("offsets of another tensor", changed(data_offsets=header[two]["data_offsets"]), "refused"),
        ("offsets the other way round", changed(data_offsets=[end, begin]), "refused"),
        ("offsets beyond the file", changed(data_offsets=[begin, end + len(data)]), "refused"),
        ("a hole between tensors", changed(data_offsets=[begin, end - 4]), "refused"),
        ("no tensors", {}, "refused"),
        ("a list", [header], "refused"),
        ("nothing", b"", "refused"),
        ("no JSON", b"x" * 64, "refused"),
        ("JSON of another alphabet", json.dumps(header).encode("utf-16"), "refused"),
        ("one name twice", json.dumps(header).encode()[:-1] + b', "' + one.encode() + b'": 5}', "refused"),
    ):
        write(text)
        folders.try_(f"a header with {what}", expected)
    write(header, data + bytes(4))
    folders.try_("more bytes than the header says", "refused")
    folders.finish(29)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_what_lies_beside(name, bases, tmp_path):
    """Files of other programs change nothing, but a file that gives the weights another meaning is not ignored."""
    folders = Folders(bases, name, tmp_path)
    for beside in ("pytorch_model.bin", "README.md", "optimizer.pt", "model.safetensors.tmp", "config.json.bak"):
        (folders.path / beside).write_bytes(b"\x80\x04.")
        folders.try_(f"{beside} beside", "same")
    for field, value in {
        "quantization_config": {"quant_method": "gptq", "bits": 4},
        "compression_config": {"format": "int-quantized"},
        "adapter": "lora",
        "rope_scaling_factor": 2.0,
        "mlp_bias_": True,
        "Hidden_size": 16,
        "logits_scaling": 4.0,
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.1,
        "residual_multiplier": 0.2,
        "clip_qkv": 8.0,
        "alibi": True,
        "partial_rotary_factor": 0.5,
        "num_nextn_predict_layers": 1,
        "layernorm_zero_centered": True,
        "cross_attention_layers": [1],
        "text_config": {"hidden_size": 16},
        "two\nlines": None,
        "w" * 9000: 1,
        "rope_parameters": {"two\nlines": 1},
    }.items():
        folders.config(**{field: value})
        folders.try_(f"{field}={value}", "refused")
    folders.finish(22)
