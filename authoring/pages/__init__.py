"""The pages beside the lessons, made from them: where texts differ, notation, glossary, map, sizing, plan, README.

    make notebooks        (or: python -m authoring.pages [--check])

One small module a page. Each has `render(lessons) -> str`; what a lesson does not say itself (the words of a common
error, the line that explains a term) stands in a file beside the module. No cell is executed: sources are read.
"""
