"""A problem set for somebody else's machines: Gradescope's autograder, and a template repository for GitHub."""
