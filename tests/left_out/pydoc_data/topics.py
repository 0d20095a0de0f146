"""Empty help topics for Python.

Every test and every cell of every notebook uses them in place of its own Python's, so
that nothing the course prints can depend on them.
"""

topics: dict[str, str] = {}
