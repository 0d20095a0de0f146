"""Layers of the transformer, one idea per file. No file here depends on training, files on disk, or processes.

positions         the order of tokens: learned, sinusoidal, relative, rotary and its scalings (YaRN)
masks             which tokens may attend to which
attention         `attend`, and the layer around it: heads, grouped queries, windows, sinks
kernels/          other implementations of the same function
latent            keys and values computed from one small vector
cache             keys and values of earlier tokens; rolling_cache: of local layers; paged_cache: in blocks
norms             LayerNorm and RMSNorm
feedforward       the feed-forward network of a block
routing           which experts a token visits; balance: how to load them evenly
moe               a mixture of experts; experts: how expert outputs are computed
block             one block; stack: an encoder or a decoder without embeddings and head
linear_attention  attention without a softmax; gated_delta_net: its layer; recurrent_cache: its recurrent state
low_rank          a low-rank update beside a frozen matrix (LoRA)
medusa_heads      predictions of later tokens
bert              the layers that only BERT has after its blocks
"""
