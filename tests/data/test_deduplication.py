"""Text that occurs twice is found, even if it was reformatted."""

import pytest

from companion.data.deduplication import repeated_share, without_repeats

LONG = "This paragraph has sixty characters and more, so that it is compared."
OTHER = "That paragraph has sixty characters and more, and is found nowhere else."


def test_the_share_of_a_text_that_was_trained_on_is_found() -> None:
    text = f"{OTHER}\n\n{LONG}"
    assert repeated_share(["One.", f"Intro\n\n{LONG}"], [text]) == pytest.approx(len(LONG) / len(text))
    assert repeated_share([f"Intro\n\n{LONG}"], [OTHER]) == 0
    assert repeated_share(iter([LONG]), []) == 0


def test_a_paragraph_stays_where_it_stands_first() -> None:
    wrapped = LONG.replace(" so", "\n   so")  # other line breaks do not make another paragraph
    texts = [f"Heading\n\n{LONG}", f"Heading\n\n{wrapped}\n\n{OTHER}", f"Heading\n\n{LONG}", "Short.\n\nShort."]
    assert [*without_repeats(texts)] == [texts[0], f"Heading\n\n{OTHER}", "", texts[3]]
