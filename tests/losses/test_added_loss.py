"""A registered loss is replayed with every trainer.

tests/test_contributing.py tests its explanation, screen and page.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rcdiag.losses import LOSSES
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.policy_loss import PolicyLoss
from rcdiag.losses.settings import LossSetting, LossSettings
from tests.cli.conftest import Rcdiag
from tests.cli.sweep_tables import sampled_table

POWER = LossSetting(name="power", says="The exponent of the ratio.", default=1.0, above=0.0)


def powered(tokens: LossBatch, settings: LossSettings) -> TokenLosses:
    """-A ratio^power."""
    ratio = (settings.value(POWER) * tokens.log_ratio).exp()
    return TokenLosses(-tokens.advantages * ratio, {"powered": ratio})


POWERED = PolicyLoss(
    name="powered",
    says="The ratio to a power.",
    formula="-A r^power",
    source="made up for this test",
    function=powered,
    settings=(POWER,),
)


@pytest.fixture(autouse=True)
def added() -> Iterator[None]:
    with LOSSES.with_added(POWERED):
        yield


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return sampled_table(tmp_path / "table.parquet")


@pytest.mark.parametrize("trainer", ["verl", "verl-0.6.0", "slime"])
def test_it_is_replayed_under_every_trainer(rcdiag: Rcdiag, table: Path, trainer: str) -> None:
    options = ("--trainer", trainer, "--loss", "powered", "--json")
    ran = rcdiag("replay", table, *options)
    assert ran.code == 0, ran.err
    assert ran.document["policy_loss"] == "powered"
    naive = ran.document["presets"]["naive"]
    assert {key.rpartition("/")[2] for key in naive["metrics"]} >= {"powered"}
    squared = rcdiag("replay", table, *options, "--loss-setting", "power=2").document
    # At ratio 1 the power multiplies the pull.
    assert squared["presets"]["naive"]["coefficients"]["norm"] == pytest.approx(
        2 * naive["coefficients"]["norm"]
    )


def test_a_misspelt_setting_is_refused_with_the_right_one(rcdiag: Rcdiag, table: Path) -> None:
    ran = rcdiag("replay", table, "--loss", "powered", "--loss-setting", "powr=2")
    assert ran.code == 2
    assert "powered does not read the setting `powr`" in ran.err
    assert "did you mean power?" in ran.err
