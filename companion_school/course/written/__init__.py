"""Written answers, which a person marks: what is asked, the rubric, and the sheet that a marker fills in."""
