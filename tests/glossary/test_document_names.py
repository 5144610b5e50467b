"""Every name of the public documents on rollout correction is explained."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from rcdiag.glossary import explain

DOCUMENTS = tomllib.loads(Path(__file__).with_name("document_names.toml").read_text())
NAMES = {name for kinds in DOCUMENTS.values() for names in kinds.values() for name in names}


def test_every_documented_name_is_explained() -> None:
    assert len(NAMES) > 200
    for name in NAMES:
        assert explain(name).what, name


@pytest.mark.parametrize(
    ("name", "own", "where"),
    [
        ("mis_mean_is_weight_before_clip", "mis_tis_weight_before_bound", "README of slime"),
        ("train/mis_clip_fraction_low", "mis_tis_clip_fraction_low", "README of slime"),
        ("--mis-veto-threshold", "rs_veto_threshold", "README of slime"),
        ("--use-rollout-correction", "use_tis", "README of slime"),
        ("token_is", "decoupled_token_is", "#3984"),
        ("geo_mis", "decoupled_geo_rs", "rollout_rs_threshold_lower: 0.999"),
        ("K1-RS", "geo_rs", "rollout_corr_math.md"),
    ],
)
def test_a_name_used_only_in_documents_names_the_document(name: str, own: str, where: str) -> None:
    entry = explain(name)
    assert entry.name == own
    assert f"is the name of `{own}` in " in entry.what
    assert where in entry.what
    # Asked by its own name, the answer lists the documented name, but not at the top.
    assert any(where in place for place in explain(own).also_called.values())
    assert "is the name of" not in explain(own).what
