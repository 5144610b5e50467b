"""Valid inputs that the fuzzer damages: tables, dumps, results, configurations, logs."""

from __future__ import annotations

import io
import json
import lzma
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

RESULTS = Path(__file__).parents[1] / "results" / "format_2"


@dataclass(frozen=True, slots=True)
class Good:
    """A valid input: the bytes of its file, and the command that reads it (`{}` is the file)."""

    name: str  # of the file
    content: bytes
    command: tuple[str, ...]
    compared: bool = False  # whether numpy recomputes the result from the file


def rows_of(seed: int = 0, rows: int = 32) -> pa.Table:
    """Make a table with every kind of column, large enough for all metrics."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(4, 24, rows)
    rollout = [-draw.exponential(1.0, length).astype(np.float32) for length in lengths]
    old = [row + draw.normal(0, 0.02, len(row)).astype(np.float32) for row in rollout]
    ids = [draw.integers(0, 90, length).astype(np.int32) for length in lengths]
    return pa.table(
        {
            "prompt_ids": pa.array([[1, 2, 3]] * rows, pa.list_(pa.int32())),
            "response_ids": pa.array(ids, pa.list_(pa.int32())),
            "response_mask": pa.array(
                [(draw.random(length) < 0.9).astype(np.uint8) for length in lengths],
                pa.list_(pa.uint8()),
            ),
            "rollout_log_probs": pa.array(rollout, pa.list_(pa.float32())),
            "old_log_probs": pa.array(
                [np.minimum(row, 0).astype(np.float32) for row in old], pa.list_(pa.float32())
            ),
            "sample_id": [f"s{row}" for row in range(rows)],
            "group_id": np.arange(rows) // 4,
            "step": np.arange(rows) // 16,
            "reward": draw.integers(0, 2, rows).astype(float),
            "temperature": np.ones(rows),
        }
    ).replace_schema_metadata(
        {"rcdiag": json.dumps({"policies": {"rollout": {"backend": "vllm", "dtype": "bfloat16"}}})}
    )


def _parquet(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


@cache
def corpus() -> dict[str, list[Good]]:
    """Return the valid inputs by the kind of the file that is damaged."""
    return {
        "parquet": _tables(),
        "json": _results(),
        "yaml": _configurations(),
        "toml": _defaults(),
        "dumps": _dumps(),
        "logs": _logs(),
    }


def _tables() -> list[Good]:
    table = rows_of()
    forms: list[dict[str, object]] = [
        {"compression": "none", "use_dictionary": False},
        {"compression": "snappy"},
        {"compression": "zstd", "write_page_checksum": True},
        {"compression": "gzip", "row_group_size": 10},
        {"compression": "lz4", "data_page_version": "2.0", "data_page_size": 256},
        {
            "use_dictionary": False,
            "use_byte_stream_split": ["rollout_log_probs.list.element"],
            "compression": "none",
        },
    ]
    command = ("score", "{}", "--json", "--preset", "decoupled_token_is")
    whole = [Good("table.parquet", _parquet(table, **form), command, True) for form in forms]
    others = [("compare", "{}", "--json"), ("convert", "{}", "-o", "{}.out", "--force")]
    return whole + [
        Good("table.parquet", _parquet(table, **forms[at]), other)
        for at, other in enumerate(others)
    ]


def _results() -> list[Good]:
    return [
        Good(
            "result.json",
            lzma.decompress(path.read_bytes()),
            ("report", "{}", *(("--html", "{}.html", "--force") if number % 2 else ())),
        )
        for number, path in enumerate(sorted(RESULTS.glob("*.json.xz")) * 2)
        if not path.name.startswith("convert") or number % 2 == 0
    ]


TABLE = "{table}"  # placeholder for a valid table

VERL = """actor_rollout_ref: {actor: {clip_ratio: 0.2, loss_agg_mode: token-mean}}
algorithm:
  rollout_correction: &correction
    rollout_is: token
    rollout_is_threshold: 2.0
    rollout_rs: null
    bypass_mode: false
  other: *correction
"""
PRIME = '[trainer.loss]\ntype = "default"\nratio_type = "token"\ntoken_mask_high = 8.0\n'
FLAGS = (
    "python train.py --use-tis --tis-clip 2.0 --tis-clip-low 0 \\\n  --advantage-estimator grpo\n"
)


def _configurations() -> list[Good]:
    texts = {"a.yaml": VERL, "b.toml": PRIME, "c.sh": FLAGS, "d.json": '{"use_tis": true}'}
    command = ("score", TABLE, "--trainer-config", "{}", "-q")
    return [Good(name, text.encode(), command) for name, text in texts.items()]


def _defaults() -> list[Good]:
    text = '[score]\ntrainer = "verl"\nseed = 3\npreset = ["decoupled_token_is"]\nquiet = true\n'
    return [Good("defaults.toml", text.encode(), ("--config", "{}", "score", TABLE))]


def _logs() -> list[Good]:
    rows = [
        {"step": step, "data": {"rollout_corr/k3_kl": 2e-4, "rollout_corr/rollout_is_mean": 1.001}}
        for step in range(2)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    csv = "step,rollout_corr/k3_kl\n0,0.0002\n1,0.0003\n"
    state = json.dumps({"log_history": [{"step": 0, "rollout_corr/k3_kl": 2e-4}]})
    command = ("score", TABLE, "--logged", "{}", "-q")
    texts = {"log.jsonl": lines, "log.csv": csv, "trainer_state.json": state}
    return [Good(name, text.encode(), command) for name, text in texts.items()]


def _dumps() -> list[Good]:
    """Make a dump of each format of `READERS` that can be written without its trainer."""
    import torch

    from tests.table.readers.rollouts import rollouts
    from tests.table.readers.test_hostile_records import GOOD, PAYLOADS
    from tests.table.readers.verl_batches import write_batch

    def command(name: str) -> tuple[str, ...]:
        return ("convert", "{}", "-o", "{}.out", "--force", "--from", name.split()[0])

    dumps = [
        Good("dump.jsonl", (json.dumps(record) + "\n").encode() * 3, command(name))
        for name, record in GOOD.items()
    ]
    with tempfile.TemporaryDirectory() as folder:
        for name, payload in PAYLOADS.items():
            path = Path(folder) / "0.pt"
            torch.save(payload, path)
            dumps.append(Good("0.pt", path.read_bytes(), command(name)))
        for form in ("consolidated", "numpy"):
            path = Path(folder) / f"{form}.pkl"
            try:
                write_batch(path, rollouts(4), form)
            except (KeyError, ValueError, StopIteration):
                continue
            dumps.append(Good("0.pkl", path.read_bytes(), ("convert", "{}", "-o", "{}.out")))
    return dumps
