"""Entries of sweep and compare are correct."""

from __future__ import annotations

import math

import numpy as np
import pytest
import yaml
from msgspec import structs

from rcdiag.corrections.bounds import equivalent
from rcdiag.glossary import explain
from rcdiag.results import SweepRow
from rcdiag.results.doc import documented_fields
from rcdiag.statistics.forecast import (
    TokenDistribution,
    expected_ess,
    expected_inside,
    expected_variance,
)
from rcdiag.trainers import find_trainer
from rcdiag.usecases.compare.ladder import ladder
from rcdiag.usecases.sweep.candidates import CANDIDATES
from tests.usecases.compare.tables import distances, known, moments

LAW = TokenDistribution(kl_by_mean=0.001, kl_by_variance=0.001, spread=0.0, drift=-1.0)
LENGTH = np.array([1000.0])
FIRST, SECOND = math.exp(1.5), math.exp(-1.7)  # ratios of the toy's sequences
WEIGHT = 1.5  # of the first one, truncated; the second is rejected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kept_token_share", 3 / 5),
        ("kept_sequence_share", 1 / 2),
        ("mean_weight", 3 * WEIGHT / 5),
        ("lost_mass", SECOND / (FIRST + SECOND)),
        ("weight_variance", WEIGHT**2 / 2 - (WEIGHT / 2) ** 2),
        ("weight_distance", 1 - WEIGHT / 2),
        ("reward_shift", 0.5),
    ],
)
def test_worked_numbers_of_a_row(name, value):
    assert explain(name).example.endswith(f", rewards 1 and 0: {value:.4g}")


def test_every_number_of_a_row_has_all_that_a_reader_needs():
    for field in [field for field in documented_fields(SweepRow) if field.name != "bounds"]:
        assert field.doc.formula
        assert field.doc.unit


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kl_token", expected_ess(LAW, LENGTH)[0]),
        ("accepted_seq", expected_inside(LAW, LENGTH, *np.log([[0.5], [2.0]]))[0]),
        ("accepted_geo", expected_inside(LAW, LENGTH, *(1000 * np.log([[0.999], [1.001]])))[0]),
    ],
)
def test_worked_numbers_of_the_forecast(name, value):
    assert "kl_token 0.001, 1,000 tokens" in explain(name).example
    assert float(explain(name).example.rpartition(" ")[2]) == pytest.approx(value, abs=6e-4)


def test_the_worked_spread_of_sums():
    law = structs.replace(LAW, kl_by_mean=0.0005, kl_by_variance=0.0005)
    assert expected_variance(law, LENGTH)[0] == pytest.approx(1.0)
    assert explain("expected_std").example == "kl_token 0.0005, 1,000 tokens, heterogeneity 0: 1"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("contribution", (0.02, 0.06)),
        ("share", (0.25, 0.75)),
        ("rung.log_ratio_mean", (0.1, 0.3)),
    ],
)
def test_worked_numbers_of_the_ladder(name, values):
    policies = {"a": [[-1.0, -2.0]], "b": [[-0.9, -1.9]], "c": [[-0.6, -1.6]]}
    result = ladder(moments(policies), distances(policies), ["a", "b", "c"], None)
    assert [
        known(getattr(rung, name.rpartition(".")[2])) for rung in result.rungs
    ] == pytest.approx(values)
    assert known(result.whole) == pytest.approx(0.08)
    output = " and ".join(f"{value:g}" for value in values)
    assert explain(name).example == f"two steps of log-ratio 0.1 and 0.3 on every token: {output}"
    assert explain("whole").example.endswith(": 0.08")


def test_settings_of_every_candidate_are_read_back_as_its_correction():
    for name in CANDIDATES:
        written = explain(name).generations
        assert written
        for trainers, text in written.items():
            trainer = find_trainer(trainers.split(", ")[-1].rpartition(" to ")[2])
            settings = yaml.safe_load(f"{{{text}}}")
            read = trainer.read({**trainer.settings, **settings})
            assert equivalent(CANDIDATES[name].correction, read), (trainers, text)


def test_the_order_of_candidates_is_explained():
    assert "complexity is 0, from 0 (no correction) to 6." in explain("none").what
    assert "complexity is 3, from 0 (no correction) to 6." in explain("geo_rs_0.99_1.01").what


def test_a_name_with_two_meanings_lists_both():
    result = explain("ess_seq")
    assert result.kind == "metric"
    assert "As forecast_point.ess_seq: Expected effective sample size of sequences" in result.what
    assert explain("geo_rs_seq_tis").kind == "preset"
    assert "As family.geo_rs_seq_tis: " in explain("geo_rs_seq_tis").what
