"""Not there: jsonschema, which nbformat imports, would compile a grammar of internet addresses in every process of the
tests that touches a notebook, 1.4 s each. Without it the formats `iri` are not checked, and no notebook has one."""

raise ImportError("left out in tests: see this file")
