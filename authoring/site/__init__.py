"""The course as a website, built from the committed notebooks without executing them.

    make site             (or: python -m authoring.site)

Each notebook becomes a Markdown text for Sphinx (`notebook.py`), with its prose, its code cells and their stored
outputs. Formulas are converted to MathML (`formula.py`), pictures and scripts become separate files (`output.py`), and
links to notebooks become links to pages (`links.py`). The questions (`questions.py`) and the API reference
(`reference.py`) get their own pages. Sphinx renders the pages with the Furo theme (`extension.py`), and the result is
checked for broken links (`finish.py`). All errors are reported with their locations. If a build fails, the previous
site remains in place.
"""
