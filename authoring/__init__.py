"""Tools that build the notebooks and their accompanying pages from sources. See README.md."""
