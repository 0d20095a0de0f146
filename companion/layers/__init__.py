"""The layers of the transformer, one idea a file, in reading order: positions, masks, cache, attention,
efficient, triton_attention, norms, feedforward, moe, balance, block. No file here knows about training, files on disk,
or processes."""
