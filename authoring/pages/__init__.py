"""The pages that accompany the lessons: where texts differ, notation, glossary, map, sizing, plan, README and others.

    make notebooks        (or: python -m authoring.pages [--check])

Each page has a small module with `render(lessons) -> str`. Text that does not occur in lessons, such as common errors
or definitions of terms, is in a file beside the module. The modules read sources and do not execute cells.
"""
