"""Tables that cannot be compared give an error with a hint."""

from __future__ import annotations

import pytest

from rcdiag.errors import RcdiagError
from rcdiag.table.opening import open_table
from rcdiag.usecases.compare.run import compare
from tests.usecases.compare.tables import base_log_probs, write_policies

BASE = base_log_probs(30)


@pytest.mark.parametrize("chosen", [["rollout"], ["rollout", "rollout"]])
def test_choosing_one_of_several_policies_is_refused_with_a_hint(tmp_path, chosen):
    path = write_policies(tmp_path / "a.parquet", {name: BASE for name in ("rollout", "old")})
    with pytest.raises(RcdiagError, match="polic") as caught:
        compare(open_table(path), policies=chosen)
    assert "a.parquet" in caught.value.message
    assert caught.value.hint


def test_a_missing_policy_is_refused_with_the_existing_ones(tmp_path):
    path = write_policies(tmp_path / "a.parquet", {"rollout": BASE, "old": BASE})
    with pytest.raises(RcdiagError, match="`nope_log_probs`") as caught:
        compare(open_table(path), policies=["rollout", "nope"])
    assert "old" in caught.value.message
    assert caught.value.hint


def test_a_table_without_any_unmasked_token_is_refused(tmp_path):
    path = write_policies(
        tmp_path / "a.parquet",
        {"rollout": BASE, "old": BASE},
        response_mask=[[0] * len(row) for row in BASE],
    )
    with pytest.raises(RcdiagError, match=r"a\.parquet: no unmasked") as caught:
        compare(open_table(path))
    assert caught.value.hint
