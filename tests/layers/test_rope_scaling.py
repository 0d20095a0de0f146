"""Scaled and partial rotary positions: equations, worked examples, and the functions that released models use."""

import math

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.phi3.modeling_phi3 import apply_rotary_pos_emb as apply_partly

from companion import PositionConfig, RotaryScaling, rotary_angles, rotate
from companion.layers.positions import Rotary, frequencies, magnitude_of, scaled_frequencies

PLACES = torch.arange(7.0)
# Our settings, each with the form that it has in released configurations
SCALINGS = {
    "linear": (RotaryScaling("linear", 8.0), {"factor": 8.0}),
    "yarn": (RotaryScaling("yarn", 4.0, 32768), {"factor": 4.0, "original_max_position_embeddings": 32768}),
    "yarn, all its fields": (
        RotaryScaling("yarn", 40.0, 4096, slow=0.5, fast=16.0, magnitude=1.25, whole=False),
        {
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "beta_slow": 0.5,
            "beta_fast": 16.0,
            "attention_factor": 1.25,
            "truncate": False,
        },
    ),
    "llama3": (
        RotaryScaling("llama3", 32.0, 8192),
        {
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    "llama3, other turns": (
        RotaryScaling("llama3", 8.0, 512, slow=2.0, fast=3.0),
        {"factor": 8.0, "low_freq_factor": 2.0, "high_freq_factor": 3.0, "original_max_position_embeddings": 512},
    ),
}


def theirs(kind, fields, base, width, context=131072):
    """Return the frequencies and the factor that `transformers` computes for these fields."""
    rope = {"rope_type": kind, "rope_theta": base} | fields
    config = transformers.LlamaConfig(head_dim=width, rope_parameters=rope, max_position_embeddings=context)
    return ROPE_INIT_FUNCTIONS[kind](config, "cpu")


@pytest.mark.parametrize("width", [64, 96])
@pytest.mark.parametrize("base", [1e4, 5e5])
@pytest.mark.parametrize(("ours", "fields"), SCALINGS.values(), ids=SCALINGS)
def test_frequencies_are_those_of_transformers(ours, fields, base, width):
    wanted, factor = theirs(ours.kind, fields, base, width)
    found = scaled_frequencies(width, base, ours, PLACES)
    torch.testing.assert_close(found, wanted, rtol=2e-6, atol=0)
    assert magnitude_of(ours) == pytest.approx(factor)
    plain = frequencies(width, base, PLACES)
    assert (found <= plain * (1 + 1e-6)).all() and not torch.allclose(found, plain)
    assert torch.equal(found[0], plain[0]) or ours.kind == "linear"  # the fastest pair is unchanged


def test_the_ramp_of_yarn_may_end_behind_the_last_pair():
    scaling = RotaryScaling("yarn", 4.0, 64, slow=1.0, fast=2.0)
    fields = {"factor": 4.0, "original_max_position_embeddings": 64, "beta_slow": 1.0, "beta_fast": 2.0}
    wanted, _ = theirs("yarn", fields, 10.0, 8)
    found = scaled_frequencies(8, 10.0, scaling, PLACES)
    torch.testing.assert_close(found, wanted, rtol=2e-6, atol=0)
    assert found[3] > frequencies(8, 10.0, PLACES)[3] / 4  # the slowest pair is only partly scaled


def test_llama3_slows_down_by_turns():
    """Worked by hand: with C = 628, base 10^4 and d = 8, the pairs make 99.9, 10, 1 and 0.1 rotations in C."""
    scaling = RotaryScaling("llama3", 10.0, 628, slow=0.5, fast=2.5)
    turns = [628 * 10.0**-j / (2 * math.pi) for j in range(4)]
    kept = [1.0, 1.0, (turns[2] - 0.5) / 2, 0.0]
    wanted = [(1 - g) * 10.0**-j / 10 + g * 10.0**-j for j, g in enumerate(kept)]
    found = scaled_frequencies(8, 1e4, scaling, PLACES.double())
    assert found.tolist() == pytest.approx(wanted, rel=1e-12)
    assert 0.2 < kept[2] < 0.3


def test_dynamic_stretches_the_base_only_for_texts_that_are_too_long():
    scaling, plain = RotaryScaling("dynamic", 2.0, 16), frequencies(8, 1e4, PLACES)
    torch.testing.assert_close(scaled_frequencies(8, 1e4, scaling, torch.arange(16.0)), plain)
    long = scaled_frequencies(8, 1e4, scaling, torch.arange(24.0))
    larger = 1e4 * (2 * 24 / 16 - 1) ** (8 / 6)  # for 24 tokens
    torch.testing.assert_close(long, frequencies(8, larger, PLACES))
    wanted, _ = ROPE_INIT_FUNCTIONS["dynamic"](
        transformers.LlamaConfig(
            head_dim=8,
            rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
            max_position_embeddings=16,
        ),
        "cpu",
        seq_len=24,
    )
    torch.testing.assert_close(long, wanted)
    rows = torch.stack([torch.arange(8.0), torch.arange(16.0, 24.0)])  # each row uses its own largest position
    both = scaled_frequencies(8, 1e4, scaling, rows)
    torch.testing.assert_close(both, torch.stack([plain, long])[:, None])
    # Base^0 does not depend on the base
    assert torch.equal(scaled_frequencies(2, 1e4, scaling, torch.arange(24.0)), torch.ones(1))


def test_longrope_divides_by_one_list_within_the_first_context_and_by_another_beyond():
    scaling = RotaryScaling("longrope", 8.0, 16, short=(1.0, 1.25, 2.0, 4.0), long=(1, 2.5, 5.0, 32.0))
    plain = frequencies(8, 1e4, PLACES)
    short, long = (plain / plain.new_tensor(divisors) for divisors in (scaling.short, scaling.long))
    fields = {"short_factor": list(scaling.short), "long_factor": list(scaling.long), "factor": 8.0}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 16} | fields
    config = transformers.LlamaConfig(head_dim=8, rope_parameters=rope, max_position_embeddings=128)
    for length, mine in ((16, short), (17, long)):
        wanted, factor = ROPE_INIT_FUNCTIONS["longrope"](config, "cpu", seq_len=length)
        found = scaled_frequencies(8, 1e4, scaling, torch.arange(float(length)))
        torch.testing.assert_close(found, mine)
        torch.testing.assert_close(found, wanted, rtol=2e-6, atol=0)
        assert magnitude_of(scaling) == pytest.approx(factor) == pytest.approx((1 + math.log(8) / math.log(16)) ** 0.5)
    rows = torch.stack([torch.arange(9.0, 17.0), torch.arange(8.0)])  # each row uses its own largest position
    torch.testing.assert_close(scaled_frequencies(8, 1e4, scaling, rows), torch.stack([long, short])[:, None])
    assert magnitude_of(RotaryScaling("longrope", 8.0, 16, magnitude=1.5, short=(1.0,), long=(2.0,))) == 1.5


def test_a_ramp_of_yarn_from_the_smallest_to_the_largest_number_stays_finite():
    for base in (1 + 1e-15, 1e4):
        scaling = RotaryScaling("yarn", 4.0, 64, slow=5e-324, fast=1.7e308)
        assert scaled_frequencies(8, base, scaling, torch.arange(5.0)).isfinite().all()


def test_yarn_stretches_what_it_turns():
    rotary = Rotary.of(PositionConfig(scaling=RotaryScaling("yarn", 4.0, 64)), 8)
    x = torch.randn(2, 3, 7, 8, dtype=torch.float64)
    turned = rotary.turn(x, rotary.at(torch.arange(7), torch.float64))
    torch.testing.assert_close(turned, turned.new_tensor(0.1 * math.log(4) + 1) * rotate(x, _angles(rotary)))
    torch.testing.assert_close(turned.norm(dim=-1), (0.1 * math.log(4) + 1) * x.norm(dim=-1))


def _angles(rotary):
    places = torch.arange(7, dtype=torch.float64)
    return places[:, None] * scaled_frequencies(rotary.turned, rotary.base, rotary.scaling, places)


def test_a_part_of_each_head_is_turned_and_the_rest_passes():
    rotary = Rotary.of(PositionConfig(partial_rotary_factor=0.75), 8)
    x, y = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8)
    by = rotary.at(torch.arange(5), torch.float32)
    angles = rotary_angles(torch.arange(5), 6)  # frequencies for the width that is rotated
    cos, sin = (torch.cat((f(angles), f(angles)), dim=-1)[None] for f in (torch.cos, torch.sin))
    q, k = apply_partly(x, y, cos, sin)
    torch.testing.assert_close(rotary.turn(x, by), q, atol=1e-6, rtol=0)
    torch.testing.assert_close(rotary.turn(y, by), k, atol=1e-6, rtol=0)
    assert torch.equal(rotary.turn(x, by)[..., 6:], x[..., 6:])


def test_a_part_that_is_turned_slower():
    rotary = Rotary.of(PositionConfig(partial_rotary_factor=0.75, scaling=RotaryScaling("linear", 4.0)), 8)
    x = torch.randn(2, 3, 5, 8)
    turned = rotary.turn(x, rotary.at(torch.arange(5), x.dtype))
    slower = rotate(x[..., :6], rotary_angles(torch.arange(5), 6) / 4)  # frequencies for the width that is rotated
    torch.testing.assert_close(turned, torch.cat((slower, x[..., 6:]), -1))


def test_without_scaling_or_share_turning_is_rotate_itself():
    rotary, x = Rotary(6), torch.randn(2, 3, 5, 6)
    angles = rotary_angles(torch.arange(5), 6)
    assert torch.equal(rotary.turn(x, rotary.at(torch.arange(5), x.dtype)), rotate(x, angles))
    with pytest.raises(ValueError, match=r"angles has shape \(1, 3\): expected \(token, pair\), \(5, 3\)"):
        rotary.turn(x, rotary.at(torch.arange(1), x.dtype))


def test_an_odd_part_is_refused():
    with pytest.raises(ValueError, match="width=3: expected an even width"):
        Rotary(8, width=3)
