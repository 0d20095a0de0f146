"""Files on disk: written whole or not at all, locked, and the models in them, our own and published ones."""
