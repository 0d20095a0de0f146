"""Bundles for using a problem set on other platforms: a Gradescope autograder and a GitHub template repository."""
