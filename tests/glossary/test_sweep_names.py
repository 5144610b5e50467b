"""No name in a result of sweep or compare is without an explanation."""

from __future__ import annotations

import pytest

from rcdiag.glossary import explain, names
from rcdiag.glossary.answers import ANSWERS as EXPLAINED_ANSWERS
from rcdiag.glossary.compare_words import NUMBERS as OF_COMPARE
from rcdiag.glossary.families import own
from rcdiag.glossary.forecast_words import WORDS as OF_FORECAST
from rcdiag.glossary.judged_words import JUDGED
from rcdiag.glossary.roles import ROLES
from rcdiag.glossary.senses import SENSES
from rcdiag.glossary.sweep_words import ROW
from rcdiag.pages.sweep.words import ANSWERS
from rcdiag.results import compare, sweep
from rcdiag.usecases.compare.roles import role
from rcdiag.usecases.sweep.candidates import CANDIDATES
from rcdiag.usecases.sweep.families import FAMILIES
from tests.glossary.fields import fields_of


def test_no_entry_is_of_a_field_that_is_gone():
    fields = {name for _, name in fields_of(sweep, compare)}
    for entries in (ROW, JUDGED, OF_FORECAST, OF_COMPARE):
        assert set(entries) <= fields


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_explained_by_what_it_does(name):
    assert FAMILIES[name].about in explain(name).what


@pytest.mark.parametrize("name", own())
def test_a_family_has_bounds_a_level_and_a_correction(name):
    found = explain(name)
    assert found.kind == "estimator family"
    assert f"Bounds hold by {FAMILIES[name].level}" in found.what
    assert FAMILIES[name].axis in found.example
    assert "decoupled" in found.example


@pytest.mark.parametrize("name", CANDIDATES)
def test_every_candidate_is_explained_by_its_family_and_bounds(name):
    found = explain(name)
    assert found.kind == "candidate"
    assert f"Of the family {CANDIDATES[name].family}," in found.what
    for key, value in CANDIDATES[name].bounds.items():
        assert f"{key} {value:g}" in found.what


def test_every_bound_of_a_family_is_explained():
    keys = {key for family in FAMILIES.values() for key in family.grid(2)[0]}
    assert {explain(key).name for key in keys} == {"bounds"}


def test_every_answer_is_explained():
    assert set(EXPLAINED_ANSWERS) == set(ANSWERS)
    for name in ANSWERS:
        assert explain(name).kind == "answer of a sweep"


def test_every_role_is_explained():
    given = [("s", {}), ("a", {"backend": "vllm"}), ("b", {"backend": "hf"}), ("c", {})]
    given.append(("d", {"options": {"repeat_of": "a"}}))
    assert {role(name, about, "s") for name, about in given} == set(ROLES)
    for name in ROLES:
        assert explain(name).kind == "role of a policy"


def test_other_senses_are_of_names_that_something_else_explains():
    listed = {name for lines in names().values() for name in lines}
    for name, sense in SENSES.items():
        assert name in listed
        assert sense in explain(name).what
