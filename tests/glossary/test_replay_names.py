"""Every name in a result of replay is explained: registries, and a stored result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

from cli.parameters import function_of
from rcdiag.diagnosis.rules import rules_of
from rcdiag.glossary import explain, names
from rcdiag.glossary.kinds import kinds
from rcdiag.glossary.losses import aggregations, loss_settings, policy_losses
from rcdiag.losses import DENOMINATORS
from rcdiag.losses.settings import Denominator
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.toml_words import read_keys
from rcdiag.usecases.replay.factors import FACTORS
from rcdiag.usecases.replay.training import OPTIMIZERS, REFERENCES
from tests.results.stored import stored
from tests.trainers.toy import by_losses

# Fields whose values are names themselves.
NAMED = {
    *("mode", "loss_type", "trainer", "aggregation", "denominator", "advantage", "level"),
    *("basis", "verdict", "slug", "severity", "reference", "optimizer", "behavior", "target"),
}


def walked(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key of a document with its value."""
    if isinstance(value, list):
        for item in value:
            yield from walked(item)
    if isinstance(value, dict):
        yield from value.items()
        for item in value.values():
            yield from walked(item)


def test_every_name_that_is_a_value_in_a_stored_result():
    document = json.loads(stored("replay"))
    values = {item for key, item in walked(document) if key in NAMED and isinstance(item, str)}
    values |= {rule["name"] for key, item in walked(document) if key == "rules" for rule in item}
    assert {"ppo_clip", "seq_is", "kept", "adamw", "mismatch_k3", "clip_fraction"} <= values
    for name in sorted(values):
        assert explain(name).what, name


def test_exactly_the_existing_losses_are_explained():
    losses = {loss for trainer in TRAINERS.values() for loss in trainer.update.losses}
    assert {loss.name for loss in policy_losses().values()} == losses
    for loss in losses:
        assert explain(loss).what
    for name in policy_losses():
        result = explain(name)
        assert result.formula
        assert result.generations
        assert result.example


def test_every_aggregation_and_denominator():
    known = {name for item in TRAINERS.values() for name in item.update.aggregations}
    assert set(aggregations()) == known
    assert set(DENOMINATORS) == set(get_args(Denominator))
    assert {*function_of("replay").parameters["denominator"].choices} == {*DENOMINATORS}
    for name in (*aggregations(), "denominator.kept", "all", "constant"):
        assert explain(name).kind == "aggregation"
        assert explain(name).formula


def test_every_factor_mode_reference_and_optimizer():
    choices = {"column", *FACTORS, "naive", "seq_is", "fresh", "reference.none"}
    for name in choices | {*OPTIMIZERS}:
        assert explain(name).kind == "choice of a replay"
    for mode in ("decoupled", "bypass", "naive", "ppo_clip", "reinforce"):
        assert explain(mode).what
    for name, words in (("reference", REFERENCES), ("optimizer", OPTIMIZERS)):
        assert {*function_of("replay").parameters[name].choices} == {*words}
    for name in REFERENCES:
        assert "eference" in explain(name).what


def test_every_rule_of_health_and_its_verdicts():
    for name, rule in rules_of("health").items():
        assert rule.guide.source in (explain(name).healthy or "")
    assert explain("mismatch_k3").name == "correction.mismatch_k3"
    for level in ("ok", "warning", "error", "health.cannot judge"):
        assert explain(level).what


def test_every_key_that_a_loss_logs():
    for trainer in TRAINERS:
        keys = {key for logged in by_losses(trainer).values() for key in logged}
        assert keys or TRAINERS[trainer].update.logged is not None
        for key in keys:
            assert explain(key).what
            for logger in ("actor/", "train/"):
                bare = key.removeprefix(TRAINERS[trainer].update.prefix)
                if logger in read_keys(TRAINERS[trainer].package)[bare].loggers:
                    assert explain(logger + bare).kind == "number that trainers log"


def test_every_setting_of_a_loss():
    for name in (*loss_settings(), "aggregation", "denominator"):
        assert explain(name).generations


def test_a_dotted_name_is_a_further_meaning_of_the_bare_name():
    listed = {name for lines in names().values() for name in lines}
    answered = {*listed, *(alias for kind in kinds() for alias in kind.aliases)}
    with_dots = [name for name in listed if name.partition(".")[2] in answered]
    assert {"rule.level", "norm_by_layer.norm", "health.cosine"} <= set(with_dots)
    for name in with_dots:
        result = explain(name.partition(".")[2])
        assert f"As {name}: " in result.what
        assert name in result.see


def test_layers_are_explained_whatever_their_number():
    assert explain("layer 17").what == explain("layer 0").what
