"""Every name in a result of sweep or compare is explained."""

from __future__ import annotations

from rcdiag.glossary import explain
from rcdiag.glossary.estimators import FAMILIES_OF_SWEEP
from rcdiag.glossary.words import ANSWER, ROLE
from rcdiag.pages.sweep.words import ANSWERS
from rcdiag.usecases.compare.ladder import role
from rcdiag.usecases.sweep.candidates import CANDIDATES
from rcdiag.usecases.sweep.estimator_families import FAMILIES


def test_every_family_has_bounds_a_scope_and_a_correction():
    for name in FAMILIES_OF_SWEEP.names():
        family, entry = FAMILIES[name.removeprefix("family.")], explain(name)
        assert family.about in entry.what
        # Also where its bare name is that of a preset, too.
        bare = explain(name.removeprefix("family.")).what
        assert family.about.partition(";")[0].rstrip(".") in bare
        assert f"Bounds hold by {family.level}" in entry.what
        assert family.axis in entry.example
        assert "decoupled" in entry.example


def test_every_candidate_is_explained_by_its_family_and_bounds():
    for name in CANDIDATES:
        result = explain(name)
        assert f"Of the family {CANDIDATES[name].family}," in result.what
        for key, value in CANDIDATES[name].bounds.items():
            assert f"{key} {value:g}" in result.what


def test_every_bound_of_a_family_is_explained():
    keys = {key for family in FAMILIES.values() for key in family.grid(2)[0]}
    assert {explain(key).name for key in keys} == {"bounds"}


def test_every_answer_is_explained():
    assert set(ANSWER.names()) == set(ANSWERS)


def test_every_role_is_explained():
    given = [("s", {}), ("a", {"backend": "vllm"}), ("b", {"backend": "hf"}), ("c", {})]
    given.append(("d", {"options": {"repeat_of": "a"}}))
    assert {role(name, about, "s") for name, about in given} == set(ROLE.names())
