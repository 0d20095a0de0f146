"""Tools that build the notebooks, and the pages beside them, from their sources. See README.md."""
