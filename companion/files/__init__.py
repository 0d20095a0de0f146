"""Models on disk, in our own layout and in published ones.

models      our own models, as safetensors and JSON
gguf/       models in GGUF files, which llama.cpp and Ollama read
published/  the parts that published checkpoints of all families share
"""
