"""Files on disk: written whole or not at all, locked, and the models in them, our own and published ones.

atomic      files that are written whole or not at all
kept        what is kept of a reader
lock        one process at a time
models      models of ours: safetensors and JSON
published/  published checkpoints
"""
