"""A source becomes files of one format: files, folders, globs, links, URLs."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import pickle
import re
import sqlite3
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
import torch

from rcdiag.errors import RcdiagError
from rcdiag.table.opening import open_table
from rcdiag.table.readers import READERS, peek
from rcdiag.table.readers.peek import Peek
from rcdiag.table.sources import find_files
from tests.builders import write_table
from tests.table.readers.pickled import consolidated, pickled, torch_bytes
from tests.table.readers.rollouts import rollouts
from tests.table.readers.test_tinker import call, write_store
from tests.table.readers.verl_batches import data_proto, tensors_of
from tests.table.toy_reader import TOY, write_toy

ROW = {"response_ids": [1, 2], "rollout_log_probs": [-1.0, -0.5]}


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    with READERS.with_added(TOY):
        yield


def names_of(source: object, format: str | None = None) -> list[str]:
    return [file.path.name for file in find_files(str(source), format).files]


def test_files_of_a_folder_are_sorted_by_number_and_others_left_out(tmp_path):
    for step in (10, 9, 100):
        write_toy(tmp_path / f"step_{step}.toyjsonl", [ROW])
    write_toy(tmp_path / "deep" / "er" / "step_1.toyjsonl", [ROW])
    write_toy(tmp_path / ".hidden" / "a.toyjsonl", [ROW])
    write_toy(tmp_path / ".b.toyjsonl", [ROW])
    write_toy(tmp_path / "out.parquet.parts" / "a.toyjsonl", [ROW])
    (tmp_path / "meta.json").write_text('{"run": 7}')
    (tmp_path / "train.log").write_text("step 1\n")
    (tmp_path / "empty.log").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "gone.toyjsonl").symlink_to(tmp_path / "nowhere")
    expected = ["step_1.toyjsonl", "step_9.toyjsonl", "step_10.toyjsonl", "step_100.toyjsonl"]
    assert names_of(tmp_path) == expected
    assert open_table(tmp_path).num_rows == 4
    assert names_of(f"{tmp_path}/step_*") == expected[1:]
    assert names_of(f"{tmp_path}/**/step_*.toyjsonl", "toyjsonl")[0] == "step_1.toyjsonl"


def test_links_to_files_and_folders_are_followed(tmp_path):
    real = write_toy(tmp_path / "real" / "a.toyjsonl", [ROW])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "b.toyjsonl").symlink_to(real)
    (tmp_path / "run" / "more").symlink_to(real.parent)
    assert names_of(tmp_path / "run") == ["b.toyjsonl", "a.toyjsonl"]


def test_a_format_is_detected_by_content_not_by_name(tmp_path):
    write_toy(tmp_path / "run" / "0001.bin", [ROW])
    assert names_of(tmp_path / "run") == ["0001.bin"]
    assert names_of(tmp_path / "run" / "0001.bin") == ["0001.bin"]


def test_a_named_format_reads_files_matching_its_patterns_or_else_all(tmp_path):
    write_toy(tmp_path / "a.toyjsonl", [ROW])
    write_table(tmp_path / "b.parquet", response_ids=[[1]])
    assert names_of(tmp_path, "toyjsonl") == ["a.toyjsonl"]
    (tmp_path / "a.toyjsonl").rename(tmp_path / "a.bin")
    (tmp_path / "b.parquet").unlink()
    assert names_of(tmp_path, "toyjsonl") == ["a.bin"]
    with pytest.raises(RcdiagError, match="format toyjson: no such format") as caught:
        find_files(str(tmp_path), "toyjson")
    assert "did you mean toyjsonl?" in caught.value.hint


@pytest.mark.parametrize("place", ["pipe", "/dev/zero"])
def test_pipes_and_devices_are_refused_without_blocking(place, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RcdiagError, match="a pipe or a device") as caught:
        find_files(str(tmp_path / place))
    assert "write it to a file" in caught.value.hint


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_source_is_not_the_current_folder(name, tmp_path, monkeypatch):
    """The shell passes an empty string for an unset variable."""
    monkeypatch.chdir(write_toy(tmp_path / "a.toyjsonl", [{"response_ids": [1]}]).parent)
    with pytest.raises(RcdiagError, match="the name of the source is empty"):
        find_files(name)


def test_a_dangling_link_is_named(tmp_path):
    link = tmp_path / "a.pt"
    link.symlink_to(tmp_path / "gone.pt")
    with pytest.raises(RcdiagError, match=r"a\.pt: a link to .*gone\.pt, which does not exist"):
        find_files(str(link))


def test_two_formats_in_a_folder_are_refused_with_both_names(tmp_path):
    write_toy(tmp_path / "a.toyjsonl", [ROW])
    write_table(tmp_path / "b.parquet", response_ids=[[1]])
    with pytest.raises(RcdiagError, match="files of several formats") as caught:
        find_files(str(tmp_path))
    assert "toyjsonl (a.toyjsonl)" in caught.value.message
    assert "parquet (b.parquet)" in caught.value.message
    assert "--from" in caught.value.hint


def test_unknown_files_are_refused_where_they_are_named(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    for source, output in (
        (tmp_path / "notes.txt", "notes.txt: not a format that rcdiag knows"),
        (tmp_path / "*.txt", "notes.txt: not a format that rcdiag knows"),
        (tmp_path, "rcdiag knows the format of none of the 1 files in this directory"),
    ):
        with pytest.raises(RcdiagError) as caught:
            find_files(str(source))
        assert output in caught.value.message
        assert re.search("(known formats:|sets one of) parquet", caught.value.hint)
        assert "toyjsonl" in caught.value.hint


def test_json_that_is_not_a_dump_is_refused_with_its_content(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a", "completion": "b"}\n')
    with pytest.raises(RcdiagError, match=r"JSON with the keys prompt, completion\)$") as caught:
        find_files(str(path))
    assert caught.value.hint.endswith("text alone is not enough")
    path.write_text('{"ids": [1, 2], "n": 1}\n')
    with pytest.raises(RcdiagError, match=r"JSON with the keys ids, n\)$") as caught:
        find_files(str(path))
    assert "--from json-lines" in caught.value.hint
    table = open_table(path, columns={"response_ids": "ids"}, format="json-lines")
    assert table.num_rows == 1


@pytest.mark.parametrize(
    ("name", "pack", "message", "hint"),
    [
        ("a.toyjsonl", gzip.compress, "a compressed file", "gunzip -k a.toyjsonl"),
        ("a.toyjsonl.xz", lzma.compress, "a compressed file", "unxz -k a.toyjsonl.xz"),
        ("a.toyjsonl.bz2", bz2.compress, "a compressed file", "bunzip2 -k a.toyjsonl.bz2"),
        ("a.txt", lambda text: text.decode().encode("utf-16"), "UTF-16", "iconv -f UTF-16"),
    ],
)
def test_a_compressed_file_is_refused_with_the_command_that_unpacks_it(
    tmp_path, name, pack, message, hint
):
    write_toy(tmp_path / "b.toyjsonl", [ROW])
    (tmp_path / name).write_bytes(pack((tmp_path / "b.toyjsonl").read_bytes()))
    with pytest.raises(RcdiagError, match=message) as caught:
        find_files(str(tmp_path / name))
    assert hint in caught.value.hint
    if message == "UTF-16":  # its name does not match a dump
        assert names_of(tmp_path) == ["b.toyjsonl"]
        return
    with pytest.raises(RcdiagError, match=message):  # a part of the dump would be left out
        find_files(str(tmp_path))


def column_of(source: Path, name: str) -> list[object]:
    batches = open_table(source).batches([name])
    return [value for batch in batches for value in batch.table[name].to_pylist()]


def by_zstd(content: bytes) -> bytes:
    return pa.compress(content, "zstd").to_pybytes()


PACKERS = pytest.mark.parametrize(
    ("end", "pack"), [(".gz", gzip.compress), (".zst", by_zstd)], ids=["gzip", "zstd"]
)


@PACKERS
def test_compressed_json_lines_are_read(tmp_path, end, pack):
    """A folder may mix compressed and other files, and files of several compressed frames."""
    rows = [{**ROW, "sample_id": str(number)} for number in range(30)]
    for step in range(3):
        write_toy(tmp_path / "plain" / f"{step}.toyjsonl", rows[10 * step : 10 * step + 10])
    whole = column_of(tmp_path / "plain", "sample_id")
    for step in range(1, 3):
        path = tmp_path / "plain" / f"{step}.toyjsonl"
        content = path.read_bytes()
        path.with_name(f"{step}.toyjsonl{end}").write_bytes(
            pack(content[:200]) + pack(content[200:])
        )
        path.unlink()
    assert column_of(tmp_path / "plain", "sample_id") == whole
    assert whole == [row["sample_id"] for row in rows]
    last = tmp_path / "plain" / f"2.toyjsonl{end}"
    assert open_table(tmp_path / "plain").where(29) == f"{last}, row 9"


@PACKERS
def test_a_compressed_file_of_tensors_must_be_unpacked(tmp_path, end, pack):
    path = tmp_path / f"step_1.pt{end}"
    path.write_bytes(pack(torch_bytes({"responses": torch.ones(2, 3)})))
    with pytest.raises(RcdiagError, match="a compressed file") as caught:
        open_table(path)
    assert "decompress it" in caught.value.hint


@PACKERS
def test_names_of_compressed_files_are_read_like_others(tmp_path, end, pack):
    """NeMo-RL's step is in the name; other files are recognised by their inner suffix."""
    record = {
        "token_ids": [[5, 6, 7]],
        "token_loss_mask": [[0, 1, 1]],
        "generation_logprobs": [[0.0, -0.5, -1.0]],
        "prev_logprobs": [[0.0, -0.5, -1.5]],
    }
    path = tmp_path / f"train_data_step12.jsonl{end}"
    path.write_bytes(pack(json.dumps(record).encode() + b"\n"))
    assert column_of(path, "step") == [12]
    own = tmp_path / f"mine.jsonl{end}"
    own.write_bytes(pack(b'{"response_ids": [5, 6], "rollout_log_probs": [-0.5, -1.0]}\n'))
    assert find_files(str(own)).reader.name == "json-lines"
    assert open_table(own).num_rows == 1


@PACKERS
def test_a_truncated_compressed_file_is_refused(tmp_path, end, pack):
    write_toy(tmp_path / "a.toyjsonl", [{**ROW, "sample_id": str(hash(i))} for i in range(9999)])
    content = pack((tmp_path / "a.toyjsonl").read_bytes())
    path = tmp_path / f"b.toyjsonl{end}"
    for kept in (len(content) // 2, len(content) - 3):
        path.write_bytes(content[:kept])
        with pytest.raises(RcdiagError, match=r"b.toyjsonl.*is truncated or damaged") as caught:
            open_table(path)
        assert "copy" in caught.value.hint


@pytest.mark.parametrize(
    ("content", "message", "hint"),
    [
        (b"PK\x03\x04 and no end", "truncated or damaged", "copy it again"),
        (b"\x93NUMPY\x01\x00", "a numpy array", "rcdiag.open_table({"),
        (pickle.dumps({"a": 1}), "a pickle, which was not loaded", "if you trust it"),
        (b"ARROW1\x00\x00", "Feather", "pyarrow.feather.read_table"),
    ],
)
def test_unsupported_files_are_refused_with_a_way_to_convert_them(tmp_path, content, message, hint):
    (tmp_path / "b").write_bytes(content)
    with pytest.raises(RcdiagError, match=message) as caught:
        find_files(str(tmp_path / "b"))
    assert hint in caught.value.hint


@pytest.mark.parametrize("ending", ["", '"}', '"}\n{}\n'])
def test_a_first_line_beyond_the_longest_record_names_the_limit(ending, tmp_path, monkeypatch):
    """It must not be taken for the file of a stopped writer."""
    monkeypatch.setattr(peek, "LONGEST_RECORD", 1 << 16)
    path = tmp_path / "long.jsonl"
    path.write_text('{"prompt": "' + "x" * (1 << 17) + ending)
    with pytest.raises(RcdiagError, match=r"long\.jsonl, line 1: longer than 256 MB") as caught:
        find_files(str(path))
    assert "one line is one record" in caught.value.hint


@pytest.mark.parametrize("content", [b'{"token_ids": [[1, 2', b'{"content": ["\xff"]}\n'])
def test_files_with_an_invalid_first_line_are_not_silently_ignored(content, tmp_path):
    """A killed run leaves a step's file with part of its first line."""
    line = {"token_ids": [[1, 2]], "input_lengths": [2], "token_loss_mask": [[0, 1]]}
    line |= {"generation_logprobs": [[0.0, -1.0]]}
    (tmp_path / "train_data_step1.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "notes.txt").write_text("{no JSON")  # not named as the dump's files are
    assert find_files(str(tmp_path)).reader.name == "nemo-rl"
    (tmp_path / "train_data_step2.jsonl").write_bytes(content)
    for source in (tmp_path, tmp_path / "train_data_step2.jsonl"):
        with pytest.raises(
            RcdiagError, match=r"step2\.jsonl, line 1: it begins like JSON"
        ) as caught:
            find_files(str(source))
        assert caught.value.hint


def test_a_truncated_torch_file_is_not_silently_ignored(tmp_path):
    torch.save({"rollout_id": 3, "samples": [{"tokens": [1, 2], "response_length": 1}]},
               tmp_path / "3.pt")  # fmt: skip
    whole = (tmp_path / "3.pt").read_bytes()
    (tmp_path / "4.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RcdiagError, match=r"4\.pt: a torch file .* truncated"):
        find_files(str(tmp_path))


@pytest.mark.parametrize("name", ["b.toyjsonl", "b.dp", "b.pt", "b.jsonl", "capture.sqlite"])
def test_a_file_of_zero_bytes_is_refused_alone_and_in_its_folder(name, tmp_path):
    """A crashed machine may leave a file's length without its bytes."""
    (tmp_path / name).write_bytes(bytes(5000))
    for source in (tmp_path, tmp_path / name):
        with pytest.raises(RcdiagError, match=rf"{name}: only zero bytes") as caught:
            find_files(str(source))
        assert caught.value.hint


def test_a_file_of_zero_bytes_beside_a_dump_is_not_silently_ignored(tmp_path):
    write_toy(tmp_path / "a.toyjsonl", [ROW])
    (tmp_path / "notes.bin").write_bytes(bytes(9))  # not named as the dump's files are
    assert names_of(tmp_path) == ["a.toyjsonl"]
    (tmp_path / "b.toyjsonl").write_bytes(bytes(9))
    with pytest.raises(RcdiagError, match=r"b\.toyjsonl: only zero bytes"):
        find_files(str(tmp_path))


def test_files_named_like_the_dump_with_other_content_are_reported(tmp_path):
    write_toy(tmp_path / "a.toyjsonl", [ROW])
    for number in range(4):
        (tmp_path / f"other{number}.toyjsonl").write_bytes(b"\x80\x07random")
    changes = open_table(tmp_path).metadata["conversion"]["changes"]
    assert [text for text in changes if "left out (4): other0.toyjsonl, other1.toyjsonl" in text]
    assert "left out" not in " ".join(
        open_table(tmp_path / "a.toyjsonl").metadata["conversion"]["changes"]
    )


def test_a_log_of_inspect_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "log.eval", "w") as archive:
        archive.writestr("header.json", "{}")
    with pytest.raises(RcdiagError, match=r"log\.eval: a log of Inspect, .* not their ids"):
        find_files(str(tmp_path / "log.eval"))


def test_a_truncated_database_is_named(tmp_path):
    (tmp_path / "capture.sqlite").write_bytes(b"SQLite format 3\0" + bytes(80))
    with pytest.raises(RcdiagError, match="an SQLite database that is damaged"):
        find_files(str(tmp_path / "capture.sqlite"))


def test_an_empty_file_of_the_dump_is_refused(tmp_path):
    write_toy(tmp_path / "a.toyjsonl", [ROW])
    (tmp_path / "b.toyjsonl").write_bytes(b"")
    with pytest.raises(RcdiagError, match=r"b\.toyjsonl: the file is empty"):
        find_files(str(tmp_path))


def test_the_format_of_every_file_is_detected_once(tmp_path, monkeypatch):
    """Ten thousand files are found in seconds."""
    asked: list[str] = []

    class Counted(Peek):
        def __post_init__(self) -> None:
            asked.append(self.path.name)

    names = [f"step_{step}.toyjsonl" for step in range(40)]
    for name in names:
        write_toy(tmp_path / name, [ROW])
    monkeypatch.setattr("rcdiag.table.sources.Peek", Counted)
    assert names_of(tmp_path) == names
    assert sorted(asked) == sorted(names)
    assert open_table(tmp_path).num_rows == 40


def test_urls_are_opened_and_named(memory, tmp_path):
    for step in (9, 10):
        path = write_toy(tmp_path / "a", [{**ROW, "step": step}])
        memory.pipe(f"/run/dump/step_{step}.toyjsonl", path.read_bytes())
    memory.pipe("/run/dump/meta.json", b"{}")
    memory.pipe("/run/dump/.hidden/a.toyjsonl", path.read_bytes())
    for source in ("memory://run/dump", "memory://run/dump/*.toyjsonl", "memory:///run"):
        table = open_table(source)
        assert [file.name for file in table.sources] == [
            "memory:///run/dump/step_9.toyjsonl",
            "memory:///run/dump/step_10.toyjsonl",
        ]
        assert table.where(1) == "memory:///run/dump/step_10.toyjsonl, row 0"
    table = open_table("memory://run/dump/step_9.toyjsonl")
    copy = table.sources[0].path
    assert copy.exists()
    del table
    assert not copy.exists()


def test_parquet_behind_a_url_stays_as_long_as_its_table(memory, tmp_path):
    path = write_table(tmp_path / "a.parquet", response_ids=[[1, 2], [3]])
    memory.pipe("/run/a.parquet", path.read_bytes())
    table = open_table("memory://run/a.parquet")
    assert table.where(1) == "memory:///run/a.parquet, row 1"
    assert table.fingerprint == open_table("memory://run/a.parquet").fingerprint
    assert open_table(f"file://{path}").num_rows == 2


@pytest.mark.parametrize("source", ["7/gen_batch.dp", "*/gen_batch.dp", "7", ""])
def test_companion_files_are_copied_along(memory, tmp_path, source):
    """A verl batch without a step takes it from meta.json in its folder, else from its name."""
    batch = pickled(data_proto(torch_bytes(consolidated(tensors_of(rollouts(4)))), {}, {}))
    memory.pipe("/run/7/gen_batch.dp", batch)
    for step in (7, 9):
        (rows,) = open_table(f"memory://run/{source}").batches()
        assert rows.table["step"].to_pylist() == [step] * 4
        memory.pipe("/run/7/meta.json", b'{"global_steps": 9}')


@pytest.mark.parametrize("source", ["", "/capture.sqlite"])
def test_the_log_of_a_database_is_copied_along(memory, tmp_path, source):
    file = write_store(tmp_path, [call([1], ([2], [-0.5]))])
    with closing(sqlite3.connect(file)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("UPDATE wire_rows SET sampled_tokens = '[5]'")
        writer.commit()
        for path in tmp_path.iterdir():
            memory.pipe(f"/run/{path.name}", path.read_bytes())
    (rows,) = open_table(f"memory://run{source}").batches()
    assert rows.table["response_ids"].to_pylist() == [[5]]


def test_errors_in_remote_files_name_the_url(memory, tmp_path):
    row = {**ROW, "rollout_log_probs": [-1.0]}
    memory.pipe("/run/a.toyjsonl", write_toy(tmp_path / "a", [ROW, row]).read_bytes())
    with pytest.raises(
        RcdiagError, match=r"^memory:///run/a\.toyjsonl, row 1: column .*: 1 values for 2 tokens"
    ):
        open_table("memory://run/a.toyjsonl")
    path = write_table(tmp_path / "b.parquet", response_ids=[[1]])
    memory.pipe("/run/b.parquet", path.read_bytes()[:-5])
    with pytest.raises(RcdiagError, match=r"^memory:///run/b\.parquet: damaged"):
        open_table("memory://run/b.parquet")


@pytest.mark.parametrize(
    ("url", "output", "way"),
    [
        ("memory://nowhere/at/all", "no such file", "a glob"),
        ("wat://bucket/run", "rcdiag does not read wat:// URLs", "rcdiag reads s3, "),
        ("ftp://host/x.parquet", "rcdiag does not read ftp:// URLs", ", gs, "),
        ("dir:///run", "rcdiag does not read dir:// URLs", ", https, "),
        ("reference://x::s3://b/x", "rcdiag does not read reference:// URLs", ", hf, "),
        ("zip://x.parquet::ftp://host/x.zip", "rcdiag does not read ftp:// URLs", ", zip, "),
    ],
)
def test_urls_of_missing_files_are_refused(url, output, way):
    with pytest.raises(RcdiagError) as caught:
        open_table(url)
    assert caught.value.message.startswith(f"{url}: {output}")
    assert way in caught.value.hint


def test_a_protocol_without_its_package_names_the_package(monkeypatch):
    def lacking(url: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", lacking)
    with pytest.raises(
        RcdiagError, match=r"s3://bucket/run: a package for s3:// is missing"
    ) as caught:
        open_table("s3://bucket/run")
    assert caught.value.hint == "pip install s3fs"


def test_a_broken_connection_is_an_error_of_the_user(memory, monkeypatch, tmp_path):
    memory.pipe("/run/a.toyjsonl", write_toy(tmp_path / "a", [ROW]).read_bytes())

    def broken(*args: object, **keywords: object) -> None:
        raise ConnectionResetError("reset by peer")

    monkeypatch.setattr(type(memory), "open", broken)
    with pytest.raises(RcdiagError, match="ConnectionResetError: reset by peer"):
        open_table("memory://run/a.toyjsonl")


def test_paths_may_have_spaces_and_dots(tmp_path: Path):
    folder = tmp_path / "a run: 1"
    write_toy(folder / "a b.toyjsonl", [ROW])
    assert names_of(folder) == ["a b.toyjsonl"]
