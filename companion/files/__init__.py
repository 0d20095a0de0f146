"""Models on disk, our own and published ones.

models      models of ours: safetensors and JSON
gguf/       models in GGUF files, which llama.cpp and Ollama read
published/  what published checkpoints of all families have in common
"""
