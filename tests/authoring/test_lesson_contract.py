"""Each rule for lessons is tested on a small lesson that breaks it, and so are the builder's directives."""

import re

import pytest
from nbformat.v4 import new_output

from authoring import build, contract, minutes, notebook_contract
from authoring.lesson import with_deeper
from authoring.question import SourceError

SYMBOLS = {symbol: {2: "a letter of the small lesson"} for symbol in ("n", "v", "a", "i", "s")}
LONG = "\n".join(f"print({i})" for i in range(16))
TALL = "\n".join(f"x{i} = {i}" for i in range(41))
VISIBLE = "\n```{code-cell}\n%s\n```\n\nIt is 14.\n"
FOLDED = "\n```{code-cell}\n:tags: [folded]\n%s\n```\n\nIt is 14.\n"
USED = "\n```{code-cell}\nprint(%s)\n```\n\nIt is 14.\n"
SILENT = "a visible cell that shows nothing, and defines nothing that one of the next two cells uses"
EIGHTH = "```{question} eight\n:kind: number\nAnd how far is that, typically?\n= 20 | $\\sqrt{400}$.\n```\n"
MORE = "(more)=\n## More\n\nFor whoever wants some more.\n\n"
MIND = "You may think that the longest step decides alone. It does not: 9 of 14.\n\n"


def texts(lesson, symbols=SYMBOLS):
    known = notebook_contract.Known(contract.companion_names(), symbols=symbols)
    return [str(fault) for fault in contract.check(lesson.again(), known)]


def test_a_good_lesson_and_its_deeper_notebook_have_no_fault(small):
    for lesson in with_deeper([small()]):
        assert build.difference(lesson) is None
        assert texts(lesson) == []


@pytest.mark.parametrize(
    "old, new, message",
    [
        # parts and sections
        ("# A small", "A small second", "begins with its title"),
        ("form hold?**", "form hold.**", "must be the lesson's question"),
        ("{{ head }}\n", "", "the line `{{ head }}` is missing"),
        ("## Sitting 2: What if", "### What if", "two to four sittings, .* has 1"),
        ("## Sitting 2", "## Sitting 3", "parts must be Sitting 1, Sitting 2, Exercises.* not Sitting 1, Sitting 3"),
        ("## Summary\n\nSquares add up.\n\n", "", "parts must be .*Summary"),
        ("What if the steps are unequal?", "Unequal steps", "'Sitting 2: Unequal steps' must begin with a question"),
        ("### Checkpoint", "### The end", "'Sitting 1: .*' must end with one `### Checkpoint`; it has 0"),
        ("You can stop here.", "Go on.", "'Sitting 1: .*' must say at its end: You can stop here"),
        ("### Checkpoint\n\n```{question} longest", "```{question} longest", "Sitting 2: .*must end with one"),
        ("### Checkpoint\n\n```{question} four", "```{question} four", "Sitting 1: .*must end with one"),
        # questions and exercises
        (EIGHTH, "", "7 questions; expected at least 8"),
        ("{{ exercises }}\n", "", "needs the line `{{ exercises }}` once"),
        ("Weights and masks, for a change.\n\n", "", "say in a sentence, above the table"),
        # visible cells
        ("\nIt is 14.\n", VISIBLE % LONG, "a visible cell of 16 lines; at most 15"),
        ("\nIt is 14.\n", VISIBLE % "import math\nprint(math.isclose(1, 1))", "a visible line that has a tolerance"),
        ("\nIt is 14.\n", VISIBLE % "figures = [1]\nprint(figures)", "source line \\d+: a visible line that draws"),
        ("\nIt is 14.\n", VISIBLE % "try:\n    print(1)\nexcept ValueError:\n    pass", "`try` in a visible cell"),
        ("\nIt is 14.\n", VISIBLE % "unused = 3", SILENT),
        ("\nIt is 14.\n", VISIBLE % "assert 1 + 1 == 2", SILENT),
        ("\nIt is 14.\n", VISIBLE % "def sure(steps):\n    a = 3\n    return a", SILENT),  # local names
        ("\nIt is 14.\n", VISIBLE % "late = 3" + USED % "late", None),
        ("\nIt is 14.\n", VISIBLE % "late = 3" + USED % 1 + USED % "late", None),
        ("\nIt is 14.\n", VISIBLE % "late = 3" + USED % 1 + USED % 2 + USED % "late", SILENT),
        # Assigned twice and never used
        ("\nIt is 14.\n", VISIBLE % "late = 3" + VISIBLE % "late = 4\nprint(4)", SILENT),
        ("\nIt is 14.\n", VISIBLE % "late = 3" + VISIBLE % "late += 1\nprint(4)", None),
        ("\nIt is 14.\n", VISIBLE % f"print('{'x' * 81}')", "a printed line of 81 columns; at most 80"),
        ("\nIt is 14.\n", VISIBLE % f"print(1)  # {'x' * 80}", "a line of code of \\d+ columns; at most 88"),
        # folded cells
        ("\nIt is 14.\n", FOLDED % f"# sets up it\n{LONG}", None),
        ("\nIt is 14.\n", FOLDED % f"# sets up it\n{TALL}", "a code cell of 42 lines; at most 40"),
        ("\nIt is 14.\n", FOLDED % "print(1)", "the first line of a folded cell begins with one of"),
        ("\nIt is 14.\n", FOLDED % "# checks nothing\nprint('checked: 1')", "a cell of checks asserts nothing"),
        ("\nIt is 14.\n", FOLDED % "# checks it\nassert True", "prints what it checked"),
        ("\nIt is 14.\n", FOLDED % "# checks it\nassert True\nprint('fine')", "lines that begin with `checked: `"),
        ("\nIt is 14.\n", FOLDED % "# checks it\nassert True\nprint('checked: all')", "says it with numbers"),
        # claims
        ("# checks (2.1)\n", "# checks (2.1), claim S0-04\n", "a reader sees S0-04: claims are an option of the cell"),
        ("A walk", "A walk (S0-04)", None),  # in a question, which is not part of the lesson's Markdown
        ("squares of independent", "squares (S0-04) of independent", "a reader sees S0-04"),
        (":claims: S0-04", ":claims: S0-4", "`:claims: S0-4`: expected rows of the ledger"),
        ("assert sum(a * a for a in steps) == 14  # (2.2)", "# (2.2)", "names an equation and asserts nothing"),
        # equations
        ("# checks (2.1)\n", "# checks (2.1) to (2.3)\n", "names equation \\(2.3\\), which does not exist"),
        # letters and misconceptions
        ("v = n", "v = n + z", "\\$z\\$ has no entry for lesson 02 in pages/notation.toml"),
        ("v = n", "v = n_v", None),
        ("v = n", "v = \\operatorname{size}(n)", None),
        (MIND, MIND * 4, "4 misconceptions; at most 3 in a lesson"),
    ],
)  # fmt: skip
def test_a_fault_in_a_lesson_is_found(small, old, new, message):
    found = texts(small(old, new))
    assert any(re.search(message, text) for text in found) if message else found == [], found


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("(cross)=\n", "", "the section 'Why the cross terms vanish' needs a target"),
        ("For whoever wants to see the one step that lesson 02 leaves out.\n", "", "must begin with a sentence"),
        ("{D2.1}", "{2.1}", "equation number 2.1 is out of order: expected D2.1"),
        ("# checks (D2.1)\n", "# checks it\n", None),  # the comment of the assertion names it
        ("They add", MORE + "They add", "'signs' comes from another section"),
        ("They add up", "They add $k$ up", "\\$k\\$ has no entry for lesson 02"),
        ("---\n\n# Deeper", 'borrows: ["$s$"]\n---\n\n# Deeper', None),
    ],
)
def test_a_fault_in_a_deeper_notebook_is_found(small, old, new, message):
    remove = ("{deeper}`why the cross terms vanish <02#cross>`", "") if old == "(cross)=\n" else ("", "")
    found = texts(small(*remove, deeper=(old, new)).deeper)
    assert any(re.search(message, text) for text in found) if message else found == [], found


def test_a_letter_with_a_second_meaning_is_named_with_both(small):
    symbols = SYMBOLS | {"n": {2: "number of steps", 5: "length of a vector"}}
    [fault] = texts(small(), symbols)
    assert fault == (
        "cell 2, source line 17: $n$ has a second meaning in pages/notation.toml: "
        "lesson 02: number of steps; lesson 05: length of a vector"
    )


def test_a_letter_that_a_deeper_notebook_borrows_is_known_there_alone(small):
    lesson = small("v = n", "v = n", deeper=("---\n\n# Deeper", 'borrows: ["$z$"]\n---\n\n# Deeper'))
    assert texts(lesson) == [] == texts(lesson.deeper)
    symbols = {symbol: by for symbol, by in SYMBOLS.items() if symbol != "s"}
    assert any("$s" in text for text in texts(lesson.deeper, symbols))


# --- sources that cannot be built: the message gives the location, and nothing is built


CHOICE = "- [x] twice as far | The root of 4 is 2."
FAR = "> About 10 steps: the root of 100.\n"
LISTS = (
    "- [x] 10 steps | Yes.\n- [ ] 100 steps | No.\n",
    "+ [x] sums cancel | Some.\n+ [ ] each counts | It may go\n  back.\n",
)


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("{question} four", "{question} root", "a second question named 'root'; the first"),
        ("{question} four", "{question} Four!", "question 'Four!': expected a name of lower-case letters"),
        (":kind: choice\nFour", ":kind: chance\nFour", "expected `:kind:` with one of choice, number, predict"),
        (":kind: choice\nFour", "Four", "question four: expected a line `:kind:`"),
        (CHOICE, CHOICE.replace("[x]", "[ ]"), "line 62: question four: expected one right answer ... got 0"),
        (CHOICE, f"{CHOICE}\n- [x] thrice | No.", "expected one right answer ... got 2"),
        (CHOICE, "- [x] twice as far", "'twice as far' has no reason"),
        (CHOICE, f"{CHOICE}\nnothing", "'nothing' is not an answer"),
        ("= 16 ± 0.5 |", "= sixteen |", "'sixteen': expected a number"),
        ("~ 256 |", "~ 16.2 |", "16.2 is within the tolerance of another answer"),
        (FAR, "", "question far: expected a line that says what happens"),
        (FAR, f"{FAR}{LISTS[0]}", "question far: reasons: expected two or more that differ, one of them right"),
        (FAR, f"{FAR}- [x] ten\n", "question far: expected `- [ ] what may happen | why not`"),
        (":kind: predict\n", ":kind: predict\n:alone: 2\n", "question far: expected `:alone:` with 0 or 1"),
        ("How far from the beginning are you after 100 flips?\n", "", "question far: the question has no text"),
        ("```{question} far", "```{note} far", "{note}: expected a {code-cell} or a {question}"),
        ("(coins)=", "(coins)=\n\n(coins)=", "a second target (coins)="),
        ("{ref}`coins`", "{ref}`dice`", "{ref}`dice`: there is no target (dice)=; there are: coins"),
        ("It is 14.", "{{ now write it }}", "{{ now write it }}: no stage of Your own transformer"),
        ("<02#cross>", "<02#gone>", "there is no deeper section 02#gone; there are: 02#cross"),
        ("<02#cross>", "<07#cross>", "there is no deeper section 07#cross; there are: none"),
        ("{deeper}`", "{depper}`", "{depper}: expected {ref}, {deeper} or {out}"),
        ("It is 14.", "It is {out}`14 <equal>`.", "{out}`14`: expected words and a cell's name"),
        ("It is 14.", "It is {out}`14`.", "{out}`14`: expected words and a cell's name"),
        ("able: say how a sum of coin flips grows.\n", "", "`able:` is missing in the front matter"),
    ],
)
def test_what_cannot_be_built_is_refused_with_its_place(small, old, new, message):
    lesson = small()
    before = lesson.notebook.read_bytes()
    broken = small(old, new, built=False)
    with pytest.raises(SourceError) as caught:
        build.build(broken)
    assert re.match(r"02_small\.md, line \d+: ", str(caught.value))
    assert all(part in str(caught.value) for part in message.split(" ... ")), caught.value
    assert lesson.notebook.read_bytes() == before


def test_a_prediction_may_list_what_can_be_graded_and_the_lesson_shows_none_of_it(small):
    [plain] = [question for question in small().questions if question.name == "far"]
    asked = f":kind: predict\nHow far from the beginning are you after 100 flips?\n{FAR}"
    more = asked.replace("predict\n", "predict\n:alone: 1\n") + "".join(LISTS)
    [listed] = [question for question in small(asked, more, built=False).questions if question.name == "far"]
    assert not plain.is_gradable and listed.is_gradable and listed.alone == 1 and listed.html == plain.html
    assert [answer.text for answer in listed.choices] == ["10 steps", "100 steps"]
    assert [(answer.right, answer.why) for answer in listed.reasons] == [(True, "Some."), (False, "It may go back.")]


TWO_MEANINGS = {"v": {2: "the mean square", 5: "a velocity"}}


@pytest.mark.parametrize(
    "old, new, symbols, message",
    [
        (
            "It is 14.", "It is 14. " + "word " * 5000, {},
            r"line 9: a lesson of 6\d minutes of reading; at most 60\. .*Sitting 2: .* 5\d minutes: 5\d\d\d words",
        ),
        ("It is 14.", "It is 14. " + "word " * 1500, {}, r"line 80: 'Sitting 2: .*' takes 2\d minutes.*; at most 20 "),
        ("", "", TWO_MEANINGS, r"line 28: \$v\$ has a second meaning .* lesson 02: the mean square; lesson 05: a vel"),
    ],
)  # fmt: skip
def test_a_lesson_that_breaks_the_form_is_refused_with_its_place(small, capsys, old, new, symbols, message):
    before = small().notebook.read_bytes()
    broken = small(old, new, built=False)
    known = notebook_contract.Known(symbols=symbols)
    with pytest.raises(build.BuildError) as caught:
        build.build(broken, known=known)
    assert re.search(rf"02_small: 02_small\.md, cell \d+, source {message}", str(caught.value)), caught.value
    assert broken.notebook.read_bytes() == before


def test_nothing_at_all_is_built_where_one_lesson_is_refused(small, monkeypatch, capsys):
    lesson = small("It is 14.", "It is 14. " + "word " * 5000, built=False)
    monkeypatch.setattr(build, "lessons", lambda: [lesson])
    monkeypatch.setattr(build, "QUESTIONS", lesson.source.with_name("questions.json"))
    assert build.main([]) == 1
    assert re.search(r"(?s)a lesson of 6\d minutes of reading.*\nnothing was built\n$", capsys.readouterr().out)
    assert not build.QUESTIONS.exists() and not lesson.notebook.exists()


@pytest.mark.parametrize(
    "where, words, shown",
    [
        ("It is 14.", "14", "14.0"),
        ("It is 14.", "mean square", "mean square 14.0"),
        ("It is 14.", "0.33", "a loss of 0.331"),
        ("It is 14.", "33 %", "a share of 0.331"),
        ("It is 14.", "1,024", "from 16 to 1024"),
        ("It is 14.", "−0.5", "-0.52 and 0.52"),
        ("= 5 | 4 + 1.", "3 of 4", "right: 3 of 4"),
    ],
)
def test_what_text_says_of_an_output_must_stand_in_it(small, where, words, shown):
    code = 'print("mean square", sum(a * a for a in steps))'
    role = f"{where} {{out}}`{words} <unequal>`"

    def told(output):
        lesson = small(where, role, built=False)
        lesson.source.write_text(lesson.source.read_text("utf-8").replace(code, f"print({output!r})"), "utf-8")
        build.build(lesson)
        return lesson

    assert texts(told(shown)) == []
    with pytest.raises(build.BuildError, match=rf"source line \d+: the text says '{words}', and the cell 'unequal'"):
        told("1 of 7, 0.5 and 0.34")


SLIDER = '<label>d_k <input type="range" min="1" max="64"></label>'


@pytest.mark.parametrize(
    "shown, message",
    [
        (SLIDER, "a handle without a still figure: what moves is shown with companion_school.study.live"),
        (f'<figure class="ext-figure" data-live="bars" role="group" aria-label="Bars.">{SLIDER}</figure>',
         "moving figure 'bars': it has no still figure, which is all that remains where no script runs"),
    ],
)  # fmt: skip
def test_a_handle_without_a_still_figure_is_refused_with_its_place(small, monkeypatch, shown, message):
    lesson, run = small(), build.execute
    before = lesson.notebook.read_bytes()

    def with_handle(lesson):
        cells = run(lesson)
        unequal = next(cell for cell in cells if cell.metadata.get("name") == "unequal")
        unequal.outputs.append(new_output("display_data", data={"text/html": shown}))
        return cells

    monkeypatch.setattr(build, "execute", with_handle)
    with pytest.raises(build.BuildError, match=rf"02_small\.md, cell \d+, source line 92: {re.escape(message)}"):
        build.build(lesson, rerun=True)
    assert lesson.notebook.read_bytes() == before


# --- what the builder produces


def test_minutes_are_counted(small):
    lesson = small(built=False)
    first, *_ = lesson.sittings
    assert (first.code_lines, first.equations, first.asked) == (6, 1, ["2.a", "2.b", "2.c"])
    assert first.reading == pytest.approx(first.words / 100 + 6 / 10 + 1 / 2 + 3)
    assert first.printing == 1 and first.exact == pytest.approx(first.reading + 1 / 4)  # the cell has no checks
    waits = FOLDED.replace(":tags", ":seconds: 90\n:tags") % "# draws a\nlive.home()"
    still = FOLDED % "# draws b\nfigures.show(1)\nprint(1)"
    shown = small("\nIt is 14.\n", waits + still, built=False).sittings[1]
    more = shown.exact - lesson.sittings[1].exact
    assert more == pytest.approx(2 + 1 + 1 / 4 + 90 / 60 + (shown.words - lesson.sittings[1].words) / 100)
    longer = small("It is 14.", "It is 14. " + "word " * 300, built=False)
    assert longer.sittings[1].words == lesson.sittings[1].words + 300
    [head] = re.findall(
        r"\*\*Time:\*\* (\d+) minutes: two sittings of (\d+) and (\d+); reading is \d+ ", lesson.cells[1].source
    )
    total, *named = map(int, head)
    assert total == sum(named) == lesson.minutes and named == [part.minutes for part in lesson.sittings]
    summed = small("The next lesson, and", "word " * 150, built=False)
    assert (
        f"{total + 2} minutes: two sittings of {named[0]} and {named[1]}, and 2 for the rest; reading is "
        in summed.cells[1].source
    )
    assert f"*{first.minutes} minutes*" in lesson.cells[1].source
    listed = [part for part in lesson.parts if part.title == "Exercises"]
    assert listed[0].words < 10 and minutes.LONGEST_LESSON == 60  # readers do not read the table from end to end


def test_folded_cells_are_hidden_and_claims_are_metadata(small):
    checks = next(cell for cell in small().built if cell.metadata.get("name") == "checks-walk")
    assert checks.metadata.jupyter.source_hidden is True
    assert checks.metadata.claims == ["S0-04"]


def test_links_lead_to_cells_that_exist(small):
    lesson = small()
    ids = {"02_small.ipynb": {cell.id for cell in lesson.built}}
    ids["deeper/02_deeper.ipynb"] = {cell.id for cell in lesson.deeper.built}
    text = "\n".join(cell.source for cell in lesson.built) + "".join(question.html for question in lesson.questions)
    links = re.findall(r"(?:\]\(|href=\")([^)\"]+)#cell-id=([\w-]+)", text)
    assert len(links) == 2
    for file, cell in links:
        assert cell in ids[file]
    assert "[*Deeper:* why the cross terms vanish (1 minute)](deeper/02_deeper.ipynb#cell-id=" in text


def test_every_lesson_that_is_named_is_a_link(tmp_path):
    from authoring import finish

    (tmp_path / "lessons").mkdir()
    for name in ("01_one", "02_two", "03_three"):
        (tmp_path / "lessons" / f"{name}.md").write_text(f"# {name[3:].title()}\n")
    text = "Lesson 01, lesson 02 and `lesson 01`; lessons 01, 02 and 03; [lesson 01](x). $lesson 01$\n\n# lesson 01"
    made = finish.in_prose(finish.lesson_linker(tmp_path / "lessons" / "02_two.md"), text)
    assert made == (
        "[Lesson 01](01_one.ipynb), lesson 02 and `lesson 01`; lessons [01](01_one.ipynb), 02 and [03](03_three.ipynb)"
        "; [lesson 01](x). $lesson 01$\n\n# lesson 01"
    )
    line = finish.navigation(tmp_path / "lessons" / "02_two.md")
    assert line == (
        "[← 01 One](01_one.ipynb) · [Start](start.ipynb) · [03 Three →](03_three.ipynb) · "
        "[Exercises](exercises/02_exercises.ipynb) · [Glossary](glossary.md)"
    )
