"""A problem set for somebody else's machines: Gradescope's autograder, and GitHub Classroom's."""
