"""Presets and defaults, against the class of settings in verl's own packages."""

from __future__ import annotations

import dataclasses

import pytest

from rcdiag.trainers import find_trainer
from tests.oracle.verl import PACKAGES, settings_class

pytestmark = pytest.mark.oracle
with_presets = pytest.mark.parametrize(
    "trainer", [name for name in PACKAGES if name != "verl-0.6.0"]
)


def presets_in_the_package(trainer: str) -> set[str]:
    result = vars(settings_class(trainer)).items()
    return {name for name, value in result if isinstance(value, classmethod)}


@with_presets
def test_the_same_presets(trainer):
    assert set(find_trainer(trainer).presets) == presets_in_the_package(trainer)


@with_presets
def test_the_same_settings_in_each(trainer):
    ours = find_trainer(trainer)
    for name, preset in ours.presets.items():
        theirs = dataclasses.asdict(getattr(settings_class(trainer), name)())
        assert {**ours.settings, **preset} == theirs, name


@with_presets
def test_the_same_defaults(trainer):
    assert find_trainer(trainer).settings == dataclasses.asdict(settings_class(trainer)())
