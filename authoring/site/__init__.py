"""The course as pages: everything a reader reads, from the committed notebooks, executed nowhere, read anywhere.

    make site             (or: python -m authoring.site)

Each notebook becomes a text that Sphinx reads (`notebook.py`): its prose as it is, its cells, and what they printed and
drew when they were run. Formulas become MathML before (`formula.py`), pictures and scripts files of their own
(`output.py`), links lead to pages (`links.py`). Questions (`questions.py`) and the package's reference (`reference.py`)
are written besides. Sphinx with the theme Furo sets the pages (`extension.py`), and what it has set is searched for
links that lead nowhere (`finish.py`). A fault anywhere is told with its place, and nothing is replaced by half a site.
"""
