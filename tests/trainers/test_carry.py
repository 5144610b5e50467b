"""A preset of one trainer is carried to the others, and all defaults are compared."""

from __future__ import annotations

import pytest

import rcdiag
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.errors import RcdiagError
from rcdiag.trainers import families, find_trainer
from rcdiag.trainers.carry import carried, named

ROLLOUTS = "sample_data/rollouts.parquet"


def by_family(correction: Correction, source: str) -> dict:
    return {one.trainer.family: one for one in carried(correction, find_trainer(source))}


def test_an_equivalent_reads_back_as_the_same_correction():
    correction = Correction(weighting=Weighting("token", 3.0))
    slime = by_family(correction, "verl")["slime"]
    assert slime.equal
    assert slime.settings.settings["tis_upper_bound"] == 3.0


def test_a_close_equivalent_states_its_differences():
    """The MIS helper rejects, while sequence-level IcePop gives weight 0."""
    correction = Correction(weighting=Weighting("sequence", 5.0, 0.5, "zero"))
    slime = by_family(correction, "verl")["slime"]
    assert slime.settings is not None
    assert not slime.equal
    assert "rejects" in slime.differs[0]


def test_slime_has_icepop_of_tokens_by_a_flag():
    correction = Correction(weighting=Weighting("token", 5.0, 0.5, "zero"))
    slime = by_family(correction, "verl")["slime"]
    assert slime.equal
    assert slime.settings.settings["custom_tis_function_path"].endswith("loss.icepop_function")


def test_a_trainer_without_an_equivalent_states_what_it_lacks():
    correction = Correction(rejections=(Rejection("seq_max_k3", 0.5),))
    slime = by_family(correction, "verl")["slime"]
    assert slime.settings is None
    assert slime.lacks


def test_the_source_is_named_by_trainer_and_preset():
    trainer, preset = named("verl:decoupled_token_is")
    assert (trainer.name, preset) == ("verl-0.9", "decoupled_token_is")
    with pytest.raises(RcdiagError, match="TRAINER:PRESET") as error:
        named("verl:decoupled_token")
    assert "decoupled_token_is" in error.value.hint


def test_all_trainers_are_compared():
    result = rcdiag.score(ROLLOUTS, trainer="all", rows=64)
    assert set(result.corrections) <= set(families())
    assert {"verl", "slime"} <= set(result.corrections)
    assert {name: one.trainer for name, one in result.corrections.items()}.items() <= {
        (family, trainer.name) for family, trainer in families().items()
    }
    off = {"tis_by_flag": {"use_tis": False}}
    alone = rcdiag.score(ROLLOUTS, trainer="slime", rows=64, presets="tis_by_flag", settings=off)
    assert result.corrections["slime"].metrics == alone.corrections["tis_by_flag"].metrics


def test_a_carried_preset_has_the_numbers_of_the_other_trainer():
    result = rcdiag.score(ROLLOUTS, carry="verl:decoupled_token_is", rows=64)
    own = rcdiag.score(ROLLOUTS, presets="decoupled_token_is", rows=64)
    first = result.corrections["verl:decoupled_token_is"]
    assert first.metrics == own.corrections["decoupled_token_is"].metrics
    assert result.corrections["slime"].weight_sum == pytest.approx(first.weight_sum, rel=1e-12)
    reads = {
        finding.evidence["trainer"]: finding.evidence["reads"]
        for finding in result.findings
        if finding.slug == "carried-over"
    }
    assert reads["slime"] == "equal"


@pytest.mark.parametrize(
    "given",
    [
        {"trainer": "all", "presets": "default"},
        {"carry": "verl:decoupled_token_is", "trainer": "slime"},
        {"trainer": "all", "settings": {"default": {"use_tis": True}}},
    ],
)
def test_options_incompatible_with_all_trainers_are_refused(given):
    with pytest.raises(RcdiagError) as error:
        rcdiag.score(ROLLOUTS, **given)
    assert error.value.hint
