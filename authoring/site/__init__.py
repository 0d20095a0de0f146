"""The course as a website, built from the committed notebooks without executing them.

    make site             (or: python -m authoring.site)

Each notebook becomes a Markdown text for Sphinx (`notebook.py`) with its prose, its cells, and their stored outputs.
Formulas are converted to MathML (`formula.py`), pictures and scripts become separate files (`output.py`), and links are
rewritten to lead to pages (`links.py`). The questions (`questions.py`) and the reference of the packages
(`reference.py`) get pages of their own. Sphinx renders the pages with the theme Furo (`extension.py`), and the result
is searched for broken links (`finish.py`). All errors are reported with their locations, and a failed build leaves the
previous site in place.
"""
