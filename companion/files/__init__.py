"""Models on disk, our own and published ones.

models      models of ours: safetensors and JSON
published/  what published checkpoints of all families have in common
"""
