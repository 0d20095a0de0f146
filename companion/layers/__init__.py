"""The layers of the transformer, one idea a file. No file here knows about training, files on disk, or processes.

In reading order: positions, masks, cache, attention, norms, feedforward, moe, balance, block, bert. Other ways to
compute attention: tiled, window, linear, flex_attention, triton_attention. Underneath: wide.
"""
