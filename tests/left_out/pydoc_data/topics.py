"""The help topics of a Python that has none. Every test and every cell of every notebook runs with these in place of
its own Python's, so that nothing the course prints can depend on them."""

topics: dict[str, str] = {}
