"""Speed, measured side by side: ours and other libraries at the same sizes, with the same weights, in the same minutes.

timing.py      interleaved rounds, medians, quartiles, ratios
sizes.py       the models and lengths that are measured
peers.py       our weights in transformers, x-transformers and litgpt
compare.py     contenders are checked to compute one function, then timed
models.py      training step, prefill and generation
weights.py     generation with the weights in each of their forms
layers.py      mixture of experts, attention backends
report.py      the table, the JSON and the picture
run.py         all of it, as `companion bench` runs it
gpu            everything that needs a GPU, as `make gpu` runs it
"""
