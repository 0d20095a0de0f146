"""Implementations of attention, which compute the same function of q, k and v with different operations.

The model uses `fused.fused`, which picks one of PyTorch's operators, or `chunked` if a full mask would be large. The
other implementations are for learning (lesson 12) and for measurements. `tiled` shows the method of fused kernels,
`window` computes only the band of a sliding window, and `triton` computes the same tiles in one GPU kernel.
"""
