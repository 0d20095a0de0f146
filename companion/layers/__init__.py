"""The layers of the transformer, one idea a file. No file here knows about training, files on disk, or processes.

positions         how a model is told the order of its tokens: learned, sinusoidal, rotary and its scalings (YaRN)
masks             who may look at whom
attention         `attend`, and the layer: heads, shared keys, windows, sinks
kernels/          other ways to compute the same function
latent            keys and values out of one small vector
cache             the keys and values of earlier tokens; rolling_cache: of local layers; paged_cache: in blocks
norms             LayerNorm and RMSNorm
feedforward       the network of a block
routing           which experts a token visits; balance: that all of them are visited
moe               a mixture of experts; experts: how their answers are computed
block             one block; stack: an encoder or a decoder without its ends
linear_attention  another function in attention's place; gated_delta_net: its layer; recurrent_cache: what is kept of it
low_rank          a narrow change beside a matrix that stays (LoRA)
medusa_heads      guesses of later tokens
bert              what BERT alone has behind its blocks
"""
