"""Written answers, which a person marks: their prompts, rubrics and marking sheets."""
