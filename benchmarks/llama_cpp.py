"""Our weights in llama.cpp, timed by its own `llama-bench` if that is on the path."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from benchmarks.compare import OURS, Comparison, Row, Setting
from benchmarks.peers import weights
from benchmarks.timing import Spread, paired_ratio
from companion.transformer import Transformer

NAME = "llama.cpp"
TENSORS = {
    "attention_norm": "attn_norm",
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "output": "attn_output",
    "feed_forward_norm": "ffn_norm",
    "gate": "ffn_gate",
    "inner": "ffn_up",
    "outer": "ffn_down",
}


def add(comparison: Comparison, ours: Transformer, setting: Setting, new: int) -> None:
    """Add llama.cpp's row to a comparison of decoding, or the reason why it is left out.

    llama.cpp writes `new` tokens from an empty cache with as many threads as ours. It measures itself in its own
    rounds, so its ratio is relative to our median.
    """
    command = shutil.which("llama-bench")
    if command is None:
        comparison.omit(NAME, "missing", "llama-bench is not on the path")
        return
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "ours.gguf")
            write(ours, file, half=setting.precision != "fp32")
            sizes = ["-p", "0", "-n", str(new), "-r", str(setting.rounds), "-t", str(torch.get_num_threads())]
            layers = ["-ngl", "99" if setting.device.type == "cuda" else "0"]
            done = subprocess.run(
                [command, "-m", str(file), *sizes, *layers, "-o", "json"], capture_output=True, text=True, check=True
            )
        samples = [ns / 1e9 for ns in json.loads(done.stdout)[-1]["samples_ns"]]
    except (subprocess.CalledProcessError, ImportError, ValueError, LookupError, OSError) as error:
        comparison.omit(NAME, "failed", getattr(error, "stderr", "") or error)
        return
    [median] = [row.seconds.median for row in comparison.rows if row.name == OURS]
    spread, ratio = Spread.of(samples), paired_ratio(samples, [median] * len(samples))
    row = Row(NAME, tuple(samples), spread, ratio, new / spread.median, comparison.least / spread.median)
    comparison.rows.append(row)
    comparison.remarks.append("llama.cpp is timed by its own llama-bench, without the prompt, and reads our weights")


def write(model: Transformer, file: Path, *, half: bool = False) -> None:
    """Write a decoder in LLaMA's layout as a GGUF file without a vocabulary.

    Args:
        model: The decoder.
        file: The output file.
        half: True to store the matrices in float16.

    Raises:
        ImportError: If the package `gguf` is not installed.
    """
    import gguf

    config, sizes, given = model.config, model.config.sizes, weights(model)
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(config.layers)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.d_model)
    writer.add_feed_forward_length(config.feed_forward.d_ff)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_key_length(sizes.d_head)
    writer.add_value_length(sizes.d_v)
    writer.add_rope_dimension_count(sizes.d_head)
    writer.add_rope_freq_base(config.positions.base)
    writer.add_layer_norm_rms_eps(config.norm.eps)
    writer.add_vocab_size(config.vocab)
    writer.add_tokenizer_model("no_vocab")
    for name, tensor in given.items():
        layer, _, part = name.partition(".")
        # llama.cpp rotates neighbouring elements as a pair; in ours they are half a head apart
        if part in ("query", "key"):
            tensor = tensor.view(-1, 2, sizes.d_head // 2, config.d_model).transpose(1, 2).reshape(tensor.shape)
        named = {"embedding": "token_embd", "norm": "output_norm"}.get(name) or f"blk.{layer}.{TENSORS[part]}"
        tensor = tensor.cpu().float()
        writer.add_tensor(f"{named}.weight", (tensor.half() if half and tensor.ndim > 1 else tensor).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
