"""Models in GGUF files, which llama.cpp, Ollama and LM Studio read.

container      what a file holds: its metadata, and its tensors as floating-point numbers
architectures  each architecture of llama.cpp as one of our published families: fields, names and layouts of tensors
tokenizers     the tokenizer in a file's metadata as a tokenizer.json, and the way back
folder         a file as a published folder, so that everything that reads folders reads GGUF files too
writing        a model of ours as a GGUF file
"""
