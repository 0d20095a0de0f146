"""Models on disk, our own and published ones.

models      models of ours: safetensors and JSON
published/  published checkpoints
"""
