"""Layers of the transformer, one idea per file. No module here depends on training, files on disk or other processes.

positions         position encodings: learned, sinusoidal, relative, and rotary with its scalings (such as YaRN)
masks             which tokens may attend to which
attention         `attend`, and the layer around it: heads, grouped queries, windows, sinks
kernels/          other implementations of `attend`
latent            keys and values computed from one small vector
cache             keys and values of earlier tokens; rolling_cache: for local layers; paged_cache: in blocks
norms             LayerNorm and RMSNorm
feedforward       the feed-forward network of a block
routing           which experts a token visits; balance: how to keep their loads even
moe               a mixture of experts; experts: how expert outputs are computed
block             one block; stack: an encoder or a decoder without embeddings and head
linear_attention  attention without a softmax; gated_delta_net: the layer around it; recurrent_cache: its state
low_rank          a frozen matrix with a trainable low-rank update (LoRA)
medusa_heads      heads that predict later tokens
bert              layers that BERT has after its last block
"""
