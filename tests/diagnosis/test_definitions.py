"""Every definition of a metric, family, check and rule is complete."""

from __future__ import annotations

import re

import pytest

from rcdiag.diagnosis.checks import STAGES, all_checks
from rcdiag.diagnosis.rules import RULES
from rcdiag.glossary import explain
from rcdiag.results import SEVERITIES
from rcdiag.results.guide import Guide
from rcdiag.statistics.metrics import (
    BEHAVIOR_SAMPLED,
    FAMILIES,
    METRICS,
    SEQUENCES_SAMPLED,
    metric_descriptions,
)
from rcdiag.statistics.metrics.metric import PAIR_OF_EXAMPLE, RATIOS_OF_EXAMPLE, SYMMETRIC
from rcdiag.statistics.suite import Suite, SuiteState
from tests.builders import metrics
from tests.glossary.found import slugs
from tests.two_rows import toy_pair

# Sources that a reader cannot open.
NOWHERE = re.compile(r"(theory|verl|frameworks|design|causes|engines|dumps)\.md|reference/")


def is_a_sentence(text: str) -> bool:
    return text[0].isupper() and text.endswith(".") and len(text.split()) >= 4


def has_an_open_source(guide: Guide) -> bool:
    return bool(guide.source) and not NOWHERE.search(guide.source)


def test_every_metric_is_complete():
    for name in METRICS:
        metric = METRICS[name]
        assert metric.name == name
        assert metric.label
        assert is_a_sentence(metric.says)
        assert metric.formula
        assert not metric.formula.endswith(".")
        assert metric.direction
        assert metric.presupposes in (None, BEHAVIOR_SAMPLED, SEQUENCES_SAMPLED)
        assert metric.family in FAMILIES.values()
        assert metric.guide is None or has_an_open_source(metric.guide)
        assert not NOWHERE.search(metric.source)
        for other in metric.see:
            assert explain(other), other
        assert metric.formula in metric_descriptions()[name]


def test_the_worked_example_of_every_metric_is_its_value():
    for name in METRICS:
        value = METRICS[name].value(Suite(SuiteState.of(toy_pair()))).value
        if value is None:
            assert METRICS[name].example == ""
            continue
        given, _, text = METRICS[name].example.rpartition(": ")
        assert f"{given}: " in (RATIOS_OF_EXAMPLE, PAIR_OF_EXAMPLE)
        assert text == f"{value:.4g}"


def test_the_example_uses_the_toy_batch():
    pair = toy_pair()
    assert pair.log_ratio.tolist() == pytest.approx([0.1, -0.1, 1.5, -1.2, -0.5])
    assert pair.values.behavior.tolist() == [-1.0, -0.5, -2.0, -0.7, -1.5]


ONE = [[-1.0, -0.5, -2.0], [-0.7, -1.5], [-0.1, -0.2, -3.0]]
OTHER = [[-0.9, -0.6, -0.5], [-1.7, -2.0], [-0.3, -0.2, -2.0]]


def test_exactly_the_metrics_called_symmetric_are_symmetric():
    existing, back = metrics(ONE, OTHER), metrics(OTHER, ONE)
    too_few = {"khat_token", "khat_seq"}  # three sequences have no tail
    for name, metric in METRICS.items():
        same = existing[name] == pytest.approx(back[name], nan_ok=True)
        if name not in too_few:
            assert same == (metric.direction == SYMMETRIC), name


def test_every_family_is_complete():
    for name in FAMILIES:
        family = FAMILIES[name]
        assert family.question.endswith("?")
        assert family.slug
        assert family.fix


def test_every_check_is_complete():
    for slug in all_checks():
        check = all_checks()[slug]
        assert check.slug == slug
        assert check.severity in SEVERITIES
        assert check.stages
        assert set(check.stages) <= set(STAGES)
        assert check.asks.endswith("?")
        assert is_a_sentence(check.says)
        assert check.fix
        assert check.example
        assert not NOWHERE.search(f"{check.says} {check.fix} {check.source}")
        for other in check.see:
            assert explain(other), other
        entry = explain(slug)
        assert entry.kind == "finding"
        assert check.fix in entry.what


def test_findings_about_settings_have_texts():
    checks = all_checks()
    assert slugs() <= set(checks)
    words = {slug for slug, check in checks.items() if check.find is None}
    assert words == {slug for slug, check in checks.items() if check.stages == ("config",)}
    assert words <= slugs()


def test_every_rule_is_complete():
    for rule in RULES.values():
        assert is_a_sentence(rule.says)
        assert has_an_open_source(rule.guide)
        for other in rule.see:
            assert explain(other), other
