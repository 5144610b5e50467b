"""`rcdiag sweep --candidate seq_tis_3`: a threshold of the user's own is ranked and emitted."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

import rcdiag as api
from rcdiag.errors import RcdiagError
from rcdiag.usecases.sweep.candidates import CANDIDATES, EstimatorSetting, find_candidate
from tests.cli.sweep_tables import FEW, sampled_table


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    return sampled_table(tmp_path_factory.mktemp("tables") / "table.parquet")


@pytest.mark.parametrize(
    ("name", "family", "bounds"),
    [
        ("seq_tis_3", "seq_tis", {"upper": 3.0}),
        ("k3_rs_0.02", "seq_mean_k3", {"upper": 0.02}),
        ("token_icepop_0.4_3", "token_icepop", {"lower": 0.4, "upper": 3.0}),
        ("veto_1e-5", "veto", {"lower": 1e-5}),
        (
            "geo_rs_0.98_1.02_seq_tis_4",
            "geo_rs_seq_tis",
            {"rs_lower": 0.98, "rs_upper": 1.02, "is_upper": 4.0},
        ),
        ("k3_rs_0.02_token_tis_3", "k3_rs_token_tis", {"rs_upper": 0.02, "is_upper": 3.0}),
    ],
)
def test_a_candidate_name_encodes_family_and_bounds(name, family, bounds):
    candidate = find_candidate(name)
    assert (candidate.family, candidate.bounds) == (family, bounds)


@pytest.mark.parametrize("name", [name for name in CANDIDATES if name != "none"])
def test_the_names_of_all_candidates_are_of_that_form(name, monkeypatch):
    expected = CANDIDATES[name]
    monkeypatch.delitem(CANDIDATES, name)
    result = find_candidate(name)
    assert result == EstimatorSetting(expected.family, expected.bounds, result.complexity)


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("seq_tls_3", "no such candidate"),
        ("seq_tis", "sequence TIS needs 1 bound, above 0"),
        ("seq_tis_1.2.3", "sequence TIS needs 1 bound, above 0"),
        ("seq_tis_0", "above 0"),
        ("seq_mis_2_0.5", "in ascending order"),
    ],
)
def test_other_names_are_refused_with_the_expected_form(name, output):
    with pytest.raises(RcdiagError, match=output) as caught:
        find_candidate(name)
    assert caught.value.hint


def test_it_is_swept_and_ranked_with_the_others(rcdiag, table):
    plain = rcdiag("sweep", table, *FEW, "--json").document
    document = rcdiag("sweep", table, *FEW, "--json", "--candidate", "seq_tis_3").document
    names = {item["name"]: item for item in document["recommendation"]["candidates"]}
    assert set(names) == {*CANDIDATES, "seq_tis_3"}
    assert names["seq_tis_3"]["efficiency"]["value"] is not None
    uppers = [row["bounds"]["upper"] for row in document["families"]["seq_tis"]["rows"]]
    assert uppers == sorted(uppers)
    assert 3.0 in uppers
    for other in plain["recommendation"]["candidates"]:
        assert names[other["name"]]["efficiency"] == other["efficiency"]


def nested(overrides: list[str]) -> dict[str, Any]:
    """Convert Hydra overrides to the equivalent YAML document."""
    document: dict[str, Any] = {}
    for override in overrides:
        path, _, value = override.partition("=")
        *places, name = path.split(".")
        place = document
        for part in places:
            place = place.setdefault(part, {})
        place[name] = yaml.safe_load(value)
    return document


def correction(rcdiag, table: Path, config: Path) -> dict[str, Any]:
    ran = rcdiag("score", table, "--json", "--trainer-config", config)
    assert ran.code == 0, ran.err
    (result,) = ran.document["corrections"].values()
    return {name: result[name] for name in ("config", "kept_tokens", "weight_sum")}


@pytest.mark.parametrize("candidate", ["seq_tis_3", "token_icepop_0.4_3", "seq_mis_0.3_3"])
def test_yaml_and_override_are_read_back_as_the_same(rcdiag, table, tmp_path, candidate):
    ran = rcdiag("sweep", table, *FEW, "--emit", "verl", "--candidate", candidate)
    assert ran.code == 0, ran.err
    as_yaml, as_override = tmp_path / "a.yaml", tmp_path / "b.yaml"
    as_yaml.write_text(ran.out)
    (line,) = [line for line in ran.out.splitlines() if "on the command line: " in line]
    words = shlex.split(line.partition("on the command line: ")[2])
    as_override.write_text(yaml.safe_dump(nested(words)))
    assert correction(rcdiag, table, as_yaml) == correction(rcdiag, table, as_override)
    assert correction(rcdiag, table, as_yaml)["weight_sum"] is not None


def test_unchanged_keys_are_named(table):
    swept = api.sweep(table, thresholds=FEW[1], candidate="seq_tis_3")
    text = api.emit(swept, "verl", "seq_tis_3")
    (line,) = [line for line in text.splitlines() if "left as they are" in line]
    assert "rollout_rs_threshold" in line
    assert "rollout_is_threshold" not in line
    assert yaml.safe_load(text)["algorithm"]["rollout_correction"] == {
        "rollout_is": "sequence",
        "rollout_is_threshold": 3.0,
        "rollout_rs": None,
        "bypass_mode": False,
    }
    assert "command line" not in api.emit(swept, "slime", "seq_tis_3")
