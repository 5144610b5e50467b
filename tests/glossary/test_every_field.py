"""No field of a result is without an explanation, and no part of one is forgotten."""

from __future__ import annotations

import dataclasses

import pytest

from rcdiag.glossary import explain
from rcdiag.glossary.after_words import AFTER, SPLIT
from rcdiag.glossary.gradient_words import GRADIENTS
from rcdiag.glossary.pull_words import NUMBERS
from rcdiag.glossary.result_words import WORDS
from rcdiag.glossary.training_words import TRAINING
from rcdiag.glossary.update_words import FIELDS
from rcdiag.results import replay
from rcdiag.usecases.provenance import LIBRARIES
from tests.glossary.fields import MODULES, UNSAID, fields_of, parts_of

# Where a field has a name that something else has too, its own entry.
DOTTED = {
    ("Coefficients", "norm"): "coefficients.norm",
    ("Denominator", "kept"): "denominator.kept",
    ("GradientReport", "bias"): "gradient.bias",
    ("GradientReport", "variance"): "gradient.variance",
    ("GradientReport", "top_share"): "gradient.top_share",
    ("PresetReplay", "weights"): "preset.weights",
    ("ReplayResult", "trainer"): "result.trainer",
}
OF_MODEL = {"model", "reference", "optimizer", "learning_rate", "max_grad_norm", "weight_decay"}
OF_PROVENANCE = {"command", "versions", "dump", "rows", "fingerprint", "seed", "time"}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_no_part_of_a_result_is_forgotten(module):
    assert parts_of(module)
    assert set(parts_of(module)) <= set(UNSAID), "say what of it needs no explanation"


def test_what_is_left_unsaid_is_still_there():
    for part, unsaid in UNSAID.items():
        assert unsaid <= {field.name for field in dataclasses.fields(part)}


@pytest.mark.parametrize(("part", "name"), fields_of(*MODULES))
def test_every_field_is_explained(part, name):
    assert explain(name).what
    if (part, name) in DOTTED:
        dotted = DOTTED[part, name]
        assert explain(dotted).name == dotted
        assert f"As {dotted}: " in explain(name).what
        assert dotted in explain(name).see


def test_every_number_of_a_replay_has_all_that_a_reader_needs():
    numbers = {**NUMBERS, **GRADIENTS, **AFTER, **SPLIT}
    parts = (replay.Coefficients, replay.GradientReport, replay.AfterStep, replay.SplitReport)
    fields = [(part.__name__, field.name) for part in parts for field in dataclasses.fields(part)]
    for field in fields:
        name = DOTTED.get(field, field[1])
        if name in ("learning_rate", "minibatches"):  # settings
            continue
        found = explain(name)
        assert name in numbers
        assert found.units, name
        assert found.formula or name == "norm_by_layer", name
        assert found.example, name


def test_no_entry_is_of_a_field_that_is_gone():
    fields = {DOTTED.get(field, field[1]) for field in fields_of(*MODULES)}
    of_layers = {"embedding", "layer 0", "norm_by_layer.norm", "head"}
    numbers = {**NUMBERS, **GRADIENTS, **AFTER, **SPLIT}
    assert set(numbers) - of_layers <= fields
    assert set(FIELDS) - {"health.cannot judge"} <= fields
    assert set(WORDS) - OF_PROVENANCE - {"counts"} <= fields
    assert set(TRAINING) | {"learning_rate"} >= OF_MODEL


def test_libraries_are_the_only_names_in_a_provenance_that_are_not_explained():
    assert set(LIBRARIES) == {"rcdiag", "numpy", "scipy", "pyarrow", "polars"}
    for name in OF_PROVENANCE:
        assert explain(name).kind == "name in results"
