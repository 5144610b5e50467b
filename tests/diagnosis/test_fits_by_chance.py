"""Rows that fit another position by chance, as certain and similar responses do, are no fault."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.features import Features
from tests.diagnosis.tables import drifted, made, named, shifted, single

ROWS, LENGTH = 128, 60
ALIGNMENT = {"shift-by-one", "shift-some-rows", "shift-after-tool", "rows-swapped"}


def with_row(case: Case, row: int, **columns: np.ndarray) -> Case:
    """Replace the ids or log-probs of one row, from its first token on."""
    log_probs = {name: values.copy() for name, values in case.log_probs.items()}
    ids = case.token_id.copy()
    for name, values in columns.items():
        target = ids if name == "ids" else log_probs[name]
        target[case.start[row] : case.start[row] + len(values)] = values
    return replace(case, token_id=ids, log_probs=log_probs)


def sure_and_alike(case: Case, rows: range, spike: float) -> Case:
    """Give some rows one response of certain tokens; other weights doubt the one before its only
    doubtful token.
    """
    ids = np.random.default_rng(3).integers(2, 200, LENGTH)
    rollout, old = np.full(LENGTH, -1e-4), np.full(LENGTH, -1e-4)
    rollout[30], old[29] = spike, 1.3 * spike
    for row in rows:
        noise = 1e-6 * np.arange(LENGTH) * row  # no row is a copy of another
        columns = {"rollout": single(rollout - noise), "old": single(old - noise)}
        case = with_row(case, row, ids=ids, **columns)
    return case


@pytest.mark.parametrize("rows", [4, 8])
def test_one_nearly_certain_response_of_a_group_is_not_a_shift(rows: int) -> None:
    case = sure_and_alike(made(trained=drifted(0.3), rows=ROWS, seed=6), range(rows), -0.1)
    assert np.count_nonzero(Features(case).alignment.shift) == rows  # each looks shifted
    assert ALIGNMENT.isdisjoint(named(case))


def test_turns_with_the_smallest_mismatch_are_not_shifted() -> None:
    case = made(trained=drifted(0.3), rows=ROWS, seed=6)
    for row in range(8):  # eight responses, of different tokens each
        rollout, old = np.full(LENGTH, -1e-4), np.full(LENGTH, -1e-4)
        rollout[20 + row], old[19 + row] = -0.1, -0.13
        case = with_row(case, row, rollout=single(rollout), old=single(old))
    alignment = Features(case).alignment
    assert alignment.distinct_texts(alignment.shift != 0) == 8
    assert ALIGNMENT.isdisjoint(named(case))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_shift_is_found_beside_other_weights(seed: int) -> None:
    rows = np.arange(ROWS) % 10 == 0
    case = shifted(made(trained=drifted(0.3), rows=ROWS, seed=seed), "old", rows)
    assert named(case)[0] == "shift-some-rows"


def test_a_response_with_a_shorter_one_as_prefix_is_not_exchanged_with_it() -> None:
    case, short = made(rows=ROWS, seed=6), 20
    cut = np.zeros(len(case.mask), np.bool_)
    for brief, long in ((10, 20), (11, 40), (12, 60)):
        tokens = slice(case.start[brief], case.start[brief] + short)
        begin = {name: values[tokens] for name, values in case.log_probs.items()}
        case = with_row(case, long, ids=case.token_id[tokens], **begin)
        # The trainer finds the rest of the long one unlikely.
        rest = np.arange(LENGTH) >= short
        own = case.log_probs["old"][case.start[long] : case.start[long] + LENGTH]
        case = with_row(case, long, old=np.where(rest, own - 4.0, own))
        cut[tokens.stop : case.start[brief] + LENGTH] = True
    case = case.without_tokens(cut)
    assert np.all(Features(case).alignment.best_row == np.arange(ROWS))
    assert "rows-swapped" not in named(case)
