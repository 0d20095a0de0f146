"""A package that is deliberately not importable.

With it, jsonschema, which nbformat imports, would compile a grammar of internet addresses for 1.4 s in every test
process that uses a notebook. Without it the formats `iri` are not checked, and no notebook has one.
"""

raise ImportError("left out in tests: see this file")
