"""Names and numbers are inverses of each other in every language, and other texts raise an error."""

import random

import pytest
from num2words import num2words

from companion.data.number_names import MOST, language, languages

CODES = [found.code for found in languages()]
# All numbers below 1,100; some above each hundred thousand, including the irregular X01,xxx of German; and random ones.
TELLING = [*range(1100), *(n for k in range(1, 10) for n in range(100_000 * k, 100_000 * k + 2000, 29))]
SAMPLE = sorted({*TELLING, *random.Random(0).sample(range(MOST), 1000), MOST - 1})


@pytest.mark.parametrize("code", CODES)
def test_a_million_names_from_two_tables_are_those_of_num2words(code: str) -> None:
    ours = language(code)
    for number in SAMPLE:
        theirs = num2words(number, lang=code)
        if code == "de":
            assert ("einstausend" in theirs) == (number // 1000 % 100 == 1 and number > 2000)  # its one irregularity
            theirs = theirs.replace("einstausend", "eintausend")
        assert ours.name(number) == theirs


@pytest.mark.parametrize("code", CODES)
def test_reading_is_the_inverse_of_making_and_of_cutting_into_pieces(code: str) -> None:
    ours = language(code)
    known = {kind: (set(ours.pieces(kind)), ours.longest(kind)) for kind in ("parts", "characters")}
    for number in SAMPLE:
        name = ours.name(number)
        assert ours.number(name) == number
        for kind, (pieces, longest) in known.items():
            cut = ours.split(name, kind)
            assert ours.join(cut, kind) == name and set(cut) <= pieces and len(cut) <= longest
    assert len({ours.name(number) for number in SAMPLE}) == len(SAMPLE)


@pytest.mark.parametrize("code", CODES)
def test_the_longest_name_is_reached(code: str) -> None:
    ours = language(code)
    heads = max((ours.name(1000 * k) for k in range(1, 1000)), key=lambda name: len(ours.split(name)))
    k = ours.number(heads) // 1000
    assert max(len(ours.split(ours.name(1000 * k + r))) for r in range(1000)) == ours.longest()


def test_german_parts_are_its_morphemes_and_english_ones_its_words() -> None:
    german, english, french = language("de"), language("en"), language("fr")
    cut = [
        (german, 21_304, "ein und zwanzig tausend drei hundert vier"),
        (german, 516_617, "fünf hundert sechzehn tausend sechs hundert siebzehn"),
        (english, 21_304, "twenty - one thousand , three hundred and four"),
        (french, 80_091, "quatre - vingt mille quatre - vingt - onze"),
    ]
    for ours, number, pieces in cut:
        assert " ".join(ours.split(ours.name(number))) == pieces
    assert german.split("elf", "characters") == ["e", "l", "f"]
    assert german.split("zwanzigfoo") == ["zwanzig", "foo"] and len(german.pieces()) == 32


def test_german_names_one_hundred_and_one_thousand_as_germans_do() -> None:
    german = language("de")
    assert german.name(101_001) == "einhunderteintausendeins"
    assert german.number("einhunderteinstausendeins") == 101_001  # the spelling of num2words is accepted


@pytest.mark.parametrize(
    ("code", "name", "number"),
    [
        ("de", "  Dreißigtausend ", 30_000),
        ("de", "DREISSIG", 30),
        ("de", "zwo\u0308lf", 12),  # o and its dots as two characters
        ("de", "hundertfünf", 105),
        ("de", "tausendhunderteins", 1101),
        ("en", "Twenty one thousand three hundred and four", 21_304),
        ("fr", "quatre vingt  onze", 91),
    ],
)
def test_spelling_that_means_the_same_is_understood(code: str, name: str, number: int) -> None:
    assert language(code).number(name) == number


@pytest.mark.parametrize(
    ("code", "name", "why"),
    [
        ("de", "zwanzigeinund", "is not a German number name: no name .* continues with 'ein' after 'zwanzig'"),
        ("de", "einundzwanzigtausendfoo", "'foo' does not occur in the name of any number below a million"),
        ("de", "Apfelzwei", "'apfel' does not occur in the name"),
        ("de", "einund", "it is incomplete after 'einund'"),
        ("de", "undzwanzig", "no name of a number below a million begins with 'und'"),
        ("de", "21304", "it is written in digits, and its name is 'einundzwanzigtausenddreihundertvier'"),
        ("de", " ", "it is empty"),
        ("de", "eine Million", "does not occur in the name"),
        ("en", "twenty-two-three", "is not an English number name: no name .* with 'three' after 'twenty two'"),
        ("en", "einundzwanzig", "'einundzwanzig' does not occur in the name"),
        ("fr", "vingt et deux", "continues with 'deux' after 'vingt et'"),
        ("en", "x" * 500, "is not an English"),
    ],
)
def test_what_is_no_name_is_told_from_where_on(code: str, name: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as error:
        language(code).number(name)
    assert len(str(error.value)) < 300


def test_languages_and_numbers_that_are_not_known_are_refused(unchecked) -> None:
    with pytest.raises(ValueError, match=r"language 'xx': expected one of de \(German\), en \(English\), fr"):
        language("xx")
    for number in (-1, MOST, True, 2.0):
        with pytest.raises(ValueError, match="expected a whole number from 0 to 999,999"):
            language("de").name(number)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pieces 'syllables': expected one of 'parts', 'characters'"):
        language("de").split("zwei", "syllables")  # type: ignore[arg-type]
