"""A trainer's log compared with rcdiag; the log is computed in plain loops over the sample."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import polars as pl
import pytest

import rcdiag
from rcdiag.errors import RcdiagError
from rcdiag.results import LoggedKey, ScoreResult, from_json
from tests.builders import ids_like, write_table
from tests.logs import verl_run
from tests.logs.verl_run import PREFIX, ROLLOUTS, write_log

STEPS = (0, 1)
STALE = ROLLOUTS.parent / "stale.parquet"


@pytest.fixture(scope="module")
def rows():
    return verl_run.rows_of_table(steps=STEPS)


@cache
def first_steps() -> pl.DataFrame:
    """Rows of the sample table's first three steps, one more step than in the logs."""
    return pl.read_parquet(ROLLOUTS).filter(pl.col("step") <= 2)


def scored(path: Path, table: Path | None = None, **options) -> ScoreResult:
    options.setdefault("presets", ["decoupled_token_is"])
    return rcdiag.score(first_steps() if table is None else table, logged=path, **options)


def by_key(result: ScoreResult, step: int | None = 0) -> dict[str, LoggedKey]:
    assert result.logged is not None
    return {one.key.removeprefix(PREFIX): one for one in result.logged.keys if one.log_step == step}


def slugs(result: ScoreResult) -> set[str]:
    return {finding.slug for finding in result.findings if finding.slug.startswith("logged-")}


def test_a_log_of_the_same_numbers_agrees_for_any_trainer(rows, tmp_path):
    log = write_log(tmp_path / "log.jsonl", {s: verl_run.token_is(rows[s]) for s in STEPS})
    result = scored(log, presets=())
    found = result.logged
    assert found is not None
    assert (found.preset, found.log_steps, found.step_reason) == (
        "decoupled_token_is",
        [0, 1],
        None,
    )
    assert "nearest of 19 presets" in found.preset_reason
    assert len(found.keys) == 2 * len(verl_run.token_is(rows[0]))
    assert all(one.agrees and one.reason is None for one in found.keys)
    assert found.not_ours == {"actor/lr": 2}
    assert f"{PREFIX}rollout_is_std" in found.not_logged
    assert slugs(result) == {"logged-agrees"}
    assert from_json(result.to_json(), "again.json").logged == found


def test_a_log_that_is_faulty_at_the_steps_of_a_healthy_table_leaves_its_verdict_open(
    rows, tmp_path
):
    """At other steps a fault says nothing of the table, whose verdict stands."""
    sane = verl_run.token_is(rows[0])
    failed = {**sane, f"{PREFIX}training_log_ppl": 16.6, f"{PREFIX}kl": 16.3}
    noise = pl.col("rollout_log_probs").list.eval(
        pl.element() - 1e-3 * (pl.element() * 1e4).sin().abs()
    )
    table = first_steps().filter(pl.col("step") <= 1).with_columns(old_log_probs=noise)
    verdicts = {}
    for name, faulty in (("same", (0, 1)), ("later", (2, 3))):
        numbers = {step: failed if step in faulty else sane for step in range(4)}
        log = write_log(tmp_path / f"{name}.jsonl", numbers)
        found = scored(log, table).diagnosis
        verdicts[name] = found.verdict
        if name == "same":
            assert "log same.jsonl at the same steps (0, 1) shows a fault" in found.summary
            assert f"{PREFIX}training_log_ppl" in found.summary
    assert verdicts == {"same": "inconclusive", "later": "healthy"}


def test_numbers_that_contradict_a_healthy_table_in_one_step_leave_its_verdict_open(rows, tmp_path):
    """One step gives little confidence in a cause, but its numbers are not those of the table."""
    noise = pl.col("rollout_log_probs").list.eval(
        pl.element() - 1e-3 * (pl.element() * 1e4).sin().abs()
    )
    table = first_steps().filter(pl.col("step") == 1).with_columns(old_log_probs=noise)
    first = scored(write_log(tmp_path / "a.jsonl", {1: verl_run.token_is(rows[1])}), table)
    own = {one.key: one.ours for one in first.logged.keys}
    log = write_log(tmp_path / "own.jsonl", {1: own})
    assert scored(log, table).diagnosis.verdict == "healthy"
    contradicted = {**own, f"{PREFIX}k3_kl": 0.05, f"{PREFIX}kl": 0.04}
    found = scored(write_log(tmp_path / "other.jsonl", {1: contradicted}), table).diagnosis
    assert found.verdict == "inconclusive"
    assert "the log other.jsonl at the same step (1) shows a fault: the two sides" in found.summary
    assert "k3_kl`" in found.summary


def test_numbers_of_the_correction_alone_are_of_other_settings(rows, tmp_path):
    """The dump is what the trainer saw: all numbers that no setting changes agree."""
    own = verl_run.token_is(rows[0])
    weights = {**own, f"{PREFIX}rollout_is_mean": 0.123456789}
    log = write_log(tmp_path / "weights.jsonl", {0: weights})
    (found,) = (one for one in scored(log, presets=()).findings if one.slug == "logged-differs")
    assert "settings of the run's correction" in found.fix
    log = write_log(tmp_path / "sizes.jsonl", {0: {**weights, f"{PREFIX}k3_kl": 0.123456789}})
    (found,) = (one for one in scored(log, presets=()).findings if one.slug == "logged-differs")
    assert "same run" in found.fix


def test_without_a_log_there_is_no_comparison(tmp_path):
    table = write_table(
        tmp_path / "t.parquet",
        response_ids=[[1, 2]],
        rollout_log_probs=[[-1.0, -2.0]],
        old_log_probs=[[-1.1, -2.0]],
    )
    result = rcdiag.score(table)
    assert result.logged is None
    assert json.loads(result.to_json())["logged"] is None


def test_float32(rows, tmp_path):
    log = write_log(tmp_path / "log.jsonl", {s: verl_run.in_float32(rows[s]) for s in STEPS})
    result = scored(log)
    found = by_key(result)
    for key in ("k3_kl", "chi2_token"):
        assert not found[key].agrees
        assert found[key].explained_by == "float32", found[key]
        assert "--arithmetic float32" in (found[key].reason or "")
    assert slugs(result) == {"logged-agrees"}


def test_rounding_does_not_explain_one_per_cent(rows, tmp_path):
    numbers = {s: verl_run.in_float32(rows[s]) for s in STEPS}
    numbers[0]["k3_kl"] *= 1.01
    found = scored(write_log(tmp_path / "log.jsonl", numbers))
    assert by_key(found)["k3_kl"].explained_by is None
    assert by_key(found, 1)["k3_kl"].explained_by == "float32"


@pytest.mark.parametrize("size", [4, 32])
def test_means_over_micro_batches(rows, tmp_path, size):
    numbers = verl_run.micro_batches(verl_run.token_is, size)
    log = write_log(tmp_path / "log.jsonl", {s: numbers(rows[s]) for s in STEPS})
    found = by_key(scored(log))
    differing = {name: one for name, one in found.items() if not one.agrees}
    assert {"kl", "k3_kl", "rollout_is_mean", "rollout_is_seq_max"} <= set(differing)
    for one in differing.values():
        assert one.explained_by == f"micro-batches of {size}", one
        assert f"micro-batches of {size} rows" in (one.reason or "")
    # Micro-batches of equal size change no mean over rows.
    assert found["log_ppl_diff"].agrees


def test_means_over_sequences(rows, tmp_path):
    policies = verl_run.micro_batches(verl_run.policies, 1)
    log = write_log(tmp_path / "log.jsonl", {s: policies(rows[s]) for s in STEPS})
    found = by_key(scored(log))
    for key in ("kl", "k3_kl", "chi2_token"):
        assert found[key].explained_by == "sequences", found[key]


def test_another_generation(tmp_path):
    rows = verl_run.rows_of_table(STALE, steps=[8])[8]
    numbers = verl_run.weights(rows, verl_run.SEQ_IS_RS, raw=True)
    log = write_log(tmp_path / "log.jsonl", {8: numbers})
    found = by_key(scored(log, STALE, presets=["decoupled_seq_is"]), 8)
    for key in ("rollout_is_mean", "rollout_is_seq_mean", "rollout_is_seq_max"):
        one = found[key]
        assert one.theirs > one.ours
        assert one.explained_by == "verl-0.7.1", one
        assert "verl-0.7.1's definition" in (one.reason or "")


def test_another_preset(rows, tmp_path):
    log = write_log(tmp_path / "log.jsonl", {s: verl_run.seq_is_rs(rows[s]) for s in STEPS})
    found = by_key(scored(log))
    assert found["rollout_is_mean"].explained_by == "decoupled_seq_is"
    assert "ours is of decoupled_token_is" in (found["rollout_is_mean"].reason or "")
    assert found["kl"].agrees


def test_the_opposite_sign_and_kept_tokens_as_reasons(rows, tmp_path):
    left = {s: verl_run.policies(verl_run.after_rejection(rows[s])) for s in STEPS}
    turned = {s: {"log_ppl_diff": -verl_run.policies(rows[s])["log_ppl_diff"]} for s in STEPS}
    numbers = {s: {**{k: left[s][k] for k in ("kl", "k3_kl")}, **turned[s]} for s in STEPS}
    log = write_log(tmp_path / "log.jsonl", numbers)
    found = by_key(scored(log, presets=["decoupled_seq_is_rs"]), 1)
    assert len(verl_run.after_rejection(rows[1])) < len(rows[1])
    assert found["log_ppl_diff"].explained_by == "sign"
    assert found["kl"].explained_by == found["k3_kl"].explained_by == "after rejection"


def test_an_unexplained_number_is_reported_as_such(rows, tmp_path):
    numbers = {s: verl_run.token_is(rows[s]) for s in STEPS}
    numbers[1]["k3_kl"] *= 1.37
    result = scored(write_log(tmp_path / "log.jsonl", numbers))
    assert result.logged is not None
    wrong = result.logged.keys[0]  # keys that differ come first
    assert (wrong.key, wrong.log_step, wrong.agrees) == (f"{PREFIX}k3_kl", 1, False)
    assert wrong.explained_by is None
    assert wrong.difference == pytest.approx(0.37 * wrong.ours)
    assert (wrong.reason or "").startswith("not explained; a mean over tokens")
    assert result.logged.unexplained == [wrong]
    (finding,) = [one for one in result.findings if one.slug == "logged-differs"]
    assert finding.severity == "warning"
    assert finding.evidence["keys"] == [f"{PREFIX}k3_kl"]
    assert slugs(result) == {"logged-differs"}


def test_numbers_agree_to_the_digits_of_the_log(rows, tmp_path):
    numbers = {s: verl_run.token_is(rows[s]) for s in STEPS}
    rounded = {
        s: {key: round(value, 6) for key, value in row.items()} for s, row in numbers.items()
    }
    result = scored(write_log(tmp_path / "log.jsonl", rounded, prefix="train/" + PREFIX))
    assert result.logged is not None
    assert all(one.agrees for one in result.logged.keys)
    assert any(one.difference for one in result.logged.keys)
    rounded[0]["rollout_is_mean"] += 2e-6
    off = scored(write_log(tmp_path / "off.jsonl", rounded))
    assert not by_key(off)["rollout_is_mean"].agrees


def test_keys_that_verl_logs_without_a_correction(rows, tmp_path):
    every = [
        abs(pow(2.718281828459045, old) - pow(2.718281828459045, rollout))
        for row in rows[0]
        for rollout, old in zip(*row, strict=True)
    ]
    numbers = {
        "rollout_probs_diff_mean": sum(every) / len(every),
        "rollout_probs_diff_max": max(every),
    }
    log = write_log(tmp_path / "log.jsonl", {0: numbers}, prefix="training/")
    found = by_key(scored(log, presets=["disabled"]))
    assert set(found) == {f"training/{key}" for key in numbers}
    assert all(one.agrees for one in found.values())


def one_step(path: Path, rows, **columns) -> Path:
    rollout, old = ([row[side] for row in rows] for side in (0, 1))
    ids = ids_like(old)
    names = {"rollout_log_probs": rollout, "old_log_probs": old, "response_ids": ids}
    return write_table(path, **names, **columns)


def test_a_table_without_steps_uses_the_given_or_closest_step(rows, tmp_path):
    table = one_step(tmp_path / "table.parquet", rows[1])
    log = write_log(tmp_path / "log.jsonl", {s + 10: verl_run.token_is(rows[s]) for s in STEPS})
    nearest = scored(log, table).logged
    assert nearest is not None
    assert nearest.log_steps == [11]
    assert "step 11 has the nearest numbers" in (nearest.step_reason or "")
    assert all(one.agrees for one in nearest.keys)
    given = scored(log, table, given={"step": 10}).logged
    assert given is not None
    assert (given.log_steps, given.step_reason) == ([10], None)
    assert not all(one.agrees for one in given.keys)
    with pytest.raises(RcdiagError, match="has no step 7"):
        scored(log, table, given={"step": 7})


def test_steps_that_are_counted_from_one(rows, tmp_path):
    log = write_log(tmp_path / "log.jsonl", {s + 1: verl_run.token_is(rows[s]) for s in STEPS})
    table = one_step(
        tmp_path / "table.parquet", rows[0] + rows[1], step=[0] * len(rows[0]) + [1] * len(rows[1])
    )
    found = scored(log, table).logged
    assert found is not None
    assert found.log_steps == [1, 2]
    assert "step 0 of the table is compared with 1" in (found.step_reason or "")
    assert all(one.agrees for one in found.keys)


def test_micro_batches_count_rows_without_a_token(rows, tmp_path):
    few = rows[0][:12]
    with_empty = [*few[:3], ([], []), *few[3:]]
    table = one_step(tmp_path / "table.parquet", with_empty)
    parts = [few[:3], few[3:7], few[7:11], few[11:]]
    kl = sum(verl_run.policies(part)["kl"] for part in parts) / len(parts)
    found = by_key(scored(write_log(tmp_path / "log.jsonl", {3: {"kl": kl}}), table), 3)
    assert found["kl"].explained_by == "micro-batches of 4"


def test_a_log_of_another_run_or_trainer_is_refused(rows, tmp_path):
    log = write_log(tmp_path / "log.jsonl", {s + 40: {"kl": 0.1} for s in STEPS})
    with pytest.raises(RcdiagError, match="no step is in both"):
        scored(log)
    other = write_log(tmp_path / "slime.jsonl", {0: {"mis_kl": 0.1}}, prefix="train/")
    with pytest.raises(RcdiagError, match="no key of verl") as refused:
        scored(other)
    assert "--trainer slime" in refused.value.hint
    of_weights = write_log(tmp_path / "weights.jsonl", {0: {"rollout_is_mean": 1.0}})
    with pytest.raises(RcdiagError, match="has no key of preset disabled"):
        scored(of_weights, presets=["disabled"])
    with pytest.raises(RcdiagError, match="all rows"):
        scored(log, rows=10)


def test_keys_of_slime_may_have_a_prefix_of_its_logger(rows, tmp_path):
    means = verl_run.micro_batches(verl_run.policies, 1)(rows[0])
    of_tokens = verl_run.policies(rows[0])
    numbers = {"mis_kl": means["kl"], "mis_k3_kl": of_tokens["k3_kl"]}
    log = write_log(tmp_path / "log.jsonl", {0: numbers}, prefix="train/")
    result = rcdiag.score(first_steps(), logged=log, trainer="slime")
    found = by_key(result)
    assert found["train/mis_kl"].agrees
    assert found["train/mis_k3_kl"].explained_by == "tokens"


def test_keys_of_roll_lose_their_tag_in_its_tracker(tmp_path):
    scored = rcdiag.score(ROLLOUTS, trainer="roll", presets="is_weight_token")
    ours = (scored.steps["0"] if scored.steps else scored).corrections["is_weight_token"].metrics
    numbers = {key.partition("@")[0]: value for key, value in ours.items()}
    log = write_log(tmp_path / "log.jsonl", {0: numbers}, prefix="")
    result = rcdiag.score(ROLLOUTS, logged=log, trainer="roll", presets="is_weight_token")
    assert len(by_key(result)) == len(numbers) > 0
    assert all(one.agrees for one in by_key(result).values())


def test_a_correction_of_whole_batches_has_a_log_too(tmp_path):
    """M2PO compares all tokens of a batch, so micro-batches do not explain it."""
    ours = rcdiag.score(ROLLOUTS, trainer="areal", presets="token_mask").corrections["token_mask"]
    doubled = {key: 2.0 * value for key, value in ours.metrics.items()}
    log = write_log(tmp_path / "log.jsonl", {0: doubled}, prefix="")
    settings = {"token_mask": {"m2_threshold": 0.01}}
    for more in ({}, {"settings": settings}):
        result = rcdiag.score(ROLLOUTS, logged=log, trainer="areal", presets="token_mask", **more)
        assert not all(one.agrees for one in by_key(result).values())
