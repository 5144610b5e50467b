"""A registered trainer (one folder) is available in every command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from rcdiag.errors import RcdiagError
from rcdiag.trainers import TRAINERS, find_trainer, trainer_names
from rcdiag.trainers.emit import on_sweep_page, writer_names
from tests.cli.conftest import Rcdiag
from tests.cli.sweep_tables import FEW, sampled_table
from tests.trainers.smallest import SMALLEST


@pytest.fixture(autouse=True)
def added() -> Iterator[None]:
    with TRAINERS.with_added(SMALLEST):
        yield


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return sampled_table(tmp_path / "table.parquet")


@pytest.mark.parametrize(
    "document",
    [
        {"smallest_cap": 1.5},
        {"weights": {"smallest_cap": 1.5}},
        {"training": {"weights": {"smallest_cap": 1.5}}, "other": 1},
    ],
)
def test_its_config_is_recognised(
    rcdiag: Rcdiag, table: Path, tmp_path: Path, document: dict
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(document))
    ran = rcdiag("score", table, "--trainer-config", config, "--json")
    assert ran.code == 0, ran.err
    result = ran.document["corrections"]["config"]
    assert result["trainer"] == "smallest-1.0"
    assert result["config"] == {"smallest_cap": 1.5, "smallest_off": False}


def test_its_config_is_written_and_read_back(rcdiag: Rcdiag, table: Path, tmp_path: Path) -> None:
    ran = rcdiag("sweep", table, *FEW, "--emit", "smallest", "--candidate", "token_tis_5")
    assert ran.code == 0, ran.err
    assert yaml.safe_load(ran.out) == {"training": {"weights": {"smallest_cap": 5.0}}}
    config = tmp_path / "config.yaml"
    config.write_text(ran.out)
    back = rcdiag("score", table, "--trainer-config", config, "--json")
    assert back.document["corrections"]["config"]["config"]["smallest_cap"] == 5.0
    assert "smallest" in writer_names()
    assert "smallest" in on_sweep_page()


def test_its_loss_is_replayed_with_its_own_setting(rcdiag: Rcdiag, table: Path) -> None:
    losses = []
    for heat in (1, 2):
        ran = rcdiag(
            "replay", table, "--trainer", "smallest", "--loss-setting", f"heat={heat}", "--json"
        )
        assert ran.code == 0, ran.err
        assert ran.document["policy_loss"] == "cool"
        losses.append(ran.document["presets"]["narrow"]["loss"])
    assert losses[0] == pytest.approx(2 * losses[1])
    assert np.isfinite(losses[0])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("smallest/capped_mean", "Mean weight of the tokens, capped."),
        ("capped_mean", "Mean weight of the tokens, capped."),
        ("smallest_cap", "in training.weights, default 2.0"),
        ("narrow", "token weights truncated at 1.25"),
        ("smallest", "token weights with a cap (released 2026-01-01)"),
        ("smallest-1.0", "smallest_cap: 2.0, smallest_off: false"),
        ("cool", "Policy gradient, cooled down."),
        ("heat", "What the smallest loss is divided by."),
    ],
)
def test_its_names_are_explained(rcdiag: Rcdiag, name: str, says: str) -> None:
    ran = rcdiag("explain", name)
    assert ran.code == 0, ran.err
    assert says in " ".join(ran.out.split())


def test_its_name_stands_for_its_newest_generation() -> None:
    assert find_trainer("smallest") is SMALLEST
    assert {"smallest", "smallest-1.0"} <= set(trainer_names())
    with pytest.raises(RcdiagError, match="no such trainer") as error:
        find_trainer("smalest-1.0")
    assert "did you mean smallest-1.0?" in error.value.hint


def test_it_is_gone_after_removal() -> None:
    TRAINERS.remove(SMALLEST.name)
    try:
        assert "smallest" not in trainer_names()
    finally:
        TRAINERS.add(SMALLEST)
