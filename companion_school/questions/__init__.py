"""The lessons' questions and their spaced repetition. Notebooks use `from companion_school.questions import ask`."""

from companion_school.questions.asking import answer, ask, review

__all__ = ["answer", "ask", "review"]
