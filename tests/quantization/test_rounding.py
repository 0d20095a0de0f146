"""Quantized weights: bounds on the error of each entry."""

import torch

from companion.quantization.rounding import in_eight_bits


def test_a_row_in_8_bits_is_off_by_half_a_step_at_most_and_a_row_of_zeros_stays():
    matrix = torch.randn(3, 7, 5) * torch.logspace(-4, 3, 7)[:, None]
    matrix[1, 2] = 0
    whole, scale = in_eight_bits(matrix)
    assert whole.dtype == torch.int8 and scale.shape == (3, 7)
    assert ((whole * scale[..., None] - matrix).abs() <= 0.5001 * scale[..., None]).all()
    assert (whole[1, 2] == 0).all() and (whole.abs().amax(-1)[0] == 127).all()
