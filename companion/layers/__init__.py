"""The layers of the transformer, one idea a file, in reading order: positions, masks, attention, cache, norms,
feedforward, moe, block. No file here knows about training, files on disk, or processes."""
