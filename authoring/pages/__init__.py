"""The pages beside the lessons: where texts differ, notation, glossary, map, sizing, plan, README and others.

    make notebooks        (or: python -m authoring.pages [--check])

Each page has a small module with `render(lessons) -> str`. Text that is in no lesson, such as common errors or
definitions of terms, is in a file beside the module. Sources are read, and no cell is executed.
"""
