"""A metric of a plugin appears everywhere without changes to other files."""

from __future__ import annotations

import re

import numpy as np
import pytest

from rcdiag.api.report import explanation
from rcdiag.errors import RcdiagError
from rcdiag.glossary import explain, names
from rcdiag.pages.page import page
from rcdiag.results.guide import Guide
from rcdiag.statistics.metrics import MAGNITUDE, METRICS, Metric, metric_descriptions
from rcdiag.statistics.ratios import TOKEN_SUMS, TokenSum
from rcdiag.statistics.totals import SEQUENCE_SUMS, SequenceSum
from rcdiag.table.opening import open_table
from rcdiag.usecases.compare.run import compare
from rcdiag.usecases.score import score
from tests.builders import make_state, mismatch
from tests.cli.conftest import BEHAVIOR, dump_with_shift
from tests.pages.unpacked import unpacked

# It adds a sum over tokens, and a sum over sequences derived from it.
RARE_SHIFT = Metric(
    name="rare_shift",
    family=MAGNITUDE,
    label="mean |log-ratio| of rare tokens",
    says="The part of the mean |log_ratio| that tokens of a behavior probability below e^-4 make.",
    formula="E[|log_ratio| 1(log p_behavior < -4)] over tokens",
    unit="nats",
    ideal=0.0,
    bound=0.0,
    guide=Guide(warning=1e-5, error=1e-4, source="a test"),
    elsewhere={"SomeTrainer": "rare/shift"},
    headline=True,
    token_sums=(
        TokenSum(
            "rare_size",
            lambda v: np.where(v.behavior < -4.0, np.abs(v.ratios.log_ratio), 0.0),
            by_sequence=True,
        ),
    ),
    sequence_sums=(SequenceSum("rare_size_squared", lambda t: np.square(t.sums["rare_size"])),),
    from_totals=lambda t: t.per_token("rare_size"),
)


@pytest.fixture
def added():
    with METRICS.with_added(RARE_SHIFT):
        yield RARE_SHIFT


@pytest.fixture
def table(tmp_path):
    """Write log-ratios of +-0.5; five of six tokens have a behavior log-prob below -4."""
    return dump_with_shift(tmp_path / "t.parquet", 0.5)


def test_it_is_in_the_results_with_value_interval_and_level(added, table):
    result = score(open_table(table))
    rare = sum(value < -4.0 for row in BEHAVIOR for value in row)
    value = result.mismatch["rare_shift"]
    assert value.value == pytest.approx(0.5 * rare / 6)
    assert value.low is not None
    assert value.level == "error"
    (finding,) = [item for item in result.findings if item.slug == "mismatch-above-guide"]
    assert finding.evidence["rare_shift"] == value.value
    pairs = compare(open_table(table)).pairs
    assert pairs["rollout->old"].mismatch["rare_shift"] == value


def test_its_sums_are_computed_by_sequence_and_by_cluster(added):
    behavior, target = [[-5.0, -1.0], [-6.0]], [[-5.5, -1.5], [-6.25]]
    state = make_state(behavior, target)
    assert state.table.sums["rare_size"].tolist() == [0.5, 0.25]
    squares = Metric(
        name="rare_squares",
        family=MAGNITUDE,
        label="squares",
        says="Something that reads the other metric's sum over sequences.",
        formula="mean over sequences",
        ideal=0.0,
        from_totals=lambda t: t.per_sequence("rare_size_squared"),
    )
    with METRICS.with_added(squares):
        assert mismatch(state)["rare_squares"].value == pytest.approx((0.25 + 0.0625) / 2)


def test_it_is_explained_and_described(added, table):
    """tests/test_contributing.py tests screen, page and `rcdiag explain`."""
    entry = explain("rare_shift")
    assert entry.kind == "metric"
    assert entry.formula == RARE_SHIFT.formula
    assert RARE_SHIFT.says in entry.what
    assert entry.healthy == "ideal 0; warning from 1e-05, error from 0.0001 (a test)"
    assert entry.generations == {"SomeTrainer": "rare/shift"}
    assert "rare_shift" in names()["metric"]
    assert RARE_SHIFT.formula in metric_descriptions()["rare_shift"]
    (terms,) = re.findall(
        r'id="terms">([^<]*)<', page(score(open_table(table)), explain=explanation)
    )
    assert RARE_SHIFT.says in unpacked(terms)


def test_it_is_gone_after_removal(table):
    before = list(METRICS), list(TOKEN_SUMS), list(SEQUENCE_SUMS)
    with METRICS.with_added(RARE_SHIFT):
        assert "rare_size" in TOKEN_SUMS
    assert (list(METRICS), list(TOKEN_SUMS), list(SEQUENCE_SUMS)) == before
    assert "rare_shift" not in score(open_table(table)).mismatch
    with pytest.raises(RcdiagError):
        explain("rare_shift")


def test_a_name_that_is_taken_is_refused():
    with pytest.raises(RcdiagError, match="defined twice"):
        METRICS.add(METRICS["k3_kl"])
