"""Two faults in one table: the first must neither hide the second nor look like a third."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rcdiag.diagnosis.case import Case
from tests.diagnosis.tables import (
    changed,
    drifted,
    judged,
    made,
    named,
    noisy,
    plain,
    presence_penalty,
    shifted,
    single,
    swapped,
    tempered,
    top_p,
    with_values,
)

ROWS = 128
EVERY = np.ones(ROWS, np.bool_)
SOME = np.arange(ROWS) % 3 == 0


def pushed(size: float):
    """Add a constant to the logits of two ids."""
    bias = np.zeros(200)
    bias[[17, 60]] = size
    return changed(lambda logits, state: logits + bias)


def clipped(case: Case, policy: str, floor: float) -> Case:
    return with_values(case, policy, lambda values: np.maximum(values, floor))


def in_base(case: Case, policy: str, base: float) -> Case:
    return with_values(case, policy, lambda values: values / np.log(base))


def tools_counted(case: Case, first: int = 20, size: int = 8) -> Case:
    """Count a span of tool text in every row as sampled, with zeros as the sampler's log-probs."""
    tool = (case.position >= first) & (case.position < first + size)
    rare = single(np.random.default_rng(4).uniform(-12, -4, len(tool)))
    columns = {
        "rollout": np.where(tool, 0.0, case.log_probs["rollout"]),
        "old": np.where(tool, rare, case.log_probs["old"]),
    }
    for policy, values in columns.items():
        case = case.with_log_probs(policy, values)
    return case


def raw(temperature: float) -> Case:
    """Make a table sampled at a temperature that the record ignores."""
    return made(tempered(temperature), recorded=plain, temperature=np.full(ROWS, temperature))


PAIRS: dict[str, tuple[set[str], Callable[[], Case]]] = {
    "exchanged rows, clipped": (
        {"rows-swapped", "floor-clip"},
        lambda: clipped(swapped(made(), "rollout", 20), "rollout", -3.0),
    ),
    "a raw record, one decimal": (
        {"temperature-raw-recorded", "stored-rounded"},
        lambda: with_values(raw(0.7), "rollout", lambda v: np.round(v, 1)),
    ),
    "tools counted, shifted after them": (
        {"mask-includes-tool", "shift-after-tool"},
        lambda: shifted(tools_counted(made()), "rollout", EVERY, after=28),
    ),
    "base 10, other weights": (
        {"log-base", "weights-differ"},
        lambda: in_base(made(plain, drifted(0.3)), "rollout", 10.0),
    ),
    "base 2, a penalty": (
        {"log-base", "penalty"},
        lambda: in_base(made(presence_penalty(0.8), noisy(0.01), rows=200), "old", 2.0),
    ),
    "probabilities, shifted": (
        {"probabilities-stored", "shift-by-one"},
        lambda: with_values(shifted(made(), "old", EVERY), "rollout", np.exp),
    ),
    "probabilities, exchanged rows": (
        {"probabilities-stored", "rows-swapped"},
        lambda: with_values(swapped(made(), "old", 64), "rollout", np.exp),
    ),
    "minus signs lost, shifted": (
        {"sign-flipped", "shift-by-one"},
        lambda: with_values(shifted(made(), "old", EVERY), "old", np.negative),
    ),
    "weights far off, some rows shifted": (
        {"forwards-differ", "shift-some-rows"},
        lambda: shifted(made(plain, noisy(1.0)), "old", SOME),
    ),
    "a bias, the trainer's column shifted": (
        {"logit-bias", "shift-by-one"},
        lambda: shifted(made(pushed(3.0), noisy(0.005), rows=ROWS, length=120), "old", EVERY),
    ),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_both_are_named_and_no_third(pair: str) -> None:
    expected, table = PAIRS[pair]
    assert set(named(table())) == expected


@pytest.mark.parametrize("policy", ["rollout", "old"])
@pytest.mark.parametrize("rows", [EVERY, SOME], ids=["all rows", "some rows"])
def test_the_shifted_column_is_named(policy: str, rows: np.ndarray) -> None:
    first = judged(shifted(made(), policy, rows)).causes[0]
    assert first.slug in ("shift-by-one", "shift-some-rows")
    assert first.side == ("recorder" if policy == "rollout" else "trainer")
    assert f"`{policy}` is 1 token later than the other column" in first.message


@pytest.mark.parametrize("policy", ["rollout", "old"])
def test_the_column_whose_rows_are_exchanged_is_named(policy: str) -> None:
    first = judged(swapped(made(), policy, 20)).causes[0]
    assert first.slug == "rows-swapped"
    assert f"rows `{policy}` has the log-probs of another row" in first.message


@pytest.mark.parametrize("policy", ["rollout", "old"])
def test_rounding_alone_is_the_only_cause(policy: str) -> None:
    assert named(with_values(made(), policy, lambda v: np.round(v, 1))) == ["stored-rounded"]


def test_a_floor_is_not_taken_for_another_distribution() -> None:
    case = clipped(made(plain, drifted(0.5), rows=200), "old", -1.5)
    assert named(case)[0] == "floor-clip"
    assert "top-one-recorded" not in named(case)


def test_a_value_far_below_all_others_is_not_a_floor() -> None:
    case = made()
    rarest = np.argsort(case.log_probs["old"])[:40]
    values = case.log_probs["old"].copy()
    values[rarest] = -50.0
    assert named(case.with_log_probs("old", values))[0] == "sentinel"


@pytest.mark.parametrize("temperature", [0.6, 0.65, 0.7, 0.75])
def test_a_temperature_is_not_taken_for_another_base(temperature: float) -> None:
    assert "log-base" not in named(made(tempered(temperature), noisy(0.05), rows=200))
    assert "log-base" not in named(made(noisy(0.05), tempered(temperature), rows=200))


@pytest.mark.parametrize("law", ["top-p", "temperature"])
def test_other_weights_are_named_beside_another_distribution(law: str) -> None:
    if law == "top-p":
        share = np.full(ROWS, 0.9)
        single = made(top_p(0.9), plain, top_p=share, prompts=True)
        both = made(top_p(0.9), drifted(0.4), top_p=share, prompts=True)
        slug = "top-p-renormalised"
    else:
        at = np.full(ROWS, 0.7)
        single = made(tempered(0.7), plain, temperature=at, prompts=True)
        both = made(tempered(0.7), drifted(0.2), temperature=at, prompts=True)
        slug = "trainer-without-temperature"
    assert named(single) == [slug]
    assert named(both) == [slug, "forwards-differ"]


def test_log_probs_of_another_base_are_not_argmax_log_probs() -> None:
    case = in_base(made(plain, drifted(0.8), rows=200), "rollout", 10.0)
    assert "top-one-recorded" not in named(case)


BESIDE: dict[str, tuple[set[str], Callable[[], Case]]] = {
    "a penalty under a kept set": (
        {"truncated-law", "penalty"},
        lambda: made(changed(presence(0.8), top_p(0.9)), noisy(0.005), rows=200),
    ),
}


def presence(size: float):
    return lambda logits, state: logits - size * state.seen


@pytest.mark.parametrize("pair", BESIDE)
def test_a_fault_that_a_distribution_cannot_explain_is_named_too(pair: str) -> None:
    expected, table = BESIDE[pair]
    assert set(named(table())) == expected


@pytest.mark.parametrize("size", [0.005, 0.01])
@pytest.mark.parametrize("temperature", [0.6, 0.9, 1.3])
def test_noise_beside_a_temperature_is_not_a_second_cause(temperature: float, size: float) -> None:
    at = np.full(ROWS, temperature)
    case = made(tempered(temperature), noisy(size), temperature=at, prompts=True)
    assert named(case) == ["trainer-without-temperature"]


@pytest.mark.parametrize("share", [0.8, 0.95])
def test_noise_beside_a_kept_set_is_not_a_second_cause(share: float) -> None:
    assert named(made(top_p(share), noisy(0.01))) == ["truncated-law"]


def test_rows_that_could_not_be_repaired_are_not_a_second_cause() -> None:
    case = swapped(made(), "old", 30)
    noise = np.random.default_rng(3).normal(0.0, 1.5, int(case.lengths[:2].sum()))
    values = case.log_probs["old"].copy()
    values[: len(noise)] = np.minimum(values[: len(noise)] + noise, 0.0)
    assert "forwards-differ" not in named(case.with_log_probs("old", values))


@pytest.mark.parametrize(("temperature", "seed"), [(0.4, 1), (0.5, 0), (0.5, 1), (0.6, 2)])
def test_rare_tokens_missing_at_a_low_temperature_are_not_a_kept_set(
    temperature: float, seed: int
) -> None:
    """E[1 / ratio] lacks the recorded probability of tokens too rare to be sampled once."""
    law = tempered(temperature)
    table = made(
        law, noisy(0.002, law), plain, rows=96, length=40, group_of=8, prompts=True, seed=seed
    )
    assert named(table) == ["temperature-raw-recorded"]


def test_answers_that_repeat_at_a_low_temperature_are_not_duplicates() -> None:
    law = tempered(0.5)
    table = made(
        law, noisy(0.002, law), plain, rows=96, length=40, group_of=8, prompts=True, seed=0
    )
    answers = {
        (int(group), table.token_id[table.start[row] : table.start[row] + 40].tobytes())
        for row, group in enumerate(table.facts.group)
    }
    assert len(answers) < 90
    assert "duplicated-rows" not in named(table)


@pytest.mark.parametrize("policy", ["rollout", "old"])
@pytest.mark.parametrize("floor", [-3.0, -5.0])
@pytest.mark.parametrize(
    ("slug", "table"),
    [
        ("trainer-without-temperature", lambda: made(tempered(0.7), plain, rows=200, seed=2)),
        ("sampler-ignores-temperature", lambda: made(plain, tempered(0.7), rows=200, seed=2)),
    ],
)
def test_above_a_floor_the_side_of_a_wrong_temperature_is_open(
    slug: str, table: Callable[[], Case], floor: float, policy: str
) -> None:
    """Without the rare tokens E[ratio] does not tell which distribution sampled."""
    first, second = judged(clipped(table(), policy, floor)).causes
    assert (first.slug, second.slug) == ("floor-clip", slug)
    assert second.confidence < 0.75
    assert "temperature-raw-recorded" in second.also_possible


@pytest.mark.parametrize("floor", [-3.0, -5.0])
def test_a_raw_record_above_a_floor_is_not_confidently_something_else(floor: float) -> None:
    case = made(tempered(0.7), recorded=plain, rows=200, seed=2)
    assert [cause.slug for cause in judged(case).causes] == ["temperature-raw-recorded"]
    others = judged(clipped(case, "rollout", floor)).causes[1:]
    assert all("temperature-raw-recorded" in cause.also_possible for cause in others)
