"""Two dumps of one run, the sampler's and the trainer's, become one table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rcdiag
from rcdiag.errors import RcdiagError
from rcdiag.table.readers import READERS
from rcdiag.table.table import Table
from tests.builders import write_table
from tests.table.toy_reader import TOY, write_toy

COUNT = 24


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    with READERS.with_added(TOY):
        yield


def run_rows(seed: int = 0, count: int = COUNT) -> list[dict[str, Any]]:
    """Make rows of a run, with the sampler's and the trainer's columns."""
    generator = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        size = int(generator.integers(1, 7))
        rows.append(
            {
                "sample_id": f"s{number}",
                "step": number // 12,
                "prompt_ids": [number // 4, 5],
                "response_ids": generator.integers(0, 900, size).tolist(),
                "rollout_log_probs": (-generator.random(size)).tolist(),
                "old_log_probs": (-generator.random(size)).tolist(),
                "reward": float(number % 3),
                "advantages": generator.normal(size=size).tolist(),
            }
        )
    return rows


SAMPLER = ("prompt_ids", "response_ids", "rollout_log_probs", "reward")
TRAINER = ("prompt_ids", "response_ids", "old_log_probs", "advantages")


def part(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in names} for row in rows]


def columns(table: Table, *names: str) -> list[tuple[Any, ...]]:
    return [
        tuple(row[name] for name in names)
        for batch in table.batches(names)
        for row in batch.table.to_pylist()
    ]


def wanted(rows: Sequence[Mapping[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


ALL = ("prompt_ids", "response_ids", "rollout_log_probs", "old_log_probs", "reward", "advantages")


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    if path.suffix == ".toyjsonl":
        return write_toy(path, rows)
    return write_table(path, **{name: [row[name] for row in rows] for name in rows[0]})


@pytest.mark.parametrize("suffixes", [("toyjsonl", "parquet"), ("parquet", "parquet")])
@pytest.mark.parametrize("order", ["same", "reversed"])
def test_rows_are_matched_by_their_tokens(tmp_path, suffixes, order):
    rows = run_rows()
    one = write(tmp_path / f"sampler.{suffixes[0]}", part(rows, SAMPLER))
    later = rows if order == "same" else rows[::-1]
    other = write(tmp_path / f"trainer.{suffixes[1]}", part(later, TRAINER))
    table = rcdiag.open_table([one, other])
    assert table.policies == ["rollout", "old"]
    assert columns(table, *ALL) == wanted(rows, *ALL)
    assert [file.path for file in table.sources] == [one, other]
    output = f"24 of 24 rows of {one}, 24 of 24 rows of {other}"
    assert any(output in text for text in table.metadata["conversion"]["changes"])
    assert rcdiag.score([one, other], presets="disabled").num_sequences == COUNT


def test_two_dumps_of_one_format_with_other_policies_are_joined(tmp_path):
    rows = run_rows()
    one = write(tmp_path / "a.toyjsonl", part(rows, SAMPLER))
    other = write(tmp_path / "b.toyjsonl", part(rows[::-1], TRAINER))
    table = rcdiag.open_table([one, other])
    assert columns(table, *ALL) == wanted(rows, *ALL)


def test_two_dumps_of_one_format_with_the_same_policies_are_concatenated(tmp_path):
    rows = run_rows()
    one = write(tmp_path / "a.toyjsonl", part(rows[:10], SAMPLER))
    other = write(tmp_path / "b.toyjsonl", part(rows[10:], SAMPLER))
    table = rcdiag.open_table([one, other])
    assert table.joined is None
    assert columns(table, *SAMPLER) == wanted(rows, *SAMPLER)


def test_rows_are_matched_by_ids_if_both_have_them(tmp_path):
    rows = run_rows()
    one = write(tmp_path / "a.toyjsonl", part(rows[:20], ("sample_id", *SAMPLER)))
    other = write(tmp_path / "b.parquet", part(rows[4:][::-1], ("sample_id", *TRAINER)))
    table = rcdiag.open_table([one, other])
    assert columns(table, *ALL) == wanted(rows[4:20], *ALL)
    assert table.joined.matched_by == "sample_id"
    assert table.joined.common_samples == 16
    assert table.where(0) == f"{one}, row 4"


def test_rows_of_one_id_with_other_tokens_are_reported(tmp_path):
    """Ids that start at 0 in every file belong to different samples."""
    rows = run_rows(count=6)
    one = write(tmp_path / "a.toyjsonl", part(rows, ("sample_id", *SAMPLER)))
    others = part(rows, ("sample_id", *TRAINER))
    others[1]["sample_id"], others[4]["sample_id"] = rows[4]["sample_id"], rows[1]["sample_id"]
    table = rcdiag.open_table([one, write(tmp_path / "b.parquet", others)])
    (text,) = (text for text in table.metadata["conversion"]["changes"] if "joined by" in text)
    assert "4 of 6 rows" in text
    first = rows[1]["sample_id"]
    assert f"2 differ in their tokens and are left out: {first} (other tokens)" in text


def test_rows_of_only_one_side_are_counted_and_named(tmp_path):
    rows = run_rows()
    one = write(tmp_path / "a.toyjsonl", part(rows[:20], SAMPLER))
    other = write(tmp_path / "b.parquet", part(rows[4:], TRAINER))
    table = rcdiag.open_table([one, other])
    assert columns(table, *ALL) == wanted(rows[4:20], *ALL)
    report = table.joined
    assert (report.matched_by, report.common_samples, report.table_rows) == ("tokens", 16, [20, 20])
    assert f"{other}, row 16 (not in a)" in report.left_out
    assert f"{one}, row 0 (not in b)" in report.left_out


def test_equal_prompts_and_responses_of_other_steps_are_other_rows(tmp_path):
    rows = [
        {**row, "prompt_ids": [1], "response_ids": [2, 3], "step": number}
        for number, row in enumerate(run_rows(count=6))
    ]
    for row in rows:
        for name in ("rollout_log_probs", "old_log_probs", "advantages"):
            row[name] = [-float(row["step"]), -0.5]
    one = write(tmp_path / "a.toyjsonl", part(rows, ("step", *SAMPLER)))
    other = write(tmp_path / "b.parquet", part(rows[::-1], ("step", *TRAINER)))
    table = rcdiag.open_table([one, other])
    assert columns(table, "step", *ALL) == wanted(rows, "step", *ALL)


def repeated(numbers: Sequence[float]) -> list[dict[str, Any]]:
    """Make rows with the same tokens but different log-probs."""
    return [
        {
            "prompt_ids": [1],
            "response_ids": [2],
            "rollout_log_probs": [-number],
            "old_log_probs": [-number - 0.125],
            "reward": 0.0,
            "advantages": [0.0],
        }
        for number in numbers
    ]


def test_repeated_rows_match_in_their_order(tmp_path):
    rows = repeated([1, 2, 3]) + run_rows()[:5] + repeated([4])
    one = write(tmp_path / "a.toyjsonl", part(rows, SAMPLER))
    other = write(tmp_path / "b.parquet", part(rows, TRAINER))
    assert columns(rcdiag.open_table([one, other]), *ALL) == wanted(rows, *ALL)


@pytest.mark.parametrize("more", ["sampler", "trainer"])
def test_ambiguous_repeated_rows_are_refused(tmp_path, more):
    rows = repeated([1, 2, 3])
    few = [rows[0], rows[2]]
    one = write(tmp_path / "a.toyjsonl", part(rows if more == "sampler" else few, SAMPLER))
    other = write(tmp_path / "b.parquet", part(few if more == "sampler" else rows, TRAINER))
    with pytest.raises(RcdiagError, match="it is unknown which belong together") as caught:
        rcdiag.open_table([one, other])
    assert "sample_id" in caught.value.hint


def test_identical_repeated_rows_match_in_any_order(tmp_path):
    rows = repeated([1, 1, 1])
    one = write(tmp_path / "a.toyjsonl", part(rows, SAMPLER))
    other = write(tmp_path / "b.parquet", part(rows[:2], TRAINER))
    assert rcdiag.open_table([one, other]).num_rows == 2


def test_equal_log_probs_of_both_dumps_are_kept_once(tmp_path):
    rows = run_rows()
    one = write(tmp_path / "a.toyjsonl", part(rows, SAMPLER))
    other = write(tmp_path / "b.parquet", part(rows, ("rollout_log_probs", *TRAINER)))
    assert rcdiag.open_table([one, other]).policies == ["rollout", "old"]
    for row in rows:
        row["rollout_log_probs"] = [value - 0.5 for value in row["rollout_log_probs"]]
    other = write(tmp_path / "c.parquet", part(rows, ("rollout_log_probs", *TRAINER)))
    assert rcdiag.open_table([one, other]).policies == ["rollout", "rollout_c", "old"]


def test_dumps_of_other_runs_are_refused(tmp_path):
    one = write(tmp_path / "a.toyjsonl", part(run_rows(0), SAMPLER))
    other = write(tmp_path / "b.parquet", part(run_rows(1), TRAINER))
    with pytest.raises(RcdiagError, match="no sample is in all tables with the same tokens"):
        rcdiag.open_table([one, other])


def test_given_values_hold_for_both_dumps(tmp_path):
    rows = run_rows()
    one = write(tmp_path / "a.toyjsonl", part(rows, SAMPLER))
    other = write(tmp_path / "b.parquet", part(rows, TRAINER))
    table = rcdiag.open_table([one, other], given={"temperature": 0.7})
    assert columns(table, "temperature") == [(0.7,)] * COUNT
    assert table.metadata["given"] == {"temperature": 0.7}


def test_a_file_in_two_sources_is_refused(tmp_path):
    """Its rows would count twice: a glob and a matching file, a folder and a link into it."""
    rows = part(run_rows(), SAMPLER)
    columns = {name: [row[name] for row in rows] for name in SAMPLER}
    path = write_table(tmp_path / "a.parquet", **columns)
    (tmp_path / "link.parquet").symlink_to(path)
    for sources in ([path, path], [tmp_path / "a*", path], [path, tmp_path / "link.parquet"]):
        with pytest.raises(RcdiagError, match=r"\.parquet is given twice, by .* and by "):
            rcdiag.open_table(sources)
