"""A figure of a plugin is drawn, saved, explained and listed like any other."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rcdiag.glossary import explain, names
from rcdiag.pages.definitions import FigureSpec
from rcdiag.pages.figures import FIGURES
from rcdiag.pages.page import page
from rcdiag.pages.save import save_figures
from rcdiag.results import KINDS, ScoreResult, from_json
from tests.results.stored import stored


def draw_counts(result: ScoreResult, figure) -> None:
    axes = figure.add_subplot()
    axes.bar(["sequences", "tokens"], [result.num_sequences, result.num_tokens])
    axes.set_ylabel("count of the added figure")


COUNTS = FigureSpec(
    name="size-of-the-table",
    kind="score",
    title="Size of the table",
    says="A bar is a count; the taller one counts tokens.",
    draw=draw_counts,
    applies=lambda result: result.num_tokens > 0,
    adds=lambda result: f"There are {result.num_tokens} tokens.",
)


@pytest.fixture
def added() -> Iterator[FigureSpec]:
    with FIGURES.with_added(COUNTS) as figure:
        yield figure


@pytest.fixture(scope="module")
def result() -> ScoreResult:
    read = from_json(stored("score"), "score")
    assert isinstance(read, ScoreResult)
    return read


def test_it_is_in_the_tab_of_its_kind(added, result):
    text = page(result)
    assert f'id="{added.name}-title">Size of the table</h4>' in text
    (drawn,) = re.findall('<div class="drawn".*?src="data:image/svg[+]xml;base64,([^"]+)"', text)
    assert "count of the added figure</text>" in base64.b64decode(drawn).decode()
    caption = (
        f"A bar is a count; the taller one counts tokens. There are {result.num_tokens} tokens."
    )
    assert f"<figcaption>{caption}</figcaption>" in text
    tab = text[text.index('id="tokens"') : text.index('id="corrections"')]
    assert f'data-figure="{added.name}"' in tab


def test_it_is_saved_as_png_and_svg(added, result, tmp_path):
    save_figures(result, tmp_path, only=[added.name])
    assert (tmp_path / f"{added.name}.png").read_bytes().startswith(b"\x89PNG")
    assert "count of the added figure" in (tmp_path / f"{added.name}.svg").read_text()


def test_it_is_explained_and_listed(added):
    explain("k3_kl")  # whether or not names have been looked up before
    entry = explain("size of the table")
    assert (entry.name, entry.kind) == (added.name, "figure")
    assert added.says in entry.what
    assert names()["figure"][added.name] == "Size of the table (score)"


def test_every_name_of_a_figure_is_explained_as_that_figure():
    assert {figure.kind for figure in FIGURES.values()} == set(KINDS) - {"convert"}
    for name, figure in FIGURES.items():
        assert (explain(name).name, explain(name).kind) == (name, "figure")
        assert figure.says.endswith(".")


def test_words_of_figures_and_verdicts_need_no_matplotlib():
    program = (
        "import json, sys; from rcdiag.pages.figures import FIGURES; "
        "from rcdiag.pages.headline import answer; "
        "assert len(FIGURES) > 20 and answer; "
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert {"matplotlib", "jinja2"} & set(json.loads(ran.stdout)) == set()
