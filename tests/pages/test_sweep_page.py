"""The page of a sweep as its script finds it; in a browser: tests/pages/."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from rcdiag.errors import RcdiagError
from rcdiag.pages.page import page
from rcdiag.pages.sweep.panels import COLUMNS
from rcdiag.results import SweepResult, from_json, to_json
from rcdiag.table.table import open_table
from rcdiag.trainers.emit import emit, on_sweep_page
from rcdiag.usecases.sweep.candidates import CANDIDATES
from rcdiag.usecases.sweep.families import FAMILIES
from rcdiag.usecases.sweep.run import sweep
from tests.pages.families import Families, Family

STALE = Path(__file__).parents[2] / "sample_data" / "stale.parquet"
QUARTERS = 4


@pytest.fixture(scope="module")
def result() -> SweepResult:
    return sweep(open_table(STALE))


@pytest.fixture(scope="module")
def short(result) -> SweepResult:
    """The result with two of its families, whose page is made in a moment."""
    names = ("token_tis", "seq_tis")
    return replace(result, families={name: result.families[name] for name in names})


@pytest.fixture(scope="module")
def text(result) -> str:
    return page(result)


@pytest.fixture(scope="module")
def families(text) -> dict[str, Family]:
    return Families(text).found


def completed(templates: list[str], entry: str) -> str | None:
    """As sweep.js does it: a number for every mark of the template."""
    if not entry:
        return None
    index, *values = entry.split(" ")
    first, *parts = templates[int(index)].split("\x01")
    return first + "".join(value + part for value, part in zip(values, parts, strict=True))


def emitted(family: str, bounds: dict[str, float], trainer: str) -> str | None:
    try:
        return emit(FAMILIES[family].correction(bounds), trainer).text
    except RcdiagError:
        return None


@pytest.mark.parametrize(("holds", "word"), [(True, "holds"), (None, "not tested")])
def test_a_forecast_that_did_not_fail_is_drawn_with_what_its_test_says(short, holds, word):
    html = page(replace(short, forecast=replace(short.forecast, holds=holds)))
    assert "By the law of single tokens, fitted on all sequences" in html
    assert f'">{word}</span> The forecast: ' in html


def test_a_forecast_that_failed_is_not_drawn(short):
    html = page(replace(short, forecast=replace(short.forecast, holds=False)))
    assert "By the law of single tokens, fitted on all sequences" not in html
    assert '<span class="tag error">fails</span> The forecast: ' in html
    assert "do not believe it" in html


def test_a_page_ranks_nothing_where_the_recorded_policy_did_not_sample():
    html = page(sweep(open_table(STALE.with_name("temperature.parquet")), thresholds=4))
    for absent in ("Efficiency", "Variance against bias", "as good", ">Candidates<"):
        assert absent not in html
    assert "no candidate was scored" in html


def test_every_family_has_a_table_with_all_its_rows_and_cells(result, families):
    assert list(families) == list(result.families)
    for name, family in families.items():
        assert len(family.rows) == len(result.families[name].rows)
        assert family.heads == len(family.sliders) + len(COLUMNS) + QUARTERS
        assert {len(cells) for cells in family.cells} == {family.heads}
        assert all(cell.strip() for cells in family.cells for cell in cells)


def test_every_row_stands_at_a_place_of_the_sliders_of_its_own(families):
    for family in families.values():
        places = [tuple(map(int, row["data-at"].split(" "))) for row in family.rows]
        assert len(set(places)) == len(places)
        for place, cells in zip(places, family.cells, strict=True):
            texts = [slider[at] for slider, at in zip(family.sliders, place, strict=True)]
            assert texts == cells[: len(texts)]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_completed_configuration_is_what_emit_gives(result, families, name):
    family = families[name]
    assert len(family.configs) == len(on_sweep_page())
    for row, given in zip(result.families[name].rows, family.rows, strict=True):
        entries = given["data-config"].split("|")
        for trainer, templates, entry in zip(on_sweep_page(), family.configs, entries, strict=True):
            assert completed(templates, entry) == emitted(name, row.bounds, trainer)


def test_every_trainer_has_a_configuration_for_some_family(families):
    for place, trainer in enumerate(on_sweep_page()):
        written = [
            row["data-config"].split("|")[place] for item in families.values() for row in item.rows
        ]
        # No family is swept that is held between 1 / cap and cap.
        assert any(written) == (trainer != "axolotl")
        assert not all(written)


def test_markers_stay_within_their_figure(families):
    for name, family in families.items():
        left, top, width, height = family.view
        dots = family.dots()
        assert dots, name
        for x, y in dots:
            assert left <= x <= left + width, name
            assert top <= y <= top + height, name


def test_markers_go_right_with_the_only_bound_of_a_family(families):
    for family in families.values():
        if len(family.sliders) == 1:
            across = [float(row["data-dots"].split(" ")[0]) for row in family.rows]
            assert all(one < other for one, other in pairwise(across))


def test_the_page_is_small_enough_to_send_around(text):
    assert len(text.encode()) < 1.5e6


def test_the_configuration_of_the_choice_is_what_emit_gives(result, text):
    choice = result.recommendation.choice
    assert choice is not None
    for trainer, written in result.recommendation.choice_yaml.items():
        assert written == emit(CANDIDATES[choice].correction, trainer).text
    assert list(result.recommendation.choice_yaml) == on_sweep_page()
    assert "rollout_is_threshold" in text


def test_a_result_stored_before_configurations_says_that_it_has_none(result):
    document = json.loads(to_json(result))
    del document["recommendation"]["choice_yaml"]
    document["families"] = {name: document["families"][name] for name in ("token_tis", "seq_tis")}
    for family in document["families"].values():
        del family["configurations"]
    older = page(from_json(json.dumps(document), "r.json"))
    assert "This result holds no configuration to paste" in older
    assert "To paste" not in older
    assert "<select>" not in older
    assert list(Families(older).found) == ["token_tis", "seq_tis"]


def test_configurations_are_a_small_part_of_the_document(result):
    families = {name: replace(item, configurations={}) for name, item in result.families.items()}
    without = to_json(replace(result, families=families))
    assert len(to_json(result)) < 1.1 * len(without)


def test_nothing_is_fetched(text):
    assert "default-src 'none'" in text
    assert re.findall(r"""(?:src|href)=["'](?!#|data:)([^"']+)""", text) == []
    assert not re.findall(r"url\((?!#)", text)
