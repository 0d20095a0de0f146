"""GGUF files of models and tokenizers of `transformers`, as llama.cpp's converter writes them.

They are written with `gguf`'s own writer and table of names, so that the comparison does not depend on any of our code.
"""

import gguf
import numpy as np
import torch

NAMES = {"gemma3_text": "gemma3", "gpt_oss": "gpt-oss"}


def interleaved(weight, heads):
    """Return the rows of queries or keys in llama.cpp's order for LLaMA (`permute` of its converter)."""
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    )


def stored(theirs):
    """Return the tensors of a model by their names in the file."""
    config, kind = theirs.config, theirs.config.model_type
    name = NAMES.get(kind, kind)
    architecture = next(a for a, text in gguf.MODEL_ARCH_NAMES.items() if text == name)
    table = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    tensors = {one: tensor.float().numpy() for one, tensor in theirs.state_dict().items()}
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    found = {}
    for one, tensor in tensors.items():
        if kind == "llama" and ".q_proj." in one:
            tensor = interleaved(tensor, config.num_attention_heads)
        if kind == "llama" and ".k_proj." in one:
            tensor = interleaved(tensor, config.num_key_value_heads)
        if "gemma" in kind and one.endswith("norm.weight"):
            tensor = tensor + 1
        if "experts" in one:
            bias = "bias" if one.endswith("_bias") else "weight"
            layer = one.partition(".mlp")[0].replace("model.layers", "blk")
            tensor = tensor if bias == "bias" else tensor.swapaxes(1, 2)
            if "down" in one:
                found[f"{layer}.ffn_down_exps.{bias}"] = tensor
            else:
                found[f"{layer}.ffn_gate_exps.{bias}"] = tensor[:, 0::2]
                found[f"{layer}.ffn_up_exps.{bias}"] = tensor[:, 1::2]
            continue
        new = table.get_name(one, try_suffixes=(".weight", ".bias"))
        assert new is not None, one
        found[new + (".weight" if one.endswith("sinks") else "")] = tensor
    return name, found


def write(path, theirs, keys=(), tokenizer=None, kind="F32", further=(), raw=()):
    """Write a model of `transformers` as a GGUF file.

    keys:       further keys of its architecture, which replace the usual ones; `None` takes one away.
    tokenizer:  keys of `tokenizer.ggml`; none: a vocabulary of as many tokens as the model has.
    kind:       the type of the matrices.
    further:    tensors besides.
    raw:        tensors that are written as they are, each with its type.
    """
    config = theirs.config
    name, tensors = stored(theirs)
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    said = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": float(rope["rope_theta"]),
        "vocab_size": config.vocab_size,
        **dict(keys),
    }
    if tokenizer is None:
        tokens = [f"[{i}]" for i in range(config.vocab_size)]
        tokenizer = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": [], "eos_token_id": 2}
    writer = gguf.GGUFWriter(path, name)
    for key, value in {f"{name}.{key}": value for key, value in said.items()}.items():
        add(writer, key, value)
    for key, value in tokenizer.items():
        add(writer, key if key == "tokenizer.chat_template" else f"tokenizer.ggml.{key}", value)
    for one, tensor in {**tensors, **dict(further)}.items():
        tensor = np.ascontiguousarray(tensor)
        if one in dict(raw):
            blocks, kind_of = dict(raw)[one]
            writer.add_tensor(one, blocks, raw_dtype=kind_of)
        elif kind == "F32" or tensor.ndim < 2 or "inp" in one:
            writer.add_tensor(one, tensor.astype(np.float32))
        else:
            of_all = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(one, gguf.quantize(tensor, of_all), raw_dtype=of_all)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add(writer, key, value):
    """Write a key of any type."""
    if value is None:
        return
    if isinstance(value, list):
        writer.add_array(key, value)
    else:
        kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        kinds[type(value)](key, value)


def drawn(config, seed=0):
    """Return a model of `transformers` with random weights that all affect the logits."""
    import transformers

    torch.manual_seed(seed)
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.normal_(std=0.2)
            if "norm" in name and "gemma" not in config.model_type:
                parameter += 1
    return theirs
