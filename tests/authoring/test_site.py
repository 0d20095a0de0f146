"""Tests of the site that need no browser: how notebooks are converted, and what raises an error."""

import base64
import html
import io
import json
import re
import tomllib

import nbformat
import pygments
import pytest
from PIL import Image, ImageDraw
from pygments.lexers import PythonLexer

from authoring.lesson import NOTEBOOKS, ROOT
from authoring.pages import glossary
from authoring.site import (
    build,
    extension,
    finish,
    flow,
    formula,
    front,
    links,
    mathml,
    notebook,
    output,
    own,
    questions,
    reference,
    repository,
    search,
    stacked,
)
from authoring.site.fault import Broken, Faults
from authoring.site.formula import Formula, Formulas
from authoring.site.pages import Course
from companion_school.explorer import models
from companion_school.study.live import moving as moving_figures

ALT = "Bars of a weight that falls, one after the other."


def png(width=80, height=30):
    file = io.BytesIO()
    Image.new("P", (width, height)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def picture(alt=ALT):
    return f'<img alt="{alt}" width="40" src="data:image/png;base64,{png()}">'


def moving(still):
    box, style = f'<div class="ext-box">{still}</div>', "[data-jp-theme-light=false] .ext-figure{--page:#111}"
    script = '<script type="application/json">{"a":1}</script><script type="module">const box = 1;</script>'
    return f'<style>{style}</style><figure class="ext-figure" data-live="hover" role="group">{box}{script}</figure>'


def cell(kind, source, id, outputs=(), **metadata):
    made = getattr(nbformat.v4, f"new_{kind}_cell")(source, id=id, metadata=metadata)
    if kind == "code":
        made.outputs = [nbformat.v4.new_output("display_data", data={"text/html": page}) for page in outputs]
    return made


def write(path, /, *cells, **metadata):
    path.parent.mkdir(exist_ok=True)
    made = nbformat.v4.new_notebook(cells=list(cells), metadata=metadata)
    path.write_text(nbformat.writes(made), encoding="utf-8")


@pytest.fixture
def course(tmp_path):
    """Make a course of one lesson, with its exercises and everything else that a course has."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    lesson = {"number": "02", "file": "02_small.ipynb", "title": "Small", "question": "Why?", "minutes": 3}
    write(folder / "start.ipynb", cell("markdown", "# Start", "aaaa0001"), path=[lesson])
    prose = "# Small\n\nSee [there](exercises/02_exercises.ipynb#cell-id=bbbb0002), $x$ and `[no](link)`."
    prose += "\n\n$$\ny = x\n\\tag{2.1}\n$$"
    write(
        folder / "02_small.ipynb",
        cell("markdown", "[start](start.ipynb)", "navigation-top", tags=["navigation"]),
        cell("markdown", prose, "cccc0001"),
        cell("code", "# draws the figure below\nlive.hover()", "cccc0002", [moving(picture())], tags=["folded"]),
    )
    write(folder / "exercises" / "02_exercises.ipynb", cell("markdown", "# Exercises", "bbbb0002"))
    for file in (
        "glossary",
        "notation",
        "where_texts_differ",
        "claims",
        "map",
        "sizing",
        "explorer",
        "exercises/INSTRUCTORS",
        "exercises/PLAN",
        "exercises/TUTOR",
    ):
        (folder / f"{file}.md").write_text(f"# {file}\n", encoding="utf-8")
    return folder


def press_of(folder, faults, repository=""):
    there = links.Links(
        Course.of(folder, folder.parent, faults), {"companion/a.py": "reference/x.html#a"}, repository, faults
    )
    return notebook.Press(there, output.Assets(), Formulas(), faults)


def text_of(folder, file, faults):
    press = press_of(folder, faults)
    return notebook.text_of(press.links.course.pages[file], press), press


def test_a_lesson_becomes_prose_cells_and_one_file_each_of_what_it_shows(course):
    text, press = text_of(course, "02_small.ipynb", Faults())
    assert "[there](exercises/02_exercises.html#cell-bbbb0002)" in text and "`[no](link)`" in text
    assert "(start.ipynb)" not in text, "the site has its own way from page to page"
    assert ":id: cell-cccc0002\n:folded:" in text
    assert set(press.formulas.places) == {Formula("x", False), Formula("y = x", True)}
    assert press.formulas.places[Formula("y = x", True)] == "notebooks/02_small.ipynb, cell 2, line 5"
    [script, still] = sorted(press.assets.files, key=lambda name: name.endswith("png"))
    assert f'<script defer src="{script}"></script>' in text and "data:image" not in text
    assert f'width="40" height="15" loading="lazy" decoding="async" src="{still}"' in text
    assert press.assets.files[script].startswith(b'(async () => { "use strict"')
    assert "body[data-theme=dark] .ext-figure" in press.assets.sheet() and "data-jp-theme" not in press.assets.sheet()


def test_every_notebook_and_every_question_can_be_shown_on_a_page():
    faults = Faults()
    course = Course.of(NOTEBOOKS, ROOT, faults)
    there = links.Links(course, reference.places(reference.modules()), "", faults)
    press = notebook.Press(there, output.Assets(), Formulas(), faults)
    assert all(notebook.text_of(page, press) for page in course.pages.values() if page.kind != "start")
    assert all(text for _, _, text in questions.texts(press, course))
    faults.stop()


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([cell("markdown", "# A\n\n[b](02_smal.ipynb)", "dddd0001")], "cell 1: the link '02_smal.ipynb' leads nowhere"),
        ([cell("markdown", "[b](#cell-id=eeee0009)", "dddd0001")], "'#cell-id=eeee0009' leads nowhere: no such cell"),
        ([cell("markdown", "![b](no.png)", "dddd0001")], "cell 1: the picture 'no.png' is not there"),
        ([cell("code", "x", "dddd0001", [moving("nothing")])], "cell 1: moving figure 'hover' has no still picture"),
        ([cell("code", "x", "dddd0001", [moving(picture(""))])], "cell 1: moving figure 'hover' has no still picture"),
        ([cell("code", "x", "d", ['<script type="module">import "a"</script>'])], "a folder cannot use 'import'"),
    ],
)
def test_what_cannot_be_shown_is_told_with_its_place(course, cells, said):
    write(course / "02_small.ipynb", *cells)
    faults = Faults()
    text_of(course, "02_small.ipynb", faults)
    with pytest.raises(Broken, match=re.escape(said)) as broken:
        faults.stop()
    assert broken.value.faults[0].startswith("notebooks/02_small.ipynb, cell 1: ")


def test_a_notebook_that_is_missing_or_not_listed_is_told(course):
    (course / "02_small.ipynb").rename(course / "03_other.ipynb")
    (course / "exercises" / "02_exercises.ipynb").write_text("{<<<<<<<")
    faults = Faults()
    with pytest.raises(Broken) as broken:
        Course.of(course, course.parent, faults)
    assert broken.value.faults == [
        "notebooks/02_small.ipynb: has never been built. Run: make notebooks",
        "notebooks/03_other.ipynb: is not in start.ipynb. Run: make notebooks",
        "notebooks/exercises/02_exercises.ipynb: is not a notebook. Run: make notebooks",
    ]


def test_the_front_page_shows_a_moving_figure_of_a_lesson_or_says_that_there_is_none(course):
    faults = Faults()
    press = press_of(course, faults)
    assert 'data-live="hover"' in front.figure(press.links.course, press, "02", "hover")
    assert 'href="02_small.html">Begin: 02 Small<' in front.begin(press.links.course)
    faults.stop()
    assert not front.figure(press.links.course, press, "02", "dials") + front.figure(
        press.links.course, press, "03", "x"
    )
    with pytest.raises(Broken) as broken:
        faults.stop()
    assert broken.value.faults == [
        "index.md: there is no moving figure 'dials' in lesson 02",
        "index.md: there is no moving figure 'x' in lesson 03",
    ]


def test_a_formula_that_does_not_convert_is_told_with_its_place(monkeypatch):
    said = "[WARNING] Could not convert TeX math \\foo{x}, rendering as TeX:\n  \\foo{x}\n     ^\n  unexpected \\foo"
    said += '\n  expecting "a"\n'
    page = '<p><math display="inline"><mi>x</mi></math></p>\n<p><span class="math display">\\foo{x}</span></p>'
    monkeypatch.setattr(formula, "pandoc", lambda document: (page, said))
    formulas = Formulas()
    formulas.add(Formula.of("x", False), "lesson 02, cell 1")
    formulas.add(Formula.of("\\foo{x}\n\\tag{2.1}", True), "lesson 02, cell 3")
    assert formulas.convert() == [
        "lesson 02, cell 3: the formula '\\\\foo{x}' does not convert: \\foo{x} ^ unexpected \\foo"
    ]
    assert formulas.html("x", False) == '<math display="inline"><mi>x</mi></math>'


def test_a_function_stands_apart_from_its_argument_and_the_number_beside_the_formula(monkeypatch):
    name = '<mrow><mi mathvariant="normal">ln</mi><mo>&#8289;</mo></mrow>'
    said = "<annotation>ln p</annotation>"
    page = f'<p><math display="block"><semantics>{name}<mi>p</mi>{said}</semantics></math></p>'
    monkeypatch.setattr(formula, "pandoc", lambda document: (page, ""))
    shown = Formulas().html("\\ln p \\tag{2.1}", True)
    assert f'{html.unescape(name)}<mspace width="0.167em"></mspace><mi>p</mi></math>' in shown
    assert '<div class="equation" id="equation-2.1">' in shown
    assert 'href="#equation-2.1" ' in shown and ">(2.1)</a>" in shown


def test_a_large_bracket_with_a_power_grows_with_its_partner():
    def fence(sign, form):
        return f'<mo minsize="180%" maxsize="180%" form="{form}">{sign}</mo>'

    for left, right, forms in (("(", ")", ("prefix", "postfix")), ("∥", "∥", ("postfix", "postfix"))):
        inner = f"{fence(left, forms[0])}<mi>a</mi>"
        given = f"<math><mrow><mi>c</mi>{inner}<msup>{fence(right, forms[1])}<mn>2</mn></msup></mrow></math>"
        whole = f"<mrow>{fence(left, 'prefix')}<mi>a</mi>{fence(right, 'postfix')}</mrow>"
        assert mathml.mended(given) == f"<math><mrow><mi>c</mi><msup>{whole}<mn>2</mn></msup></mrow></math>"
    alone = f"<math><mrow>{fence('(', 'prefix')}<mi>a</mi>{fence(')', 'postfix')}<mn>2</mn></mrow></math>"
    assert mathml.mended(alone) == alone


def test_a_root_of_a_letter_with_an_index_stays_as_small_as_that_of_a_letter():
    index = "<msub><mi>d</mi><mi>k</mi></msub>"
    padded = f'<math><msqrt><mpadded depth="0.1em">{index}</mpadded></msqrt></math>'
    assert mathml.mended(f"<math><msqrt>{index}</msqrt></math>") == padded
    for tall in ("<mi>d</mi>", f"<msup>{index}<mn>2</mn></msup>", f"<mfrac>{index}<mn>2</mn></mfrac>"):
        given = f"<math><msqrt>{tall}</msqrt></math>"
        assert mathml.mended(given) == given


def test_a_line_may_break_in_a_long_formula_after_a_sign_that_stands_in_no_bracket():
    signs = "a=(b+c)+d"
    row = "".join(f"<{tag}>{sign}</{tag}>" for sign in signs for tag in ["mi" if sign.isalpha() else "mo"])
    short = f'<math display="inline"><mrow>{row}</mrow></math>'
    assert mathml.breakable(short) == short
    long = mathml.breakable(f'<math display="inline"><mrow>{row}{"<mi>x</mi>" * mathml.LONG}</mrow></math>')
    assert [re.sub("<[^>]+>", "", part) for part in long.split("<wbr>")] == ["a=", "(b+c)+", "d" + "x" * mathml.LONG]
    assert long.count('<mo form="infix">') == 2, "as the last sign of its part it would lose the space behind it"


def test_only_questions_have_formulas_in_dollars():
    shown = '<section class="ext-question"><p>$a &lt; b$ for <code>$5</code></p></section><p>$6 and $7</p>'
    assert output.formulas_of(shown) == [Formula("a < b", False)]


def test_links_to_files_need_the_repositorys_address(course):
    (course.parent / "tests").mkdir()
    (course.parent / "tests" / "a.py").write_text("")
    for address, leads in (("", None), ("https://github.com/o/n", "https://github.com/o/n/blob/main/tests/a.py")):
        press = press_of(course, Faults(), address)
        page = press.links.course.pages["glossary.md"]
        assert press.links.leads("../tests/a.py", page, "") == leads
        assert press.links.leads("../companion/a.py", page, "") == "reference/x.html#a"
        link = 'On <a href="../tests/a.py">a page</a>.'
        shown = press.links.in_prose(link, page, "", str)
        assert shown == (link.replace("../tests/a.py", leads) if leads else "On a page.")
        assert press.links.in_prose(f"<summary>{link}</summary>", page, "", str) == "<summary>On a page.</summary>"
        bar = repository.bar(address, press.links.course.pages["02_small.ipynb"])
        assert bool(bar) == bool(address)
        if address:  # Colab opens only the notebook, so what it imports has to be installed first
            assert "%pip install &quot;executable-transformer[colab] @ git+https://github.com/o/n&quot;" in bar
            assert "&quot;executable-transformer-school @ git+https://github.com/o/n#subdirectory=school&quot;" in bar


def test_the_repositorys_address_stands_in_pyproject(tmp_path):
    table = '[project]\nname = "a"\n'
    for line, found in (
        ("", ""),
        ('[project.urls]\nRepository = "https://github.com/o/n.git"\n', "https://github.com/o/n"),
    ):
        (tmp_path / "pyproject.toml").write_text(table + line)
        assert repository.address(tmp_path, Faults()) == found
    (tmp_path / "pyproject.toml").write_text(table + '[project.urls]\nRepository = "git@somewhere"\n')
    faults = Faults()
    repository.address(tmp_path, faults)
    with pytest.raises(Broken, match="'git@somewhere': expected an address as https://github.com/owner/name"):
        faults.stop()


def test_a_docstring_keeps_its_parameters_lists_and_examples_and_its_signs():
    parameters = "mask:    four axes\n         that broadcast.\ncausal:  later ones."
    said = f"Of `a_b` and a_b*.\n\n{parameters}\n\n- one\n- two\n\n    x = 1\n"
    text = reference.words(said)
    assert text.startswith("Of `a_b` and a\\_b\\*.") and "- one\n- two" in text
    assert "mask\n: four axes that broadcast.\n\ncausal\n: later ones." in text
    assert ":language: python\n\nx = 1\n" in text


def test_the_reference_has_every_public_function_and_no_solution():
    there = reference.modules()
    pages = {name: text for name, _, text in reference.texts(there, {"companion/layers/norms.py": ["06", "16"]})}
    assert "(06, 16)\n" in pages[reference.INDEX] and "reference/companion_school.study" in pages
    assert "### attend\n" in pages["reference/layers"] and ": Float[Tensor" in pages["reference/layers"]
    assert not any("lesson_02" in module.file for module in there)
    names = json.dumps(sorted(module.file for module in there))
    assert "companion/layers/attention.py" in names and "__init__" not in names


def test_links_between_pages_are_followed(tmp_path):
    (tmp_path / "a.html").write_text(
        '<p id="x"></p><a href="b.html#y">b</a><a href="#x">x</a><a href="https://o.org">o</a>'
    )
    (tmp_path / "b.html").write_text('<p id="z"></p><img src="no.png"><script src="https://o.org/a.js"></script>')
    faults = Faults()
    assert finish.check(tmp_path, {"a.html": "notebooks/a.ipynb"}, faults) == 3
    with pytest.raises(Broken) as broken:
        faults.stop()
    assert broken.value.faults == [
        "b.html: the link 'no.png' leads nowhere: there is no no.png",
        "b.html: the page would ask another machine for https://o.org/a.js",
        "notebooks/a.ipynb: the link 'b.html#y' leads nowhere: b.html has no place of that name",
    ]


def test_a_page_that_is_too_heavy_is_told_and_its_pictures_do_not_count(tmp_path):
    (tmp_path / "a.html").write_text("é" * (finish.LARGEST // 2) + "<p>")
    (tmp_path / "b.html").write_text('<img src="c.png">')
    (tmp_path / "c.png").write_bytes(b"c" * (finish.LARGEST + 1))
    faults = Faults()
    finish.check(tmp_path, {"a.html": "notebooks/a.ipynb"}, faults)
    with pytest.raises(Broken) as broken:
        faults.stop()
    assert broken.value.faults == ["notebooks/a.ipynb: the page has 400,003 bytes, above 400,000"]


def test_code_has_spans_only_where_they_have_a_colour():
    page = pygments.highlight("def f(x):\n    return x.sum(dim=1)\n", PythonLexer(), extension.LightFormatter())
    assert '<span class="k">return</span> x<span class="o">.</span>sum(dim<span class="o">=</span>' in page
    assert html.unescape(re.sub("<[^>]+>", "", page)).strip() == "def f(x):\n    return x.sum(dim=1)"


@pytest.mark.parametrize(
    ("mathml_of_it", "said"),
    [
        (
            "<mfrac><mrow><mi>Q</mi><msup><mi>K</mi><mi>⊤</mi></msup></mrow><msqrt><mpadded depth='0.1em'><msub>"
            "<mi>d</mi><mi>k</mi></msub></mpadded></msqrt></mfrac><mo>+</mo><mi>M</mi>",
            "(QK^⊤)/(√(d_k)) + M",
        ),
        (
            "<mo minsize='120%' form='prefix'>(</mo><mi mathvariant='double-struck'>𝔼</mi><mspace width='0.167em'>"
            "</mspace><mi>a</mi><mo minsize='120%' form='postfix'>)</mo><mspace width='2.0em'></mspace><mo>←</mo>"
            "<msubsup><mover><mi>b</mi><mo accent='true'>\u0302</mo></mover><mrow><mi>i</mi><mi>j</mi></mrow><mn>2</mn>"
            "</msubsup>",
            "(𝔼 a) ← b_ij^2",
        ),
        (
            "<mtable><mtr><mtd><mi>x</mi></mtd><mtd><mo>≤</mo><mn>1</mn></mtd></mtr><mtr><mtd><mi>y</mi></mtd><mtd>"
            "<mo>=</mo><mrow><mi mathvariant='normal'>ln</mi><mo>\u2061</mo></mrow><mspace width='0.167em'></mspace>"
            "<mn>2</mn></mtd></mtr></mtable>",
            "x ≤ 1 y = ln 2",
        ),
    ],
)
def test_the_search_knows_a_formula_without_marks_of_tex(mathml_of_it, said):
    """The elements are those of Pandoc for a fraction with a root, a blackboard bold letter, and two aligned lines."""
    assert search.in_a_line(f'<math display="block"><mrow>{mathml_of_it}</mrow></math>') == said


def test_the_search_knows_other_names_and_has_the_glossary_once():
    known = search.script(
        [
            search.Section("glossary", "beside", "Glossary", "", (), "all terms"),
            search.Section("02_a", "term", "Glossary", "x", ("head (HD)",), "a part"),
        ],
        {"head": ["HD", "attention head"]},
    )
    assert '["02_a","x","term","Glossary","head (HD)","a part"]' in known and "all terms" not in known
    assert 'window.courseAliases = [["HD","head"],["attention head","head"]];' in known


def test_other_names_belong_to_terms_and_are_none_themselves():
    terms = {entry[0] for entry in tomllib.loads(glossary.SOURCE.read_text(encoding="utf-8"))["terms"]}
    found = glossary.aliases("aliases", "searched")
    names = [name.lower() for also in found.values() for name in also]
    assert set(found) <= terms and len(names) == len(set(names)) > 40
    assert not {term.lower() for term in terms} & set(names)
    assert {"bpe", "rope", "gqa", "layer normalization"} <= set(names) and "tokenizer" in terms


def diagrams(widths, *, legend=False, labels=True):
    """Return a picture of diagrams side by side, each in a frame with a label, and perhaps a line above them all."""
    image = Image.new("RGB", (sum(widths) + 20 * (len(widths) + 1), 300), "white")
    pen, x = ImageDraw.Draw(image), 20
    for width in widths:
        pen.rectangle((x, 40, x + width, 240), outline="black")
        if labels:
            pen.rectangle((x + 30, 250, x + 60, 256), fill="black")
        x += width + 20
    if legend:
        pen.rectangle((image.width / 2 - 60, 6, image.width / 2 + 60, 14), fill="blue")
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_diagrams_side_by_side_stand_below_one_another_on_a_phone():
    small = Image.open(io.BytesIO(stacked.stacked(diagrams([400, 500]), 480)))
    assert 500 < small.width < 530 and 2 * 217 < small.height < 2 * 250
    with_legend = Image.open(io.BytesIO(stacked.stacked(diagrams([400, 500], legend=True), 480)))
    assert with_legend.height > small.height
    assert (0, 0, 255) in {with_legend.getpixel((with_legend.width // 2 + x, 10)) for x in (-50, 50)}


@pytest.mark.parametrize(
    ("picture", "width"),
    [
        (diagrams([400, 500]), 440),  # fits without changes
        (diagrams([900]), 470),  # one diagram
        (diagrams([400, 500], labels=False), 480),  # boxes without axes, which are a formula
        (diagrams([150, 150, 150, 150, 150]), 450),  # boxes in a row
    ],
)
def test_what_fits_or_is_one_diagram_is_not_cut(picture, width):
    assert stacked.stacked(picture, width) is None


def test_a_wide_picture_has_a_smaller_one_for_a_phone_or_scrolls_at_a_size_that_can_be_read():
    def shown(png, width):
        data = base64.b64encode(png).decode()
        assets = output.Assets()
        shown = f'<img alt="{ALT}" width="{width}" src="data:image/png;base64,{data}">'
        page = output.page_html(shown, assets, str, "")
        return page, len(assets.files)

    cut, files = shown(diagrams([400, 500]), 480)
    assert files == 2 and re.search(r'<picture><source media="\(max-width: 600px\)" srcset="[^"]+" width="5\d\d"', cut)
    whole, files = shown(diagrams([1500]), 770)
    assert files == 1 and 'style="--phone:616px"' in whole and "<picture>" not in whole


def test_every_layout_for_a_phone_is_of_a_figure_that_there_is():
    script = (build.THEME / "static" / "phone.js").read_text(encoding="utf-8")
    rows = re.findall(r"^    (\w+): \[", script, re.MULTILINE)
    others = re.findall(r"(?:CONDENSED = |new Set\()[{\[]([^}\]]*)[}\]]", script)
    named = {*rows, *(name for part in others for name in re.findall(r"[a-z_]{3,}", part))}
    assert len(rows) > 20 and named <= set(moving_figures.names())


def test_the_front_page_has_one_way_to_begin_and_leads_to_every_door(course):
    faults = Faults()
    press = press_of(course, faults)
    page = front.text(press.links.course, {}, press, "")
    assert page.count('id="go-on"') == 1 and ">Begin: 02 Small</a>" in page and "{{" not in page
    doors = [href for href, *_ in front.DOORS]
    assert doors == ["flow.html", "explorer.html", "chat.html", "your_own_transformer.html"]
    assert all(f'href="{href}"' in page for href in doors)


def test_exercises_say_where_they_run_and_offer_the_notebook(course):
    faults = Faults()
    press = press_of(course, faults)
    page = press.links.course.pages["exercises/02_exercises.ipynb"]
    said = own.where_to_run(page, press)
    assert "my/exercises/02_exercises.ipynb" in said and "make lab" in said
    [file] = re.findall(r'href="\.\./([^"]+)" download', said)
    assert press.assets.files[file] == page.source.read_bytes()


def test_the_flow_shows_each_of_its_parts_once_and_says_how_large_the_model_is():
    assets = output.Assets()
    pages = {name: text for name, _, text in flow.texts(assets)}
    script = (flow.HERE / "flow.js").read_text(encoding="utf-8")
    drawn = re.findall(r"^    (\w+)\(part\) \{$", script, re.MULTILINE)
    assert drawn == re.findall(r'data-part="(\w+)"', pages["flow"]) and len(drawn) == 9
    config = models.header(models.live_file("story"))["config"]
    for number, what in (
        (config["d_model"], "numbers, learned"),
        (config["feed_forward"]["d_ff"], "hidden numbers"),
        (config["vocab"], "products"),
    ):
        assert f"{number} {what}" in pages["flow"]
    assert "this model has three of them" in pages["flow"] and config["layers"] == 3
    parameters = sum(weight.numel() for weight in models.load_live(models.live_file("story")).parameters())
    assert f"{round(parameters / 1000)} thousand parameters" in pages["chat"]
    assert f"Its context is {config['context']} tokens" in pages["chat"]


def test_sections_of_a_docstring_are_lists_on_the_reference_pages():
    shown = reference.words(
        "Rotate x.\n\nArgs:\n    x: queries, which are\n        turned.\n    base, top (float): two more.\n\n"
        "Returns:\n    The same\n    shape: (token).\n\nRaises:\n    ValueError: for an odd width."
    )
    assert shown.split("\n\n") == [
        "Rotate x.",
        "**Args**",
        "x\n: queries, which are turned.",
        "base, top (float)\n: two more.",
        "**Returns**\n: The same shape: (token).",
        "**Raises**",
        "ValueError\n: for an odd width.",
    ]
