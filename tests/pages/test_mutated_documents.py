"""A result document that was changed by hand is drawn, or refused with its file and the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

import rcdiag
from rcdiag.errors import RcdiagError
from tests.results.stored import stored


def changed(kind: str, place: str, value: Any) -> dict[str, Any]:
    document = json.loads(stored(kind))
    *path, last = [int(part) if part.isdigit() else part for part in place.split("/")]
    inner = document
    for part in path:
        inner = inner[part]
    if value is KeyError:
        del inner[last]
    else:
        inner[last] = value
    return document


@pytest.mark.parametrize(
    ("kind", "place", "value", "words"),
    [
        ("score", "mismatch", [1], "`mismatch` wanted an object, got a list"),
        ("score", "mismatch/k3_kl/value", "x", "`mismatch.k3_kl.value` wanted a number, got text"),
        ("score", "mismatch/k3_kl/value", True, "`mismatch.k3_kl.value` wanted a number"),
        ("score", "num_tokens", None, "`num_tokens` wanted a number, got null"),
        ("score", "num_tokens", KeyError, "`num_tokens` is missing"),
        ("replay", "findings/0/severity", [1], "`findings.0.severity` wanted text, got a list"),
        ("score", "figures/paths", 3, "`figures.paths` wanted a list, got a number"),
        ("diagnose", "diagnosis/causes/0/evidence/0/reads", KeyError, "evidence.0` field `reads`"),
        ("diagnose", "diagnosis/verdict", "splendid", "splendid"),
        ("score", "provenance/dump", 3, "`provenance.dump` wanted a list"),
        ("replay", "presets/naive/loss", {}, "`presets.naive.loss` wanted a number, got an object"),
        ("sweep", "families/seq_tis/rows/0", "", "`families.seq_tis.rows.0` wanted an object"),
        ("compare", "ladder/policies", "", "`ladder.policies` wanted a list, got text"),
        ("diagnose", "experiments/0", None, "`experiments.0` wanted an object, got null"),
    ],
)
def test_it_is_refused_with_its_file_and_the_field(tmp_path, kind, place, value, words):
    file = tmp_path / "changed.json"
    file.write_text(json.dumps(changed(kind, place, value)))
    with pytest.raises(RcdiagError) as raised:
        rcdiag.report(file, tmp_path / "page.html")
    assert str(file) in str(raised.value)
    assert words in str(raised.value)
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("value", ["NaN", "Infinity", 1e308, -1e308, 10**30, None])
def test_nan_and_infinities_are_drawn(tmp_path, value):
    """As the value of one metric, and as interval ends of three others."""
    file = tmp_path / "changed.json"
    document = changed("score", "mismatch/k3_kl/value", value)
    for name, place in (("ess_seq", "low"), ("k1_kl", "high"), ("ratio_mean", "low")):
        document["mismatch"][name][place] = value
    file.write_text(json.dumps(document))
    rcdiag.report(file, tmp_path / "page.html")
    assert "</html>" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("expected", [0.0, 5e-324, 1e-310, 1e-3])
def test_a_gauge_with_thresholds_of_zero_is_drawn(tmp_path, expected):
    """For rows of millions of tokens the expected ESS is near 0, so the thresholds are 0."""
    file = tmp_path / "changed.json"
    file.write_text(json.dumps(changed("score", "mismatch/ess_seq/expected", expected)))
    rcdiag.report(file, tmp_path / "page.html")
    assert "Effective sequences" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("name", ["/../../stolen", "/../stolen", "x/../../../stolen"])
def test_no_family_name_writes_a_figure_outside_its_folder(tmp_path, name):
    document = json.loads(stored("sweep"))
    (family,) = list(document["families"].values())[:1]
    document["families"] = {name: family}
    file = tmp_path / "changed.json"
    file.write_text(json.dumps(document))
    folder = tmp_path / "deep" / "plots"
    folder.mkdir(parents=True)
    with pytest.raises(RcdiagError, match=r"sweep: names a file .* outside of its folder"):
        rcdiag.report(file, plots=folder, figures=[f"family-{name}"])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]
