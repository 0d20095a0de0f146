"""Models in GGUF files, which llama.cpp, Ollama and LM Studio read.

container      a file's metadata, and its tensors in floating point
architectures  each architecture of llama.cpp as one of our published families: fields, names and layouts of tensors
tokenizers     the tokenizer in a file's metadata as a tokenizer.json, and back
folder         a file as a published folder, so that everything that reads folders reads GGUF files too
writing        export of our models as GGUF files
"""
