"""Models in GGUF files compute the same as in `transformers`.

This holds for every supported architecture and tensor type; others are rejected by name.
"""

import json
import os

import numpy as np
import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import gguf
import gguf_files
import transformers

from companion import load_pretrained
from companion.families.export import export_gguf
from companion.files.gguf.architectures import BY_KIND, llama3_factors
from companion.files.gguf.container import opened

SIZES = dict(
    vocab_size=41, hidden_size=24, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
    intermediate_size=20, max_position_embeddings=32, head_dim=8, bos_token_id=1, eos_token_id=2, pad_token_id=0,
)  # fmt: skip
WIDE = {"attention.key_length": 8, "attention.value_length": 8, "rope.dimension_count": 8}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {
    "rope_type": "yarn",
    "factor": 2.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 150.0,
    "truncate": False,
}
YARN_KEYS = {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0, "rope.scaling.original_context_length": 16}
TOKENIZER = json.dumps(
    {
        "model": {"type": "BPE", "vocab": {f"[{i}]": i for i in range(41)}, "merges": []},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "added_tokens": [{"id": 2, "content": "[2]", "special": True}],
    }
)
TYPES = ["sliding_attention", "full_attention", "sliding_attention"]


def llama(**changes):
    return transformers.LlamaConfig(**{**SIZES, **changes})


def read_by_transformers(path):
    return transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)


def factors(theta, *numbers, head=8):
    return llama3_factors(theta, head, *numbers).numpy()


def longrope():
    short, long = [1.0, 1.5, 2.0], [1.25, 3.0, 7.0]
    scaling = {"rope_type": "longrope", "short_factor": short, "long_factor": long, "rope_theta": 10000.0}
    config = transformers.Phi3Config(
        **{**SIZES, "hidden_size": 48, "max_position_embeddings": 64},
        sliding_window=7,
        original_max_position_embeddings=16,
        rope_parameters=scaling | {"original_max_position_embeddings": 16, "partial_rotary_factor": 0.75},
        partial_rotary_factor=0.75,
    )
    keys = {"rope.dimension_count": 6, "rope.scaling.original_context_length": 16, "attention.sliding_window": 7}
    keys["rope.scaling.attn_factor"] = float((1 + np.log(4) / np.log(16)) ** 0.5)
    lists = {"rope_factors_short.weight": np.array(short), "rope_factors_long.weight": np.array(long)}
    return config, keys, lists


CASES = {
    "llama": (llama(), WIDE, {}),
    "llama, tied, one key-value head for each": (llama(tie_word_embeddings=True, num_key_value_heads=6), WIDE, {}),
    "llama, biased": (llama(attention_bias=True, mlp_bias=True), WIDE, {}),
    "llama 3.1": (
        llama(rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3}),
        WIDE,
        {"rope_freqs.weight": factors(500000.0, *LLAMA3.values())},
    ),
    "llama with factors of its own": (
        llama(
            rope_parameters={"rope_type": "llama3", "rope_theta": 100.0}
            | LLAMA3
            | {"original_max_position_embeddings": 16}
        ),
        WIDE,
        {"rope_freqs.weight": factors(100.0, 8.0, 1.0, 4.0, 16)},
    ),
    "llama, linear": (
        llama(rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 100.0}),
        WIDE | {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        {},
    ),
    "qwen2": (transformers.Qwen2Config(**SIZES | {"hidden_size": 48}), {}, {}),
    "qwen3": (transformers.Qwen3Config(**SIZES), WIDE, {}),
    "qwen3, yarn": (transformers.Qwen3Config(**SIZES, rope_parameters=YARN | {"truncate": True}), WIDE | YARN_KEYS, {}),
    "gemma2": (
        transformers.Gemma2Config(**SIZES, query_pre_attn_scalar=8, sliding_window=7),
        WIDE
        | {"attention.sliding_window": 7, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        {},
    ),
    "gemma3": (
        transformers.Gemma3TextConfig(**SIZES | {"num_hidden_layers": 7}, query_pre_attn_scalar=8, sliding_window=7),
        WIDE | {"attention.sliding_window": 7},
        {},
    ),
    "gemma3, scaled": (
        transformers.Gemma3TextConfig(
            **SIZES,
            query_pre_attn_scalar=8,
            sliding_window=7,
            layer_types=TYPES,
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        ),
        WIDE
        | {"attention.sliding_window": 7, "attention.sliding_window_pattern": [True, False, True]}
        | {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0, "rope.freq_base_swa": 50.0},
        {},
    ),
    "phi3": (transformers.Phi3Config(**SIZES | {"hidden_size": 48}), {"rope.dimension_count": 8}, {}),
    "phi3, long": longrope(),
    "gpt-oss": (
        transformers.GptOssConfig(
            **SIZES, num_local_experts=5, num_experts_per_tok=2, sliding_window=7, layer_types=TYPES,
            rope_parameters=YARN,
        ),
        WIDE | YARN_KEYS | {"attention.sliding_window": 7, "expert_count": 5, "expert_used_count": 2},
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_file_computes_what_transformers_computes(name, tmp_path):
    config, keys, further = CASES[name]
    theirs = gguf_files.drawn(config)
    gguf_files.write(tmp_path / "model.gguf", theirs, keys, further=further)
    ours = load_pretrained(tmp_path / "model.gguf")
    tokens = torch.randint(41, (3, 24), generator=torch.Generator().manual_seed(1))
    for some in (tokens, tokens[:, :11]):  # the frequencies can depend on the length
        with torch.no_grad():
            torch.testing.assert_close(ours(some).logits, theirs(some).logits, rtol=1e-5, atol=2e-5)


def test_every_architecture_that_is_read_is_among_them():
    assert {config.model_type for config, _, _ in CASES.values()} == set(BY_KIND)


def wide(**changes):
    """Return a small LLaMA whose rows are as long as the blocks of quantized types."""
    sizes = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return llama(**{**sizes, "head_dim": 64, "intermediate_size": 256, **changes})


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_tensors_of_every_type_are_what_the_type_makes_of_them(kind, tmp_path):
    theirs = gguf_files.drawn(wide(tie_word_embeddings=True))
    gguf_files.write(tmp_path / "model.gguf", theirs, kind=kind)
    ours = load_pretrained(tmp_path / "model.gguf")
    plain = {"F16": torch.float16, "BF16": torch.bfloat16}.get(kind, torch.float32)
    assert ours.embedding.weight.dtype == ours.decoder.norm.weight.dtype == plain
    whole = load_pretrained(tmp_path / "model.gguf", dtype=torch.float64)
    raw = gguf.GGMLQuantizationType[kind]
    for name, part in (("v_proj", "value"), ("q_proj", "query"), ("o_proj", "output")):
        weight = getattr(theirs.model.layers[1].self_attn, name).weight.detach().numpy()
        expected = torch.from_numpy(gguf.dequantize(gguf.quantize(weight, raw), raw))
        found = getattr(whole.decoder.blocks[1].attention, part).weight
        assert torch.equal(found.float(), expected) and (
            kind == "F32" or not torch.equal(expected, torch.from_numpy(weight))
        )


def test_blocks_of_k_types_are_read_as_transformers_reads_them(tmp_path):
    """The package `gguf` cannot write these types, so the blocks are random, with finite scales."""
    config = wide()
    theirs, draw = gguf_files.drawn(config), np.random.default_rng(3)
    layouts = {"Q4_K": (144, [0, 2]), "Q5_K": (176, [0, 2]), "Q6_K": (210, [208])}
    parts = ("ffn_gate", "ffn_up", "ffn_down", "attn_q", "attn_k", "attn_v")
    kinds = dict(zip(parts, 2 * list(layouts), strict=True))
    _, tensors = gguf_files.stored(theirs)
    raw = {}
    for one, tensor in tensors.items():
        if (kind := kinds.get(one.split(".")[-2])) is not None:
            size, scales = layouts[kind]
            blocks = draw.integers(0, 256, (tensor.shape[0], size), dtype=np.uint8)
            for at in scales:
                blocks[:, at : at + 2] = (
                    draw.uniform(1e-5, 2e-3, (tensor.shape[0], 1)).astype(np.float16).view(np.uint8)
                )
            raw[one] = (blocks, gguf.GGMLQuantizationType[kind])
    gguf_files.write(tmp_path / "model.gguf", theirs, {"attention.key_length": 64}, raw=raw)
    ours = load_pretrained(tmp_path / "model.gguf")
    reader = read_by_transformers(tmp_path / "model.gguf")
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens).logits, reader(tokens).logits, rtol=1e-4, atol=1e-4)
    assert {kind.name for _, kind in raw.values()} == set(layouts)


WRONG = {
    "another architecture": ({}, "general.architecture='mamba': expected one of llama, qwen2, qwen3, gemma2, gemma3"),
    "a key that nobody knows": (
        {"attention.sparsity": 3},
        "llama.attention.sparsity=3: this key is not supported",
    ),
    "experts": ({"expert_count": 8}, "llama.expert_count=8: expected 0, the only supported value"),
    "a number for each layer": ({"attention.head_count": [6, 6, 6]}, r"head_count=\[6, 6, 6\]: expected int"),
    "another scaling": (
        {"rope.scaling.type": "longrope"},
        "scaling.type='longrope': expected one of none, linear, yarn",
    ),
    "a part of each head": ({"rope.dimension_count": 4}, "llama.rope.dimension_count=4: expected 8"),
    "no number of layers": ({"block_count": None}, "llama.block_count is missing"),
    "more layers than tensors": ({"block_count": 4}, "missing model.layers.3"),
    "a tensor that nobody knows": ({}, "unexpected blk.0.attn_extra.weight"),
    "a type that nobody can read": ({}, "blk.0.attn_v.weight is I8|attn_v.weight is I32: expected a type"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_known_is_rejected_by_name(case, tmp_path, monkeypatch):
    keys, message = WRONG[case]
    theirs, path = gguf_files.drawn(llama()), tmp_path / "model.gguf"
    further = {"blk.0.attn_extra.weight": np.ones((3, 4))} if "tensor" in case and "nobody" in case else {}
    raw = {"blk.0.attn_v.weight": (np.ones((16, 24), np.int32), None)} if "type" in case else {}
    gguf_files.write(path, theirs, WIDE | keys, further=further, raw=raw)
    if "architecture" in case:
        path.write_bytes(path.read_bytes().replace(b"llama", b"mamba"))
    with pytest.raises(ValueError, match=message) as refused:
        load_pretrained(path)
    assert str(path) in str(refused.value)


def test_a_damaged_file_is_said_to_be_damaged(tmp_path):
    path = tmp_path / "model.gguf"
    gguf_files.write(path, gguf_files.drawn(llama()), WIDE)
    whole = path.read_bytes()
    for data in (
        b"",
        b"GGUF",
        whole[:100],
        whole[:3000],
        whole[:-500],
        b"GGUF" + whole[4:900][::-1],
        b"PK" + whole[2:],
    ):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="expected a complete GGUF file, but it is damaged or truncated"):
            load_pretrained(path)
    path.unlink()
    with pytest.raises(ValueError, match="expected a folder with config.json and model.safetensors, or a GGUF file"):
        load_pretrained(path)


UNWRITTEN = {
    "phi3, long": "attention.window.width=7: llama.cpp ignores windows for the phi3 architecture",
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_is_read_as_the_same_function_here_and_by_transformers(name, tmp_path):
    """Tried by hand, the real llama.cpp generates the same greedy text for all of these."""
    config, keys, further = CASES[name]
    gguf_files.write(tmp_path / "first.gguf", gguf_files.drawn(config), keys, further=further)
    ours, kind = load_pretrained(tmp_path / "first.gguf"), config.model_type
    tokens, path = torch.randint(41, (2, 24), generator=torch.Generator().manual_seed(2)), tmp_path / "again.gguf"
    if name in UNWRITTEN:
        with pytest.raises(ValueError, match=UNWRITTEN[name]):
            export_gguf(path, ours, kind=kind, type="F32")
        assert not path.exists()
        return
    architecture = export_gguf(path, ours, kind=kind, type="F32", tokenizer=TOKENIZER, special={"eos_token_id": 2})
    again = load_pretrained(path)
    assert architecture == BY_KIND[kind].name and again.config.with_(dropout=0) == ours.config.with_(dropout=0)
    torch.testing.assert_close(again(tokens).logits, ours(tokens).logits, rtol=1e-6, atol=1e-6)
    if name in ("llama", "llama, tied, one key-value head for each", "qwen2"):  # it supports neither biases nor scaling
        theirs = transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path, gguf_file="again.gguf", dtype=torch.float32
        )
        with torch.no_grad():
            torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits, rtol=1e-5, atol=2e-5)


def test_a_type_rounds_matrices_and_leaves_vectors_and_short_rows(tmp_path):
    gguf_files.write(tmp_path / "first.gguf", gguf_files.drawn(wide(hidden_size=96, intermediate_size=40, head_dim=24)))
    ours = load_pretrained(tmp_path / "first.gguf")
    export_gguf(tmp_path / "q.gguf", ours, type="Q8_0", tokenizer=TOKENIZER)
    types = opened(tmp_path / "q.gguf").types
    assert types["blk.0.attn_q.weight"] == types["token_embd.weight"] == "Q8_0" and types["output_norm.weight"] == "F32"
    assert types["blk.0.ffn_down.weight"] == "F16", "rows of 40 are no blocks of 32"
    rounded, whole = load_pretrained(tmp_path / "q.gguf"), ours.decoder.blocks[0].attention.query.weight
    error = (rounded.decoder.blocks[0].attention.query.weight - whole).abs().max() / whole.abs().max()
    assert 1e-4 < error <= 1 / 254 + 1e-3
    assert torch.equal(rounded.decoder.norm.weight, ours.decoder.norm.weight)
