"""Benchmarks, compared with other libraries and with this machine's measured limits: `make bench` and `make gpu`.

decode, prefill, training, memory   one comparison each, after a check that all contenders compute the same function
smollm2, llama_worker               a published model in each weight format, also in transformers and llama.cpp
growth                              time of a decode step as cache, rows and experts grow, compared with the formulas
sizes, peers                        what is measured: our models, and their weights in other libraries
timing, compare                     how it is measured: repeated rounds, and a table of those that agree with ours
gpu, kernels, cuda_graphs           everything that needs a GPU, in separate parts, with only PyTorch and a few packages
"""
