"""Diagnosis of a training log: quantities by key, change points, relations, causes."""

from __future__ import annotations

import csv
import json
import re
import tomllib
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rcdiag
from rcdiag.diagnosis.change_points import GROWTHS, bend_gains, jump_gains
from rcdiag.diagnosis.logged.causes import found_in
from rcdiag.diagnosis.logged.changes import changes_of, period_of, periodic_steps
from rcdiag.diagnosis.logged.run import QUANTITIES, Known, LoggedRun, Series, _spellings
from rcdiag.diagnosis.logged.window import StepWindow, rms_of
from rcdiag.diagnosis.rules import levels_of, rules_of
from rcdiag.errors import RcdiagError
from rcdiag.logs import Log
from rcdiag.pages.diagnose.logs import over_steps
from rcdiag.pages.headline import headline
from rcdiag.results import DiagnoseResult, Diagnosis
from rcdiag.trainers import families
from rcdiag.trainers.toml_words import read_keys

SAMPLES = Path(__file__).parents[2] / "sample_data"
STEPS = 60
BEGINS = 34  # index of the first step with a fault


def series(values: Any, quantity: str = "k3") -> Series:
    array = np.asarray(values, np.float64)
    return Series(
        quantity=QUANTITIES[quantity], key="key", steps=np.arange(len(array)), values=array
    )


def noise(seed: int, size: float = 0.2, count: int = STEPS) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, size, count)


@pytest.mark.parametrize("seed", range(8))
def test_a_jump_is_found_at_its_step(seed: int) -> None:
    y = noise(seed) - 7.0
    y[BEGINS:] += 1.5
    (change,) = changes_of(series(np.exp(y)))
    assert change.shape == "jump"
    assert change.low <= BEGINS <= change.high
    assert abs(change.step - BEGINS) <= 2


def test_a_jump_over_three_steps_begins_at_the_first_of_them() -> None:
    """The first step of the rise alone ends the stretch before the largest part of it."""
    values = 0.33 + noise(3, 0.03)
    values[5:] += 16.9 * np.minimum(np.arange(STEPS - 5) + 1.0, 3.0) / 3.0
    changes = changes_of(series(values, "trainer_log_ppl"))
    assert (changes[0].step, changes[0].low, changes[0].shape) == (5, 5, "jump")


@pytest.mark.parametrize("seed", range(8))
def test_a_steady_growth_is_found_where_it_begins(seed: int) -> None:
    y = noise(seed) - 7.0 + 0.12 * np.maximum(np.arange(STEPS) - BEGINS, 0)
    (change,) = changes_of(series(np.exp(y)))
    assert change.shape == "creep"
    assert abs(change.step - BEGINS) <= 3


def test_steps_without_a_change_have_none() -> None:
    found = [changes_of(series(np.exp(noise(seed) - 7.0))) for seed in range(200)]
    assert not any(found)


def test_a_mismatch_that_falls_back_has_two_changes() -> None:
    y = noise(1) - 7.0
    y[20:40] += 2.0
    changes = changes_of(series(np.exp(y)))
    assert [change.step for change in changes] == [20, 40]
    assert changes[0].high < 40
    assert changes[1].low > 20


def test_outlier_steps_at_equal_distances_have_a_period() -> None:
    y = noise(2) - 7.0
    y[[9, 19, 29, 39, 49, 59]] += 4.0
    assert periodic_steps(series(np.exp(y))).tolist() == [9, 19, 29, 39, 49, 59]
    y[29] -= 4.0  # one of three may be missing
    assert periodic_steps(series(np.exp(y))).tolist() == [9, 19, 39, 49, 59]
    y[[31, 32]] += 5.0
    assert periodic_steps(series(np.exp(y))).tolist() == []


def test_nan_at_equal_distances_is_an_outlier() -> None:
    values = np.exp(noise(5) - 7.0)
    values[4::5] = np.nan
    assert periodic_steps(series(values)).tolist() == list(range(4, STEPS, 5))


def test_period_of_steps_until_the_last_of_a_run() -> None:
    assert period_of(np.array([9, 19, 29, 39]), 45) == 10
    assert period_of(np.array([9, 19, 39]), 45) == 10
    assert period_of(np.array([9, 19, 59]), 59) is None
    assert period_of(np.array([9, 19, 29]), 59) is None
    assert period_of(np.array([9, 10, 11]), 11) is None


def test_heavy_tails_have_no_period() -> None:
    for seed in range(200):
        tails = np.random.default_rng(seed).standard_t(2.0, STEPS)
        assert not len(periodic_steps(series(np.exp(2.0 * tails)))), seed


@pytest.mark.parametrize("length", [6, 12, 30])
def test_a_short_plateau_has_two_changes(length: int) -> None:
    """The first change does not move the median of the steps after it."""
    y = noise(4) - 7.0
    y[12 : 12 + length] += 6.0
    assert [change.step for change in changes_of(series(np.exp(y)))] == [12, 12 + length]


@given(st.lists(st.floats(-5, 5), min_size=6, max_size=30))
def test_gain_of_a_jump_is_the_reduction_of_squares_by_two_means(values: list[float]) -> None:
    y = np.array(values)
    whole = np.square(y - y.mean()).sum()
    gains = jump_gains(y, np.ones(len(y)))
    for at in range(2, len(y) - 1):
        parts = sum(np.square(part - part.mean()).sum() for part in (y[:at], y[at:]))
        assert gains[at] == pytest.approx(whole - parts, abs=1e-9)


@given(st.lists(st.floats(-5, 5), min_size=6, max_size=30))
def test_gain_of_a_bend_is_the_reduction_of_squares_by_the_best_ramp(values: list[float]) -> None:
    y, fewest = np.array(values), 2
    whole = np.square(y - y.mean()).sum()
    gains = bend_gains(y, np.ones(len(y)), fewest)
    for at in range(len(y) - 2 * fewest):
        since = np.maximum(np.arange(len(y)) - at, 0.0)
        ramps = [since, *(np.log1p((since / pace) ** power) for pace, power in GROWTHS)]
        left = [
            np.linalg.lstsq(np.stack([np.ones(len(y)), ramp], axis=1), y, rcond=None)[1].item()
            for ramp in ramps
        ]
        assert gains[at] == pytest.approx(whole - min(left), abs=1e-9)
    assert not gains[len(y) - 2 * fewest :].any()


# Faults that do not grow with the updates.
AT_ONCE = {"shift-by-one", "rows-swapped", "context-differs"}


def log_of(rows: list[dict[str, float]], folder: Path, name: str = "log.jsonl") -> Path:
    path = folder / name
    path.write_text(
        "".join(json.dumps({"step": i + 1, **row}) + "\n" for i, row in enumerate(rows))
    )
    return path


def gaussian(sigma: float, seed: int, *, entropy: float = 0.5) -> dict[str, float]:
    """Return verl's metrics for log-ratios N(-sigma^2 / 2, sigma^2), for which E[ratio] = 1."""
    wobble = float(np.exp(np.random.default_rng(seed).normal(0.0, 0.05)))
    k1 = sigma**2 / 2.0 * wobble
    return {
        "rollout_corr/kl": k1,
        "rollout_corr/k3_kl": k1,
        "rollout_corr/rollout_log_ppl": entropy,
        "rollout_corr/training_log_ppl": entropy + k1,
        "rollout_corr/log_ppl_diff": k1,
        "training/rollout_probs_diff_mean": 0.2 * sigma * wobble,
        "training/rollout_actor_probs_pearson_corr": 1.0 - 0.3 * sigma**2,
        "actor/ppo_kl": 1e-4 * wobble,
    }


def run_of(first: float, then: float, begins: int = BEGINS) -> list[dict[str, float]]:
    return [gaussian(first if i < begins else then, i) for i in range(STEPS)]


def diagnosed(rows: list[dict[str, float]], folder: Path, **options: Any) -> DiagnoseResult:
    return rcdiag.diagnose(log_of(rows, folder), **options)


def diagnosis_in(logs: Path | list[Path]) -> Diagnosis:
    diagnosis = rcdiag.diagnose(logs).diagnosis
    assert diagnosis is not None
    return diagnosis


def diagnosis_of(rows: list[dict[str, float]], folder: Path, **options: Any) -> Diagnosis:
    diagnosis = diagnosed(rows, folder, **options).diagnosis
    assert diagnosis is not None
    return diagnosis


def test_the_key_of_the_step_is_named_like_others(tmp_path: Path) -> None:
    rows = [{"it": 100.0 + i, **row} for i, row in enumerate(run_of(0.01, 0.3))]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = rcdiag.diagnose(path, keys={"step": "it"})
    assert result.diagnosis.causes[0].from_step == 100 + BEGINS


def test_a_folder_stands_for_the_logs_in_it(tmp_path: Path) -> None:
    (folder := tmp_path / "runs").mkdir()
    log_of(run_of(0.01, 0.3), folder, "b.jsonl")
    log_of(run_of(0.01, 0.01), folder, "a.jsonl")
    result = rcdiag.diagnose(folder)
    assert [Path(log.file).name for log in result.logs] == ["a.jsonl", "b.jsonl"]
    (folder / "config.yaml").write_text("seed: 1\n")
    with pytest.raises(RcdiagError, match="rcdiag knows the format of none of the 3 files"):
        rcdiag.diagnose(folder)


def test_the_page_of_two_logs_has_a_section_for_each(tmp_path: Path) -> None:
    failed = log_of(run_of(0.01, 0.3), tmp_path, "failed.jsonl")
    other = log_of(run_of(0.01, 0.01), tmp_path, "other.jsonl")
    result = rcdiag.diagnose([failed, other])
    assert re.match(r"failed\.jsonl: (in|the|both|`)", result.diagnosis.summary)
    page = tmp_path / "page.html"
    rcdiag.report([result], page)
    text = page.read_text()
    assert f"<h3>failed.jsonl: {result.logs[0].log_verdict}</h3>" in text
    assert "<h3>other.jsonl: healthy</h3>" in text
    assert "metrics in 2 logs of verl; no token data" in text
    assert "holds no text" not in text


def test_the_screen_names_causes_that_a_log_cannot_tell_apart(tmp_path: Path) -> None:
    result = diagnosed(run_of(0.01, 0.3), tmp_path)
    possible = result.diagnosis.causes[0].also_possible
    assert headline(result, "").possible == possible != []
    healthy = diagnosed(run_of(0.01, 0.01), tmp_path)
    assert headline(healthy, "").possible == ()


def test_rounding_alone_is_healthy(tmp_path: Path) -> None:
    result = diagnosed(run_of(0.01, 0.01), tmp_path)
    assert result.diagnosis.verdict == "healthy"
    assert result.diagnosis.pair is None
    assert [cause.slug for cause in result.diagnosis.causes] == ["engine-noise"]
    assert result.logs[0].trainer_of_log == "verl"


def test_a_mismatch_with_valid_weights_is_correctable_from_its_step_on(tmp_path: Path) -> None:
    diagnosis = diagnosis_of(run_of(0.01, 0.2), tmp_path)
    assert diagnosis.verdict == "correctable"
    assert diagnosis.causes[0].slug == "forwards-differ"
    assert diagnosis.causes[0].from_step == BEGINS + 1  # steps count from 1
    keys = {entry["name"] for entry in diagnosis.causes[0].evidence}
    assert "rollout_corr/k3_kl" in keys


def test_a_run_whose_forward_pass_broke(tmp_path: Path) -> None:
    """As in a verl run with lossy communication: healthy `ppo_kl`, rising reward."""
    rows = run_of(0.01, 0.01)
    for i, row in enumerate(rows[BEGINS:]):
        row |= {
            "rollout_corr/kl": 16.3 + 0.1 * (i % 3),
            "rollout_corr/k3_kl": 15.4 + 0.1 * (i % 3),
            "rollout_corr/training_log_ppl": 16.63 + 0.1 * (i % 3),
            "rollout_corr/rollout_log_ppl": 0.33,
            "rollout_corr/log_ppl_diff": 16.3 + 0.1 * (i % 3),
            "training/rollout_actor_probs_pearson_corr": 0.01,
            "training/rollout_probs_diff_mean": 0.8,
        }
    result = diagnosed(rows, tmp_path)
    assert result.diagnosis.verdict == "broken"
    first = result.diagnosis.causes[0]
    assert (first.slug, first.side, first.from_step) == ("forwards-differ", "trainer", BEGINS + 1)
    assert "uniform guess" in first.message
    assert "`actor/ppo_kl` compare" in result.diagnosis.over_steps.says
    levels = {one.relation: one.relation_level for one in result.logs[0].relations}
    assert levels["log.uniform-guess"] == "error"
    assert levels["log.surprisals-and-difference"] == "ok"


def test_a_growth_that_ends_worse_than_a_uniform_guess_is_broken_from_its_beginning(
    tmp_path: Path,
) -> None:
    """The surprisal passes ln(vocabulary) in the last steps alone, as the run fails slowly."""
    rng = np.random.default_rng(1)
    rows = []
    for at in np.linspace(0.0, 1.0, 116):
        k1 = (3e-4 + 17.3 * max(0.0, (at - 0.3) / 0.7) ** 2) * (1.0 + 0.03 * rng.normal())
        surprisal = 0.33 + 0.03 * rng.normal()
        rows.append(
            {
                "rollout_corr/kl": k1,
                "rollout_corr/k3_kl": 0.95 * k1,
                "rollout_corr/rollout_log_ppl": surprisal,
                "rollout_corr/training_log_ppl": surprisal + k1,
            }
        )
    diagnosis = diagnosis_of(rows, tmp_path)
    assert diagnosis.verdict == "broken"
    first = diagnosis.causes[0]
    assert "uniform guess" in first.message
    above = [row["rollout_corr/training_log_ppl"] > np.log(2**18) for row in rows]
    assert f"in {sum(above)} of 116 steps" in first.message
    assert abs(first.from_step - 35) <= 2
    stale = {"weights-never-synced", "stale-weights"}
    assert not stale & {*first.also_possible, *(cause.slug for cause in diagnosis.causes)}
    assert f"step {first.from_step}" in diagnosis.over_steps.says


def test_a_vocabulary_that_is_given_lowers_the_bound(tmp_path: Path) -> None:
    rows = run_of(0.01, 0.01)
    for row in rows:
        row["rollout_corr/training_log_ppl"] = 8.0
    verdicts = [
        diagnosis_of(rows, tmp_path, given=facts).causes[0].message
        for facts in ({}, {"vocab_size": 1000})
    ]
    assert "uniform" not in verdicts[0]
    assert "uniform" in verdicts[1]


def of_mean(values: np.ndarray, key: str, **beside: np.ndarray) -> list[dict[str, float]]:
    """Rows of a log that has the mean log-ratio alone, with the noise of a mean over tokens."""
    noisy = values + np.random.default_rng(2).normal(0.0, 2e-4, STEPS)
    rows = [{key: float(value)} for value in noisy]
    for name, numbers in beside.items():
        for row, number in zip(rows, numbers, strict=True):
            row[name] = float(number)
    return rows


def test_a_rise_over_some_steps_begins_at_its_first_step_and_has_its_last_level(
    tmp_path: Path,
) -> None:
    """k1 is flat for five steps and then 5.7, 11 and 17 nats: a line through them begins early."""
    rng = np.random.default_rng(5)
    k1 = np.full(116, 3e-4)
    k1[5:8], k1[8:] = [5.7, 11.3, 16.9], 16.9
    rows = [
        {
            "rollout_corr/kl": x * (1.0 + 0.02 * rng.normal()),
            "rollout_corr/k3_kl": 4e-4 * (1.0 + 0.1 * rng.normal()) if x < 1.0 else x - 1.0,
            "rollout_corr/rollout_log_ppl": 0.33 + 0.03 * rng.normal(),
            "rollout_corr/training_log_ppl": 0.33 + x + 0.03 * rng.normal(),
        }
        for x in k1
    ]
    found = diagnosis_of(rows, tmp_path)
    assert found.causes[0].from_step == 6
    assert found.over_steps.says.startswith("At step 6 ")
    assert ", and to 1" in found.over_steps.says  # 16 or 17 nats, at step 8


def test_a_growth_that_a_restart_ends_is_named_where_it_was(tmp_path: Path) -> None:
    """Behind the restart the mismatch is rounding again, and nothing grows there."""
    k3 = [1e-3 if i < 20 or i >= 34 else 1e-3 * 1.5 ** (i - 19) for i in range(STEPS)]
    rows = [gaussian(float(np.sqrt(2.0 * x * 0.3)), i) for i, x in enumerate(k3)]
    found = diagnosis_of(rows, tmp_path)
    assert [cause.slug for cause in found.causes] == ["weights-never-synced"]
    assert found.verdict == "correctable"
    assert "is back at its former level at step 35" in found.over_steps.says


@pytest.mark.parametrize(
    ("then", "verdict", "slug"),
    [
        (0.0, "inconclusive", "engine-noise"),
        (0.007, "inconclusive", "forwards-differ"),
        (-0.07, "broken", "temperature-raw-recorded"),
    ],
)
def test_a_mean_log_ratio_alone_is_judged(
    tmp_path: Path, then: float, verdict: str, slug: str
) -> None:
    """Its sign shows who sampled; near 0 it does not show exchanged tokens."""
    k1 = np.where(np.arange(STEPS) < BEGINS, 0.0, then)
    found = diagnosis_of(of_mean(k1, "train/vllm_kl"), tmp_path)
    assert (found.verdict, found.causes[0].slug) == (verdict, slug)
    assert found.causes[0].from_step == (BEGINS + 1 if then else None)
    assert "train/vllm_kl" in str(found.causes[0].evidence)
    assert len(found.causes[0].actions) == {0.0: 0, 0.007: 2, -0.07: 3}[then]


def test_the_mean_log_ratio_of_torchtitan(tmp_path: Path) -> None:
    """Its mean ratio stays at 1, so that the recorded distribution sampled."""
    shift = np.where(np.arange(STEPS) < BEGINS, 0.0, -0.1)
    key = "bit_wise/logprob_diff/mean"
    path = log_of(of_mean(shift, key, **{"loss/ratio_mean": np.ones(STEPS)}), tmp_path)
    found = diagnosis_in(path)
    assert found.verdict == "correctable"
    assert found.causes[0].from_step == BEGINS + 1
    assert f"-{key}" in str(found.causes[0].evidence)


def test_a_mean_log_ratio_with_the_other_sign(tmp_path: Path) -> None:
    """AReaL logs the mean log-ratio: below 0 where the trainer gives the tokens less."""
    shift = np.where(np.arange(STEPS) < BEGINS, 0.0, -0.1)
    key, weight = "ppo_actor/update/behave_approx_kl/avg", "ppo_actor/update/behave_imp_weight/avg"
    path = log_of(of_mean(shift, key, **{weight: np.ones(STEPS)}), tmp_path)
    stale = rcdiag.diagnose(path)
    assert stale.diagnosis.verdict == "inconclusive"
    assert stale.diagnosis.causes[0].from_step == BEGINS + 1
    assert f"-{key}" in stale.diagnosis.causes[0].evidence[0].values()
    # Exchanged tokens: their mean is 0, but the weights of tokens tell.
    weights = np.where(np.arange(STEPS) < BEGINS, 1.0, 1.08)
    path = log_of(of_mean(0.0 * shift, key, **{weight: weights}), tmp_path)
    exchanged = diagnosis_in(path)
    assert exchanged.causes[0].slug in ("shift-by-one", "forwards-differ")
    assert exchanged.verdict != "healthy"


def test_mean_log_probs_of_both_sides_give_their_difference(tmp_path: Path) -> None:
    """slime logs both means as they are, below 0: k1 is the sampler's minus the trainer's."""
    away = np.where(np.arange(STEPS) < BEGINS, 0.0, 0.05)
    sampler = np.full(STEPS, -0.4) + np.random.default_rng(3).normal(0.0, 0.02, STEPS)
    rows = of_mean(
        np.zeros(STEPS),
        "perf/x",
        **{"rollout/rollout_log_probs": sampler, "rollout/log_probs": sampler - away},
    )
    late = diagnosis_of(rows[BEGINS:], tmp_path)
    assert late.causes[0].slug == "forwards-differ"
    assert "(`rollout/rollout_log_probs - rollout/log_probs`)" in late.summary


def test_the_step_of_what_is_not_wrong_is_none(tmp_path: Path) -> None:
    """Entropy and surprisals that drift divide the steps, and rounding begins nowhere."""
    rows = [gaussian(0.01, i, entropy=0.5 + 0.02 * max(i - 30, 0)) for i in range(STEPS)]
    found = diagnosis_of(rows, tmp_path)
    assert (found.verdict, found.causes[0].from_step) == ("healthy", None)
    assert found.over_steps.large_from is None


def test_a_chi_squared_above_10_moves_by_chance_alone() -> None:
    values = np.exp(np.random.default_rng(4).normal(5.5, 1.0, 100))
    assert changes_of(series(values, "chi2_token")) == []


def test_a_log_of_the_update_alone_says_what_changes(tmp_path: Path) -> None:
    rows = [
        {
            "actor/entropy": (5.7 if i >= 5 else 0.3) + 0.01 * (i % 3),
            "actor/grad_norm": (6.0 if i >= 5 else 0.4) * (1.0 + 0.05 * (i % 3)),
        }
        for i in range(STEPS)
    ]
    found = diagnosis_of(rows, tmp_path)
    assert found.verdict == "inconclusive"
    assert "`actor/entropy` moves at step 6 (from 0.31 to 5.7)" in found.over_steps.says


def test_a_negative_k3_is_none(tmp_path: Path) -> None:
    rows = [{"rollout_corr/k3_kl": -0.1 - 1e-3 * (i % 3)} for i in range(STEPS)]
    result = diagnosed(rows, tmp_path)
    assert result.diagnosis.verdict == "inconclusive"
    assert "never below 0" in result.diagnosis.summary
    assert [one.relation_level for one in result.logs[0].relations] == ["error"]


def test_tokens_that_the_trainer_finds_likelier_show_a_raw_record(tmp_path: Path) -> None:
    """Raw log-probs at a temperature: k1 is as far below 0 as it would be above."""
    rows = run_of(0.01, 0.2)
    for row in rows[BEGINS:]:
        for key in ("rollout_corr/kl", "rollout_corr/log_ppl_diff"):
            row[key] = -row[key]
    diagnosis = diagnosis_of(rows, tmp_path)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "temperature-raw-recorded")


@pytest.mark.parametrize("center", [-0.0002, 0.0002])
def test_the_sign_of_a_k1_near_0_decides_nothing(tmp_path: Path, center: float) -> None:
    """E[ratio] is surely 1.02, but the trainer finds the tokens no likelier."""
    rows = run_of(0.01, 0.2)
    for row, k1 in zip(rows[BEGINS:], center + noise(5, 0.0003), strict=False):
        row |= {"rollout_corr/kl": float(k1), "rollout_corr/log_ppl_diff": float(k1)}
    diagnosis = diagnosis_of(rows, tmp_path)
    (cause,) = diagnosis.causes
    assert (cause.verdict, cause.slug) == ("inconclusive", "forwards-differ")


def test_a_flatter_copy_lowers_no_probability_by_half(tmp_path: Path) -> None:
    """Two tokens of .9 and .1, sampled at temperature 2: .75 and .25, and recorded raw."""
    raw, sampled = np.array([0.9, 0.1]), np.array([0.75, 0.25])
    ratio = sampled / raw
    for least, slug in ((ratio.min(), "temperature-raw-recorded"), (0.01, "forwards-differ")):
        rows = run_of(0.01, 0.01)
        for i, row in enumerate(rows):
            wobble = 1.0 + 0.01 * (i % 5)
            k1 = float(-(sampled * np.log(ratio)).sum()) * wobble
            row |= {
                "rollout_corr/kl": k1,
                "rollout_corr/k3_kl": float((sampled * ratio).sum() - 1.0) * wobble + k1,
                "rollout_corr/log_ppl_diff": k1,
                "rollout_corr/rollout_is_min": least,
                "training/rollout_actor_probs_pearson_corr": 0.99,
            }
        diagnosis = diagnosis_of(rows, tmp_path)
        assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", slug)
        assert diagnosis.causes[0].side == "recorder"


def test_zeros_among_log_probs_leave_no_ratio_above_1(tmp_path: Path) -> None:
    """Of surprisals of 2 nats one in fifty is recorded as 0; slime logs no probabilities."""
    share, p = 0.02, float(np.exp(-2.0))
    rows = []
    for i in range(STEPS):
        zeros = share * (1.0 + 0.05 * (i % 5))
        k1 = zeros * 2.0
        rows.append(
            {
                "train/mis_kl": k1,
                "train/mis_k3_kl": zeros * (p - 1.0) + k1,
                "train/mis_tis_weight_before_bound": 1.0 - zeros * (1.0 - p),
                "train/mis_chi2_token": -zeros * (1.0 - p**2),
                "train/mis_training_log_ppl": 2.0,
                "train/mis_rollout_log_ppl": 2.0 - k1,
            }
        )
    diagnosis = diagnosis_of(rows, tmp_path)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "zero-placeholder")


@pytest.mark.parametrize("zeros", [0.0, 0.001, 0.01])
def test_a_few_zeros_leave_no_valid_weights(tmp_path: Path, zeros: float) -> None:
    """Where the trainer has -12 nats, zeros lower E[ratio] by a tenth of the k3 that they add."""
    rows = run_of(0.01, 0.05)
    for i, row in enumerate(rows[BEGINS:]):
        share = zeros * (1.0 + 0.05 * (i % 5))
        row["rollout_corr/kl"] += 12.0 * share
        row["rollout_corr/k3_kl"] += 11.0 * share
    diagnosis = diagnosis_of(rows, tmp_path)
    assert diagnosis.verdict == ("inconclusive" if zeros else "correctable")
    assert ("zero-placeholder" in diagnosis.causes[0].also_possible) is (zeros > 0.0)


def test_tokens_that_neither_distribution_sampled_are_not_aligned(tmp_path: Path) -> None:
    """Short responses: an end of 4 nats that a shift drops leaves the means apart."""
    rows = run_of(0.01, 0.01)
    for i, row in enumerate(rows[BEGINS:]):
        k1 = 0.13 + 0.002 * (i % 5)
        row |= {
            "rollout_corr/kl": k1,
            "rollout_corr/k3_kl": 2.0 + 0.02 * (i % 4),
            "rollout_corr/log_ppl_diff": k1,
            "rollout_corr/log_ppl_abs_diff": k1,
            "training/rollout_actor_probs_pearson_corr": 0.02,
        }
    diagnosis = diagnosis_of(rows, tmp_path)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "shift-by-one")
    assert "neither distribution" in diagnosis.causes[0].message


@pytest.mark.parametrize(("cut", "known"), [(0.0, True), (0.03, False)])
def test_a_mean_of_ratios_that_a_bound_cut_is_not_their_mean(cut: float, known: bool) -> None:
    """NeMo RL logs the mean ratio after its bound, and the share of ratios beyond it."""
    log = {"k3": 0.2, "ratio_mean": 0.9, "share_cut": cut}
    of_log = {name: series([x] * 4, name) for name, x in log.items()}
    run = LoggedRun("log", Log(Path("log"), "jsonl", {}), of_log)
    window = StepWindow(run, run.steps)
    assert (window.excess is not None) is known
    assert (window.k1 is not None) is known


def test_steps_before_a_window_are_near_its_steps() -> None:
    run = LoggedRun("log", Log(Path("log"), "jsonl", {}), {"k3": series(np.ones(30))})
    one = StepWindow(run, np.arange(20, 30)).before
    several = StepWindow(run, np.array([10, 13, 20])).before
    assert one.steps.tolist() == [15, 16, 17, 18, 19]
    assert several.steps.tolist() == [5, 6, 7, 8, 9, 11, 12, 15, 16, 17, 18, 19]
    assert StepWindow(run, np.arange(3)).before is None


def test_a_draft_is_no_sharper_copy_of_what_sampled(tmp_path: Path) -> None:
    """Tokens that the recorded model finds 20 times less likely leave k3 above -k1."""
    rows = run_of(0.01, 0.01)
    for i, row in enumerate(rows):
        rare = 0.03 + 0.001 * (i % 5)  # share of such tokens; the others are as likely in both
        row |= {
            "rollout_corr/kl": -rare * np.log(20.0),
            "rollout_corr/k3_kl": rare * (20.0 - 1.0 - np.log(20.0)),
            "rollout_corr/log_ppl_diff": -rare * np.log(20.0),
            "training/rollout_actor_probs_pearson_corr": 0.97,
        }
    diagnosis = diagnosis_of(rows, tmp_path)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "forwards-differ")
    assert "draft-recorded" in diagnosis.causes[0].also_possible


@pytest.mark.parametrize(("ratio", "slug"), [(0.9, "truncated-law"), (0.6, "forwards-differ")])
def test_a_mean_ratio_below_1_is_a_kept_set_or_a_division(
    tmp_path: Path, ratio: float, slug: str
) -> None:
    """Means over tokens are alike for log-probs divided by T, with the sum of p^(1/T) for q."""
    rows = run_of(0.01, 0.01)
    for i, row in enumerate(rows):  # each token renormalised over q: log_ratio = ln q
        k1 = -np.log(ratio) + 0.001 * (i % 5)
        row |= {"rollout_corr/kl": k1, "rollout_corr/k3_kl": ratio - 1.0 + k1}
    diagnosis = diagnosis_of(rows, tmp_path)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", slug)
    assert f"{ratio:.3f}" in diagnosis.causes[0].message
    divided = "log-probs-divided" in diagnosis.causes[0].also_possible
    assert divided is (slug == "forwards-differ")


@pytest.mark.parametrize(("pearson", "slug"), [(0.02, "shift-by-one"), (0.69, "shift-some-rows")])
def test_equal_surprisals_at_other_tokens_are_not_aligned(
    tmp_path: Path, pearson: float, slug: str
) -> None:
    rows = run_of(0.01, 0.01)
    for i, row in enumerate(rows[BEGINS:]):
        row |= {
            "rollout_corr/kl": 0.002 * (-1) ** i,
            "rollout_corr/k3_kl": 1.5 + 0.02 * (i % 4),
            "rollout_corr/log_ppl_diff": 0.01,
            "rollout_corr/log_ppl_abs_diff": 0.011,
            "training/rollout_actor_probs_pearson_corr": pearson,
        }
    diagnosis = diagnosis_of(rows, tmp_path)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", slug)


def test_shifted_and_exchanged_rows_are_alike_in_means_over_tokens(tmp_path: Path) -> None:
    """slime's k1 and k3 alone; the test above has what tells the two apart."""
    rows = [
        {"train/mis_kl": 0.002 * (-1) ** i, "train/mis_k3_kl": 1.5 + 0.02 * (i % 4)}
        for i in range(STEPS)
    ]
    diagnosis = diagnosis_of(rows, tmp_path)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "forwards-differ")
    assert {"shift-by-one", "rows-swapped"} < set(diagnosis.causes[0].also_possible)


@pytest.mark.parametrize(
    ("key", "value", "slug"),
    [
        ("rollout_corr/rollout_log_ppl", 0.0, "zero-placeholder"),
        ("rollout_corr/rollout_log_ppl", -1.9, "sign-flipped"),
        # The same number as the trainer's in each step, or on the mean alone.
        ("rollout_corr/rollout_log_ppl", -0.5, "sign-flipped"),
        ("rollout_corr/rollout_log_ppl", -0.515, "entropy-recorded"),
        ("rollout_corr/rollout_log_ppl", -0.7, "probabilities-stored"),
        # Tokens of .5 nats have a mean probability of exp(-.5) = .61 at least.
        ("rollout_corr/rollout_log_ppl", -0.3, "entropy-recorded"),
        ("rollout_corr/kl", float("nan"), "nan-log-probs"),
    ],
)
def test_impossible_numbers_are_broken(tmp_path: Path, key: str, value: float, slug: str) -> None:
    rows = run_of(0.01, 0.01)
    for row in rows:
        row[key] = value
    diagnosis = diagnosis_of(rows, tmp_path)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", slug)
    assert key in diagnosis.causes[0].message


NAN_OF_STEP = {"rollout_corr/k3_kl": float("nan")}


def test_a_lone_nan_does_not_break_a_healthy_run(tmp_path: Path) -> None:
    rows = run_of(0.01, 0.01)
    rows[20] |= NAN_OF_STEP
    found = diagnosis_of(rows, tmp_path)
    assert (found.verdict, found.causes[0].slug) == ("inconclusive", "nan-log-probs")
    assert "in 1 of 60 steps (step 21)" in found.summary


def test_a_few_nan_do_not_hide_the_other_steps(tmp_path: Path) -> None:
    rows = run_of(0.01, 0.3)
    for step in (5, 40):
        rows[step] |= NAN_OF_STEP
    found = diagnosis_of(rows, tmp_path)
    assert [cause.slug for cause in found.causes] == ["nan-log-probs", "forwards-differ"]
    assert [cause.from_step for cause in found.causes] == [6, BEGINS + 1]


def test_nan_in_each_step_from_one_on_is_broken(tmp_path: Path) -> None:
    rows = run_of(0.01, 0.01)
    for row in rows[BEGINS:]:
        row |= NAN_OF_STEP
    found = diagnosis_of(rows, tmp_path)
    assert (found.verdict, found.causes[0].from_step) == ("broken", BEGINS + 1)


def test_an_exponential_that_overflows_is_no_nan(tmp_path: Path) -> None:
    """exp(|log_ratio|) above 88 nats is infinite in float32, though log-probs are finite."""
    late = np.arange(STEPS) >= BEGINS
    rows = [
        {
            "train/gen_kl_error": 0.9 + 0.01 * (i % 5) if one else 1e-4 * (1.0 + 0.1 * (i % 3)),
            "train/token_mult_prob_error": float("inf") if one else 1.01,
        }
        for i, one in enumerate(late)
    ]
    found = diagnosis_of(rows, tmp_path)
    assert [cause.slug for cause in found.causes] == ["forwards-differ"]
    assert found.causes[0].from_step == BEGINS + 1


@pytest.mark.parametrize("value", [1e308, float("inf")])
def test_a_number_far_beyond_float32_is_read_as_infinite(tmp_path: Path, value: float) -> None:
    """Its square overflows: an overflow of the exponential, as an infinite number is."""
    rows = run_of(0.01, 0.01)
    for row in rows[BEGINS:]:
        row["rollout_corr/k3_kl"] = value
    found = diagnosis_of(rows, tmp_path)
    rows[-1]["rollout_corr/k3_kl"] = float("inf")
    same = diagnosis_of(rows, tmp_path)
    assert (found.verdict, found.causes[0].slug) == (same.verdict, same.causes[0].slug)
    assert found.verdict != "healthy"


def test_the_size_of_the_largest_double_does_not_overflow() -> None:
    (size,) = rms_of("k1", np.array([1e308]))
    assert size == pytest.approx(np.sqrt(2.0) * 1e154)


def test_an_infinite_k3_beside_a_finite_k1_is_an_overflow(tmp_path: Path) -> None:
    rows = run_of(0.01, 0.01)
    for row in rows[BEGINS:]:
        row |= {"rollout_corr/kl": 95.0, "rollout_corr/k3_kl": float("inf")}
    found = diagnosis_of(rows, tmp_path)
    assert "nan-log-probs" not in [cause.slug for cause in found.causes]
    assert found.verdict != "healthy"


def test_two_runs_without_a_common_key_are_not_compared(tmp_path: Path) -> None:
    late = [0.9 if i >= BEGINS else 1e-4 for i in range(STEPS)]
    one = log_of([{"rollout_corr/kl": x} for x in late], tmp_path, "one.jsonl")
    other = log_of([{"train/gen_kl_error": 1e-4} for _ in late], tmp_path, "other.jsonl")
    found = diagnosis_in([one, other])
    assert "has no key of the mismatch in common with" in found.over_steps.says
    assert "deviates" not in found.over_steps.says


@pytest.mark.parametrize(
    ("healthy_steps", "says"),
    [
        (
            range(1, 15),
            "have the steps 1 to 14 in common, and what is wrong in failed.jsonl begins ",
        ),
        (range(501, 520), "has no step in common with failed.jsonl"),
        (range(1, STEPS + 1), f"deviates from healthy.jsonl at step {BEGINS + 1}"),
    ],
)
def test_a_healthy_run_that_ends_before_the_fault_begins_is_said(
    tmp_path: Path, healthy_steps: range, says: str
) -> None:
    failed = log_of(run_of(0.01, 0.5), tmp_path, "failed.jsonl")
    healthy = tmp_path / "healthy.jsonl"
    rows = ({"step": step, **gaussian(0.01, 100 + step)} for step in healthy_steps)
    healthy.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = diagnosis_in([failed, healthy])
    assert says in found.over_steps.says
    assert "No key" not in found.over_steps.says


def test_a_mismatch_of_exactly_0_is_inconclusive(tmp_path: Path) -> None:
    rows = [{"rollout_corr/kl": 0.0, "rollout_corr/k3_kl": 0.0} for _ in range(STEPS)]
    diagnosis = diagnosis_of(rows, tmp_path)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("inconclusive", "columns-identical")


def test_a_mismatch_that_is_printed_as_0_0000_is_not_exactly_0(tmp_path: Path) -> None:
    """prime-rl prints four decimals, so that a healthy run's k3 of 2e-5 is 0.0000."""
    path = tmp_path / "trainer.log"
    line = "12:00:00 SUCCESS Step {} | 5.21s | Loss 0.0012 | Mismatch KL 0.0000 | LR 1.00e-06\n"
    path.write_text("".join(line.format(step) for step in range(STEPS)))
    diagnosis = diagnosis_in(path)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("healthy", "engine-noise")


@pytest.mark.parametrize(
    ("base", "count", "is_base"), [(10.0, 30, True), (10.0, 3, False), (9.8, 30, False)]
)
def test_surprisals_of_another_base(tmp_path: Path, base: float, count: int, is_base: bool) -> None:
    """A few steps may have the factor ln 10 by chance; base 9.8 is 0.9% from it."""
    rows = run_of(0.01, 0.01)[:count]
    for i, row in enumerate(rows):
        surprisal = 0.5 + 0.01 * (i % 7)
        row |= {
            "rollout_corr/training_log_ppl": surprisal,
            "rollout_corr/rollout_log_ppl": surprisal / np.log(base),
        }
    diagnosis = diagnosis_of(rows, tmp_path)
    assert (diagnosis.causes[0].slug == "log-base") == is_base


@pytest.mark.parametrize(
    ("factor", "slug"), [(1.5, "trainer-without-temperature"), (1.0, "forwards-differ")]
)
def test_an_entropy_that_departs_from_the_surprisal_is_another_temperature(
    tmp_path: Path, factor: float, slug: str
) -> None:
    """Means over tokens and over responses differ by a constant factor, here 1.3."""
    rows = run_of(0.01, 0.2)
    for i, row in enumerate(rows):
        surprisal = row["rollout_corr/rollout_log_ppl"]
        row["actor/entropy"] = 1.3 * surprisal * (factor if i >= BEGINS else 1.0)
    diagnosis = diagnosis_of(rows, tmp_path)
    assert diagnosis.causes[0].slug == slug


def test_a_mismatch_that_follows_the_staleness_is_stale_weights(tmp_path: Path) -> None:
    rows = []
    for i in range(STEPS):
        lag = i % 4
        rows.append({**gaussian(0.06 + 0.05 * lag, i), "staleness": float(lag)})
    diagnosis = diagnosis_of(rows, tmp_path)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("correctable", "stale-weights")


def test_a_growing_mismatch_is_weights_never_synced(tmp_path: Path) -> None:
    rows = [gaussian(0.03 + 0.006 * max(i - 20, 0), i) for i in range(STEPS)]
    diagnosis = diagnosis_of(rows, tmp_path)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("correctable", "weights-never-synced")
    assert abs(diagnosis.causes[0].from_step - 21) <= 4


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("train/actor_lr", np.zeros(STEPS)),
        ("policy/policy_lr", np.zeros(STEPS)),
        ("response_length/mean", 300.0 + 12.0 * np.maximum(np.arange(STEPS) - 5.0, 0.0)),
        ("staleness", 1.0 + 0.01 * (np.arange(STEPS) % 2)),
    ],
)
def test_growth_that_updates_alone_do_not_explain(
    tmp_path: Path, key: str, values: np.ndarray
) -> None:
    rows = [
        gaussian(0.02 * np.exp(0.06 * max(i - 5, 0)), i) | {key: float(values[i])}
        for i in range(STEPS)
    ]
    found = diagnosis_of(rows, tmp_path)
    assert found.causes[0].slug == "forwards-differ"
    if not key.endswith("lr"):
        assert "weights-never-synced" in found.causes[0].also_possible


@pytest.mark.parametrize(
    ("first", "entropy", "slug"),
    [
        (3e-4, (0.5, 0.3), "weights-never-synced"),
        (4e-3, (0.5, 0.3), "forwards-differ"),  # not of equal weights before
        (3e-4, (0.02, 0.5), "forwards-differ"),  # noise grows as much by the entropy
        (3e-4, (0.0, -900.0), "weights-never-synced"),  # no entropy
    ],
)
def test_weights_that_are_never_synced_begin_at_rounding_and_grow_more_than_noise(
    tmp_path: Path, first: float, entropy: tuple[float, float], slug: str
) -> None:
    rows = [
        gaussian(float(np.sqrt(2.0 * first * (1.0 + 9.0 * (i / STEPS) ** 2))), i)
        | {"actor/entropy": float(np.interp(i, [0, STEPS], entropy))}
        for i in range(STEPS)
    ]
    diagnosis = diagnosis_of(rows, tmp_path)
    assert [cause.slug for cause in diagnosis.causes] == [slug]
    if slug == "forwards-differ":
        cause = diagnosis.causes[0]
        assert {"weights-never-synced", "quantised-weights"} <= set(cause.also_possible)
        assert "grows steadily" in cause.message


@pytest.mark.parametrize("better", [0.0, 0.3])
def test_a_sampler_whose_rewards_improve_has_new_weights(tmp_path: Path, better: float) -> None:
    rows = [
        gaussian(float(np.sqrt(6e-4 * (1.0 + 9.0 * (i / STEPS) ** 2))), i)
        | {"critic/score/mean": 0.3 + better * i / STEPS + 0.01 * float(noise(7)[i])}
        for i in range(STEPS)
    ]
    diagnosis = diagnosed(rows, tmp_path).diagnosis
    assert diagnosis is not None
    expected = "forwards-differ" if better else "weights-never-synced"
    assert [cause.slug for cause in diagnosis.causes] == [expected]


def test_weights_that_fall_behind_do_not_go_on_beyond_a_drift(tmp_path: Path) -> None:
    """A lone growth that a jump follows, with no number of who sampled."""
    sizes = [3e-4 * (1.0 + 60.0 * max(i - 10, 0) / 30) if i < 45 else 3.0 for i in range(STEPS)]
    rows = [{"gen_kl_error": size * float(np.exp(noise(3)[i]))} for i, size in enumerate(sizes)]
    diagnosis = diagnosis_of(rows, tmp_path)
    assert "weights-never-synced" not in {cause.slug for cause in diagnosis.causes}


@pytest.mark.parametrize("seed", range(8))
def test_a_growth_by_squares_of_the_steps_is_found_where_it_begins(seed: int) -> None:
    grown = 3e-4 + 0.1 * (np.maximum(np.arange(STEPS) - BEGINS, 0) / (STEPS - BEGINS)) ** 2
    (change,) = changes_of(series(grown * np.exp(noise(seed))))
    assert change.shape == "creep"
    assert abs(change.step - BEGINS) <= 2


@pytest.mark.parametrize(("k3", "verdict"), [(0.28, "inconclusive"), (4.0, "broken")])
def test_a_k3_that_is_too_large_for_any_sampler_is_broken(
    tmp_path: Path, k3: float, verdict: str
) -> None:
    """Whether the recorded distribution sampled, when k1 is k3, or not."""
    rows = [
        {"mismatch_kl/all/mean": (1e-4 if i < BEGINS else k3) * (1.0 + 0.1 * (i % 3))}
        for i in range(STEPS)
    ]
    diagnosis = diagnosis_of(rows, tmp_path)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == (verdict, "forwards-differ")


@pytest.mark.parametrize(("largest", "verdict"), [(5e4, "healthy"), (4.85e8, "inconclusive")])
@pytest.mark.parametrize("key", ["policy/loss_metrics/is_ratio_max", "offpolicy/ratio/max"])
def test_a_ratio_of_more_than_the_tokens_of_a_step_is_of_no_sample(
    tmp_path: Path, key: str, largest: float, verdict: str
) -> None:
    """In a single step it may be chance; SkyRL and rLLM bound it at e^20."""
    sizes = 1e-4 * np.exp(noise(7))
    rows = [
        {"offpolicy/k3_kl": sizes[i], key: largest if i % 4 == 1 else 3.0} for i in range(STEPS)
    ]
    diagnosis = diagnosis_of(rows, tmp_path)
    assert diagnosis.verdict == verdict
    if verdict != "healthy":
        assert f"`{key}` is up to 4.8e+08" in diagnosis.summary
        assert "in 15 steps" in diagnosis.summary
        alone = diagnosis_of([row | {key: 3.0} for row in rows[:-3]] + rows[-3:], tmp_path)
        assert alone.verdict == "healthy"


def test_shares_of_responses_that_skyrl_rejects_are_read(tmp_path: Path) -> None:
    metrics = "policy/loss_metrics/"
    rows = [
        {
            "policy/rollout_train_logprobs_abs_diff_mean": 0.01 * (1.0 + 0.1 * (i % 3)),
            f"{metrics}is_ratio_mean": 1.0 + 1e-4 * (i % 3),
            f"{metrics}geo_sequence_mask_masked_ratio": 0.0 if i < BEGINS else 0.6,
        }
        for i in range(STEPS)
    ]
    diagnosis = diagnosis_of(rows, tmp_path)
    assert diagnosis.verdict == "inconclusive"
    assert f"`{metrics}geo_sequence_mask_masked_ratio` is 0.6" in diagnosis.summary


def test_a_correlation_is_no_distance_in_the_sentence(tmp_path: Path) -> None:
    key = "training/rollout_actor_probs_pearson_corr"
    rows = [{key: (0.999 if i < BEGINS else 0.98) + 1e-4 * (i % 3)} for i in range(STEPS)]
    diagnosis = diagnosis_of(rows, tmp_path)
    assert f"differ: `{key}` is 0.98" in diagnosis.summary
    assert f"`{key}` goes from 1 to 0.98" in diagnosis.over_steps.says


def test_what_is_as_small_as_rounding_and_grows_is_left_open(tmp_path: Path) -> None:
    rows = [gaussian(0.005 + 0.0006 * max(i - 20, 0), i) for i in range(STEPS)]
    diagnosis = diagnosis_of(rows, tmp_path)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("inconclusive", "forwards-differ")
    assert "as small as rounding" in diagnosis.causes[0].message
    assert abs(diagnosis.causes[0].from_step - 21) <= 4
    assert diagnosis.next


def test_ruled_out_causes_have_the_keys_that_rule_them_out(tmp_path: Path) -> None:
    """A mean surprisal above 0 does not rule out zeros at a part of the tokens."""
    result = diagnosed(run_of(0.01, 0.01), tmp_path)
    found = result.diagnosis
    assert found is not None
    assert set(found.ruled_out) == set(found.ruled_out_by)
    assert "`rollout_corr/rollout_log_ppl` 0.5" in found.ruled_out_by["sign-flipped"]
    assert "pearson_corr` 1:" in found.ruled_out_by["rows-swapped"]
    assert "zero-placeholder" not in found.ruled_out
    assert dict(headline(result, "").ruled_out) == found.ruled_out_by


def test_a_jump_beyond_the_size_of_rounding_is_not_called_as_small(tmp_path: Path) -> None:
    """A mean |log_ratio| of .05 is a k2 of .00125 or more by Jensen, though k3 is far less."""
    rows = [
        {
            "train/mis_k3_kl": 5e-5 * (1.0 + 0.1 * (i % 3)),
            "train/train_rollout_logprob_abs_diff": (0.05 if i >= BEGINS else 0.01)
            * (1.0 + 0.02 * (i % 3)),
        }
        for i in range(STEPS)
    ]
    found = diagnosis_of(rows, tmp_path)
    assert found.verdict == "inconclusive"
    assert "train_rollout_logprob_abs_diff` jumps from 0.01 to 0.05" in found.summary
    assert "more than the rounding of two engines" in found.summary
    assert "as small as rounding" not in found.summary


LOGP = "sampling/sampling_logp_difference"


@pytest.mark.parametrize(
    ("largest", "verdict", "ruled_out"),
    [(0.3, "healthy", True), (3.0, "healthy", False), (9998.0, "inconclusive", False)],
)
def test_the_largest_log_ratio_of_a_token_rules_out_placeholders_or_shows_numbers_in_place(
    tmp_path: Path, largest: float, verdict: str, ruled_out: bool
) -> None:
    """Of a mean alone neither is known; -9999 in place of one log-prob of a million adds .01."""
    rows = [
        {
            f"{LOGP}/mean": 0.01 * (1.0 + 0.05 * (i % 3)),
            f"{LOGP}/max": largest * (1.0 + 0.01 * (i % 3)),
            "entropy": 0.5,
        }
        for i in range(STEPS)
    ]
    found = diagnosis_of(rows, tmp_path)
    assert found.verdict == verdict
    placed = {"zero-placeholder", "shift-by-one", "rows-swapped"}
    assert (placed <= set(found.ruled_out)) == ruled_out
    assert (f"{LOGP}/max" in found.summary) == (verdict == "inconclusive")


@pytest.mark.parametrize("k3", [1e-6, 0.01, 0.5, 2.0, 30.0, 1e4])
def test_a_token_of_a_k3_has_no_larger_log_ratio_than_is_said(k3: float) -> None:
    name, bound = window_of(Known(), k3_max=[k3, k3 / 2.0]).largest or ("", 0.0)
    assert name == "k3_max"
    assert bound - 1.0 + np.exp(-bound) >= k3 * (1.0 - 1e-9)
    assert k3 > 1e3 or np.expm1(bound) - bound >= k3 * (1.0 - 1e-9)


@pytest.mark.parametrize(("entropy", "level"), [(11.9, "error"), (2.5, "ok"), (40.0, "ok")])
def test_an_entropy_that_the_surprisal_of_the_tokens_forbids(entropy: float, level: str) -> None:
    """A uniform distribution gives each token ln(vocabulary) nats, not 2.4; 40 is no mean."""
    window = window_of(Known(vocabulary=151936), entropy=[entropy], trainer_log_ppl=[2.4])
    assert relation("log.entropy-and-surprisal", window)[1] == level


def test_a_gradient_that_is_nan_is_said_of_a_healthy_log(tmp_path: Path) -> None:
    rows = run_of(0.01, 0.01)
    for i, row in enumerate(rows):
        row["actor/grad_norm"] = float("nan") if i >= 30 else 0.5
    found = diagnosis_of(rows, tmp_path)
    assert "`actor/grad_norm` is NaN or infinite in" in found.over_steps.says
    assert "first at step 31" in found.over_steps.says


def test_a_jump_below_the_size_of_rounding_is_left_open(tmp_path: Path) -> None:
    """Probabilities that differ by .0018 and then by .0066, as where one side loses precision."""
    rows = [
        {
            "training/rollout_probs_diff_mean": (0.0066 if i >= BEGINS else 0.0018)
            * (1.0 + 0.02 * (i % 3)),
            "training/rollout_actor_probs_pearson_corr": 0.9996,
        }
        for i in range(STEPS)
    ]
    found = diagnosis_of(rows, tmp_path)
    assert (found.verdict, found.causes[0].slug) == ("inconclusive", "forwards-differ")
    assert found.causes[0].from_step == BEGINS + 1
    assert "`training/rollout_probs_diff_mean` jumps" in found.summary


def test_tokens_that_are_shifted_or_exchanged_are_compared_first(tmp_path: Path) -> None:
    """Equal mean surprisals, and 2.7 nats at single tokens: no precision makes that."""
    rows = [
        {"rollout_correction/kl": 1e-5 * (-1) ** i, "rollout_correction/k3_kl": 3.5 + 0.01 * i}
        for i in range(STEPS)
    ]
    cause = diagnosis_of(rows, tmp_path).causes[0]
    assert (cause.slug, cause.also_possible[0]) == ("forwards-differ", "shift-by-one")
    assert cause.actions[0].text.startswith("Compare the ids and the log-probs of one response")


@pytest.mark.parametrize(
    ("pearson", "difference", "drifted"), [(0.51, 0.2, False), (0.97, 0.04, True)]
)
def test_unlike_probabilities_are_no_drift_of_weights(
    pearson: float, difference: float, drifted: bool, tmp_path: Path
) -> None:
    """verl without k3: a correlation of .5 is more than a step or two of updates makes."""
    rows = [
        {
            "training/rollout_actor_probs_pearson_corr": pearson + 0.001 * (i % 3),
            "training/rollout_probs_diff_mean": difference + 0.001 * (i % 4),
        }
        for i in range(STEPS)
    ]
    cause = diagnosis_of(rows, tmp_path).causes[0]
    assert cause.slug == "forwards-differ"
    assert ("stale-weights" in cause.also_possible) == drifted
    assert ("more than a step or two" in cause.message) != drifted
    assert cause.actions[0].text.startswith("Read a generated response") != drifted


@pytest.mark.parametrize(("entropy", "perhaps"), [(2.1, True), (0.3, False)])
def test_what_bfloat16_may_make_is_not_called_beyond_rounding(
    entropy: float, perhaps: bool, tmp_path: Path
) -> None:
    """.055 nats: errors of .058 in each logit at an entropy of 2.1, and of .11 at one of .3."""
    rows = [{**gaussian(0.055, i), "actor/entropy": entropy} for i in range(STEPS)]
    cause = diagnosis_of(rows, tmp_path).causes[0]
    assert cause.slug == "forwards-differ"
    assert ("beyond" not in cause.message, "engine-noise" in cause.also_possible) == (perhaps,) * 2
    assert "moe-routing" in cause.also_possible


def test_a_small_size_does_not_excuse_unlike_probabilities(tmp_path: Path) -> None:
    """A k3 of rounding beside probabilities that differ by .05 in the mean."""
    rows = [gaussian(0.01, i) for i in range(STEPS)]
    for row in rows:
        row["training/rollout_probs_diff_mean"] = 0.05
    summary = diagnosis_of(rows, tmp_path).summary
    assert "bfloat16" not in summary
    assert "beyond rounding" in summary


def test_what_grows_at_a_learning_rate_of_0_is_not_of_updates(tmp_path: Path) -> None:
    rows = [{**gaussian(0.03 + 0.006 * max(i - 20, 0), i), "actor/lr": 0.0} for i in range(STEPS)]
    diagnosis = diagnosis_of(rows, tmp_path)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("correctable", "forwards-differ")
    assert "grows at a learning rate of 0 (`actor/lr`)" in diagnosis.summary
    assert "stale-weights" in diagnosis.ruled_out


def test_a_gradient_that_moves_before_the_mismatch_is_said(tmp_path: Path) -> None:
    rows = [gaussian(0.2 if i >= BEGINS else 0.01, i) for i in range(STEPS)]
    for i, row in enumerate(rows):
        row["actor/grad_norm"] = float((4.0 if i >= 25 else 0.4) * np.exp(noise(i, 0.1, 1)[0]))
    found = diagnosis_of(rows, tmp_path)
    assert "Before the mismatch `actor/grad_norm` moves at step 26 (" in found.over_steps.says


def test_a_mismatch_at_every_tenth_step_is_judged_on_these_steps(tmp_path: Path) -> None:
    rows = [gaussian(0.2 if i % 10 == 9 else 0.01, i) for i in range(STEPS)]
    diagnosis = diagnosis_of(rows, tmp_path)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("correctable", "forwards-differ")
    assert diagnosis.causes[0].from_step == 10
    assert "`rollout_corr/k3_kl` is large only every 10 steps" in diagnosis.over_steps.says


@pytest.mark.parametrize("bad", [(18,), (18, 29), (7, 18, 29, 38)])
def test_single_steps_with_a_mismatch_are_named_as_such(
    tmp_path: Path, bad: tuple[int, ...]
) -> None:
    rows = [gaussian(1.5 if i + 1 in bad else 0.01, i) for i in range(40)]
    found = diagnosis_of(rows, tmp_path)
    *others, last = map(str, bad)
    steps = f"steps {', '.join(others)} and {last}" if others else f"step {last}"
    key = "`rollout_corr/(k3_kl|kl)`"  # both are the same number here
    assert re.match(f"At {steps} alone {key} is 1.* instead of 5e-05", found.over_steps.says)
    assert "back at its former level" not in found.over_steps.says


def test_a_mismatch_that_goes_back_and_comes_again(tmp_path: Path) -> None:
    """It is back at the first step at which it is, although it is large again later."""
    large = (*range(10, 15), *range(30, 36))
    found = diagnosed([gaussian(0.2 if i in large else 0.01, i) for i in range(STEPS)], tmp_path)
    says = found.diagnosis.over_steps.says
    assert "is back at its former level at step 16, as after" in says
    assert "emptied cache; it leaves it again at step 31." in says


@pytest.mark.parametrize("resumed", [False, True])
def test_a_mismatch_that_returns_after_a_restart(tmp_path: Path, resumed: bool) -> None:
    """A run that was resumed logs the steps since its checkpoint again."""
    rows = [gaussian(0.2 if 20 <= i < 40 else 0.01, i) for i in range(STEPS)]
    path = log_of(rows, tmp_path)
    if resumed:
        lines = path.read_text().splitlines(keepends=True)
        again = [json.dumps({"step": step, **rows[30]}) + "\n" for step in (41, 42, 43)]
        path.write_text("".join([*lines[:40], *again, *lines[40:]]))
    diagnosis = diagnosis_in(path)
    assert (diagnosis.verdict, diagnosis.causes[0].from_step) == ("correctable", 21)
    where = "after the restart at step 41" if resumed else "at step 41, as after a"
    assert f"is back at its former level {where}" in diagnosis.over_steps.says


@pytest.mark.parametrize(
    ("keys", "generations"),
    [
        # GRPO without a correction; `kl` is that to the reference model.
        (["clip_ratio/region_mean", "clip_ratio/low_mean", "kl", "entropy"], "trl-1.16 (or trl-"),
        (["clip_ratio/region_mean", "clip_ratio/low_mean", "kl", "ratio"], "trl-async-1.16"),
        (["train/mis_kl", "train/mis_k3_kl"], "slime (or miles: the same keys)"),
        (["policy/rollout_train_logprobs_abs_diff_mean", "policy/ppo_clip_ratio"], "skyrl"),
    ],
)
def test_trainers_whose_keys_a_log_has(tmp_path: Path, keys: list[str], generations: str) -> None:
    rows = [{**dict.fromkeys(keys, 0.01), "step": step} for step in range(STEPS)]
    (log,) = diagnosed(rows, tmp_path).logs
    assert (log.generations_of_log or "").startswith(generations)


def test_dumps_are_those_of_known_trainers() -> None:
    text = files("rcdiag.diagnosis.logged").joinpath("dumps.toml").read_text(encoding="utf-8")
    dumps = tomllib.loads(text)
    assert set(dumps) <= set(families())
    for one in dumps.values():
        assert set(one) - {"line"} == {"option", "command", "source"}
        assert one["command"].startswith(("rcdiag score ", "rcdiag diagnose "))
        # A pattern over folders would join the dumps of several runs.
        assert "*" not in one["command"].rpartition("/")[0]
        # A line of one's own needs a file to stand in.
        assert "torch.save" not in one["option"]
        assert ".py" in one.get("line", ".py")


@pytest.mark.parametrize(
    ("key", "command"),
    [
        ("mismatch_kl/all/mean", "rcdiag score outputs/"),
        ("rollout_corr/k3_kl", "rcdiag score dump/step_*.pt"),
    ],
)
def test_the_next_step_is_a_dump_by_the_trainers_own_option(
    tmp_path: Path, key: str, command: str
) -> None:
    diagnosis = diagnosis_of([{key: 0.5} for _ in range(STEPS)], tmp_path)
    assert [action.command for action in diagnosis.next if action.command] == [command]


def test_a_small_log_of_verl_is_not_one_of_slime(tmp_path: Path) -> None:
    """slime logs `ppo_kl`, and verl `actor/ppo_kl`, which slime's loggers do not write."""
    row = {"actor/ppo_kl": 1e-4, "actor/pg_clipfrac": 0.01, "actor/pg_loss": 0.1}
    (log,) = diagnosed([row] * STEPS, tmp_path).logs
    assert log.trainer_of_log == "verl"


def test_a_log_without_mismatch_keys_is_inconclusive(tmp_path: Path) -> None:
    rows = [{"critic/score/mean": 0.5, "actor/ppo_kl": 1e-4} for _ in range(STEPS)]
    diagnosis = diagnosis_of(rows, tmp_path)
    assert diagnosis.verdict == "inconclusive"
    assert diagnosis.causes == []
    assert diagnosis.next


def test_all_formats_give_the_same_diagnosis(tmp_path: Path) -> None:
    rows = run_of(0.01, 0.2)
    asked = [log_of(rows, tmp_path)]
    table = tmp_path / "log.csv"
    with table.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ["step", *rows[0]])
        writer.writeheader()
        writer.writerows({"step": i + 1, **row} for i, row in enumerate(rows))
    asked.append(table)
    state = tmp_path / "trainer_state.json"
    history = [{"step": i + 1, **row} for i, row in enumerate(rows)]
    state.write_text(json.dumps({"log_history": history}))
    asked.append(state)
    console = tmp_path / "console.log"
    console.write_text(
        "".join(
            f"step:{i + 1} - " + " - ".join(f"{key}:{value!r}" for key, value in row.items()) + "\n"
            for i, row in enumerate(rows)
        )
    )
    asked.append(console)
    found = [rcdiag.diagnose(path) for path in asked]
    assert {one.logs[0].log_format for one in found} == {"jsonl", "csv", "json", "console"}
    first = found[0].diagnosis
    assert all(one.diagnosis == first for one in found)


def test_keys_of_an_unknown_trainer_are_named(tmp_path: Path) -> None:
    rows = [
        {"my/k1": row["rollout_corr/kl"], "my/k3": row["rollout_corr/k3_kl"]}
        for row in run_of(0.01, 0.2)
    ]
    named = diagnosed(rows, tmp_path, keys={"k1": "my/k1", "k3": "my/k3"})
    assert named.diagnosis.verdict == "correctable"
    assert named.logs[0].trainer_of_log is None
    with pytest.raises(RcdiagError, match="no key 'my/k4'"):
        diagnosed(rows, tmp_path, keys={"k1": "my/k4"})
    # Of two runs one may log the quantity under a key that rcdiag knows.
    both = [tmp_path / "log.jsonl", log_of(run_of(0.01, 0.01), tmp_path, "other.jsonl")]
    summaries = rcdiag.diagnose(both, keys={"k1": "my/k1", "k3": "my/k3"}).logs
    k3 = [one.key for log in summaries for one in log.quantities if one.quantity == "k3"]
    assert k3 == ["my/k3", "rollout_corr/k3_kl"]
    with pytest.raises(RcdiagError, match=r"log.jsonl, .*other.jsonl: no key 'my/k4'"):
        rcdiag.diagnose(both, keys={"k1": "my/k4"})
    with pytest.raises(RcdiagError, match="no quantity of logs"):
        diagnosed(rows, tmp_path, keys={"k7": "my/k1"})


def test_keys_are_named_by_the_metric_too_and_tell_no_trainer(tmp_path: Path) -> None:
    rows = [
        {"my/kl": row["rollout_corr/kl"], "my/k3": row["rollout_corr/k3_kl"]}
        for row in run_of(0.01, 0.2)
    ]
    named = diagnosed(rows, tmp_path, keys={"kl": "my/kl", "k3_kl": "my/k3"})
    assert [one.key for one in named.logs[0].quantities] == ["my/kl", "my/k3"]
    assert named.logs[0].trainer_of_log is None
    with pytest.raises(RcdiagError, match="no key that rcdiag knows") as refused:
        diagnosed([{f"{key}_2": value for key, value in row.items()} for row in rows], tmp_path)
    assert "--key k3=KEY" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("prefix", "family"), [("actor/", "verl"), ("rank0/actor/", "verl"), ("train/", "slime")]
)
def test_keys_that_several_trainers_have_tell_by_their_whole_name(
    tmp_path: Path, prefix: str, family: str
) -> None:
    """`ppo_kl`, `pg_clipfrac` and `pg_loss` are logged by many, below `actor/` by verl and rLLM."""
    names = ("ppo_kl", "pg_clipfrac", "pg_loss", "grad_norm")
    rows = [dict.fromkeys((prefix + name for name in names), 0.3) for _ in range(STEPS)]
    log = diagnosed(rows, tmp_path).logs[0]
    named = f"{log.trainer_of_log} {log.generations_of_log}"
    assert family in named
    assert ("slime" in named) == (family == "slime")


def test_several_runs_get_the_worst_verdict_and_a_summary_each(tmp_path: Path) -> None:
    healthy = log_of(run_of(0.01, 0.01), tmp_path, "healthy.jsonl")
    failed = log_of(run_of(0.01, 0.2), tmp_path, "failed.jsonl")
    result = rcdiag.diagnose([healthy, failed])
    assert result.diagnosis.verdict == "correctable"
    assert [log.log_verdict for log in result.logs] == ["healthy", "correctable"]
    assert f"deviates from healthy.jsonl at step {BEGINS + 1}" in result.diagnosis.over_steps.says


def test_two_runs_in_one_file_are_judged_each(tmp_path: Path) -> None:
    """The second run is healthy and would hide the first one if its steps counted alone."""
    path = log_of(run_of(0.01, 0.3), tmp_path)
    path.write_text(path.read_text() + log_of(run_of(0.01, 0.01), tmp_path, "b").read_text())
    result = rcdiag.diagnose(path)
    assert result.diagnosis.verdict == "correctable"
    assert [Path(one.file).name for one in result.logs] == [
        "log.jsonl (run 1 of 2)",
        "log.jsonl (run 2 of 2)",
    ]
    assert [one.log_verdict for one in result.logs] == ["correctable", "healthy"]


def test_steps_that_are_logged_twice_are_said(tmp_path: Path) -> None:
    rows = [{"step": i + 1, **row} for i, row in enumerate(run_of(0.01, 0.01))]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:40] + rows[30:]))
    (note,) = rcdiag.diagnose(path).logs[0].file_notes
    assert note.startswith("10 steps (31 to 40) logged twice, since the run was resumed at step 31")


def test_a_file_that_is_neither_dump_nor_log_is_refused_as_before(tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    path.write_text('{"prompt": "a", "completion": "b", "score": 0.5}\n')
    with pytest.raises(RcdiagError, match="not a format that rcdiag knows") as refused:
        rcdiag.diagnose(path)
    assert "token ids" in (refused.value.hint or "")


@pytest.mark.parametrize("row", ["{}", '{"step": 1, "data": {"rollout_corr/kl": null}}'])
def test_a_log_of_nulls_holds_no_numbers(tmp_path: Path, row: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f"{row}\n{row}\n")
    with pytest.raises(RcdiagError, match="no numbers in it") as refused:
        rcdiag.diagnose(path)
    assert "--from" not in (refused.value.hint or "")


def test_cut_lines_of_a_log_are_said_and_more_than_a_tenth_refused(tmp_path: Path) -> None:
    path = log_of(run_of(0.01, 0.2), tmp_path)
    lines = path.read_text().splitlines()
    lines[9] = lines[9][:40]
    path.write_text("\n".join(lines))
    result = rcdiag.diagnose(path)
    assert result.logs[0].file_notes == [f"1 of {STEPS} lines could not be read: line 10."]
    assert result.logs[0].log_verdict == "correctable"
    path.write_text("\n".join([*lines[:9], *(line[:40] for line in lines[9:20]), *lines[20:]]))
    with pytest.raises(RcdiagError, match="11 of 60 lines cannot be read: lines 10, 11, 12"):
        rcdiag.diagnose(path)


def test_a_log_is_no_table_and_a_table_no_log(tmp_path: Path) -> None:
    path = log_of(run_of(0.01, 0.01), tmp_path)
    with pytest.raises(RcdiagError, match="no tokens to score"):
        rcdiag.diagnose(path, model=tmp_path)
    with pytest.raises(RcdiagError, match="is a table"):
        rcdiag.diagnose("sample_data/stale.parquet", keys={"k3": "my/k3"})


def test_each_relation_is_explained() -> None:
    for name in rules_of("log"):
        assert rcdiag.explain(name)


def test_a_counter_that_is_not_a_step_is_left_out(tmp_path: Path) -> None:
    rows = run_of(0.01, 0.01)
    path = log_of(rows, tmp_path)
    last = {"step": 10**30, **rows[-1]}
    path.write_text(f"{path.read_text()}{json.dumps(last)}\n")
    result = rcdiag.diagnose(path)
    assert result.logs[0].num_steps == STEPS
    path.write_text(json.dumps(last) + "\n")
    assert rcdiag.diagnose(path).logs[0].num_steps == 1


def test_a_panel_of_a_key_has_its_unit_and_its_first_change() -> None:
    result = rcdiag.diagnose(SAMPLES / "metrics.jsonl")
    steps = [one.step_moved for one in result.logs[0].keys_moved if one.key.endswith("chi2_seq")]
    panels = {panel.title: panel for panel in over_steps(result).panels}
    chi2, kl = (panels[f"rollout_corr/{name}"] for name in ("chi2_seq", "k3_kl"))
    assert [rule.at for rule in chi2.rules] == [min(steps)]
    assert (chi2.y.label, kl.y.label) == ("", "nats")


def test_panels_of_two_runs_say_whose_key_moved(tmp_path: Path) -> None:
    """A reward that drifts in the healthy run does not head the panels."""
    good, bad = run_of(0.01, 0.01), run_of(0.01, 0.2)
    for i, row in enumerate(good):
        row["critic/score/mean"] = 0.2 + 0.01 * i
    for i, row in enumerate(bad):
        row["rollout_corr/chi2_token"] = 1e-4 * (-1) ** i if i < BEGINS else 1e4 * i
    paths = [log_of(good, tmp_path, "good.jsonl"), log_of(bad, tmp_path, "bad.jsonl")]
    panels = over_steps(rcdiag.diagnose(paths)).panels
    assert panels[0].title == "rollout_corr/kl"
    labels = {panel.title: panel.rules[0].label for panel in panels if panel.rules}
    assert labels["rollout_corr/k3_kl"] == f"step {BEGINS + 1}, bad.jsonl"
    assert labels["critic/score/mean"].endswith(", good.jsonl")
    (chi2,) = (panel for panel in panels if panel.title == "rollout_corr/chi2_token")
    assert chi2.y.scale == "symlog"


def test_no_key_belongs_to_two_quantities() -> None:
    keys = [key for one in QUANTITIES.values() for key in (*one.keys, *one.negated)]
    assert len(keys) == len(set(keys))


# The example that trainers' keys are computed on: two responses and one without a token.
EXAMPLE = (np.array([0.1, -0.1, 1.5]), np.array([-1.2, -0.5]))
OF_LOG_RATIO: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "k1": lambda x: -x,
    "k2": lambda x: x**2 / 2.0,
    "k3": lambda x: np.exp(x) - 1.0 - x,
    "abs_diff": np.abs,
    "exp_abs_diff": lambda x: np.exp(np.abs(x)),
}


@pytest.mark.parametrize("name", OF_LOG_RATIO)
def test_keys_hold_the_quantity_and_the_sign_that_their_trainer_logs(name: str) -> None:
    """A key's value on the example is the quantity's mean over tokens, or over responses."""
    tokens = OF_LOG_RATIO[name](np.concatenate(EXAMPLE))
    responses = [OF_LOG_RATIO[name](row).mean() for row in EXAMPLE]
    means = {tokens.mean(), sum(responses) / 2.0, sum(responses) / 3.0}
    compared = 0
    for trainer in families().values():
        for words in read_keys(trainer.package).values():
            for generation, value in words.numbers.items():
                spelled = _spellings(words.names.get(generation, ""))
                for sign, keys in ((1.0, QUANTITIES[name].keys), (-1.0, QUANTITIES[name].negated)):
                    if spelled & set(keys):
                        compared += 1
                        assert any(sign * value == pytest.approx(mean, rel=1e-3) for mean in means)
    assert compared


@pytest.mark.parametrize("name", [name for name in families() if name != "trl-async"])
def test_each_trainer_logs_a_quantity_of_the_mismatch(name: str) -> None:
    """Except TRL's asynchronous GRPO, which logs only the ratio of the update."""
    words = read_keys(families()[name].package).values()
    logged = {key for one in words for key in one.names.values()}
    known = {key for one in QUANTITIES.values() if one.mismatch for key in one.keys}
    spelled = {spelling for key in logged for spelling in _spellings(key)}
    assert spelled & known


@pytest.mark.weekly
def test_generated_logs_meet_the_targets() -> None:
    """85% correct causes, 90% first steps within two, no false alarm."""
    from tests.faults.logs import KINDS, judged, right

    results = [judged(index, seed=77) for index in range(len(KINDS))]
    faulty = [one for one in results if not one["healthy"]]
    healthy = [one for one in results if one["healthy"]]
    assert sum(map(right, faulty)) >= 0.8 * len(faulty)
    assert not any(one["verdict"] == "broken" for one in healthy)
    missed = [o for o in faulty if o["verdict"] == "healthy" and "healthy" not in o["verdicts"]]
    assert not missed


def log_with(tmp_path: Path, *keys: str) -> Path:
    path = tmp_path / "log.jsonl"
    rows = ({"step": step, **dict.fromkeys(keys, 0.01)} for step in range(20))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("keys", "generations"),
    [
        (
            ("mismatch/mismatch_kl", "mismatch/mismatch_k3_kl"),
            "verl-0.6.0, verl-20251027 (or xtuner: the same keys)",
        ),
        (("rollout_corr/kl", "rollout_corr/k3_kl"), "verl-0.6.1 to verl-0.9"),
    ],
)
def test_keys_identify_the_generation_of_a_run(
    tmp_path: Path, keys: tuple[str, ...], generations: str
) -> None:
    (log,) = rcdiag.diagnose(log_with(tmp_path, *keys)).logs
    assert log.generations_of_log == generations
    assert log.correction_of_log is None
    assert "taken over the mask before rejection" in log.quantities[0].key_note


def test_weight_and_rejection_metrics_identify_the_correction(tmp_path: Path) -> None:
    path = log_with(tmp_path, "rollout_corr/k3_kl", "rollout_corr/rollout_is_mean")
    (log,) = rcdiag.diagnose(path).logs
    assert log.correction_of_log == (
        "importance weights (`rollout_corr/rollout_is_mean`), no rejection logged"
    )


def test_keys_of_the_update_identify_bypass_mode(tmp_path: Path) -> None:
    """In bypass mode `ppo_kl` involves the sampler, and other keys are micro-batch means."""
    rows = [
        {key.replace("rollout_corr/", "actor/rollout_corr/"): value for key, value in row.items()}
        for row in run_of(0.01, 0.2)
    ]
    result = diagnosed(rows, tmp_path)
    assert "bypass mode (`actor/rollout_corr/" in result.logs[0].correction_of_log
    notes = {one.quantity: one.key_note for one in result.logs[0].quantities}
    assert "in bypass mode it is the mean over micro-batches" in notes["k3"]
    assert "mean over the micro-batches of a step" in notes["ppo_kl"]
    assert "not with the sampler's" not in result.diagnosis.over_steps.says


def test_a_configuration_determines_the_correction_of_a_run(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(
        "algorithm:\n  rollout_correction:\n    rollout_is: token\n"
        "    rollout_is_threshold: 3.0\n    bypass_mode: true\n"
    )
    path = log_with(tmp_path, "rollout_corr/k3_kl", "actor/ppo_kl")
    (log,) = rcdiag.diagnose(path, trainer_config=config).logs
    assert log.trainer_of_log == "verl"
    assert "truncated at 3" in log.correction_of_log
    assert "bypass" in log.correction_of_log


@pytest.mark.parametrize(
    ("mode", "says", "steps"),
    [
        (
            "true",
            "In bypass mode `actor/ppo_kl` compares the sampler",
            "`actor/ppo_kl` moves at step",
        ),
        ("false", "`actor/ppo_kl` compares old with current", "Of the training alone `actor"),
    ],
)
def test_what_ppo_kl_compares_depends_on_the_mode(
    mode: str, says: str, steps: str, tmp_path: Path
) -> None:
    """In bypass mode the old policy is the sampler, so that ppo_kl contains the mismatch."""
    config = tmp_path / "run.yaml"
    config.write_text(f"algorithm:\n  rollout_correction:\n    bypass_mode: {mode}\n")
    rows = [
        {"actor/ppo_kl": x * (1 + 0.1 * (i % 3))} for i, x in enumerate([1e-5] * 24 + [0.4] * 24)
    ]
    diagnosis = diagnosis_of(rows, tmp_path, trainer_config=config)
    assert says in diagnosis.summary
    assert steps in diagnosis.over_steps.says


def window_of(known: Known, **numbers: list[float]) -> StepWindow:
    steps = np.arange(len(next(iter(numbers.values()))))
    of = {
        name: Series(quantity=QUANTITIES[name], key=name, steps=steps, values=np.array(values))
        for name, values in numbers.items()
    }
    log = Log(Path("log"), "jsonl", {})
    return StepWindow(LoggedRun("log", log, of, known), steps)


def relation(name: str, window: StepWindow) -> tuple[float | None, str | None]:
    """Return the number of a relation and its level."""
    levels = {rule.name: level for rule, level in levels_of("log", window)}
    return rules_of("log")[name].number(window), levels.get(name)


@given(
    st.lists(st.lists(st.floats(-3, 3), min_size=4, max_size=12), min_size=1, max_size=4),
    st.floats(1.1, 4.0),
)
def test_relations_hold_for_any_ratios_and_for_means_of_micro_batches(
    log_ratios: list[list[float]], upper: float
) -> None:
    """Each list is a micro-batch; the log has the means of the micro-batches' metrics."""
    lower = 1.0 / upper
    rows: dict[str, list[float]] = {}
    for one in log_ratios:
        ratio = np.exp(np.array(one))
        weights = np.minimum(ratio, upper)
        numbers = {
            "k1": -np.mean(one),
            "k3": np.mean(ratio - 1.0) - np.mean(one),
            "chi2_token": np.mean(ratio**2) - 1.0,
            "ess": np.mean(weights) ** 2 / np.mean(weights**2),
            "share_above": np.mean(ratio > upper),
            "share_below": np.mean(ratio < lower),
        }
        for name, number in numbers.items():
            rows.setdefault(name, []).append(float(number))
    known = Known(lower=lower, upper=upper, of_tokens=True)
    window = window_of(known, **{name: [float(np.mean(of))] for name, of in rows.items()})
    for name in ("log.ess-and-chi-squared", "log.share-beyond-bounds"):
        number, level = relation(name, window)
        assert number is None or number <= 1.0 + 1e-6
        assert level in (None, "ok")


def test_shares_in_percent_are_an_error_and_left_out() -> None:
    window = window_of(Known(), k3=[1e-4] * 6, pearson=[99.99] * 6, ess=[100.0] * 6)
    assert relation("log.out-of-range", window) == (pytest.approx(99.0), "error")
    assert (window.number("pearson"), window.number("ess")) == (None, None)
    assert "in percent?" in rules_of("log")["log.out-of-range"].message(window)
    # Means in bfloat16 are rounded by more than 1e-4.
    possible = window_of(Known(), ess=[1.0005] * 6, pearson=[-0.1] * 6, rejected=[0.0] * 6)
    assert relation("log.out-of-range", possible)[0] is None
    below = window_of(Known(), pearson=[-1.2] * 6, rejected=[-0.1] * 6)
    assert relation("log.out-of-range", below) == (pytest.approx(0.2), "error")


@given(st.integers(0, 10_000), st.floats(0.1, 30.0), st.floats(0.001, 0.1))
def test_errors_of_logits_are_never_less_than_the_mismatch_and_entropy_imply(
    seed: int, spread: float, error: float
) -> None:
    """Independent errors of logits, by the variance of each log-prob to first order."""
    logits = np.random.default_rng(seed).normal(0.0, spread, (5, 12))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    variance = error**2 * (1.0 - 2.0 * p + (p**2).sum(axis=1, keepdims=True))
    mismatch = float((p * variance).sum(axis=1).mean()) / 2.0
    entropy = float(-(p * np.log(np.maximum(p, 1e-300))).sum(axis=1).mean())
    number, _ = relation(
        "log.error-of-logits", window_of(Known(), k2=[mismatch], entropy=[entropy])
    )
    assert number <= error * (1.0 + 1e-6)


def test_a_small_mismatch_of_a_collapsed_policy_is_more_than_rounding() -> None:
    """The same k3, .0008, is rounding at an entropy of .5 and is not at .02."""
    window = window_of(Known(), k3=[8e-4] * 6, entropy=[0.5] * 6)
    assert relation("log.error-of-logits", window) == (pytest.approx(0.0638, abs=1e-4), "ok")
    window = window_of(Known(), k3=[8e-4] * 6, entropy=[0.02] * 6)
    assert relation("log.error-of-logits", window) == (pytest.approx(0.284, abs=1e-3), "warning")


@pytest.mark.parametrize(("after", "level"), [(0.45, "ok"), (2.8, "warning")])
def test_a_gradient_that_moves_with_the_mismatch(after: float, level: str) -> None:
    window = window_of(Known(), k3=[1e-4] * 10 + [0.5] * 10, grad_norm=[0.4] * 10 + [after] * 10)
    found = relation("log.gradient-and-mismatch", StepWindow(window.run, window.steps[10:]))
    assert found == (pytest.approx(after / 0.4), level)
    assert (
        relation("log.gradient-and-mismatch", StepWindow(window.run, window.steps[5:10]))[0] is None
    )


def test_an_equal_gradient_is_said_by_both_values(tmp_path: Path) -> None:
    rows = [row | {"actor/grad_norm": 0.4} for row in run_of(0.01, 0.2)]
    said = [one.relation_says for one in diagnosed(rows, tmp_path).logs[0].relations]
    assert "`actor/grad_norm` is 0.4, and was 0.4 in the steps before" in said


def test_responses_whose_ratios_are_all_0_are_an_error() -> None:
    """At 17 nats of KL a token, responses have no weight, and 2 k3 is no mean square."""
    window = window_of(Known(), k1=[16.9] * 6, k3=[15.9] * 6, chi2_seq=[-0.99995] * 6)
    assert relation("log.chi-squared-of-responses", window)[1] == "error"
    assert relation("log.mean-ratio", window)[0] is None
    near = window_of(Known(), k1=[0.02] * 6, k3=[0.02] * 6, chi2_seq=[-0.3] * 6)
    assert relation("log.chi-squared-of-responses", near)[1] == "ok"
    assert relation("log.mean-ratio", near) == (0.0, "ok")


def test_violated_relations_are_detected() -> None:
    known = Known(lower=0.5, upper=2.0, of_tokens=True, veto=1e-3, least_ess=0.64)
    numbers = {"k1": [0.01], "k3": [0.01], "chi2_token": [0.02], "ess": [0.62]}
    beyond = {"share_above": [0.1], "share_below": [0.0], "veto": [0.0], "least_ratio": [1e-5]}
    window = window_of(known, **numbers, **beyond)
    assert relation("log.ess-and-chi-squared", window) == (
        pytest.approx(1 / 1.02 / 0.62),
        "warning",
    )
    # .1 of the tokens have at least a k3 of 2 - 1 - ln 2 = .307.
    assert relation("log.share-beyond-bounds", window) == (pytest.approx(3.07, abs=0.01), "error")
    assert relation("log.least-ess", window) == (pytest.approx(0.62 / 0.64), "error")
    assert relation("log.veto-and-least-ratio", window) == (1.0, "error")


@pytest.mark.parametrize(("trainer", "least"), [("verl-0.7.1", 0.64), ("verl-0.9", None)])
def test_the_smallest_possible_ess_depends_on_the_generation(
    tmp_path: Path, trainer: str, least: float | None
) -> None:
    """Weights clipped to [1/2, 2] have an ESS of 4 (1/2) 2 / (1/2 + 2)^2 at least."""
    config = tmp_path / "run.yaml"
    config.write_text("rollout_is: token\nrollout_is_threshold: 2.0\n")
    rows = [
        {"rollout_corr/k3_kl": 0.5, "rollout_corr/rollout_is_eff_sample_size": 0.66}
        for _ in range(STEPS)
    ]
    path = log_of(rows, tmp_path)
    (log,) = rcdiag.diagnose(path, trainer=trainer, trainer_config=config).logs
    found = {one.relation: one for one in log.relations}
    if least is None:
        assert "log.least-ess" not in found
    else:
        assert found["log.least-ess"].number == pytest.approx(0.66 / least, rel=1e-4)
        assert found["log.least-ess"].relation_level == "warning"


def test_a_configuration_with_a_table_is_refused() -> None:
    with pytest.raises(RcdiagError, match="is for a training log"):
        rcdiag.diagnose("sample_data/stale.parquet", trainer_config="run.yaml")


@pytest.mark.parametrize(("weight", "healthy"), [(0.8, False), (0.95, True)])
def test_weights_that_suddenly_leave_1_are_not_rounding(
    tmp_path: Path, weight: float, healthy: bool
) -> None:
    """The mean |log_ratio| is .005 and then .013, both of a size typical of rounding."""
    rows = [
        {
            "sampling/sampling_logp_difference/mean": (0.013 if late else 0.005) + 1e-5 * (n % 3),
            "sampling/importance_sampling_ratio/mean": (weight if late else 1.0) + 1e-4 * (n % 3),
        }
        for n in range(40)
        for late in (n >= 20,)
    ]
    diagnosis = diagnosis_of(rows, tmp_path)
    assert diagnosis.verdict == ("healthy" if healthy else "inconclusive")
    assert (diagnosis.causes[0].slug == "engine-noise") == healthy
    assert "sampling_logp_difference/mean` goes from 0.005 to 0.013" in diagnosis.over_steps.says


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training/rollout_actor_probs_pearson_corr", -0.0007),
        ("training/rollout_actor_probs_pearson_corr", 0.98),
        ("training/rollout_probs_diff_mean", 0.4),
    ],
)
def test_each_number_of_probabilities_counts_beside_a_small_k3(
    tmp_path: Path, key: str, value: float
) -> None:
    rows = [{**row, key: value} for row in run_of(0.01, 0.01)]
    diagnosis = diagnosis_of(rows, tmp_path)
    (cause,) = diagnosis.causes
    assert cause.slug == "forwards-differ"
    assert key in cause.message
    assert cause.verdict == ("inconclusive" if value < 0 else "correctable")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rollout_corr/rollout_is_eff_sample_size", 0.05),
        ("rollout_corr/rollout_is_mean", 0.4),
        ("rollout_corr/rollout_rs_masked_fraction", 0.9),
        ("rollout_corr/chi2_token", 900.0),
        ("rollout_corr/chi2_seq", -1.0),
    ],
)
@pytest.mark.parametrize("sized", [True, False])
def test_a_level_of_weights_that_costs_much_is_not_healthy(
    tmp_path: Path, key: str, value: float, sized: bool
) -> None:
    rows = [{**(row if sized else {}), key: value} for row in run_of(0.01, 0.01)]
    diagnosis = diagnosis_of(rows, tmp_path)
    assert diagnosis.verdict == "inconclusive"
    assert key in diagnosis.summary
    assert ("small" in diagnosis.summary) == sized


def test_the_numbers_are_those_of_the_last_steps_with_the_cause(tmp_path: Path) -> None:
    sizes = 0.004 * np.exp(noise(5, 0.05)) * np.where(np.arange(STEPS) < BEGINS, 1.0, 2.0)
    rows = [{"step": i, "mismatch_kl/all/mean": float(x)} for i, x in enumerate(sizes)]
    diagnosis = diagnosis_of(rows, tmp_path)
    (cause,) = diagnosis.causes
    assert cause.message.startswith(f"In steps {BEGINS} to {STEPS - 1}: the two sides differ by ")
    assert cause.evidence[0]["value"] == pytest.approx(0.008, rel=0.03)
    assert cause.from_step is None  # it is there from the first step on
    # Numbers of all steps are said to be of none.
    assert "In step" not in diagnosis_of(rows[BEGINS:], tmp_path).summary


def test_two_steps_that_differ_much_have_no_median(tmp_path: Path) -> None:
    key = "mismatch/mismatch_k3_kl"
    rows = [{"step": i, key: k3} for i, k3 in ((1, 3.4e-4), (2, 8.7e-3))]
    diagnosis = diagnosis_of(rows, tmp_path)
    (cause,) = diagnosis.causes
    assert (cause.from_step, cause.evidence[0]["value"]) == (2, 8.7e-3)
    assert cause.message.startswith("In step 2: ")
    assert diagnosis.over_steps is not None
    assert f"`{key}` is 0.00034 at step 1 and 0.0087 at step 2" in diagnosis.over_steps.says
    # Rounding that differs from batch to batch does not divide them.
    rows[1][key] = 9e-4
    assert diagnosis_of(rows, tmp_path).verdict == "healthy"


def test_the_ratio_of_the_update_is_said_to_be_of_the_trainer_alone(tmp_path: Path) -> None:
    row = {"train/gen_kl_error": 0.004, "train/probs_ratio": 1.004, "train/probs_ratio_max": 3.1}
    diagnosis = diagnosis_of([{"step": i, **row} for i in range(9)], tmp_path)
    assert diagnosis.over_steps is not None
    said = "`train/probs_ratio` and `train/probs_ratio_max` compare old with current log-probs"
    assert said in diagnosis.over_steps.says


def test_a_mean_weight_far_below_1_is_named_whatever_the_mismatch_is(tmp_path: Path) -> None:
    """Weights of tokens whose log-ratios are small cannot have a mean of .57: exp(-.01) is .99."""
    key = "sampling/importance_sampling_ratio/mean"

    def said(diff: float, weight: float) -> tuple[Diagnosis, str]:
        row = {"sampling/sampling_logp_difference/mean": diff, key: weight}
        rows = [{"step": i, "completions/mean_length": 220.0, **row} for i in range(1, 9)]
        rows[3]["sampling/sampling_logp_difference/mean"] *= 1.1
        (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
        result = rcdiag.diagnose(tmp_path / "log.jsonl")
        assert result.diagnosis is not None
        relations = {one.relation: one for one in result.logs[0].relations}
        assert relations["log.mean-weight"].number == weight
        found = relations["log.mean-weight"]
        return result.diagnosis, f"{found.relation_level}: {found.relation_says}"

    diagnosis, small = said(0.01, 0.57)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("correctable", "engine-noise")
    assert f"0.57 (`{key}`)" in diagnosis.summary
    assert small.startswith("error: ")
    for words in ("1.8 times smaller", "0.99 or more", "220 tokens", "geometric mean"):
        assert words in small
    assert said(0.01, 0.99)[0].verdict == "healthy"
    # At .8 nats weights of tokens may have a mean of exp(-.8) = .45.
    _, large = said(0.8, 0.5)
    assert "2 times smaller" in large
    assert "products" not in large
    assert "products over responses" in said(0.8, 0.01)[1]


@pytest.mark.parametrize(("length", "verdict"), [(400.0, "inconclusive"), (20000.0, "healthy")])
def test_rounding_in_long_responses_lowers_the_ess_of_their_weights(
    tmp_path: Path, length: float, verdict: str
) -> None:
    """With k3 5e-5 the sum of 20,000 log-ratios has a variance of 2: raw weights an ESS of .14."""
    beside = {"rollout_corr/rollout_is_eff_sample_size": 0.4, "response_length/mean": length}
    rows = [{**row, **beside} for row in run_of(0.01, 0.01)]
    diagnosis = diagnosis_of(rows, tmp_path)
    assert diagnosis.verdict == verdict


@pytest.mark.parametrize("alone", [None, "rollout_corr/k3_kl", "probs"])
@pytest.mark.parametrize(("count", "begins"), [(40, 39), (5, 3)])
def test_last_steps_beyond_rounding_by_far_are_not_healthy(
    tmp_path: Path, count: int, begins: int, alone: str | None
) -> None:
    """They are too few for a change to be found."""
    rows = [
        {key: value for key, value in row.items() if alone is None or alone in key}
        for row in run_of(0.01, 0.5, begins)[:count]
    ]
    diagnosis = diagnosis_of(rows, tmp_path)
    (cause,) = diagnosis.causes
    assert cause.slug == "forwards-differ"
    assert cause.from_step == begins + 1
    if count == 40:
        assert diagnosis.verdict == "inconclusive"
        assert cause.message.startswith("In step 40 alone: ")
        assert cause.message.endswith("It is the last step: one more would tell.")
    else:
        assert diagnosis.verdict in ("inconclusive", "correctable")
        here = "In 2 of 5 steps (4, 5): " if alone == "probs" else "In steps 4 to 5: "
        assert cause.message.startswith(here)


def test_a_k3_that_one_token_raises_in_one_step_is_healthy(tmp_path: Path) -> None:
    rows = run_of(0.01, 0.01)
    rows[-1]["rollout_corr/k3_kl"] = 0.05
    diagnosis = diagnosis_of(rows, tmp_path)
    assert diagnosis.verdict == "healthy"


def test_small_log_ratios_are_said_only_if_they_are_logged(tmp_path: Path) -> None:
    values = {"rollout_corr/rollout_is_eff_sample_size": 0.84, "rollout_corr/rollout_is_mean": 0.8}
    rows = [dict.fromkeys(values, 1.0) if i < BEGINS else dict(values) for i in range(STEPS)]
    diagnosis = diagnosis_of(rows, tmp_path)
    assert "from 1 to 0.8: a few tokens" in diagnosis.summary


@pytest.mark.parametrize(("share", "verdict"), [(0.4, "inconclusive"), (0.001, "healthy")])
def test_a_mean_that_counts_rejected_tokens_as_0_is_healthy_if_few_are(
    tmp_path: Path, share: float, verdict: str
) -> None:
    rows = [
        {
            "train/train_rollout_logprob_abs_diff": 0.005 + 1e-4 * (i % 3),
            "train/mis_rs_mask_fraction_high": share,
        }
        for i in range(STEPS)
    ]
    diagnosis = diagnosis_of(rows, tmp_path)
    assert diagnosis.verdict == verdict
    assert ("rs_mask_fraction_high" in diagnosis.summary) == (verdict == "inconclusive")


@pytest.mark.parametrize(
    ("masked", "kept", "verdict"),
    [(400.0, 624.0, "inconclusive"), (1.0, 1023.0, "healthy"), (400.0, None, "inconclusive")],
)
def test_means_over_the_responses_that_rejection_leaves_are_healthy_if_it_leaves_most(
    tmp_path: Path, masked: float, kept: float | None, verdict: str
) -> None:
    """NeMo-RL's means are over kept responses; a count of rejected ones alone gives no share."""
    counts = {"train/num_valid_samples": kept} if kept is not None else {}
    rows = [
        {
            "train/gen_kl_error": 1e-5 * (1 + i % 3),
            "train/num_masked_seqs_by_logprob_error": masked if i >= BEGINS else 0.0,
            **counts,
        }
        for i in range(STEPS)
    ]
    diagnosis = diagnosis_of(rows, tmp_path)
    assert diagnosis.verdict == verdict
    if verdict == "inconclusive":
        (cause,) = diagnosis.causes
        assert cause.from_step == BEGINS + 1
        assert "num_masked_seqs_by_logprob_error" in cause.message
        assert "num_valid_samples" in cause.message


@pytest.mark.parametrize(
    ("weight", "least", "verdict"),
    [(1.22, 0.05, "broken"), (1.22, 0.5, "inconclusive"), (0.98, 0.05, "inconclusive")],
)
def test_bounded_weights_with_a_mean_above_1_are_not_of_what_sampled(
    tmp_path: Path, weight: float, least: float, verdict: str
) -> None:
    """E[min(w, 2)] <= E[w] = 1 under the sampler; clipping to [.5, 2] may raise it by .5."""
    rows = [
        {
            "sampling/sampling_logp_difference/mean": 0.36 + 0.01 * (i % 3),
            "sampling/importance_sampling_ratio/mean": weight + 0.01 * (i % 3 - 1),
            "sampling/importance_sampling_ratio/min": least,
        }
        for i in range(STEPS)
    ]
    diagnosis = diagnosis_of(rows, tmp_path)
    assert diagnosis.verdict == verdict
    assert ("did not sample" in diagnosis.summary) == (verdict == "broken")


@pytest.mark.parametrize("spread", [0.02, 0.8])
def test_a_k1_above_0_by_chance_does_not_tell_who_sampled(spread: float) -> None:
    """A trainer that sampled has a k1 below 0; .1 above it with an error of .18 may be."""
    k1 = [0.1 + spread * (-1) ** i for i in range(20)]
    k3 = [1.5 + x - 0.1 + 0.01 * (i % 3) for i, x in enumerate(k1)]
    found = found_in(window_of(Known(), k1=k1, k3=k3))
    assert found is not None
    assert ("the tokens are not aligned" in found.message) == (spread == 0.02)


def test_evidence_says_what_a_mean_ratio_is_compared_with(tmp_path: Path) -> None:
    diagnosis = diagnosis_of(run_of(0.01, 0.2), tmp_path)
    (entry,) = [one for one in diagnosis.causes[0].evidence if "mean ratio" in one["reads"]]
    assert re.search(r"[\d.]+ standard errors (above|below) the 1 of the dist", entry["reads"])
    assert "z" not in entry


@pytest.mark.parametrize("shifted", [True, False])
def test_exchanged_tokens_of_a_certain_policy_show_beside_its_entropy(
    tmp_path: Path, shifted: bool
) -> None:
    """One token in 1000 has ln 2 nats, all others 0; rounding adds 2% of a surprisal."""
    rng = np.random.default_rng(5)
    rows = []
    for _ in range(STEPS):
        sampler = np.where(rng.random(50_000) < 1e-3, np.log(2.0), 0.0)
        trainer = np.roll(sampler, 1) if shifted else sampler * rng.normal(1.0, 0.02, 50_000)
        distance = np.abs(trainer - sampler).mean()
        rows.append(
            {
                "sampling/sampling_logp_difference/mean": float(distance),
                "entropy": float(trainer.mean()),
            }
        )
    diagnosis = diagnosis_of(rows, tmp_path)
    assert diagnosis.verdict == ("inconclusive" if shifted else "healthy")
    assert ("exchanged" in diagnosis.summary) == shifted


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rollout_train_logprobs_abs_diff_std", 2.0),
        ("train/token_mult_prob_error", 5.0),
        ("rollout_corr/log_ppl_abs_diff", 1.2),
        ("rollout_corr/log_ppl_diff", 0.3),
        ("rollout_corr/training_log_ppl", 9.0),
    ],
)
@pytest.mark.parametrize("begins", [0, 25, 50])
def test_each_number_beyond_rounding_by_far_forbids_healthy(
    tmp_path: Path, key: str, value: float, begins: int
) -> None:
    """The first size of the log, k3, stays as small as rounding."""
    rows = [{**row, key: 0.0} if "corr" not in key else row for row in run_of(0.01, 0.01)]
    for row in rows[begins:]:
        row[key] = value
    diagnosis = diagnosis_of(rows, tmp_path)
    assert diagnosis.verdict == "inconclusive"
    assert f"`{key}` {value:g}" in diagnosis.summary
    assert key in [one["name"] for one in diagnosis.causes[0].evidence]


def test_a_k3_that_alone_is_infinite_is_of_infinite_log_ratios(tmp_path: Path) -> None:
    """PRIME-RL logs no other size; a share of masked tokens says nothing of log-ratios."""
    rows = [
        {
            "mismatch_kl/all/mean": 1e-5 * (1 + i % 3) if i < BEGINS else float("inf"),
            "is_masked/all/mean": 0.001,
        }
        for i in range(STEPS)
    ]
    found = diagnosis_of(rows, tmp_path)
    assert (found.verdict, found.causes[0].slug) == ("broken", "nan-log-probs")
    assert found.causes[0].from_step == BEGINS + 1


@pytest.mark.parametrize(
    ("key", "chi2", "slug"),
    [
        ("rollout_corr/k3_kl", 1e-4, "nan-log-probs"),
        ("rollout_corr/k3_kl", float("inf"), "forwards-differ"),
        ("rollout_corr/chi2_token", float("inf"), "forwards-differ"),
    ],
)
def test_infinite_numbers_in_several_steps_are_not_healthy(
    tmp_path: Path, key: str, chi2: float, slug: str
) -> None:
    """An infinite k3 is no overflow of ratios beside a finite mean of their squares."""
    rows = [{**row, "rollout_corr/chi2_token": 1e-4} for row in run_of(0.01, 0.01)]
    for row in rows[BEGINS:]:
        row |= {"rollout_corr/chi2_token": chi2, key: float("inf")}
    found = diagnosis_of(rows, tmp_path)
    assert found.verdict == ("broken" if slug == "nan-log-probs" else "inconclusive")
    assert found.causes[0].slug == slug
    assert found.causes[0].from_step == BEGINS + 1


@pytest.mark.parametrize(("k3", "slug"), [(4e-5, "forwards-differ"), (0.0125, "truncated-law")])
def test_a_mean_ratio_that_k3_contradicts_shows_no_kept_set(k3: float, slug: str) -> None:
    """A mean ratio of .85 has a k3 of .85 - 1 - ln .85 = .0125 at least."""
    ratio = [0.85 + 0.002 * (i % 3 - 1) for i in range(30)]
    found = found_in(window_of(Known(), ratio_mean=ratio, k3=[k3] * 30))
    assert found is not None
    assert found.slug == slug
    assert ("Jensen" in found.message) == (k3 < 0.01)


def test_rows_of_equal_means_do_not_tell_a_shift_from_an_exchange(tmp_path: Path) -> None:
    rows = run_of(0.01, 0.01)
    for i, row in enumerate(rows[BEGINS:]):
        row |= {
            "rollout_corr/kl": 0.002 * (-1) ** i,
            "rollout_corr/k3_kl": 1.5 + 0.02 * (i % 4),
            "rollout_corr/log_ppl_diff": 0.001,
            "rollout_corr/log_ppl_abs_diff": 0.003,
        }
    diagnosis = diagnosis_of(rows, tmp_path)
    assert (diagnosis.verdict, diagnosis.causes[0].slug) == ("broken", "forwards-differ")


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_a_growth_from_rounding_is_of_weights_whatever_its_size(
    tmp_path: Path, power: float
) -> None:
    """Two steps of rounding, then base weights in the sampler while the trainer goes on."""
    key = "sampling/sampling_logp_difference/mean"
    grown = 0.6 * (np.maximum(np.arange(30) - 1.0, 0.0) / 28.0) ** power
    rows = [{key: (0.012 + x) * float(np.exp(0.5 * noise(4)[i]))} for i, x in enumerate(grown)]
    cause = diagnosis_of(rows, tmp_path).causes[0]
    assert (cause.verdict, cause.slug) == ("correctable", "weights-never-synced")
    assert cause.from_step is not None
    assert cause.from_step <= 3
    assert "weights-differ" in cause.also_possible
    assert not {"stale-weights", *AT_ONCE} & set(cause.also_possible)


@pytest.mark.parametrize(("rate", "excluded"), [(1e-6, True), (0.0, False)])
def test_a_growth_by_factors_is_no_drift_of_weights_and_no_fault_that_is_there_at_once(
    tmp_path: Path, rate: float, excluded: bool
) -> None:
    rows = [
        {"gen_kl_error": 3e-4 * 1.3 ** max(i - 20, 0) * (1.0 + 0.05 * (i % 3)), "lr": rate}
        for i in range(50)
    ]
    found = diagnosis_of(rows, tmp_path)
    assert [cause.slug for cause in found.causes] == ["forwards-differ"]
    assert (set(found.ruled_out) >= AT_ONCE) is excluded
    assert (AT_ONCE & set(found.causes[0].also_possible) == set()) is excluded


@pytest.mark.parametrize(("entropy", "alignment"), [(None, True), (2.1, False), (0.4, True)])
def test_a_single_step_leaves_weights_possible_and_other_tokens_by_its_entropy(
    tmp_path: Path, entropy: float | None, alignment: bool
) -> None:
    """Log-probs of unrelated tokens differ by about their own size."""
    row = {"sampling/sampling_logp_difference/mean": 0.81}
    row |= {} if entropy is None else {"entropy": entropy}
    found = diagnosis_of([row], tmp_path)
    possible = found.causes[0].also_possible
    assert found.verdict == "inconclusive"
    assert possible[:2] == ["weights-differ", "weights-never-synced"]
    assert ("shift-by-one" in possible) is alignment
    assert ("shift-by-one" in found.ruled_out) is not alignment


@pytest.mark.parametrize(
    ("of_all", "tail", "few"),
    [
        ({"gen_kl_error": 0.019}, {"token_mult_prob_error": 4e5}, "13 nats or more"),
        ({"gen_kl_error": 0.5}, {"token_mult_prob_error": 2.8}, ""),  # normal, 1 nat rms
        (
            {"rollout_train_logprobs_abs_diff_mean": 0.06},
            {"rollout_train_logprobs_abs_diff_std": 0.7},
            "8.4 nats or more",
        ),
        (
            {"rollout_train_logprobs_abs_diff_mean": 0.3},
            {"rollout_train_logprobs_abs_diff_std": 0.7},
            "",
        ),
    ],
)
def test_a_tail_that_no_spread_over_all_tokens_has_is_of_a_few(
    tmp_path: Path, of_all: dict[str, float], tail: dict[str, float], few: str
) -> None:
    rows = [
        {key: value * (1.0 + 0.02 * (i % 3)) for key, value in (of_all | tail).items()}
        for i in range(STEPS)
    ]
    found = diagnosis_of(rows, tmp_path)
    assert found.causes[0].slug == "forwards-differ"
    assert ("a few tokens carry the mismatch" in found.summary) is bool(few)
    assert few in found.summary
    spread = {"stale-weights", "quantised-weights", "weights-differ"}
    assert bool(spread & set(found.causes[0].also_possible)) is not bool(few)


def test_a_growth_beyond_stale_weights_is_not_theirs(tmp_path: Path) -> None:
    key = "train/token_mult_prob_error"
    size = [1.01 if i < BEGINS else 1.01 * 1.5 ** (i - BEGINS) for i in range(STEPS)]
    rows = [{key: value * (1.0 + 0.002 * (i % 3))} for i, value in enumerate(size)]
    diagnosis = diagnosis_of(rows, tmp_path)
    assert "weights-never-synced" not in {cause.slug for cause in diagnosis.causes}
    assert diagnosis.verdict != "correctable"
