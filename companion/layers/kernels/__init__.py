"""Ways to compute attention: one function of q, k and v, by other operations.

`fused.fused` is what the model takes: it chooses among PyTorch's operators, and `chunked` where a table of all pairs
would be large. The others stand beside the model, to learn from (lesson 12) and to measure: `tiled` is the method of
fused kernels in the open, `window` the band of a sliding window alone, and `triton` the same tiles as one GPU kernel.
"""
