"""Count the kernels that a compiled decode step launches, by reading the compiler's output instead of running it.

On a GPU, each launch takes a few microseconds, which sets a lower bound on the time of a step with one row (lesson 10).
"""

from __future__ import annotations

import re
from collections import Counter

import torch
from torch import Tensor

from companion.config.model import ModelConfig
from companion.generation.prefill_decode import BUCKET, decode
from companion.layers.cache import KVCache
from companion.transformer import Transformer

FUSED, PRODUCT = r"(cpp_fused\w*|triton_\w+\.run)\(", r"extern_kernels\.(\w+)\("
CALL = re.compile(rf"^\s+(?:\w+ = )?(?:{FUSED}|{PRODUCT}|torch\.ops\.(aten\.\w+)\S*\()", re.M)
PRODUCTS = {"mm", "addmm", "bmm"}


def of_a_step(config: ModelConfig, device: torch.device, dtype: torch.dtype = torch.float32) -> Counter[str]:
    """Count the kernels in a one-row decode step by kind: `"products"`, `"attention"` and `"fused"` loops."""
    import torch._inductor.config
    from torch._inductor.utils import get_code

    model = Transformer(config).to(device, dtype).eval()
    cache = KVCache.create(config, 1, BUCKET, dtype=dtype, device=device, bucket=BUCKET)

    def step(tokens: Tensor) -> Tensor:
        return decode(model, tokens, cache.ready(1).rounded(config.context), None)[0]

    # A graph that comes from the compiler's cache has no source code.
    with torch.inference_mode(), torch._inductor.config.patch(fx_graph_cache=False):
        compiled = torch.compile(step, backend="inductor", fullgraph=True)
        code = "\n".join(get_code(compiled, torch.zeros(1, dtype=torch.long, device=device)))
    found: Counter[str] = Counter()
    for fused, extern, operator in CALL.findall(code[code.index("def call(") :]):
        kind = "products" if extern in PRODUCTS else "attention" if "attention" in operator else "others"
        found["fused" if fused else kind] += 1
    return found


def report(config: ModelConfig, device: torch.device, dtype: torch.dtype = torch.float32) -> str:
    """Return a sentence that says how many kernels each additional layer adds to a decode step."""
    two, one = (of_a_step(config.with_(layers=layers), device, dtype) for layers in (2, 1))
    found = two - one
    parts = ", ".join(f"{number} {kind}" for kind, number in sorted(found.items()))
    return f"a layer of a compiled decode step has {found.total()} kernels: {parts}"
