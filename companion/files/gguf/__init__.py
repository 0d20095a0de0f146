"""Models in GGUF files, which llama.cpp, Ollama and LM Studio read.

container      a file's metadata, and its tensors converted to floating point
architectures  the family for each architecture of llama.cpp, its fields, and the names and layouts of its tensors
tokenizers     converting the tokenizer in a file's metadata to a tokenizer.json, and back
folder         presenting a file as a published folder, so that code that reads folders reads GGUF files too
writing        exporting our models as GGUF files
"""
