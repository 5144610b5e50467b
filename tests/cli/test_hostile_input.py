"""Damaged, hostile or absurd input is refused with an error and a hint, and no file is lost."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.parquet import row_groups_of
from tests.cli.conftest import Ran

ROWS = 24


def rows_of(metadata: Any = None, **columns: Any) -> pa.Table:
    """Make a table that every command reads, with some columns or metadata replaced."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(3, 12, ROWS)
    rollout = [-draw.exponential(1, length) for length in lengths]
    own: dict[str, Any] = {
        "response_ids": pa.array(
            [draw.integers(0, 50, length) for length in lengths], pa.list_(pa.int32())
        ),
        "rollout_log_probs": pa.array(rollout, pa.list_(pa.float32())),
        "old_log_probs": pa.array(
            [row + draw.normal(0, 0.02, len(row)) for row in rollout], pa.list_(pa.float32())
        ),
        "sample_id": [f"s{row}" for row in range(ROWS)],
        "group_id": np.arange(ROWS) // 4,
    }
    table = pa.table({**own, **columns})
    if metadata is None:
        return table
    raw = metadata if isinstance(metadata, (str, bytes)) else json.dumps(metadata)
    return table.replace_schema_metadata({"rcdiag": raw})


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.parquet"
    pq.write_table(rows_of(), path)
    return path


def refused(ran: Ran, *words: str) -> None:
    """Check that a command ended with an error, a hint, and no traceback."""
    assert ran.code == 2, ran.err
    lines = ran.err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"], ran.err
    for word in words:
        assert word in lines[0]


BAD_METADATA = {
    "list": ([1], "it is not an object"),
    "policies-list": ({"policies": [1]}, "`policies` is not an object"),
    "policies-null": ({"policies": None}, "`policies` is not an object"),
    "policies-text": ({"policies": "x"}, "`policies` is not an object"),
    "policy-null": ({"policies": {"rollout": None}}, "`policies.rollout` is not an object"),
    "backend": ({"policies": {"old": {"backend": ["hf"]}}}, "`policies.old.backend` is not text"),
    "options": ({"policies": {"old": {"options": [1]}}}, "`policies.old.options` is not an object"),
    "deep": ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
    "deep-object": ('{"a":' * 500 + "1" + "}" * 500, "nested too deeply"),
    "bytes": (b'{"a": "\xff"}', "utf-8"),
}


@pytest.mark.parametrize("command", ["score", "compare"])
@pytest.mark.parametrize("name", BAD_METADATA)
def test_metadata_of_another_shape_are_refused(rcdiag, tmp_path, good, name, command):
    metadata, words = BAD_METADATA[name]
    bad = tmp_path / "bad.parquet"
    pq.write_table(rows_of(metadata), bad)
    more = [good] if command == "compare" else []
    refused(rcdiag(command, bad, *more), "bad.parquet", words)


def no_utf8() -> pa.Array:
    offsets = pa.py_buffer(np.array([0, 2, 4], np.int32).tobytes())
    bad = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"\xff\xfe\xfa\xfb")])
    return pa.concat_arrays([bad, pa.array([f"s{row}" for row in range(ROWS - 2)])])


BAD_COLUMNS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "step": (lambda: {"step": pa.array([2**63 + 5] * ROWS, pa.uint64())}, "beyond int64"),
    "sample_id": (lambda: {"sample_id": no_utf8()}, "UTF8"),
    "group_id": (lambda: {"group_id": no_utf8()}, "UTF8"),
}


@pytest.mark.parametrize("command", ["score", "compare"])
@pytest.mark.parametrize("name", BAD_COLUMNS)
def test_values_that_a_column_cannot_have_are_refused(rcdiag, tmp_path, good, name, command):
    columns, words = BAD_COLUMNS[name]
    bad = tmp_path / "bad.parquet"
    pq.write_table(rows_of(**columns()), bad)
    more = [good] if command == "compare" else []
    refused(rcdiag(command, bad, *more), "bad.parquet", words)


@pytest.mark.parametrize("name", ["old_log_probs", "group_id"])
def test_two_columns_of_one_name_are_refused(rcdiag, tmp_path, name):
    table = rows_of()
    twice = pa.Table.from_arrays([*table.columns, table[name]], [*table.column_names, name])
    bad = tmp_path / "bad.parquet"
    pq.write_table(twice, bad)
    refused(rcdiag("score", bad), "bad.parquet", f"several columns are called `{name}`")


def test_integers_beyond_2_to_the_53_become_the_nearest_float(rcdiag, tmp_path):
    path = tmp_path / "large.parquet"
    pq.write_table(
        rows_of(reward=pa.array([2**53 + 1] * ROWS), temperature=[2**60 + 1] * ROWS), path
    )
    assert rcdiag("score", path, "-q").code == 0


@pytest.mark.parametrize("command", ["score", "compare"])
def test_a_token_id_beyond_any_vocabulary_is_refused_before_memory_is_allocated(
    rcdiag, tmp_path, command
):
    ids = rows_of()["response_ids"].to_pylist()
    ids[7][1] = 2**31 - 1
    path = tmp_path / "ids.parquet"
    pq.write_table(rows_of(response_ids=pa.array(ids, pa.list_(pa.int32()))), path)
    refused(rcdiag(command, path), "row 7", "2147483647")


class PlainKeys(encryption.KmsClient):
    def __init__(self, config: Any) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, name: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, key: bytes, name: str) -> bytes:
        return base64.b64decode(key)


@pytest.mark.parametrize("plain_footer", [True, False])
def test_an_encrypted_file_is_refused_and_aborts_nothing(rcdiag, tmp_path, plain_footer):
    """With a plain footer Arrow throws an uncaught C++ exception, which aborts the process."""
    table = rows_of()
    properties = encryption.CryptoFactory(PlainKeys).file_encryption_properties(
        encryption.KmsConnectionConfig(),
        encryption.EncryptionConfiguration(
            footer_key="a",
            column_keys={"b": ["rollout_log_probs.list.element"]},
            plaintext_footer=plain_footer,
        ),
    )
    path = tmp_path / "secret.parquet"
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    ran = rcdiag("score", path)
    refused(ran, "secret.parquet")
    if plain_footer:
        assert "encrypted" in ran.err


def test_every_flipped_bit_of_a_footer_is_read_or_refused(tmp_path, good):
    """Whatever the bytes, the check of a footer raises no error but its own."""
    content = good.read_bytes()
    length = int.from_bytes(content[-8:-4], "little")
    path = tmp_path / "flipped.parquet"
    refusals = 0
    for place in range(len(content) - 8 - length, len(content), 3):
        flipped = bytearray(content)
        flipped[place] ^= 1 << (place % 8)
        path.write_bytes(flipped)
        try:
            row_groups_of(path)
        except RcdiagError:
            refusals += 1
    assert refusals > 100


def damaged(path: Path, target: Path, seed: int) -> bool:
    """Flip a bit of a page's values; returns whether Arrow detects it by the checksum."""
    content = bytearray(path.read_bytes())
    place = int(np.random.default_rng(seed).integers(200, len(content) // 2))
    content[place] ^= 16
    target.write_bytes(content)
    try:
        pq.read_table(target, page_checksum_verification=True)
    except (OSError, pa.ArrowException):
        return True
    return False


@pytest.mark.parametrize("command", ["score", "compare"])
def test_pages_are_checked_against_their_checksums(rcdiag, tmp_path, command):
    """Without verification many of these files would be read with wrong numbers."""
    written = tmp_path / "written.parquet"
    pq.write_table(rows_of(), written, write_page_checksum=True)
    bad, seen = tmp_path / "bad.parquet", 0
    for seed in range(12):
        if damaged(written, bad, seed):
            seen += 1
            more = [written] if command == "compare" else []
            refused(rcdiag(command, bad, *more), "bad.parquet")
    assert seen >= 6


def test_converted_tables_have_checksums(rcdiag, tmp_path, good):
    out = tmp_path / "out.parquet"
    assert rcdiag("convert", good, "-o", out, "-q").code == 0
    bad = tmp_path / "bad.parquet"
    assert any(damaged(out, bad, seed) for seed in range(6))


@pytest.mark.parametrize("option", ["--result", "--html", "--csv", "-o"])
def test_no_output_overwrites_an_input(rcdiag, tmp_path, good, option):
    before = good.read_bytes()
    link = tmp_path / "link.parquet"
    link.symlink_to(good)
    for source in (good, link, tmp_path, tmp_path / "*.parquet"):
        refused(rcdiag("score", source, option, good, "--force"), "good.parquet")
        assert good.read_bytes() == before


def test_two_outputs_do_not_share_a_path(rcdiag, tmp_path, good):
    out = tmp_path / "out"
    refused(rcdiag("score", good, "--result", out, "--html", out), "two outputs on one path")
    assert not out.exists()


def test_control_sequences_in_a_file_reach_neither_terminal_nor_page(rcdiag, tmp_path):
    escape = "\x1b]0;owned\x07\x1b[31mred\u202etxet"
    facts = {"backend": "[/bold] [red", "model": "[/x]" + escape, "dtype": "[link=file:///etc]x"}
    path = tmp_path / f"{escape.replace('/', '')}.parquet"
    pq.write_table(rows_of({"policies": {"rollout": facts, "old": facts}}), path)
    page, result = tmp_path / "page.html", tmp_path / "result.json"
    for command in ("score", "compare"):
        ran = rcdiag(command, path, "-v", "--html", page, "--result", result, "--force")
        assert ran.code == 0, ran.err
        text = page.read_text() + ran.out + ran.err + rcdiag("report", result, "-v").out
        assert not {chr(code) for code in range(0x20)} - set("\t\n") & set(text)
        assert "\x1b" not in text
        assert "\u202e" not in ran.out + ran.err
    gone = rcdiag("score", tmp_path / f"{escape}-none.parquet")
    refused(gone, "no such file")
    assert "\x1b" not in gone.err


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
CONFIGS = {
    "bomb": (BOMB, "stand for more than"),
    "ring": ("a: &a [*a]\n", "refers to a value that contains it"),
    "deep": ("a: " + "[" * 5_000 + "]" * 5_000, "nested too deeply"),
    "dotted": (".".join("a" * 300) + ": 1\n", "nested too deeply"),
    "long": ("a: b\n" * 200_000, "characters"),
    "number": (f"rollout_is_threshold: {'9' * 5_000}\n", "cannot be read"),
    "date": ("when: 2001-99-99\n", "cannot be read"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_an_excessive_configuration_is_refused(rcdiag, tmp_path, good, name):
    text, words = CONFIGS[name]
    path = tmp_path / "config.yaml"
    path.write_text(text)
    refused(rcdiag("score", good, "--trainer-config", path), "config.yaml", words)


def test_keys_that_are_numbers_are_read(rcdiag, tmp_path, good):
    path = tmp_path / "config.yaml"
    path.write_text("1: {2: 3}\nalgorithm: {rollout_correction: {rollout_is: token, 5: 6}}\n")
    assert "Traceback" not in rcdiag("score", good, "--trainer-config", path).err


def test_a_setting_that_is_invalid_yaml_is_refused(rcdiag, good):
    ran = rcdiag("score", good, "--set", "decoupled_token_is.rollout_is_threshold=[")
    refused(ran, "--set decoupled_token_is.rollout_is_threshold=[")


@pytest.mark.parametrize("text", ["[" * 99_999, '{"a": ' + "9" * 5_000 + "}", "\x00", "{"])
def test_invalid_json_and_toml_are_refused(rcdiag, tmp_path, good, text):
    path = tmp_path / "bad"
    path.write_text(text)
    refused(rcdiag("report", path), "bad")
    refused(rcdiag("--config", path, "score", good), "bad")


def test_a_panic_of_polars_does_not_exit_1(rcdiag, good, monkeypatch):
    """A panic is not an Exception; uncaught it would exit with 1, the code for findings."""
    import polars as pl

    def panic(*_: Any, **__: Any) -> None:
        raise pl.exceptions.PanicException("index out of bounds")

    monkeypatch.setattr("rcdiag.score", panic)
    assert rcdiag("score", good).code == 2


def test_a_full_disk_is_reported_as_an_error_of_the_environment(rcdiag, good, monkeypatch):
    import errno

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/somewhere/file")

    monkeypatch.setattr("rcdiag.score", full)
    refused(rcdiag("score", good), "No space left on device", "/somewhere/file")


LIMIT = 300.0  # seconds: a generous limit for steps of about one second
# Short sleeps: a long one would not wake for a signal that came just before it.
WAITING = """
for _ in range(60_000):
    time.sleep(0.01)
"""
SLOW_IMPORT = f"""
import pathlib, time
pathlib.Path({{mark!r}}).touch()
{WAITING}
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_imports_ends_in_one_line(tmp_path, good, number):
    mark = tmp_path / "mark"
    (tmp_path / "typer.py").write_text(SLOW_IMPORT.format(mark=str(mark)))
    with started_with(tmp_path, good) as process:
        deadline = time.monotonic() + LIMIT
        while not mark.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert mark.exists(), "the import has not begun"
        process.send_signal(number)
        err = ended(process)
    assert process.returncode == 130
    assert err == "interrupted\n"


# Python reports an exception in such a callback and continues.
DROPPED = f"""
import signal, time, weakref
class Module: pass
def loaded(reference):
    signal.raise_signal({{number}})
module = Module()
reference = weakref.ref(module, loaded)
del module
{WAITING}
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_python_drops_ends_in_one_line(tmp_path, good, number):
    (tmp_path / "typer.py").write_text(DROPPED.format(number=int(number)))
    with started_with(tmp_path, good) as process:
        err = ended(process)
    assert process.returncode == 130
    assert err == "interrupted\n"


def started_with(modules, table):
    """Start `score` with a module that shadows the installed one of the same name."""
    return subprocess.Popen(
        [sys.executable, "-m", "cli.main", "score", str(table)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(modules), os.getcwd()])},
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    """Wait until a process has ended, kill it after a time limit, and return its stderr."""
    try:
        return process.communicate(timeout=LIMIT)[1]
    finally:
        process.kill()


def test_the_library_refuses_an_output_that_it_reads(good):
    import rcdiag as library
    from rcdiag.errors import RcdiagError

    with pytest.raises(RcdiagError, match="would overwrite it"):
        library.score(good, model="none", policies={"x": "hf:float32"}, output=good, force=True)


def test_a_footer_without_an_end_to_its_lists_is_refused(rcdiag, tmp_path):
    """Five thousand bytes that each mean "a list of one list", as found by `make fuzz`."""
    deep = b"\x19" * 5_000
    path = tmp_path / "deep.parquet"
    path.write_bytes(b"PAR1" + deep + len(deep).to_bytes(4, "little") + b"PAR1")
    refused(rcdiag("score", path), "deep.parquet", "too deep")


def test_a_column_of_no_known_repetition_is_refused(rcdiag, tmp_path, good):
    """Arrow would misread its statistics and abort the process."""
    content = good.read_bytes()
    place = content.index(b"\x18\x08group_id") - 1  # field 3, repetition; 4, the name
    assert content[place] == 2
    bad = tmp_path / "bad.parquet"
    bad.write_bytes(content[:place] + b"\x12" + content[place + 1 :])
    refused(rcdiag("score", bad), "bad.parquet", "an unknown kind")


def test_an_integer_of_a_log_beyond_float_range_is_ignored(rcdiag, tmp_path, good):
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"step": 0, "rollout_corr/k3_kl": 2e-4, "other": 10**400}) + "\n")
    assert rcdiag("score", good, "--logged", log, "-q").code == 0
