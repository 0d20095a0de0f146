"""Benchmarks against other libraries and against this machine's measured limits: `make bench` and `make gpu`.

decode, prefill, training, memory   one comparison each, after a check that all contenders compute the same function
peers, llama_cpp                    our weights in transformers, x-transformers and llama.cpp, where they are installed
growth                              time of a decode step as cache, rows and experts grow, compared with the formulas
published, llama_worker             SmolLM2 in each weight format, compared with transformers and llama.cpp
kernels                             number of kernels that a layer of a compiled decode step launches
cuda_graphs                         decode steps that are recorded once and replayed
sizes                               the models and sequence lengths
timing, compare, report             repeated measurements, one comparison, and its table
gpu                                 everything that needs a GPU, in separate parts, with only PyTorch and a few packages
"""
