"""The lessons' questions: asked in the notebook, kept, asked again. `from companion_school.questions import ask`."""

from companion_school.questions.asking import answer, ask, review

__all__ = ["answer", "ask", "review"]
