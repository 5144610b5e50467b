"""A table with more rows than fit in memory is refused, and the error names the limit."""

from __future__ import annotations

import pytest

from rcdiag.errors import RcdiagError
from rcdiag.table import free_memory as memory
from rcdiag.table.opening import open_table
from rcdiag.usecases.score import score
from tests.builders import write_table


@pytest.fixture
def table(tmp_path):
    path = write_table(
        tmp_path / "table.parquet",
        response_ids=[[1], [2], [3]],
        rollout_log_probs=[[-0.1], [-0.2], [-0.3]],
        old_log_probs=[[-0.1], [-0.2], [-0.4]],
    )
    return open_table(path)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a function that sets the machine's free memory and the container's limit."""

    def with_memory(free: int, limit: str) -> None:
        info, container = tmp_path / "meminfo", tmp_path / "memory.max"
        info.write_text(f"MemTotal: 9999999 kB\nMemAvailable: {free // 1024} kB\n")
        container.write_text(limit)
        monkeypatch.setattr(memory, "MEMINFO", info)
        monkeypatch.setattr(memory, "CONTAINER_LIMIT", container)

    return with_memory


@pytest.mark.parametrize(
    ("free", "limit", "expected"),
    [(4096, "max\n", 4096), (4096, "2000\n", 2000), (4096, "9000\n", 4096)],
)
def test_free_memory_is_that_of_the_machine_within_its_container(machine, free, limit, expected):
    machine(free, limit)
    assert memory.free_memory() == expected


def test_nothing_is_refused_if_free_memory_is_unknown(table, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "none")
    assert memory.free_memory() is None
    assert score(table).num_sequences == 3


def test_rows_beyond_the_memory_are_refused_and_the_rows_that_fit_are_named(table, machine):
    machine(1 << 20, str(2 * memory.BYTES_A_ROW))
    with pytest.raises(RcdiagError, match=r"3 rows need about.*; 2 rows would fit") as refused:
        score(table)
    assert "--rows" in refused.value.hint


def test_rows_that_just_fit_are_scored(table, machine):
    machine(1 << 20, str(3 * memory.BYTES_A_ROW))
    assert score(table).num_sequences == 3
