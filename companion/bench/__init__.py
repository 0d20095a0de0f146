"""Speed, measured side by side: ours and other libraries at the same sizes, with the same weights, in the same minutes.

timing.py              interleaved rounds, medians, quartiles, ratios
sizes.py               the models and lengths that are measured
peers.py               our weights in transformers and x-transformers
compare.py             contenders for one piece of work, timed
tolerance.py           how far their outputs may be from ours
models.py              training step, prefill, generation, and what the cache gains
weight_formats.py      generation with the weights in each of their forms
attention_variants.py  a step by what is kept of a token: many keys, shared ones, latents; and a matrix in their place
gated_delta_net.py     the gated delta rule in chunks and token by token
layers.py              mixture of experts, attention backends
report.py              the table and the JSON
suite.py               all of it, as `companion bench` runs it
gpu.py                 the same on a GPU, and what else needs one (`make gpu`): each part (gpu_parts.py) in a process
"""
