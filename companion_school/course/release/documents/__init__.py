"""Documents that are handed out with a problem set, as they are handed out, but for the {names} to fill in.

TUTOR.md                a page that students hand to an AI assistant: tutor, do not solve
about.md                the first cell of a problem set's notebook
instructor.md           the page beside a problem set
nbgrader_config.py.txt  nbgrader's configuration
classroom.md            the first page of a repository for GitHub Classroom
public_check.py.txt     runs a public check there
setup.sh.txt            makes Gradescope's image
run_autograder.txt      grades a submission there
roster.csv              a roster to fill in
"""

from importlib.resources import files


def document(name: str) -> str:
    """The text of one of these documents."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
