"""The crawl of lesson 24 is the same on every machine, and its labels are right."""

import hashlib
from collections import Counter

import pytest

from companion.data.corpora import first_edition, split
from companion.data.near_duplicates import jaccard, near_duplicates, shingles
from companion.data.stories import keeps
from companion_school.study.crawl import BAD, GOOD, SITES, crawl, notice, prose_pages

PAGES = crawl()


def test_the_same_seed_gives_the_same_pages_everywhere():
    told = "\0".join(f"{page.kind} {page.site} {page.copied} {page.text}" for page in PAGES)
    assert hashlib.sha256(told.encode()).hexdigest()[:16] == "aba1698dedc7db85"
    assert [page.text for page in crawl(1)] != [page.text for page in PAGES]


def test_every_kind_is_there_and_every_page_ends_with_the_notice_of_its_site():
    kinds = Counter(page.kind for page in PAGES if page.copied is None)
    assert set(kinds) == {*GOOD, *BAD} and kinds["prose"] == len(prose_pages()[::2])
    assert {page.site for page in PAGES} == set(SITES)
    assert all(page.text.endswith(notice(page.site)) for page in PAGES)


def test_copies_come_after_their_originals_and_share_most_of_their_wording():
    copies = [(page, PAGES[page.copied]) for page in PAGES if page.copied is not None]
    assert all(page.copied < at for at, page in enumerate(PAGES) if page.copied is not None)
    for copy, original in copies:
        assert copy.kind == original.kind == "prose" and original.copied is None
        assert jaccard(shingles(copy.text, 1), shingles(original.text, 1)) > 0.5
    originals = [page.text for page in PAGES if page.copied is None]
    assert near_duplicates(originals) == list(range(len(originals)))


def test_stories_are_whole_and_no_held_out_document_is_in_the_crawl():
    for page in PAGES:
        if page.kind == "story":
            assert all(keeps(story) for story in page.text.split("\n\n")[:-1])
    everything = "\n".join(page.text for page in PAGES)
    for document in split(first_edition()).held_out:
        assert max(document.text.split("\n\n"), key=len) not in everything


def test_a_seed_that_is_no_whole_number_is_refused():
    with pytest.raises(ValueError, match="seed"):
        crawl(-1)
