"""The layers of the transformer, one idea a file. No file here knows about training, files on disk, or processes.

In reading order: positions, masks, attention, latent (keys and values of one small vector), cache, rolling (a cache of
local layers) and paged (one in blocks that texts share), norms, feedforward, routing, moe, experts, balance, block. Of
one family alone: bert. Beside a matrix that stays: low_rank. Another function in attention's place: linear, its layer
delta, and what a cache keeps of it, states. How attention is computed: kernels.
"""
