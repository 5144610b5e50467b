"""A dump is converted to a parquet file, and the result reports changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from jsonschema import Draft202012Validator

import rcdiag
from rcdiag.errors import RcdiagError
from rcdiag.progress import Progress
from rcdiag.results import from_json
from rcdiag.results.schema import json_schema
from rcdiag.table.readers import READERS
from tests.builders import write_table
from tests.table.toy_reader import TOY, write_toy
from tests.usecases.test_two_dumps import SAMPLER, TRAINER, part, run_rows, write


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    with READERS.with_added(TOY):
        yield


def stored(path: Path) -> dict:
    return json.loads(pq.read_schema(path).metadata[b"rcdiag"])


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_dump_becomes_one_parquet_file_with_a_report(tmp_path):
    rows = run_rows()
    about = {"policies": {"rollout": {"backend": "vllm", "dtype": "bfloat16"}}}
    source = write_toy(tmp_path / "a.toyjsonl", part(rows, SAMPLER), about)
    out = tmp_path / "made" / "out.parquet"
    result = rcdiag.convert(source, out, given={"temperature": 0.7, "step": "3"})
    table = pq.read_table(out).to_pylist()
    assert [row["response_ids"] for row in table] == [row["response_ids"] for row in rows]
    assert {(row["temperature"], row["step"]) for row in table} == {(0.7, 3)}
    metadata = stored(out)
    groups = "group_id: rows of one step with equal prompts are a prompt group"
    assert metadata["conversion"]["changes"] == {groups: 0}
    assert metadata["conversion"]["format"] == "toyjsonl"
    assert metadata["conversion"]["files"] == 1
    assert metadata["given"] == {"temperature": 0.7, "step": 3}
    assert metadata["policies"] == about["policies"]
    assert result.rows == 24
    assert result.tokens == sum(len(row["response_ids"]) for row in rows)
    assert result.policies == ["rollout"]
    assert result.columns == pq.read_schema(out).names
    assert result.given == metadata["given"]
    assert result.changes == metadata["conversion"]["changes"]
    assert result.provenance["dump"] == [str(source)]
    assert list(result.lacking) == ["old_log_probs", "advantages"]
    assert left(out.parent) == {"out.parquet"}


def test_the_written_file_equals_the_table_of_commands(tmp_path):
    rows = run_rows()
    source = write_toy(tmp_path / "a.toyjsonl", part(rows, (*SAMPLER, "old_log_probs", "step")))
    out = tmp_path / "out.parquet"
    rcdiag.convert(source, out)
    one, other = rcdiag.open_table(source), rcdiag.open_table(out)
    assert one.schema.equals(other.schema)
    assert one.metadata == other.metadata
    (a,), (b,) = one.batches(), other.batches()
    assert a.table.equals(b.table)


def test_dumps_of_one_run_are_written_as_one(tmp_path):
    rows = run_rows()
    one = write(tmp_path / "a.toyjsonl", part(rows[:20], SAMPLER))
    other = write(tmp_path / "b.parquet", part(rows, TRAINER))
    out = tmp_path / "out.parquet"
    result = rcdiag.convert([one, other], out, given={"temperature": 0.7})
    assert result.format == "toyjsonl + parquet"
    assert result.files == 2
    assert (result.rows, result.tokens) == (20, sum(len(r["response_ids"]) for r in rows[:20]))
    assert result.policies == ["rollout", "old"]
    assert result.joined.table_rows == [20, 24]
    assert any("20 of 20 rows of" in text for text in stored(out)["conversion"]["changes"])
    assert pq.read_table(out)["temperature"].to_pylist() == [0.7] * 20
    assert left(tmp_path) == {"a.toyjsonl", "b.parquet", "out.parquet"}


def test_parquet_with_other_names_is_checked_and_renamed(tmp_path):
    columns = {"ids": [[1, 2], [3]], "logp": [[-1.0, -0.5], [-2.0]], "ref": [[0.0, 0.0], [0.0]]}
    source = write_table(tmp_path / "a.parquet", **columns)
    names = {"response_ids": "ids", "rollout_log_probs": "logp", "old_log_probs": "ref"}
    result = rcdiag.convert(source, tmp_path / "out.parquet", columns=names, given={"step": 1})
    assert result.policies == ["rollout"]
    assert list(result.dropped) == ["old_log_probs"]
    assert pq.read_schema(tmp_path / "out.parquet").names == [*list(names)[:2], "step"]


def test_a_possible_log_prob_column_is_suggested(tmp_path):
    """A name such as `logprobs` names no policy: it is kept, but not used as a policy."""
    columns = {"logprobs": [[-1.0, -0.5], [-2.0]], "old_log_probs": [[-1.5, -0.25], [-1.0]]}
    source = write_table(tmp_path / "a.parquet", response_ids=[[1, 2], [3]], **columns)
    lacking = rcdiag.convert(source, tmp_path / "out.parquet").lacking["rollout_log_probs"]
    assert lacking.startswith("--column rollout_log_probs=logprobs, if `logprobs` holds those of")
    mapped = rcdiag.convert(
        source, tmp_path / "b.parquet", columns={"rollout_log_probs": "logprobs"}
    )
    assert mapped.policies == ["rollout", "old"]


def test_an_output_is_overwritten_only_with_force(tmp_path):
    source = write_toy(tmp_path / "a.toyjsonl", part(run_rows(), SAMPLER))
    out = tmp_path / "out.parquet"
    out.write_text("mine")
    with pytest.raises(RcdiagError, match=r"out\.parquet: already there"):
        rcdiag.convert(source, out)
    assert out.read_text() == "mine"
    rcdiag.convert(source, out, force=True)
    assert pq.read_table(out).num_rows == 24


@pytest.mark.parametrize("fault", ["row", "given", "interrupt"])
def test_a_failed_conversion_leaves_nothing(tmp_path, fault):
    rows = part(run_rows(count=400), SAMPLER)
    if fault == "row":
        rows[399]["rollout_log_probs"] = [-1.0] * 99
    source = write_toy(tmp_path / "a.toyjsonl", rows)
    out = tmp_path / "out" / "out.parquet"
    out.parent.mkdir()

    class Stops(Progress):
        def converted(self, file: str, number: int, files: int, rows: int, tokens: int) -> None:
            if fault == "interrupt" and rows > 300:
                raise KeyboardInterrupt

    given = {"step": 1.5} if fault == "given" else {}
    with pytest.raises((RcdiagError, KeyboardInterrupt)):
        rcdiag.convert(source, out, given=given, progress=Stops())
    assert left(out.parent) == set()


def test_a_join_that_fails_leaves_nothing(tmp_path):
    one = write(tmp_path / "a.toyjsonl", part(run_rows(0), SAMPLER))
    other = write(tmp_path / "b.toyjsonl", part(run_rows(1), TRAINER))
    (tmp_path / "out").mkdir()
    with pytest.raises(RcdiagError, match="no sample is in all tables"):
        rcdiag.convert([one, other], tmp_path / "out" / "out.parquet")
    assert left(tmp_path / "out") == set()


def test_progress_is_reported_by_file(tmp_path):
    for step in (1, 2, 10):
        write_toy(tmp_path / f"{step}.toyjsonl", part(run_rows(), SAMPLER)[: 10 * step])
    heard: list[tuple[str, int, int, int]] = []

    class Listener(Progress):
        def converted(self, file: str, number: int, files: int, rows: int, tokens: int) -> None:
            heard.append((Path(file).name, number, files, rows))

    rcdiag.open_table(tmp_path, progress=Listener())
    assert heard[-1] == ("10.toyjsonl", 3, 3, 54)
    assert [row for *_, row in heard] == sorted(row for *_, row in heard)
    assert dict.fromkeys(number for _, number, _, _ in heard) == dict.fromkeys((1, 2, 3))


def test_a_dry_run_says_what_it_would_do_and_writes_nothing(tmp_path):
    source = write_toy(tmp_path / "a.toyjsonl", part(run_rows(), SAMPLER))
    output = rcdiag.convert.dry_run(source, tmp_path / "out.parquet")
    assert f"{source}: 1 file of format toyjsonl" in output
    assert f"would write {tmp_path / 'out.parquet'}" in output
    assert left(tmp_path) == {"a.toyjsonl"}


def test_the_result_is_a_document_that_is_read_back(tmp_path):
    one = write(tmp_path / "a.toyjsonl", part(run_rows(), SAMPLER))
    other = write(tmp_path / "b.parquet", part(run_rows(), TRAINER))
    result = rcdiag.convert([one, other], tmp_path / "out.parquet")
    text = result.to_json()
    Draft202012Validator(json_schema("convert")).validate(json.loads(text))
    assert from_json(text, "result") == result
    assert repr(result).startswith("rcdiag convert: ")
    assert len(repr(result).splitlines()) < 20
    assert result.frame("changes").height == len(result.changes)
    assert dict(result.frame().select("metric", "value").iter_rows())["rows"] == 24
    result.save(tmp_path / "result.json")
    with pytest.raises(RcdiagError, match="a conversion has no page"):
        rcdiag.report(tmp_path / "result.json", tmp_path / "page.html")


def test_an_open_table_accepts_no_format_or_given_values(tmp_path):
    table = rcdiag.open_table(write_toy(tmp_path / "a.toyjsonl", part(run_rows(), SAMPLER)))
    with pytest.raises(RcdiagError, match="open table cannot be mapped or given"):
        rcdiag.score(table, given={"step": 1})


def test_a_file_of_the_dump_is_never_overwritten(tmp_path):
    source = write_table(tmp_path / "a.parquet", response_ids=[[1]])
    (tmp_path / "link.parquet").hardlink_to(source)
    for out in (source, tmp_path / "link.parquet"):
        with pytest.raises(RcdiagError, match="a file of the dump that is to be converted"):
            rcdiag.convert(source, out, force=True)


def test_changes_of_a_conversion_are_reported_by_every_command(tmp_path):
    source = write_toy(tmp_path / "a.toyjsonl", part(run_rows(), SAMPLER))
    heard: list[str] = []

    class Listener(Progress):
        def say(self, text: str) -> None:
            heard.append(text)

    rcdiag.open_table(source, progress=Listener())
    assert heard == ["toyjsonl: group_id: rows with equal prompts are a prompt group"]
    rcdiag.convert(source, tmp_path / "out.parquet", progress=Listener())
    assert len(heard) == 1  # the result itself reports it
