"""Sinusoids, learned positions and both rotary layouts: their formulas, invariances and published equals."""

import math

import pytest
import torch
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as apply_gptj
from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as apply_llama
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

from companion import Learned, half_from_interleaved, rotary_angles, rotate, sinusoidal


def test_sinusoidal_is_the_papers_formula():
    table = sinusoidal(torch.tensor([0, 1, 50]), 6, dtype=torch.float64)
    for row, pos in enumerate((0, 1, 50)):
        for i in range(3):
            angle = pos / 10000 ** (2 * i / 6)
            assert table[row, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[row, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)


def test_sines_first_is_the_same_table_in_marians_order_and_precise_at_its_longest():
    positions = torch.arange(512)
    beside, first = (sinusoidal(positions, 16, layout=layout) for layout in ("interleaved", "half"))
    torch.testing.assert_close(first[:, :8], beside[:, 0::2])
    torch.testing.assert_close(first[:, 8:], beside[:, 1::2])
    theirs = MarianSinusoidalPositionalEmbedding(512, 16).create_weight()
    torch.testing.assert_close(first, theirs, atol=5e-5, rtol=0)


def test_learned_positions_are_rows_of_a_table():
    learned = Learned(context=9, d_model=4)
    positions = torch.tensor([[3, 4], [0, 8]])
    assert torch.equal(learned(positions), learned.weight[positions])


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_rotated_score_depends_on_distance_alone_and_norms_are_kept(layout):
    torch.manual_seed(0)
    q, k = torch.randn(2, 3, 5, 8, dtype=torch.float64), torch.randn(2, 3, 5, 8, dtype=torch.float64)

    def scores(shift):
        angles = rotary_angles(torch.arange(5) + shift, 8, dtype=torch.float64)
        return rotate(q, angles, layout) @ rotate(k, angles, layout).transpose(-2, -1)

    torch.testing.assert_close(scores(0), scores(137), atol=1e-10, rtol=0)
    angles = rotary_angles(torch.arange(5), 8, dtype=torch.float64)
    torch.testing.assert_close(rotate(q, angles, layout).norm(dim=-1), q.norm(dim=-1))
    assert torch.equal(rotate(q, angles, layout)[:, :, 0], q[:, :, 0])  # position 0 does not turn


def test_one_pair_turns_by_position_times_frequency():
    x = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64).view(1, 1, 1, 4)
    out = rotate(x, rotary_angles(torch.tensor([3]), 4, dtype=torch.float64), "interleaved").flatten()
    slow = 3 * 10000**-0.5
    assert out.tolist() == pytest.approx([math.cos(3), math.sin(3), math.cos(slow), math.sin(slow)], abs=1e-12)


def test_each_row_of_a_batch_has_positions_of_its_own():
    x = torch.randn(2, 3, 4, 6)
    positions = torch.tensor([[0, 1, 2, 3], [7, 8, 9, 10]])
    both = rotate(x, rotary_angles(positions, 6))
    for row in range(2):
        alone = rotate(x[row : row + 1], rotary_angles(positions[row], 6))
        torch.testing.assert_close(both[row : row + 1], alone)


def test_half_layout_equals_llama():
    x, y = torch.randn(2, 4, 5, 6), torch.randn(2, 2, 5, 6)
    angles = rotary_angles(torch.arange(5), 6)
    cos, sin = (torch.cat((f(angles), f(angles)), dim=-1)[None] for f in (torch.cos, torch.sin))
    q, k = apply_llama(x, y, cos, sin)
    torch.testing.assert_close(rotate(x, angles, "half"), q, atol=1e-6, rtol=0)
    torch.testing.assert_close(rotate(y, angles, "half"), k, atol=1e-6, rtol=0)


def test_interleaved_layout_equals_gptj():
    x = torch.randn(2, 4, 5, 6)
    sin, cos = create_sinusoidal_positions(5, 6)[None].chunk(2, dim=-1)
    theirs = apply_gptj(x.transpose(1, 2), sin, cos).transpose(1, 2)
    torch.testing.assert_close(rotate(x, rotary_angles(torch.arange(5), 6), "interleaved"), theirs, atol=1e-6, rtol=0)


def test_the_layouts_are_one_up_to_a_permutation_and_differ_without_it():
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    angles = rotary_angles(torch.arange(5), 8, dtype=torch.float64)
    p = half_from_interleaved(8)
    torch.testing.assert_close(rotate(x, angles, "interleaved")[..., p], rotate(x[..., p], angles, "half"))
    assert not torch.allclose(rotate(x, angles, "interleaved"), rotate(x, angles, "half"))


def test_half_precision_keeps_neighbouring_positions_apart():
    far = torch.tensor([4000, 4001])
    low = sinusoidal(far, 8, dtype=torch.bfloat16).double()
    exact = sinusoidal(far, 8, dtype=torch.float64)
    assert (low - exact).abs().max() < 0.01
    assert not torch.equal(low[0], low[1])


@pytest.mark.parametrize("call", [lambda: rotary_angles(torch.arange(2), 5), lambda: half_from_interleaved(5)])
def test_odd_head_width_is_refused(call):
    with pytest.raises(ValueError, match="d_head=5: expected an even width"):
        call()


def test_odd_model_width_and_unknown_layout_are_refused(unchecked):
    with pytest.raises(ValueError, match="d_model=7: expected an even width"):
        sinusoidal(torch.arange(2), 7)
    with pytest.raises(ValueError, match="layout='quarter'"):
        rotate(torch.zeros(1, 1, 2, 4), rotary_angles(torch.arange(2), 4), "quarter")
    with pytest.raises(ValueError, match="layout='quarter'"):
        sinusoidal(torch.arange(2), 4, layout="quarter")
