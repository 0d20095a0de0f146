"""The lessons' questions: asked in the notebook, kept, and asked again. `from companion.questions import ask`."""

from companion.questions.reader import answer, ask, review

__all__ = ["answer", "ask", "review"]
