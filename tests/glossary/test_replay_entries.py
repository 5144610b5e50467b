"""Entries of replay are correct."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from rcdiag.glossary import explain
from rcdiag.glossary.losses import policy_losses
from rcdiag.losses.aggregation import Aggregation
from rcdiag.losses.batch import loss_batch
from rcdiag.losses.policy_loss import WORKED as UPDATE
from rcdiag.losses.tensor import Tensor
from rcdiag.trainers.by_generation import grouped
from tests.glossary.test_every_name import _written_out
from tests.losses.rules import RULES, loss_settings
from tests.trainers.toy import ADVANTAGES, BEHAVIOR, LOG_RATIOS, replayed

OLD, RATIOS = BEHAVIOR, LOG_RATIOS
LOSSES = {listed: loss.name for listed, loss in policy_losses().items()}


def having(loss: str) -> list[str]:
    return [trainer for trainer, rules in RULES.items() if loss in rules.losses]


def values(loss: str) -> str:
    """`-0.2 in verl-0.6.0, slime; ...`."""
    result = {trainer: f"{replayed(trainer, loss).loss:.4g}" for trainer in having(loss)}
    return "; ".join(f"{value} in {trainers}" for trainers, value in grouped(result).items())


def test_worked_losses():
    for name in LOSSES:
        loss, needed = LOSSES[name], policy_losses()[name].given
        given = f"{needed}: " if needed else ""
        assert explain(name).example == f"{UPDATE}: {given}loss {values(loss)}"


def test_a_loss_lists_its_generations():
    for name in LOSSES:
        assert _written_out(explain(name).generations) == set(having(LOSSES[name]))


def test_every_loss_names_its_source_and_its_settings():
    for name in LOSSES:
        loss, result = policy_losses()[name], explain(name)
        assert loss.source in result.what
        assert {setting.name for setting in loss.settings} <= set(result.see)


LOSS = Tensor([1.0, 1.0, 1.0, 2.0, 2.0])


def aggregated(how: Aggregation) -> str:
    """Of token losses 1, 1, 1 and 2, 2."""
    batch = loss_batch(OLD + RATIOS, OLD, ADVANTAGES, [3, 2])
    settings = loss_settings()
    summed = (how.within(batch, how.denominator(settings)) * LOSS).sum()
    return f"{float(summed) / how.divisor(batch, settings):.4g}"


@pytest.mark.parametrize(
    "name",
    ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean"],
)
def test_worked_aggregations(name):
    result = {
        aggregated(item.aggregations[name]) for item in RULES.values() if name in item.aggregations
    }
    assert len(result) == 1
    assert explain(name).example == f"token losses [1, 1, 1], [2, 2]: {result.pop()}"


def test_an_aggregation_that_changed_has_an_example_per_generation():
    name = "seq-mean-token-sum-norm"
    result = {
        trainer: aggregated(item.aggregations[name])
        for trainer, item in RULES.items()
        if name in item.aggregations
    }
    output = "; ".join(f"{value} in {trainers}" for trainers, value in grouped(result).items())
    assert explain(name).example == f"token losses [1, 1, 1], [2, 2]: {output}"


@pytest.mark.parametrize("name", RULES["verl-0.9"].aggregations)
def test_an_aggregation_lists_its_generations(name):
    has = {trainer for trainer, item in RULES.items() if name in item.aggregations}
    assert _written_out(explain(name).generations) == has


def test_worked_denominators():
    batch = loss_batch(OLD, OLD, ADVANTAGES, [3, 2], kept=[True, True, False, True, False])
    how = RULES["verl-0.9"].aggregations["token-mean"]
    for name, entry in (("kept", "denominator.kept"), ("all", "all"), ("constant", "constant")):
        settings = loss_settings(denominator=name, constant=4.0)
        divisor = how.divisor(batch, settings)
        assert explain(entry).example.endswith(f": 3 / {divisor:g} = {3 / divisor:g}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("norm", math.sqrt(4 * 0.04 + 0.01)),
        ("sum", -0.1),
        ("abs_sum", 0.9),
        ("positive_advantage", 5 / 9),
        ("top_sequences", 5 / 9),
        ("top_sequences_uncorrected", 3 / 5),
        ("grad_norm", 5.0),
        ("cosine", 6 / math.sqrt(14 * 4)),
        ("cosine_whole", 10 / (5 * math.sqrt(8))),
        ("norm_ratio", 5 / math.sqrt(8)),
        ("norm_ratio_unbiased", math.sqrt(14 / 4)),
        ("squared_bias", (14 - 2 * 6 + 4) / 4),
        ("relative_variance", (11 - 25 / 3) / 14),
        ("log_prob_change_positive", 0.5),
        ("beyond_clip", 3 / 5),
        ("kl_old_new", sum(math.exp(d) - 1 - d for d in RATIOS) / 5),
        ("kl_rollout_new", sum(math.exp(d + 0.1) - 1 - (d + 0.1) for d in RATIOS) / 5),
    ],
)
def test_worked_numbers(name, value):
    assert explain(name).example.endswith(f": {value:.4g}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kl_between", f"{math.exp(0.1) - 1.1:.3g}"),
        ("entropy_before", f"{math.log(2):.3f}"),
        ("perplexity_before", f"{math.exp(0.75):.3g}"),
        ("perplexity_after", f"{math.exp(0.7):.3g}"),
        ("top_norm_share", f"{4 / 6:.3g}"),
        ("log_ratio_rms", f"{math.sqrt((0.3**2 + 0.4**2) / 2):.3g}"),
        ("share_of_squares", f"{0.3**2 / (0.3**2 + 0.4**2):.3g}"),
    ],
)
def test_handwritten_examples_are_correct(name, value):
    assert explain(name).example.endswith(value)


def test_advantages_of_three_samples_of_a_prompt():
    assert explain("grpo").example.endswith("1.155, -0.5773, -0.5773")
    assert explain("rloo").example.endswith("1, -0.5, -0.5")


def test_a_setting_of_a_loss_has_default_and_trainers_names():
    verl = "verl-20250826 to verl-0.9"
    assert explain("clip_low").generations[verl] == "clip_ratio_low, default 0.2"
    assert explain("clip_c").generations == {
        verl: "clip_ratio_c, default 3.0",
        "slime, miles": "--eps-clip-c, default null",
        "openrlhf-0.11.0, openrlhf-0.11.2": "--actor.dual_clip, default null",
        "skyrl-0.4": "clip_ratio_c of dual_clip, default null",
        "nemo-rl": "ratio_clip_c, default null",
        "areal-1.0, areal-20260822": "c_clip, default null",
        "roll": "1 + 2 pg_clip with dual_clip_loss, default null",
        "rllm-verl": "actor.clip_ratio_c, default 3.0",
        "rlinf": "clip_ratio_c, 3 unless it is null, default 3.0",
        "xtuner": "policy_loss_cfg.clip_ratio_c, default 3.0",
        "tunix": "epsilon_c, off by default, default null",
    }
    assert list(explain("dro_beta").generations) == ["verl-0.9"]
    assert list(explain("opsm_delta").generations) == ["slime, miles"]


def test_no_torch_is_loaded_to_explain():
    code = (
        "import sys; from rcdiag.glossary import explain, names\n"
        "for lines in names().values():\n"
        "    for name in lines: explain(name)\n"
        "print([name for name in ('torch', 'yaml') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
