"""Stage 16, quantized: levels and scales, two levels in a byte, a linear layer, a whole model and its size."""

import torch

from companion_school.build.checks import USUAL
from companion_school.build.isolated_modules import default_dtype
from companion_school.build.parts import part
from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case


@part(16, points=3, excused=USUAL)
def quantize(code, weight, bits, group):
    """A matrix is rounded to levels, with a scale for each group."""
    levels, scales = code.quantize(weight, bits, group)
    return {"levels": levels.long(), "scales": scales.double(), "dtypes": [str(levels.dtype), str(scales.dtype)]}


@quantize.cases
def _(draw):
    yield Case("one group of four, by hand", (torch.tensor([[0.7, -1.4, 0.1, 0.31]], dtype=torch.float64), 4, 4))
    yield Case(
        "two groups, each with its own scale", (torch.tensor([[0.1, -0.7, 7.0, 2.2]], dtype=torch.float64), 4, 2)
    )
    yield Case("eight bits", (torch.tensor([[1.0, -1.27, 0.004, 0.5]], dtype=torch.float64), 8, 4))
    rows, groups = draw.sizes(2, 2, 5)
    yield Case("several rows and groups", (draw.normal(rows, 6 * groups, dtype=torch.float32), 4, 6))
    yield Case("a group of zeros", (torch.zeros(2, 4), 8, 2))
    yield Case("scales are rounded before they are used", (draw.normal(40, 64, dtype=torch.float32), 8, 32))


quantize.mistake(
    "the scale comes from the largest entry: use the largest absolute value",
    "groups.abs().amax(-1)",
    "groups.amax(-1).abs()",
)
quantize.mistake(
    "the scale maps the largest magnitude to 2^(bits - 1), which is one level too many",
    "2 ** (bits - 1) - 1",
    "2 ** (bits - 1)",
)
quantize.mistake(
    "the scale assumes 2^bits - 1 positive levels, but half of the levels are negative",
    "(2 ** (bits - 1) - 1)",
    "(2**bits - 1)",
)
quantize.mistake("levels are truncated: round to the nearest", ".round().to(torch.int8)", ".to(torch.int8)")
quantize.mistake("levels are rounded down: round to the nearest", ".round().to(torch.int8)", ".floor().to(torch.int8)")
quantize.mistake("all groups share a scale", "groups.abs().amax(-1)", "groups.abs().amax().expand(groups.shape[:-1])")
quantize.mistake(
    "a row has only one scale: give each group its own",
    "groups.abs().amax(-1)",
    "groups.abs().amax((-1, -2), keepdim=True)[..., 0].expand(groups.shape[:-1])",
)
quantize.mistake(
    "a group of zeros has the scale 0, and 0 / 0 is NaN: the smallest scale is 2^-14", ".clamp(min=2**-14)", ""
)
quantize.mistake("levels are computed before the scales are rounded to float16: round the scales first",
                 "    return (groups / scales[..., None].to(weight.dtype)).round()",
                 "    exact = (groups.abs().amax(-1) / (2 ** (bits - 1) - 1)).clamp(min=2**-14)\n    return (groups / exact[..., None]).round()")  # fmt: skip
quantize.mistake("a group runs down a column; it must be neighbouring weights of a row", "weight.unflatten(-1, (-1, group))",
                 "weight.T.contiguous().view(weight.shape[0], -1, group)")  # fmt: skip
quantize.mistake(
    "the largest magnitude is taken across the groups; take it within each group, along the last axis",
    "groups.abs().amax(-1)",
    "groups.abs().amax(-2)",
)
quantize.mistake("the scales are not in float16", ".clamp(min=2**-14).half()", ".clamp(min=2**-14)")
quantize.mistake(
    "the scale comes from the largest minus the smallest; compute it from the largest magnitude",
    "groups.abs().amax(-1) / (2 ** (bits - 1) - 1)",
    "(groups.amax(-1) - groups.amin(-1)) / (2**bits - 1)",
)
quantize.mistake(
    "the levels are uint8, which has no negative numbers: use int8",
    ".round().to(torch.int8).flatten(-2)",
    ".round().to(torch.uint8).flatten(-2)",
)
quantize.mistake(
    "the levels are still in groups: flatten them to (out, in)",
    ".round().to(torch.int8).flatten(-2)",
    ".round().to(torch.int8)",
)
quantize.mistake(
    "the scale comes from the mean magnitude; compute it from the largest",
    "groups.abs().amax(-1)",
    "groups.abs().mean(-1)",
)
quantize.mistake(
    "`group` is used as the number of groups; it is the number of weights in each",
    "weight.unflatten(-1, (-1, group))",
    "weight.unflatten(-1, (group, -1))",
)
quantize.variant(
    """
    def quantize(weight, bits, group):
        rows, columns = weight.shape
        most, levels, scales = 2 ** (bits - 1) - 1, [], []
        for row in weight:
            for part in row.split(group):
                scale = max(float(part.abs().max()) / most, 2.0**-14)
                scale = torch.tensor(scale, dtype=weight.dtype).half()
                scales.append(scale)
                levels.append(torch.round(part / scale.to(weight.dtype)).char())
        return torch.cat(levels).reshape(rows, columns), torch.stack(scales).reshape(rows, columns // group)
    """
)


@part(16, points=1, excused=USUAL)
def dequantize(code, levels, scales):
    """Levels and scales become weights again."""
    return code.dequantize(levels, scales)


@dequantize.cases
def _(draw):
    yield Case("two groups", (torch.tensor([[1, -2, 3, 4]], dtype=torch.int8), torch.tensor([[0.5, 2.0]]).half()))
    yield Case("several rows", (draw.wholes(-7, 7, 3, 8).to(torch.int8), draw.uniform(3, 2).half()))
    groups = draw.whole(9, 12)
    yield Case(LARGE, (draw.wholes(-7, 7, 3, 4 * groups).to(torch.int8), draw.uniform(3, groups).half()))


dequantize.mistake(
    "the weights are computed in float16, which rounds again: compute them in float32",
    "scales[..., None].float()",
    "scales[..., None]",
)
dequantize.mistake("each scale belongs to neighbouring weights of a row, not to every second one", "(levels.unflatten(-1, (scales.shape[-1], -1)) * scales[..., None].float()).flatten(-2)",
                   "(levels.unflatten(-1, (-1, scales.shape[-1])) * scales[:, None].float()).flatten(-2)")  # fmt: skip
dequantize.mistake(
    "levels are divided by their scale: multiply", "* scales[..., None].float()", "/ scales[..., None].float()"
)
dequantize.mistake(
    "every group uses the first scale of its row; each has its own",
    "scales[..., None].float()).flatten(-2)",
    "scales[..., :1, None].float()).flatten(-2)",
)
dequantize.variant(
    """
    def dequantize(levels, scales):
        group = levels.shape[1] // scales.shape[1]
        return levels.float() * scales.float().repeat_interleave(group, dim=1)
    """
)


@part(16, points=2, excused=USUAL)
def pack(code, levels):
    """Two four-bit levels are packed into one byte, and unpacked again."""
    packed = code.pack(levels)
    return {"packed": packed.long(), "dtype": str(packed.dtype), "unpacked": code.unpack(packed).long()}


@pack.cases
def _(draw):
    yield Case("1 and -2: 9 in the low half, 6 in the high half", (torch.tensor([[1, -2]], dtype=torch.int8),))
    yield Case("the smallest and the largest", (torch.tensor([[-7, 7, 7, -7]], dtype=torch.int8),))
    yield Case("several rows", (draw.wholes(-7, 7, 3, 10).to(torch.int8),))
    yield Case(LARGE, (draw.wholes(-7, 7, 2, 2 * draw.whole(17, 20)).to(torch.int8),))


pack.mistake(
    "the first level is in the high half",
    "return first | second << 4",
    "return second | first << 4",
    "[packed & 15, packed >> 4]",
    "[packed >> 4, packed & 15]",
)
pack.mistake("8 is not added, but four bits cannot hold a negative level", "(levels + 8).to(torch.uint8)", "(levels & 15).to(torch.uint8)",
             ".to(torch.int8) - 8", ".to(torch.int8)")  # fmt: skip
pack.mistake("`unpack` does not subtract 8 again", ".to(torch.int8) - 8", ".to(torch.int8)")
pack.mistake("`unpack` swaps the two halves", "[packed & 15, packed >> 4]", "[packed >> 4, packed & 15]")
pack.mistake("a byte holds levels from both halves of the row: neighbours must share a byte",
             "(levels + 8).to(torch.uint8).unflatten(-1, (-1, 2)).unbind(-1)", "(levels + 8).to(torch.uint8).chunk(2, dim=-1)",
             "torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)", "torch.cat([packed & 15, packed >> 4], dim=-1)")  # fmt: skip
pack.mistake(
    "7 is added instead of 8",
    "(levels + 8).to(torch.uint8)",
    "(levels + 7).to(torch.uint8)",
    ".to(torch.int8) - 8",
    ".to(torch.int8) - 7",
)
pack.mistake(
    "the second level is shifted by three bits; shift it by four", "first | second << 4", "first | second << 3"
)
pack.mistake(
    "8 is subtracted in uint8, which has no negative numbers: convert to int8 first",
    ".flatten(-2).to(torch.int8) - 8",
    ".flatten(-2) - 8",
)
pack.variant(
    """
    def pack(levels):
        shifted = (levels.int() + 8)
        return (shifted[:, ::2] + 16 * shifted[:, 1::2]).to(torch.uint8)
    """
)
pack.variant(
    """
    def unpack(packed):
        back = torch.empty(packed.shape[0], 2 * packed.shape[1], dtype=torch.int8)
        back[:, ::2], back[:, 1::2] = (packed % 16).char() - 8, (packed // 16).char() - 8
        return back
    """
)


@part(16, points=2, excused=USUAL)
def QuantizedLinear(code, x, weight, bits, group):
    """A linear layer with rounded weights has the right output, buffers and gradients."""
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    linear.weight.data.copy_(weight)
    layer = code.QuantizedLinear(linear, bits, group)
    kept = {name: str(buffer.dtype) for name, buffer in layer.named_buffers()}
    return {
        "its output": layer(x),
        "its buffers": sorted(kept.items()),
        "buffers that require gradients": any(buffer.requires_grad for buffer in layer.buffers()),
        "its parameters": len(list(layer.parameters())),
    }


@QuantizedLinear.cases
def _(draw):
    yield Case("eight bits", (draw.normal(2, 3, 8, dtype=torch.float32), draw.normal(5, 8, dtype=torch.float32), 8, 4))
    yield Case("four bits", (draw.normal(2, 3, 8, dtype=torch.float32), draw.normal(5, 8, dtype=torch.float32), 4, 4))
    yield Case(
        "inputs of another dtype give results of that dtype",
        (draw.normal(1, 8).bfloat16(), draw.normal(4, 8).bfloat16(), 8, 8),
    )
    wide = 4 * draw.whole(9, 12)
    yield Case(LARGE, (draw.normal(2, wide, dtype=torch.float32), draw.normal(5, wide, dtype=torch.float32), 8, 4))


QuantizedLinear.mistake("the weights are stored without rounding", "levels, scales = quantize(linear.weight.detach(), bits, group)",
                        "levels, scales = quantize(linear.weight.detach(), bits, group)\n        self.weight = linear.weight.detach()",
                        "return x @ dequantize(levels, self.scales).to(x.dtype).T", "return x @ self.weight.T")  # fmt: skip
QuantizedLinear.mistake("four bits are not packed: each level takes a byte", "pack(levels) if bits == 4 else levels)", "levels)",
                        "unpack(self.levels) if self.bits == 4 else self.levels", "self.levels")  # fmt: skip
QuantizedLinear.mistake("the weights are not transposed", ".to(x.dtype).T", ".to(x.dtype).reshape(x.shape[-1], -1)")
QuantizedLinear.mistake(
    "the levels are multiplied without their scales",
    "dequantize(levels, self.scales)",
    "dequantize(levels, torch.ones_like(self.scales))",
)
QuantizedLinear.mistake("levels and scales are plain tensors, which `to` and saved files ignore: use `register_buffer`",
                        'self.register_buffer("levels", pack(levels) if bits == 4 else levels)', "self.levels = pack(levels) if bits == 4 else levels",
                        'self.register_buffer("scales", scales)', "self.scales = scales")  # fmt: skip
QuantizedLinear.mistake(
    "levels of eight bits are packed, too; only four bits fit twice into a byte",
    "pack(levels) if bits == 4 else levels)",
    "pack(levels))",
)
QuantizedLinear.mistake(
    "the output is float32; return the dtype of x",
    "dequantize(levels, self.scales).to(x.dtype).T",
    "dequantize(levels, self.scales).T",
    "return x @",
    "return x.float() @",
)
QuantizedLinear.mistake(
    "the buffers are connected to the old weight's gradients: `detach` it before you round it",
    "quantize(linear.weight.detach(), bits, group)",
    "quantize(linear.weight, bits, group)",
)
QuantizedLinear.variant(
    """
    class QuantizedLinear(nn.Module):
        def __init__(self, linear, bits, group):
            super().__init__()
            with torch.no_grad():
                levels, scales = quantize(linear.weight, bits, group)
            self.packed = bits == 4
            self.register_buffer("levels", pack(levels) if self.packed else levels)
            self.register_buffer("scales", scales)

        def forward(self, x):
            weight = dequantize(unpack(self.levels) if self.packed else self.levels, self.scales)
            return nn.functional.linear(x, weight.to(x.dtype))
    """
)


@part(16, points=2, excused=USUAL)
def quantize_model(code, bits, group, ids):
    """All linear layers of a decoder are rounded; its logits and its size in bytes are right."""
    model = code["model"]
    torch.manual_seed(5)
    with default_dtype(torch.float32), torch.no_grad():
        own = model.Transformer(model.Config(13, 16, 2, 4, 2, 24))
        own.head = torch.nn.Linear(16, 13, bias=False)  # outside the decoder, as in some models of stage 10
        before = code.bytes_of(own)
        made = code.quantize_model(own, bits, group)
        logits = made(ids)
    kinds = {name: type(module).__name__ for name, module in made.named_modules() if not list(module.children())}
    return {"the same model": made is own, "bytes before and after": [before, code.bytes_of(made)], "its layers": sorted(kinds.items()),
            "the logits": logits}  # fmt: skip


@quantize_model.cases
def _(draw):
    ids = draw.wholes(0, 12, 2, 5)
    yield Case("eight bits", (8, 4, ids), tolerance=1e-4)
    yield Case("four bits", (4, 8, ids), tolerance=1e-4)
    yield Case(LARGE, (8, 4, draw.wholes(0, 12, 1, draw.whole(33, 40))), tolerance=1e-4)


quantize_model.mistake("only the attention is rounded: round the network's linear layers, too", "for module in list(model.decoder.modules()):",
                       "for module in [block.attention for block in model.decoder.blocks]:")  # fmt: skip
quantize_model.mistake(
    "only the first block is rounded", "list(model.decoder.modules())", "list(model.decoder.blocks[0].modules())"
)
quantize_model.mistake(
    "bits and group are not passed on", "QuantizedLinear(child, bits, group)", "QuantizedLinear(child, 8, 16)"
)
quantize_model.mistake(
    "buffers are not counted: the rounded weights are buffers",
    "(*model.parameters(), *model.buffers())",
    "model.parameters()",
)
quantize_model.mistake("only the direct children of a block are replaced; its linear layers are nested deeper: go through all `modules()`",
                       "list(model.decoder.modules())", "list(model.decoder.blocks)")  # fmt: skip
quantize_model.mistake(
    "bits and group are swapped", "QuantizedLinear(child, bits, group)", "QuantizedLinear(child, group, bits)"
)
quantize_model.mistake("every element is counted as four bytes", "x.numel() * x.element_size()", "x.numel() * 4")
quantize_model.mistake("you count elements; count bytes", "x.numel() * x.element_size()", "x.numel()")
quantize_model.mistake(
    "a head outside the decoder is rounded, too; round only the decoder's layers",
    "list(model.decoder.modules())",
    "list(model.modules())",
)
quantize_model.mistake(
    "parameters are not counted: the embedding and the norms are parameters",
    "(*model.parameters(), *model.buffers())",
    "model.buffers()",
)
quantize_model.variant(
    """
    def quantize_model(model, bits, group):
        def replace(module):
            for name, child in module.named_children():
                if isinstance(child, nn.Linear):
                    module._modules[name] = QuantizedLinear(child, bits, group)
                else:
                    replace(child)

        replace(model.decoder)
        return model
    """
)
