"""Parts of a table that other processes walk: equal to the walk of this one, to the last bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rcdiag.table.copies import marks_of, sees, without_what_stays

import rcdiag
from rcdiag.results import Document
from rcdiag.table.stream import read_arrow
from rcdiag.usecases.compare.run import compare
from rcdiag.usecases.plans import plan_of
from rcdiag.usecases.score import score
from rcdiag.usecases.sweep.run import sweep

ROOT = Path(__file__).parents[2]
STALE = ROOT / "sample_data" / "stale.parquet"


class OtherProcesses:
    """A runner as passes see it, which calls here what a cluster calls on its nodes."""

    elsewhere = True

    def __init__(self, seen: bool) -> None:
        self.seen, self.parts = seen, []

    def everywhere(self, function: Callable[[], bool]) -> list[bool]:
        return [True, self.seen and function()]

    def map(self, function: Callable[[Any], Any], parts: Iterable[Any]) -> Iterator[Any]:
        for part in parts:
            self.parts.append(part)
            yield function(part)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr("rcdiag.table.readers.parquet.TOKENS_PER_BATCH", 700)


def dumped(folder: Path) -> rcdiag.Table:
    """Two files with row groups of odd sizes, and a column of another storage in each group."""
    rows = pq.read_table(STALE)
    rows = rows.set_column(
        rows.schema.get_field_index("group_id"),
        "group_id",
        pa.array([str(one) for one in rows["group_id"].to_pylist()]).dictionary_encode(),
    )
    pq.write_table(rows.slice(0, 100), folder / "0.parquet", row_group_size=33)
    pq.write_table(rows.slice(100, 77), folder / "1.parquet", row_group_size=8)
    return rcdiag.open_table(folder)


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> rcdiag.Table:
    return dumped(tmp_path_factory.mktemp("dump"))


def document(result: Document) -> dict[str, Any]:
    content = json.loads(result.to_json())
    del content["provenance"]
    return content


def scored(table: rcdiag.Table, runner: Any = None) -> Document:
    return score(table, plan=plan_of(trainer="all"), runner=runner)


def swept(table: rcdiag.Table, runner: Any = None) -> Document:
    return sweep(table, thresholds=3, runner=runner)


def compared(table: rcdiag.Table, runner: Any = None) -> Document:
    return compare(table, runner=runner)


@pytest.mark.parametrize("command", [scored, compared, swept])
def test_parts_elsewhere_add_up_to_the_same_bits(table, command):
    here = document(command(table))
    for seen in (True, False):
        runner = OtherProcesses(seen)
        assert document(command(table, runner)) == here
        assert len(runner.parts) > 1
        assert all((part.rows is None) == seen for part in runner.parts)


def test_batches_do_not_depend_on_where_row_groups_end(table):
    ranges = table.batch_ranges()
    read = [batch.table.num_rows for batch in table.batches()]
    assert read == [end - first for first, end in ranges]
    assert sum(read) == table.num_rows == ranges[-1][1]


@pytest.mark.parametrize("first", [0, 1, 5])
def test_a_range_of_rows_is_read_alone(table, first):
    ranges = table.batch_ranges()[first : first + 3]
    between = (ranges[0][0], ranges[-1][1])
    alone = pa.concat_tables([one.table for one in table.batches(None, between)])
    whole = pa.concat_tables([one.table for one in table.batches()])
    assert alone.to_pylist() == whole.slice(between[0], between[1] - between[0]).to_pylist()
    assert [one.num_rows for one in read_arrow(table, ranges, ["response_ids"])] == [
        end - first for first, end in ranges
    ]


def test_another_file_under_the_same_path_is_not_the_table(tmp_path):
    (tmp_path / "dump").mkdir()
    table = dumped(tmp_path / "dump")
    marks = marks_of(table)
    sent = without_what_stays(table)
    assert sees(sent, marks)
    file = tmp_path / "dump" / "1.parquet"
    shutil.copyfile(file, tmp_path / "copy")
    file.unlink()
    assert not sees(sent, marks)
    shutil.copyfile(tmp_path / "copy", file)
    assert not sees(sent, marks), "a copy that was written later is taken for the file"


def test_rows_that_cannot_be_read_are_named_alike(tmp_path):
    rows = pq.read_table(STALE).slice(0, 40)
    lists = rows["old_log_probs"].to_pylist()
    lists[31] = lists[31][:-1]
    place = rows.schema.get_field_index("old_log_probs")
    field = rows.schema.field(place)
    rows = rows.set_column(place, field, pa.array(lists, field.type))
    pq.write_table(rows, tmp_path / "short.parquet")
    table = rcdiag.open_table(tmp_path / "short.parquet")
    said = []
    for runner in (None, OtherProcesses(True), OtherProcesses(False)):
        with pytest.raises(rcdiag.RcdiagError, match="row 31") as refused:
            score(table, runner=runner)
        said.append(str(refused.value))
    assert len(set(said)) == 1
