"""Documents that are handed out with a problem set, as they are handed out, but for the {names} to fill in.

TUTOR.md                a page that students hand to an AI assistant: tutor, do not solve
about.md                the first cell of a problem set's notebook
instructor.md           the page beside a problem set
nbgrader_config.py.txt  nbgrader's configuration
repository.md           the first page of a template repository
checks.yml              its workflow
public_checks.py.txt    runs the public checks there
setup.sh.txt            makes Gradescope's image
run_autograder.txt      grades a submission there
roster.csv              a roster to fill in
"""

from importlib.resources import files


def document(name: str) -> str:
    """The text of one of these documents."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
