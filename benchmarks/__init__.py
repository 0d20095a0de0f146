"""How fast we are, beside other libraries and beside what this machine could do at best: `make bench`, `make gpu`.

decode, prefill, training, memory   one comparison each; every contender is checked to compute the same function first
peers, llama_cpp                    our weights in transformers, x-transformers and llama.cpp, where they are installed
cuda_graphs                         decode steps that are recorded once and replayed
sizes                               the models and lengths
timing, compare, report             repeated measurements, one comparison, and its table
gpu                                 everything that needs a GPU, part by part, with nothing but PyTorch and numpy
"""
