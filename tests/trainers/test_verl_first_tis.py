"""verl's first truncated weights (#2953): one setting, for the vanilla loss alone."""

from __future__ import annotations

import numpy as np
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.losses.batch import loss_batch
from tests.corrections.builders import padded, result_of
from tests.corrections.test_tokens import of_config
from tests.losses.rules import RULES, evaluate, loss_settings
from tests.trainers.config_files import read

TRAINER = "verl-20250826"
CAP = {"tis_imp_ratio_cap": 2.0}
WHOLE = "actor_rollout_ref: {{actor: {{tis_imp_ratio_cap: {cap}}}, rollout: {{n: 1{more}}}}}\n"


def test_weights_are_ratios_up_to_the_cap_and_nothing_is_rejected():
    batch = padded([[0.1, -0.1, 1.5], [-1.2, -0.5]])
    expected = [np.exp(0.1), np.exp(-0.1), 2.0, np.exp(-1.2), np.exp(-0.5)]
    result = result_of(TRAINER, CAP, batch)
    assert result.weight_sum == pytest.approx(sum(expected), rel=1e-15)
    assert (result.kept_tokens, result.metrics) == (5, {})
    assert of_config(TRAINER, batch, **CAP).weights == pytest.approx(expected, rel=1e-15)


def test_small_ratios_are_not_clamped_as_later_generations_do():
    batch = padded([[-25.0, 0.0]])
    first = of_config(TRAINER, batch, **CAP).weights
    later = of_config("verl-0.6.0", batch, rollout_is=True, rollout_is_threshold=2.0).weights
    assert first is not None
    assert later is not None
    assert first[0] == pytest.approx(np.exp(-25.0), rel=1e-15)
    assert later[0] != pytest.approx(np.exp(-25.0))


@pytest.mark.parametrize("cap", [-1.0, 0.0])
def test_without_a_positive_cap_there_are_no_weights(cap):
    result = result_of(TRAINER, {"tis_imp_ratio_cap": cap}, padded([[1.0, -1.0]]))
    assert (result.weight_sum, result.kept_tokens) == (None, 2)


@pytest.mark.parametrize("loss", list(RULES[TRAINER].losses))
def test_only_the_vanilla_loss_is_weighted(loss):
    update = ([-1.0, -0.5, -2.0], [-1.1, -0.6, -1.9], [1.0, -1.0, 0.5], [2, 1])
    of_weights = [
        evaluate(loss_batch(*update, weights=weights), loss, loss_settings(), TRAINER).loss
        for weights in (None, [0.5, 2.0, 1.5])
    ]
    assert (of_weights[0] == of_weights[1]) == (loss != "vanilla")


def test_a_whole_configuration_is_recognised(tmp_path):
    found = read(tmp_path, WHOLE.format(cap=2.0, more=", calculate_log_probs: true"))
    assert (found.trainer.name, found.settings) == (TRAINER, CAP)
    assert found.findings == ()
    off = read(tmp_path, WHOLE.format(cap=2.0, more=""))
    assert [finding.slug for finding in off.findings] == ["rollout-log-probs-off"]


def test_settings_of_a_later_generation_take_precedence(tmp_path):
    text = WHOLE.format(cap=-1, more="") + "algorithm: {rollout_correction: {rollout_is: token}}\n"
    assert read(tmp_path, text).trainer.name == "verl-0.9"


def test_the_name_in_the_first_example_is_refused_with_the_real_one(tmp_path):
    text = "actor_rollout_ref: {actor: {tis_imp_ratio_cap: 2.0, behav_imp_weight_cap: 10.0}}\n"
    with pytest.raises(RcdiagError) as error:
        read(tmp_path, text)
    assert error.value.hint == (
        "write `tis_imp_ratio_cap`: only the example of verl #2953 calls it `behav_imp_weight_cap`"
    )
