"""A threshold outside the range that verl's guide calls typical is a note."""

from __future__ import annotations

import pytest

from rcdiag.glossary import explain
from rcdiag.trainers import TRAINERS
from tests.corrections.builders import plan_of, presets_of


def notes(trainer: str, **config: object) -> list[tuple[object, ...]]:
    plan = plan_of(trainer, config)
    return [
        tuple(finding.evidence[name] for name in ("setting", "low", "high"))
        for finding in plan.findings
        if finding.slug == "outside-typical-range" and finding.severity == "note"
    ]


def of_weights(level: str, threshold: object) -> dict[str, object]:
    return {"rollout_is": level, "rollout_is_threshold": threshold}


def of_rejection(options: str, threshold: object) -> dict[str, object]:
    return {"rollout_is": None, "rollout_rs": options, "rollout_rs_threshold": threshold}


IS, RS = "rollout_is_threshold", "rollout_rs_threshold"


@pytest.mark.parametrize(
    ("trainer", "config", "expected"),
    [
        ("verl-0.9", of_weights("token", 1.5), []),
        ("verl-0.9", of_weights("token", 5.0), []),
        ("verl-0.9", of_weights("token", 5.1), [(IS, 1.5, 5.0)]),
        ("verl-0.9", of_weights("token", 1.4), [(IS, 1.5, 5.0)]),
        ("verl-0.9", of_weights("token", "0.5_9.0"), [(IS, 1.5, 5.0)]),
        ("verl-0.9", of_weights("sequence", 5.1), []),
        ("verl-0.9", of_weights("sequence", 1.9), [(IS, 2.0, 10.0)]),
        ("verl-0.9", of_rejection("seq_mean_k1", "0.999_1.001"), []),
        ("verl-0.9", of_rejection("seq_mean_k1", "0.99_1.01"), [(RS, 1.0001, 1.001)]),
        ("verl-0.9", of_rejection("token_k1,seq_mean_k3", "0.5_2.0,0.01"), []),
        ("verl-0.9", of_rejection("token_k1,seq_mean_k3", "0.1_9.0,0.02"),
         [(RS, 1.5, 5.0), (RS, 0.001, 0.01)]),
        ("verl-0.9", of_rejection("token_k2", 3.0), []),
        ("verl-0.9", of_rejection("seq_sum_k2", 4.1), [(RS, 2.5, 4.0)]),
        ("verl-0.9", of_rejection("seq_max_k3", 99.0), []),  # the guide names no range
        ("verl-0.7.0", of_rejection("geometric", 1.01), [(RS, 1.0001, 1.001)]),
        ("verl-0.7.0", {"rollout_is": None, "rollout_token_veto_threshold": 1e-2},
         [("rollout_token_veto_threshold", 1e-6, 1e-4)]),
        ("verl-0.6.0", {IS: 20.0, "rollout_is_veto_threshold": 1e-4}, [(IS, 1.5, 5.0)]),
        ("verl-0.6.0", {IS: 2.0, "rollout_is_veto_threshold": 1e-9},
         [("rollout_is_veto_threshold", 1e-6, 1e-4)]),
    ],
)  # fmt: skip
def test_notes(trainer, config, expected):
    assert notes(trainer, **config) == expected


@pytest.mark.parametrize("trainer", [name for name in TRAINERS if name.startswith("verl")])
def test_verls_own_presets_are_typical(trainer):
    slugs = {finding.slug for finding in presets_of(trainer).findings}
    assert "outside-typical-range" not in slugs


def test_explain_names_the_ranges_with_their_source():
    healthy = explain("rollout_is_threshold").healthy
    assert healthy is not None
    assert "verl's guide (docs/algo/rollout_corr_math.md) names 1.5 to 5 for token" in healthy
