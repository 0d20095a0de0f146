"""Stage 3, positions: the frequencies, sinusoidal waves, and rotary positions that may start at any index."""

import torch

from companion_school.build.parts import part
from companion_school.build.simulated_device import on_simulated_device
from companion_school.checking.exercise import Case

_PLACES = {"tie": "the tensor holds positions, which are integers", "levels": "the tensor holds positions, not rows of different sizes",
           "offset": "ten thousand and a half is not a position", "nan": "NaN is not a position"}  # fmt: skip


_EVEN = {"edge": "a width is even, because two components rotate together"}


@part(3, points=2, excused=_EVEN)
def frequencies(code, width, base):
    """The frequencies fall from one radian per position to almost 1 / base."""
    return code.frequencies(width, base)


@frequencies.cases
def _(draw):
    yield Case("two components rotate together, by one radian per step", (2, 10000.0))
    yield Case("each pair rotates more slowly than the one before", (2 * draw.whole(3, 6), 10000.0))
    yield Case("another base", (2 * draw.whole(2, 5), 500.0))


frequencies.mistake(
    "the exponent is positive, so later pairs rotate faster; they must rotate more slowly",
    "(-torch.arange",
    "(torch.arange",
)
frequencies.mistake(
    "there is a frequency for each component; two components form a pair and share one", "arange(0, width, 2,",
    "arange(0, width, 1,",
)  # fmt: skip
frequencies.mistake(
    "the exponent is -i / width instead of -2 i / width, so the frequencies fall too slowly",
    "dtype=torch.float64) / width)",
    "dtype=torch.float64) / width / 2)",
)
frequencies.mistake(
    "the exponent is divided by width - 2; divide it by width",
    "dtype=torch.float64) / width)", "dtype=torch.float64) / max(1, width - 2))",
)  # fmt: skip
frequencies.mistake(
    "the frequencies are float32; angles of far positions need float64",
    "2, dtype=torch.float64",
    "2, dtype=torch.float32",
)
frequencies.mistake(
    "the exponent is divided by width - 1; divide it by width", "dtype=torch.float64) / width)",
    "dtype=torch.float64) / (width - 1))",
)  # fmt: skip
frequencies.mistake(
    "the base is multiplied by 2 i / width; raise it to the power -2 i / width",
    "base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)",
    "1 / (base * torch.arange(0, width, 2, dtype=torch.float64) / width)",
)  # fmt: skip
frequencies.mistake("the base is always 10000", "return base **", "return 10000.0 **")
frequencies.variant(
    """
    def frequencies(width, base=10000.0):
        return torch.tensor([base ** (-2 * i / width) for i in range(width // 2)], dtype=torch.float64)
    """
)
frequencies.variant(
    """
    def frequencies(width, base=10000.0):
        steps = torch.arange(width // 2, dtype=torch.float64)
        return torch.exp(-torch.log(torch.tensor(base, dtype=torch.float64)) * 2 * steps / width)
    """
)


@part(3, points=2, excused=_PLACES | _EVEN)
def waves(code, places, d_model, base):
    """Sinusoidal positions have sines in the even components and the matching cosines in the odd ones."""
    return code.waves(places, d_model, base)


@waves.cases
def _(draw):
    yield Case("at position 0 all sines are 0 and all cosines are 1", (torch.tensor([0]), 4, 10000.0))
    yield Case("place 1", (torch.tensor([1]), 2, 10000.0))
    tokens, half = draw.whole(3, 5), draw.whole(3, 6)  # `tokens` is never 2 * half, so the axes have different sizes
    yield Case("positions in order", (torch.arange(tokens), 2 * half, 10000.0))
    yield Case("positions that start later, with a gap", (draw.wholes(5, 90, tokens), 2 * half, 300.0))


waves.mistake(
    "the sines are in the first half and the cosines in the second; they must alternate",
    "torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)", "torch.cat([angles.sin(), angles.cos()], dim=-1)",
)  # fmt: skip
waves.mistake("sines and cosines are swapped: even components are sines", "[angles.sin(), angles.cos()]",
              "[angles.cos(), angles.sin()]")  # fmt: skip
waves.mistake(
    "the positions start at 1; the first position is 0",
    "places[:, None] * frequencies(d_model",
    "(places[:, None] + 1) * frequencies(d_model",
)
waves.mistake("the positions are always counted from 0; use `places`", "places[:, None] * frequencies(d_model",
              "torch.arange(len(places))[:, None] * frequencies(d_model")  # fmt: skip
waves.mistake("the base is not passed on to the frequencies", "frequencies(d_model, base)", "frequencies(d_model)")  # fmt: skip
waves.mistake("the result is float64; it is added to an embedding, so it must have PyTorch's default dtype",
              ".to(torch.get_default_dtype())", "")  # fmt: skip
waves.mistake(
    "sines and cosines have different angles: components 2 i and 2 i + 1 share one",
    """
    def waves(places, d_model, base=10000.0):
        i = torch.arange(d_model, dtype=torch.float64)
        angles = places[:, None] * base ** (-i / d_model)
        return torch.where(i % 2 == 0, angles.sin(), angles.cos()).to(torch.get_default_dtype())
    """,
)
waves.variant(
    """
    def waves(places, d_model, base=10000.0):
        table = torch.empty(len(places), d_model, dtype=torch.float64)
        angles = torch.outer(places.double(), frequencies(d_model, base))
        table[:, 0::2], table[:, 1::2] = torch.sin(angles), torch.cos(angles)
        return table.to(torch.get_default_dtype())
    """
)


@part(3, points=3)
def rotate(code, x, places, base):
    """Rotary positions rotate each pair of components by the angle for its token's position."""
    return code.rotate(x, places, base)


@rotate.cases
def _(draw):
    batch, heads, tokens, half = draw.sizes(4, 2, 6)
    yield Case("at position 0 nothing is rotated", (draw.normal(1, 1, 1, 2), torch.tensor([0]), 10000.0))
    one = torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float64)
    yield Case(
        "at position 1 the first pair is rotated by one radian, counter-clockwise", (one, torch.tensor([1]), 10000.0)
    )
    pairs = torch.arange(1.0, 5.0, dtype=torch.float64).view(1, 1, 1, 4)
    yield Case("components i and i + d_head / 2 form a pair", (pairs, torch.tensor([2]), 100.0))
    x = draw.normal(batch, heads, tokens, 2 * half)
    yield Case("tokens in order", (x, torch.arange(tokens), 10000.0), gradients=True)
    yield Case("tokens that start later, with gaps", (x, draw.wholes(3, 60, tokens), 500.0))
    yield Case("float32 stays float32", (x.float(), torch.arange(tokens) + 7, 10000.0), gradients=True)
    far = torch.arange(tokens) + 100_003
    yield Case("at position 100,000 angles have lost no digits", (x.float(), far, 10000.0), tolerance=1e-4)


rotate.mistake(
    "neighbouring components form a pair; here components i and i + d_head / 2 do",
    "    a, b = x.chunk(2, dim=-1)\n    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)",
    "    a, b = x[..., 0::2], x[..., 1::2]\n"
    "    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)",
)  # fmt: skip
rotate.mistake("it rotates in the wrong direction, clockwise", "[a * cos - b * sin, a * sin + b * cos]",
               "[a * cos + b * sin, b * cos - a * sin]")  # fmt: skip
rotate.mistake(
    "the second half has the sign of the first: it is a sin + b cos", "a * sin + b * cos", "a * sin - b * cos"
)
rotate.mistake(
    "the first half has the sign of the second: it is a cos - b sin", "a * cos - b * sin", "a * cos + b * sin"
)
rotate.mistake("sine and cosine are swapped", "cos, sin = angles.cos()", "sin, cos = angles.cos()")
rotate.mistake("the positions start at 1; the first position is 0", "angles = places[:, None] * frequencies(x.shape[-1]",
               "angles = (places[:, None] + 1) * frequencies(x.shape[-1]")  # fmt: skip
rotate.mistake("the positions are always counted from 0; use `places`, because with a cache new tokens come later",
               "angles = places[:, None] * frequencies(x.shape[-1]",
               "angles = torch.arange(x.shape[-2])[:, None] * frequencies(x.shape[-1]")  # fmt: skip
rotate.mistake(
    "the base is not passed on to the frequencies", "frequencies(x.shape[-1], base)", "frequencies(x.shape[-1])"
)
rotate.mistake("the frequencies are those of half the width: a pair has base^(-2 i / d_head)",
               "frequencies(x.shape[-1], base)", "frequencies(x.shape[-1] // 2, base).repeat_interleave(2)[: x.shape[-1] // 2]")  # fmt: skip
rotate.mistake(
    "each angle is repeated for two neighbours; components i and i + d_head / 2 share one: repeat the angles with `cat`",
    "    a, b = x.chunk(2, dim=-1)\n    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)",
    "    a, b = x.chunk(2, dim=-1)\n    cos, sin = cos.repeat_interleave(2, dim=-1), sin.repeat_interleave(2, dim=-1)\n"
    "    return x * cos + torch.cat([-b, a], dim=-1) * sin",
)  # fmt: skip
rotate.mistake(
    "the two halves of the result are interleaved; return the first half, then the second",
    "torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)",
    "torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)",
)  # fmt: skip
rotate.mistake(
    "the angle is multiplied by 2 pi; it is the position times the frequency, in radians",
    "angles = places[:, None] * frequencies(x.shape[-1]", "angles = 2 * torch.pi * places[:, None] * frequencies(x.shape[-1]",
)  # fmt: skip
rotate.mistake(
    "the positions run along the heads; angles are (token, pair), `places[:, None]` times the frequencies",
    "angles = places[:, None] * frequencies(x.shape[-1]", "angles = places[:, None, None] * frequencies(x.shape[-1]",
)  # fmt: skip
rotate.mistake("the halves of the result are swapped", "[a * cos - b * sin, a * sin + b * cos]",
               "[a * sin + b * cos, a * cos - b * sin]")  # fmt: skip
rotate.mistake("the angles are float32, which loses their digits far from the beginning",
               "frequencies(x.shape[-1], base).to(places.device)", "frequencies(x.shape[-1], base).float()")  # fmt: skip
rotate.mistake("the result is float64; return the dtype of x", "cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)",
               "cos, sin = angles.cos(), angles.sin()")  # fmt: skip
rotate.variant(
    """
    def rotate(x, places, base=10000.0):
        half = x.shape[-1] // 2
        angles = torch.outer(places.double(), frequencies(x.shape[-1], base)).repeat(1, 2)
        turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
        return x * angles.cos().to(x.dtype) + turned * angles.sin().to(x.dtype)
    """
)
rotate.variant(
    """
    def rotate(x, places, base=10000.0):
        angles = torch.einsum("t,f->tf", places.double(), frequencies(x.shape[-1], base))
        if x.dtype == torch.float64:
            turn = torch.polar(torch.ones_like(angles), angles)
        else:
            turn = torch.complex(angles.cos().to(x.dtype), angles.sin().to(x.dtype))
        pairs = torch.complex(*x.contiguous().chunk(2, dim=-1)) * turn
        return torch.cat([pairs.real, pairs.imag], dim=-1)
    """
)


@part(
    3,
    points=1,
    excused={"levels": "scores in the thousands lose digits", "offset": "scores this large lose even more digits"},
)
def rotate_distance(code, q, k, places, later, base):
    """Scores of rotated queries and keys depend only on the distance between their positions."""
    turned = code.rotate(q, places + later, base) @ code.rotate(k, places + later, base).mT
    return turned, turned - code.rotate(q, places, base) @ code.rotate(k, places, base).mT


@rotate_distance.cases
def _(draw):
    tokens, half = draw.sizes(2, 2, 5)
    q, k = draw.normal(1, 2, tokens, 2 * half), draw.normal(1, 2, tokens, 2 * half)
    yield Case(
        "all positions shifted by the same amount",
        (q, k, torch.arange(tokens), draw.whole(9, 40), 10000.0),
        tolerance=1e-9,
    )


@part(3, points=1, excused=dict.fromkeys(_PLACES | _EVEN | {"other": ""}, "it tests which device the numbers are on"))
def rotate_on_a_GPU(code, x, places, base):
    """Waves and rotations are computed on the device of the positions, such as a GPU."""

    def waves(device):
        return code.waves(places.to(device), x.shape[-1], base).cpu()

    def rotate(device):
        return code.rotate(x.to(device), places.to(device), base).cpu()

    return {"waves": on_simulated_device(waves), "rotate": on_simulated_device(rotate)}


@rotate_on_a_GPU.cases
def _(draw):
    tokens, half = draw.whole(3, 5), draw.whole(3, 6)
    yield Case("positions on a GPU", (draw.normal(1, 2, tokens, 2 * half), torch.arange(tokens), 100.0))


rotate_on_a_GPU.mistake(
    "`rotate` creates its frequencies on the CPU: move them to the device of `places`, `.to(places.device)`",
    "frequencies(x.shape[-1], base).to(places.device)",
    "frequencies(x.shape[-1], base)",
)
rotate_on_a_GPU.mistake(
    "`waves` creates its frequencies on the CPU: move them to the device of `places`, `.to(places.device)`",
    "frequencies(d_model, base).to(places.device)",
    "frequencies(d_model, base)",
)
rotate_on_a_GPU.mistake(
    "`waves` and `rotate` create the frequencies on the CPU: move them to the device of `places`, `.to(places.device)`",
    "frequencies(x.shape[-1], base).to(places.device)",
    "frequencies(x.shape[-1], base)",
    "frequencies(d_model, base).to(places.device)",
    "frequencies(d_model, base)",
)  # fmt: skip
