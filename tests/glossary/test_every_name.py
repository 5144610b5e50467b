"""Every name in a result is explained, and every explained name exists."""

from __future__ import annotations

from typing import get_args

from rcdiag.corrections.correction import Level
from rcdiag.diagnosis.checks import all_checks
from rcdiag.diagnosis.rules import rules_of
from rcdiag.glossary import explain, names
from rcdiag.glossary.fields import TITLE as FIELD
from rcdiag.glossary.kinds import kinds
from rcdiag.glossary.words import LEVEL
from rcdiag.results import SEVERITIES
from rcdiag.results.correction import CorrectionNumbers
from rcdiag.trainers import TRAINERS
from rcdiag.trainers.toml_words import read_keys
from rcdiag.trainers.verl.correction import OPTIONS
from tests.glossary.found import corrections, logged

KEY = "number that trainers log"


def test_every_logged_key_with_and_without_its_prefix():
    for trainer in TRAINERS:
        keys = read_keys(TRAINERS[trainer].package).values()
        for key in logged(trainer):
            result = explain(key)
            if result.kind != KEY:  # a term of the glossary has the same spelling, such as TIS
                result = explain(f"train/{key}")
            assert result.kind == KEY, key
            output = [text.partition(": ")[0] for text in result.generations.values()]
            assert key in output, (trainer, key)
            (bare,) = (words.name for words in keys if words.names.get(trainer) == key)
            assert explain(bare).kind in (KEY, "metric", "word", "treatment of weights"), bare


def test_every_number_of_a_correction():
    for trainer in TRAINERS:
        documented = set(CorrectionNumbers.__annotations__)
        for item in corrections(trainer):
            assert CorrectionNumbers.__required_keys__ <= set(item.actual) <= documented
        for name in documented:
            assert explain(name).kind == FIELD, name
        rules = rules_of("correction").values()
        assert {rule.own_name for rule in rules if rule.see == (rule.own_name,)} <= documented


def test_every_trainer_preset_and_setting():
    for trainer in TRAINERS:
        assert explain(trainer).name == trainer
        for preset in TRAINERS[trainer].presets:
            assert trainer in _written_out(explain(preset).generations)
        for setting in TRAINERS[trainer].settings:
            result = explain(setting)
            assert result.kind == "setting"
            assert trainer in _written_out(result.generations)


def _written_out(generations: dict[str, str]) -> set[str]:
    """Return the trainers that abbreviated labels stand for."""
    order = list(TRAINERS)
    result: set[str] = set()
    for part in ", ".join(generations).split(", "):
        first, _, last = part.partition(" to ")
        start, end = order.index(first), order.index(last or first)
        result |= set(order[start : end + 1])
    return result


def test_handwritten_lists_name_only_existing_trainers():
    assert set(LEVEL.names()) == {"ok", "unknown", *SEVERITIES}


def test_every_option_and_level_of_rejection():
    for name in (*OPTIONS, *get_args(Level)):
        assert explain(name).kind == "option of rejection"


def test_severities_of_findings_are_as_explained():
    for slug, check in all_checks().items():
        assert f"Severity: {check.severity}." in explain(slug).what


WORDS = (
    "log_ratio ratio weights decoupled bypass k1 k2 k3 ESS rollout old current TIS IcePop MIS veto "
    "truncate clip zero mask behavior target kept rejected ppo_clip reinforce verl"
)


def test_the_words_of_the_glossary():
    for word in [*WORDS.split(), "batch normalisation", "batch normalization"]:
        assert explain(word).what


def test_every_listed_name_leads_to_an_entry():
    for kind in names():
        for name, line in names()[kind].items():
            result = explain(name)
            assert result.name == name
            assert result.kind == kind
            assert result.what
            assert line
            assert "\n" not in line
            for other in result.see:
                assert explain(other), (name, other)


def test_every_definition_has_an_entry():
    for kind in kinds():
        if kind.title not in ("option of rejection", FIELD):  # statistics by place, and fields
            assert all(hasattr(one, "entry") for one in kind.definitions().values()), kind.title
