"""Documents that come with a problem set, in which {names} are placeholders.

TUTOR.md                instructions for a student's AI assistant to tutor rather than solve
about.md                first cell of a problem set's notebook
about_written.md        first cell if all answers are written ones, which a person marks
instructor.md           the instructor's page of a problem set
nbgrader_config.py.txt  nbgrader's configuration
repository.md           README of a template repository
checks.yml              workflow of a template repository
public_checks.py.txt    script that the workflow runs for the public checks
setup.sh.txt            setup of Gradescope's image
run_autograder.txt      script that grades a submission on Gradescope
roster.csv              roster to fill in
"""

from importlib.resources import files


def document(name: str) -> str:
    """Return a document's text."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
