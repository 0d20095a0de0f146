"""Bundles that run a problem set on other machines: a Gradescope autograder and a template repository for GitHub."""
