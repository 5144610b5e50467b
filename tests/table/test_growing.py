"""A writer whose columns are known at the end encodes rows while the next ones are read."""

from __future__ import annotations

import threading

import pyarrow as pa
import pyarrow.parquet as pq

from rcdiag.table.growing import MOST_WAITING, GrowingWriter
from rcdiag.table.writer import TableWriter

PATIENCE = 30.0  # seconds after which a thread that waits counts as one that waits for ever


def piece(number: int) -> pa.Table:
    return pa.table({"response_ids": pa.array([[number]], pa.list_(pa.int32()))})


def test_reading_goes_on_while_a_row_group_is_encoded_and_no_further_than_memory(
    tmp_path, monkeypatch
):
    encode, encoded = threading.Event(), TableWriter.write
    taken = [threading.Event() for _ in range(MOST_WAITING + 1)]

    def slowly(writer: TableWriter, rows: pa.Table) -> None:
        assert encode.wait(PATIENCE)
        encoded(writer, rows)

    def read(writer: GrowingWriter) -> None:
        for number, event in enumerate(taken):
            writer.write(piece(number))
            event.set()

    monkeypatch.setattr(TableWriter, "write", slowly)
    with GrowingWriter(tmp_path / "a.parquet") as writer:
        reader = threading.Thread(target=read, args=(writer,))
        reader.start()
        assert all(event.wait(PATIENCE) for event in taken[:MOST_WAITING])
        assert not taken[MOST_WAITING].wait(0.5)
        encode.set()
        reader.join(PATIENCE)
        writer.finish({})
    rows = pq.read_table(tmp_path / "a.parquet")["response_ids"].to_pylist()
    assert rows == [[number] for number in range(MOST_WAITING + 1)]
