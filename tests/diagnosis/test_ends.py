"""A model shows that responses lack the end token that it would sample."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.experiments.missing_eos import cause_in_missing_eos
from rcdiag.table.trajectories import Ragged
from tests.diagnosis.tables import END, made

ROWS = 32


def scene(*, ends: bool) -> Any:
    case = made(rows=ROWS, length=30)
    ids = np.where(case.token_id == END, 7, case.token_id).astype(np.int32)
    if ends:
        ids[case.start[0] + case.lengths[0] - 1] = END
    prompts = Ragged(np.full(2 * ROWS, 5, np.int32), np.arange(ROWS + 1) * 2)
    with_prompts: Case = replace(case, token_id=ids, prompt_ids=prompts)
    return SimpleNamespace(case=with_prompts, rows=np.arange(ROWS), prompt=prompts.row)


class Model:
    """A model that ends a share of the responses after their last token."""

    tensors = SimpleNamespace(end_ids=(END,), context=None)

    def __init__(self, share: float) -> None:
        self.share = share

    def log_probs(self, passages: Any, change: Any = None) -> np.ndarray:
        for passage in passages:
            assert passage.ids[-1] == END
            assert passage.places.tolist() == [len(passage.ids) - 1]
        sure = np.arange(len(passages)) < self.share * len(passages)
        return np.where(sure, np.log(0.95), np.log(0.01))


@pytest.mark.parametrize(
    ("share", "ends", "told"), [(0.9, False, True), (0.2, False, False), (0.9, True, False)]
)
def test_ends_are_missing_where_the_model_would_end(share: float, ends: bool, told: bool) -> None:
    answer = cause_in_missing_eos(scene(ends=ends), Model(share))  # type: ignore[arg-type]
    assert (answer is not None) == told
    if answer is not None:
        assert answer.slug == "mask-drops-last"
        assert abs(answer.share_of_rows - share) < 0.05
