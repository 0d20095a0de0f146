"""The pages beside the lessons, made from them: where texts differ, notation, glossary, the map, the README's list.

    make notebooks        (or: PYTHONPATH=notebooks python -m pages [--check])

One small module a page. Each has `render(lessons) -> str`; what a lesson does not say itself (the words of a common
error, the line that explains a term) stands in a TOML file beside the module. Nothing is executed: sources are read.
"""
