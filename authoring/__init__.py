"""Tools that build the notebooks and the pages beside them from sources. See README.md."""
