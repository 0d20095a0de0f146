"""Banded attention equals `attend` with a window as its mask."""

import pytest
from heads import assert_same, heads
from hypothesis import given, settings
from hypothesis import strategies as st

from companion import attend
from companion.costs.account import counted_flops
from companion.layers.kernels.window import sliding_window_attention
from companion.layers.masks import window


@settings(max_examples=60, deadline=None)
@given(
    query=st.integers(1, 12),
    key=st.integers(1, 12),
    width=st.integers(1, 14),
    block=st.sampled_from([None, 1, 2, 5, 20]),
    kv_head=st.sampled_from([1, 2, 4]),
)
def test_the_band_equals_the_mask(query, key, width, block, kv_head):
    q, k, v = heads(query, key, kv_head, grad=True)
    ours = sliding_window_attention(q, k, v, width, block=block)
    assert_same(ours, attend(q, k, v, mask=window(width)), (q, k, v))


def test_the_band_costs_its_width_times_the_length():
    cost = {}
    for n in (128, 256):
        q, k, v = heads(n, n)
        cost[n] = counted_flops(lambda x=(q, k, v): sliding_window_attention(*x, 16, block=16))
        assert cost[n] == 3 * 4 * n * 2 * (16 + 16 - 1) * (6 + 8)
    q, k, v = heads(1, 256)  # decoding: one query reads the last 16 keys
    assert counted_flops(lambda: sliding_window_attention(q, k, v, 16)) == 3 * 4 * 2 * 16 * (6 + 8)


def test_a_window_and_a_block_have_at_least_one_token():
    for name in ("width", "block"):
        with pytest.raises(ValueError, match=f"{name}=0"):
            sliding_window_attention(*heads(), **{"width": 3, name: 0})
