"""Changes over the steps of a run: from which step on, and which metric moved first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import polars as pl
import pytest
from msgspec.structs import replace

import rcdiag as api
from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.change_of_mismatch import sentence
from rcdiag.diagnosis.features.location import trend
from rcdiag.diagnosis.judge import diagnose
from rcdiag.errors import RcdiagError
from rcdiag.results.diagnosis import OverSteps
from tests.cli.conftest import rcdiag  # noqa: F401
from tests.diagnosis.tables import counted, made, noisy, plain, write

ROWS = 160


@cache
def without_mismatch(seed: int) -> Case:
    return made(plain, noisy(0.01), rows=ROWS, length=40, seed=seed)


def run(sizes: Sequence[float], steps: Sequence[int] | None = None, seed: int = 0) -> Case:
    """Make a table of a run with the given mismatch in each step."""
    case = without_mismatch(seed)
    index = np.arange(ROWS) * len(sizes) // ROWS
    rng = np.random.default_rng(5)
    off = rng.standard_normal(len(case.mask)) * (0.01 + np.array(sizes)[index][case.owner])
    old = np.minimum(case.log_probs["rollout"] + off, 0.0)
    step = index if steps is None else np.array(steps)[index]
    changed = case.with_log_probs("old", old)
    return replace(changed, facts=replace(changed.facts, step=step.astype(np.int64)))


def told(case: Case) -> OverSteps:
    said = diagnose(counted(case)).over_steps
    assert said is not None
    return said


def first(said: OverSteps) -> tuple[str, int]:
    return said.moved[0].name, said.moved[0].moved_at


@pytest.mark.parametrize("begins", [1, 5, 19])
def test_a_collapse_is_reported_with_step_and_numbers(begins):
    said = told(run([0.0] * begins + [0.3] * (20 - begins)))
    assert (said.large_from, said.large_to) == (begins, None)
    assert {one.moved_at for one in said.moved} == {begins}
    assert {one.name for one in said.moved} >= {"k3_kl", "prob_diff_mean"}
    assert f"change at step {begins}" in said.says
    k3 = next(one for one in said.moved if one.name == "k3_kl")
    assert k3.median_after > 100 * k3.median_before


@pytest.mark.parametrize(("verb", "order"), [("grows", 1), ("falls", -1)])
def test_a_slow_trend_is_reported_as_growth(verb, order):
    sizes = list(np.linspace(0.0, 0.04, 20))[::order]
    said = told(run(sizes))
    assert said.says.startswith(f"k3_kl {verb} steadily, from ")
    assert said.says.endswith("of 20 steps)")


@pytest.mark.parametrize("seed", range(10))
def test_noise_has_no_trend(seed):
    assert trend(np.exp(np.random.default_rng(seed).standard_normal(20))) == 1.0
    assert trend(np.ones(3)) == 1.0
    assert trend(np.arange(1.0, 7.0)) == pytest.approx(5.5 / 1.5)


def test_two_exchanged_neighbours_of_eight_are_still_a_trend():
    assert trend(np.array([1.0, 2, 3, 5, 4, 6, 7, 8])) == pytest.approx(7.5 / 1.5)
    assert trend(np.array([1.0, 2, 4, 3, 5, 6, 7])) == 1.0


def test_steps_are_named_by_their_values():
    steps = [100, 107, 110, 200, 250, 300, 1000, 5000]
    case = run([0.0] * 5 + [0.3] * 3, steps)
    assert told(case).large_from == 300
    assert f"{first(told(case))[1]}" == "300"
    order = np.random.default_rng(1).permutation(ROWS)  # the rows of a table stand in any order
    kept = [np.flatnonzero(case.owner == row) for row in order]
    mixed = replace(
        case,
        token_id=np.concatenate([case.token_id[one] for one in kept]),
        log_probs={
            name: np.concatenate([values[one] for one in kept])
            for name, values in case.log_probs.items()
        },
        entropy={},
        facts=replace(case.facts, step=case.facts.step[order], group=case.facts.group[order]),
    )
    assert told(mixed) == told(case)


def test_a_metric_that_moved_before_the_mismatch_comes_first():
    case = run([0.0] * 10 + [0.3] * 6)
    rng = np.random.default_rng(2)
    reward = np.where(case.facts.step < 7, 1.0, 0.0) + rng.normal(0.0, 0.2, ROWS)
    said = told(replace(case, facts=replace(case.facts, reward=reward)))
    assert first(said) == ("reward", 7)
    assert "reward (1 to" in said.says
    assert "changes first, at step 7; then k3_kl" in said.says
    assert said.large_from == 10
    quiet = run([0.0] * 16)
    alone = told(replace(quiet, facts=replace(quiet.facts, reward=reward)))
    assert alone.moved == []  # a falling reward alone is not a mismatch


def test_two_changes_are_both_reported():
    said = told(run([0.0] * 4 + [0.1] * 4 + [0.5] * 8))
    assert [one.moved_at for one in said.moved if one.name == "k3_kl"] == [4, 8]
    assert (said.large_from, first(said)[1]) == (4, 4)


def test_a_mismatch_that_falls_back_is_judged_on_its_own_steps():
    diagnosis = diagnose(counted(run([0.0] * 5 + [0.3] * 3 + [0.0] * 8)))
    said = diagnosis.over_steps
    assert (said.large_from, said.large_to) == (5, 7)
    assert "in steps 5 to 7 and falls back" in said.says
    assert diagnosis.summary.startswith("In steps 5 to 7 alone k3 is")
    assert diagnosis.causes[0].from_step == 5


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ([0.0] * 8, "no change over steps 0 to 7: k3_kl "),
        ([0.2] * 8, "no change over steps 0 to 7: k3_kl "),
        ([0.3] * 3 + [0.0] * 13, "large in steps 0 to 2 and drops at step 3"),
        ([0.0, 0.3] * 8, "spikes in 8 of 16 steps: 1, 3, 5, 7 and 4 more"),
    ],
)
def test_no_first_step_if_the_mismatch_does_not_begin_in_the_run(sizes, says):
    said = told(run(sizes))
    assert says in said.says
    assert said.large_from is None


@pytest.mark.parametrize("seed", range(8))
def test_noise_gives_no_change(seed):
    for sizes in ([0.0] * 20, [0.0] * 2, [0.05] * 10, [0.0] * 160):
        said = told(run(sizes, seed=seed))
        assert (said.moved, said.large_from) == ([], None)


def test_one_row_is_not_a_collapse():
    said = told(run([0.0] * 159 + [0.5]))
    assert (said.moved, said.large_from) == ([], None)
    assert "spikes at step 159 only (of 160 steps)" in said.says


def test_one_step_has_nothing_over_steps():
    assert diagnose(counted(run([0.0]))).over_steps is None


def test_screen_page_and_document_report_it(tmp_path, rcdiag):  # noqa: F811
    path = write(run([0.0] * 7 + [0.3]), tmp_path / "t.parquet")
    html, result = tmp_path / "r.html", tmp_path / "r.json"
    screen = rcdiag("score", path, "--html", html, "--result", result).out
    says = api.load_result(result).diagnosis.over_steps.says
    assert "at step 7" in says
    assert says in " ".join(screen.replace("steps       ", "").split())
    page = " ".join(html.read_text().split())
    assert says in page
    taken_apart = sentence(api.load_result(result).diagnosis.over_steps.change)
    assert taken_apart in page
    every_line = rcdiag("score", path, "-v").out  # the first screen has no room for it here
    assert taken_apart[:40] in " ".join(every_line.split())
    assert rcdiag("diagnose", path, "--json").document["diagnosis"]["over_steps"]["says"] == says


@pytest.mark.parametrize("where", ["one step", "every tenth group"])
def test_noise_in_some_rows_is_not_a_lost_shard(where, tmp_path):
    """Noise of one nat, clipped at log-prob 0, makes E[1 / ratio] < 1, as a lost shard does."""
    table = pl.read_parquet("sample_data/rollouts.parquet")
    groups = table["group_id"].rank("dense").to_numpy()
    hit = table["step"].to_numpy() == 5 if where == "one step" else groups % 10 == 0
    rng = np.random.default_rng(0)
    recorded = [
        np.minimum(np.array(row) + noisy_row * rng.standard_normal(len(row)), 0.0)
        for row, noisy_row in zip(table["rollout_log_probs"].to_list(), hit, strict=True)
    ]
    path = tmp_path / "noisy.parquet"
    table.with_columns(pl.Series("rollout_log_probs", recorded)).write_parquet(path)
    diagnosis = api.score(path, presets=["disabled"]).diagnosis
    assert "vocab-shard-wrong" not in [cause.slug for cause in diagnosis.causes]
    assert diagnosis.verdict == "broken"


SAW = [0.02 + 0.03 * (step % 7) for step in range(20)]


@pytest.mark.parametrize("seed", range(3))
def test_growth_until_restarts_is_reported_with_the_restarts(seed):
    diagnosis = diagnose(counted(run(SAW, seed=seed)))
    assert diagnosis.over_steps.resets == [7, 14]
    assert "k3_kl grows from step 0 to 6" in diagnosis.over_steps.says
    assert "falls back at steps 7, 14: a restart" in diagnosis.over_steps.says
    # With weights that are never synced the mismatch does not fall back.
    assert "weights-never-synced" not in [cause.slug for cause in diagnosis.causes]


@pytest.mark.parametrize("seed", range(8))
def test_neither_noise_nor_a_trend_has_resets(seed):
    for sizes in ([0.0] * 40, [0.05] * 40, list(np.linspace(0.0, 0.3, 20))):
        assert told(run(sizes, seed=seed)).resets == []


def test_growth_at_a_learning_rate_of_zero_is_not_from_updates():
    case = run(list(np.linspace(0.0, 0.3, 20)))
    unknown = diagnose(counted(case))
    assert "learning rate 0" in unknown.next[-1].text
    still = diagnose(counted(replace(case, metadata={"given": {"learning_rate": 0.0}})))
    assert still.over_steps.says.startswith("by no update (learning rate 0): ")
    assert not {"weights-never-synced", "stale-weights"} & {one.slug for one in still.causes}
    assert not any("learning rate" in action.text for action in still.next)
    trained = diagnose(counted(replace(case, metadata={"learning_rate": 1e-6})))
    assert "learning rate" not in trained.over_steps.says
    flat = diagnose(counted(replace(run([0.0] * 20), metadata={"learning_rate": 0.0})))
    assert "learning rate" not in flat.over_steps.says


def test_a_learning_rate_is_given_on_the_command_line(tmp_path, rcdiag):  # noqa: F811
    path = write(run(list(np.linspace(0.0, 0.3, 20))), tmp_path / "t.parquet")
    screen = rcdiag("diagnose", path, "--given", "learning_rate=0").out
    assert "by no update (learning rate 0)" in screen
    with pytest.raises(RcdiagError, match="learning_rate=-1"):
        api.diagnose(path, given={"learning_rate": -1})


def test_growth_from_a_step_on_is_reported_with_the_step():
    said = told(run([0.0] * 8 + list(np.linspace(0.02, 0.3, 12))))
    assert said.says.startswith("k3_kl grows from step ")
    assert 7 <= first(said)[1] <= 9
    assert first(said)[0] == "k3_kl"
