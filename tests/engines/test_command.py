"""Programs as scorers: correct answers are taken, wrong ones never give numbers."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rcdiag
from rcdiag.engines import BACKENDS
from rcdiag.engines.command import words_of
from rcdiag.engines.command.answer import read_answer
from rcdiag.engines.command.engine import CommandEngine
from rcdiag.engines.ladders import spec_of
from rcdiag.engines.notation import parse_policy
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError
from rcdiag.progress import SILENT
from rcdiag.table.stream import decode
from rcdiag.table.trajectories import Trajectories
from tests.builders import first_batch, write_table
from tests.engines.toy_engine import PROBABILITIES, make_checkpoint
from tests.usecases.compare.tables import about

RESPONSES = [[1, 2, 3], [], [4], [5, 6], [7, 8, 9, 1], [2], [3, 3], [4]]
TEMPERATURES = [1.0, 0.5, 0.5, None, 2.0, 1.0, 1.0, 0.7]

# The log-prob of token i is -ln(17 + i) / temperature; code in place of WRONG changes it.
PROGRAM = """
import math, os, pathlib, signal, sys, time
import pyarrow as pa, pyarrow.parquet as pq

source, target = sys.argv[-2:]
here = pathlib.Path(__file__).parent

def score():
    table = pq.read_table(source)
    rows, ids = table["row"].to_pylist(), table["response_ids"].to_pylist()
    prompts, temperature = table["prompt_ids"].to_pylist(), table["temperature"].to_pylist()
    scores = [[-math.log(17 + i) / t for i in row] for row, t in zip(ids, temperature)]
    columns = {"row": rows, "log_probs": scores}
WRONG
    pq.write_table(pa.table(columns), target + ".tmp")
    os.replace(target + ".tmp", target)
    with (here / "scored").open("a") as log:
        print(rows[0], file=log)
"""
ENDS = "\nscore()\n"
STAYS = """
(here / "starts").open("a").write("start ")
while True:
    score()
    while pathlib.Path(target).exists():
        time.sleep(0.01)
"""


def program(folder: Path, wrong: str = "", way: str = ENDS) -> str:
    """Return the command of a program in a folder, as given to `run=`."""
    path = folder / "scorer.py"
    path.write_text(PROGRAM.replace("WRONG", f"    {wrong}") + way)
    return f"{sys.executable} {path}"


def policy(run: str, **options: Any) -> PolicySpec:
    return PolicySpec(
        name="old", backend="command", dtype="unstated", model="", options={"run": run, **options}
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(
        tmp_path / "table.parquet",
        prompt_ids=[[1, 2]] * len(RESPONSES),
        response_ids=RESPONSES,
        temperature=TEMPERATURES,
        rollout_log_probs=[[-3.0] * len(row) for row in RESPONSES],
    )


@pytest.fixture
def rows(table: Path) -> Trajectories:
    return decode(first_batch(table))


@pytest.fixture
def score(tmp_path: Path, rows: Trajectories) -> Iterator[Callable[..., np.ndarray]]:
    """Score all rows by a program; processes that it leaves are ended with the test."""
    engines = []

    def run(command: str, **options: Any) -> np.ndarray:
        log = tmp_path / "engine.log"
        log.touch()
        spec = policy(command, **options)
        engine = CommandEngine(spec, words_of(spec), log)
        engines.append(engine)
        return engine.score(rows, lambda tokens: None).log_probs

    yield run
    for engine in engines:
        if engine._staying is not None:
            engine._staying.communicate(timeout=30)


def expected(responses: list[list[int]] = RESPONSES) -> np.ndarray:
    return np.concatenate(
        [
            [-math.log(17 + token) / (temperature or 1.0) for token in row]
            for row, temperature in zip(responses, TEMPERATURES, strict=True)
        ]
    )


def running(folder: Path) -> list[str]:
    """Return the command lines of processes that contain a folder's name."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # the process has ended meanwhile
            continue
        if str(folder) in line:
            found.append(line)
    return found


def answer(rows: Trajectories, change: str) -> Path:
    """Write the output of PROGRAM with a change."""
    scores = np.split(expected(), rows.response_ids.offsets[1:-1])
    columns = {"row": rows.row.tolist(), "log_probs": [one.tolist() for one in scores]}
    exec(change, {"columns": columns, "math": math, "pa": pa, **columns})
    path = Path("output.parquet")
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize(
    "change",
    [
        "",
        "for column in columns.values(): column.reverse()",
        'columns["log_probs"] = pa.array(log_probs, pa.large_list(pa.float32()))',
    ],
)
def test_a_correct_answer_is_accepted_in_any_order_and_type(rows, tmp_path, monkeypatch, change):
    monkeypatch.chdir(tmp_path)
    scores = read_answer(answer(rows, change), rows, "it", wants_entropy=False)
    np.testing.assert_allclose(scores.log_probs, expected(), rtol=1e-6)
    assert scores.log_probs.dtype == np.float32
    assert scores.entropy is None


def test_log_probs_rounded_above_0_become_0(rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    change = 'log_probs[0][1] = 2e-7; columns["entropy"] = [[2.5] * len(r) for r in log_probs]'
    scores = read_answer(answer(rows, change), rows, "it", wants_entropy=True)
    assert scores.log_probs[1] == 0.0
    assert scores.entropy.tolist() == [2.5] * len(expected())


@pytest.mark.parametrize(
    ("wrong", "words", "hint"),
    [
        ("log_probs[4].pop()", "3 values of `log_probs` for row 4, whose response has 4", "first"),
        ("log_probs[4] += [-1.0] * 2", "6 values of `log_probs` for row 4", "none for the prompt"),
        ("log_probs[2] += [-1.0] * 9", "10 values of `log_probs` for row 2", "no padding"),
        ("del row[3], log_probs[3]", "left out row 3", "8 rows, the output 7"),
        ("row[3] = 4", "wrote row 4 several times", "once"),
        ("row[3] = 99", "left out row 3", "once"),
        ("row.append(99); log_probs.append([])", "does not have, 99", "8 rows, the output 9"),
        (
            'del columns["row"]',
            "no column `row`; there are log_probs",
            "`row`, copied from the input",
        ),
        (
            'columns["row"] = [str(one) for one in row]',
            "not write a whole number",
            "copy the numbers",
        ),
        ('columns["logprobs"] = columns.pop("log_probs")', "no column `log_probs`", "a list"),
        ('columns["log_probs"] = [-1.0] * len(row)', "as double", "a list of floats"),
        ('columns["log_probs"] = [[-1] * len(r) for r in log_probs]', "as list<", "of floats"),
        ("log_probs[0][1] = None", "a null in column `log_probs`", "masked ones too"),
        ("log_probs[1] = None", "a null in column `log_probs`", "masked ones too"),
        ("log_probs[0][1] = math.nan", "nan in `log_probs` at response token 1 of row 0", "finite"),
        ("log_probs[2][0] = -math.inf", "-inf in `log_probs` at response token 0 of", "finite"),
        (
            "log_probs[2][0] = -1e39",
            "-1e\\+39 in `log_probs` at response token 0 of",
            "-1e+12 to 0",
        ),
        (
            "log_probs[2][0] = -1e13",
            "-1e\\+13 in `log_probs` at response token 0 of",
            "-1e+12 to 0",
        ),
        ("log_probs[4][3] = 0.25", "0.25 in `log_probs` at response token 3 of row 4", "to 0"),
        ('columns["entropy"] = [[-1.0] * len(r) for r in log_probs]', "-1 in `entropy`", "nats"),
        ('columns["entropy"] = [[14.0] * len(r) for r in log_probs]', "14 in `entropy`", "13.86"),
        ('columns["entropy"] = [[1e300] * len(r) for r in log_probs]', "1e\\+300 in `ent", "13.86"),
        (
            'columns["response_ids"] = [[1] * len(r) for r in log_probs]',
            "wrote other `response_ids` for row 0",
            "as they are",
        ),
        ('columns["prompt_ids"] = [[2, 1]] * len(row)', "other `prompt_ids` for row 0", "cutting"),
        ('columns["entropy"] = [[1.0]] * len(row)', "values of `entropy` for row 0", "a value for"),
        ("", "no column `entropy`, which entropy=true asks for", "leave entropy=true out"),
    ],
)
def test_a_wrong_answer_is_refused_with_row_and_token(
    rows, tmp_path, monkeypatch, wrong, words, hint
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RcdiagError, match=words) as caught:
        read_answer(answer(rows, wrong), rows, "it", wants_entropy=not wrong)
    assert hint in caught.value.hint


def test_the_vocabulary_of_the_checkpoint_limits_the_entropy(tmp_path, rows):
    """The toy checkpoint has so few tokens that an entropy of 5 nats is impossible."""
    wrong = 'columns["entropy"] = [[5.0] * len(row) for row in ids]'
    spec = policy(program(tmp_path, wrong) + " {model}")
    spec = PolicySpec(**{**spec.to_dict(), "model": str(make_checkpoint(tmp_path / "model"))})
    (tmp_path / "engine.log").touch()
    with pytest.raises(RcdiagError, match="5 in `entropy` at response token 0 of row 0"):
        CommandEngine(spec, words_of(spec), tmp_path / "engine.log").score(
            rows, lambda tokens: None
        )


def test_a_program_scores_by_its_own_formula(score, tmp_path):
    np.testing.assert_allclose(score(program(tmp_path)), expected(), rtol=1e-6)


# Programs that end without an answer; `sh` starts faster than Python.
@pytest.mark.parametrize(
    ("run", "words", "hint"),
    [
        (
            "true",
            "exit code 0 and wrote no output; it printed nothing",
            "its last argument is the path",
        ),
        ("sh -c 'echo so far; exit 3'", r"exit code 3; it printed last:\n  so far", "engine.log"),
        ("sh -c 'echo why >&2; exit 1'", r"exit code 1; it printed last:\n  why", "engine.log"),
        ("sh -c 'kill -9 $$'", r"signal 9 \(SIGKILL, out of memory", "goes on"),
        ("sh -c 'kill -SEGV $$'", r"signal 11 \(SIGSEGV\)", "goes on"),
        ("sh -c 'echo PAR1 > $1' sh", "no parquet file .*: damaged", "write it completely"),
        (
            "sh -c 'echo row,log_probs > $1' sh",
            "no parquet file .* not begin with PAR1",
            "write_table",
        ),
        ("sh -c 'mkfifo $1' sh", "not a regular file, but a named pipe", "remove it"),
        ("sh -c 'mkdir $1' sh", "not a regular file, but a directory", "remove it"),
        ("sh -c 'ln -s /dev/zero $1' sh", "not a regular file, but a symbolic link", "remove it"),
    ],
)
def test_a_program_that_gives_no_answer_is_refused(score, run, words, hint):
    run = run.replace("$1", "$2")
    with pytest.raises(RcdiagError, match=words) as caught:
        score(run)
    assert hint in caught.value.hint


def test_output_of_a_program_that_fails_afterwards_is_ignored(score, tmp_path):
    with pytest.raises(RcdiagError, match="exit code 4"):
        score(program(tmp_path, way=ENDS + "sys.exit(4)\n"))


def test_the_error_quotes_the_last_output_of_this_start(score, tmp_path):
    (tmp_path / "engine.log").write_text("of an earlier start\n")
    with pytest.raises(RcdiagError) as caught:
        score("sh -c 'seq 2000; exit 1'")
    assert caught.value.message.endswith("".join(f"\n  {n}" for n in range(1996, 2001)))
    with pytest.raises(RcdiagError, match="it printed nothing"):
        score("false")


def test_a_program_that_stays_is_started_once(tmp_path, rows):
    spec = policy(program(tmp_path, way=STAYS), stays=True)
    (tmp_path / "engine.log").touch()
    engine = CommandEngine(spec, words_of(spec), tmp_path / "engine.log")
    for _ in range(3):
        scored = engine.score(rows, lambda tokens: None).log_probs
        np.testing.assert_allclose(scored, expected(), rtol=1e-6)
    assert (tmp_path / "starts").read_text() == "start "
    engine._staying.communicate(timeout=30)  # closes the supervisor's stdin, which ends it
    assert not running(tmp_path / "scorer.py")


def test_a_program_that_should_stay_but_ends_is_an_error(score, tmp_path):
    with pytest.raises(RcdiagError, match="it has ended without an output") as caught:
        score("true", stays=True)
    assert "leave stays=true out" in caught.value.hint
    with pytest.raises(RcdiagError, match="exit code 1"):
        score("false", stays=True)


# End to end, from the command line


# Parts of about three rows.
IN_PARTS = (
    "import cli.main, rcdiag.engines.scoring as run; "
    "run.TOKENS_PER_PART = run.MOST_TOKENS_PER_PART = 12; cli.main.main()"
)


def command_line(table: Path, run: str, out: Path) -> list[str]:
    return [
        *(sys.executable, "-c", IN_PARTS, "score", str(table)),
        *("--policy", f"old=command,run={run}", "-o", str(out)),
    ]


@pytest.mark.slow
def test_a_kill_of_rcdiag_ends_the_program_and_costs_one_part(table, tmp_path):
    """The program hangs in its third part, with a child process in another session."""
    hang = "if (here / 'hang').exists() and rows[0] == 5:"
    hang += " import subprocess, signal;"
    hang += " signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    hang += " subprocess.Popen(['tail', '-f', __file__], start_new_session=True);"
    hang += " (here / 'hanging').touch(); time.sleep(300)"
    run, out = program(tmp_path, hang), tmp_path / "out.parquet"
    (tmp_path / "hang").touch()
    command = command_line(table, run, out)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, **quiet, start_new_session=True)
    until(lambda: (tmp_path / "hanging").exists() or process.poll() is not None)
    assert process.poll() is None, "the run ended before it could be killed"
    assert (tmp_path / "scored").read_text().split() == ["0", "3"]  # first rows of two parts
    assert (
        len(running(tmp_path / "scorer.py")) == 4
    )  # rcdiag, supervisor, program, its child process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    until(lambda: not running(tmp_path / "scorer.py"))

    (tmp_path / "hang").unlink()
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "scored").read_text().split() == ["0", "3", "5"], "one was scored again"
    found = np.concatenate(
        [np.array(row) for row in pq.read_table(out)["old_log_probs"].to_pylist()]
    )
    np.testing.assert_allclose(found, expected(), rtol=1e-6)
    assert not list(tmp_path.glob("*.parts"))


def until(ready: Callable[[], bool], limit: float = 120.0) -> None:
    deadline = time.monotonic() + limit
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_metadata_name_the_scorer_and_weights_only_if_known(table, tmp_path, monkeypatch):
    """Weights are known if the command names them; an edited script starts a new run."""
    model, out = make_checkpoint(tmp_path / "model"), tmp_path / "out.parquet"
    run = program(tmp_path)
    rcdiag.score(table, policies={"old": f"command,run={run}"}, model=model, output=out)
    noted = rcdiag.open_table(out).metadata["policies"]["old"]
    assert (noted["backend"], noted["dtype"], noted["options"]) == ("command", None, {"run": run})
    assert noted["model"] is None
    assert "weights_fingerprint" not in noted

    with_model = policy(f"{run} {{model}}")
    spec = PolicySpec(**{**with_model.to_dict(), "model": str(model), "dtype": "bfloat16"})
    assert words_of(spec)[-1] == str(model)
    provenance = CommandEngine(spec, words_of(spec), tmp_path / "engine.log").provenance()
    assert (provenance["model"], provenance["dtype"]) == (str(model), "bfloat16")
    assert len(provenance["weights_fingerprint"]) == 32
    facts = BACKENDS["command"].facts(spec, SILENT.say)
    assert facts.fingerprint == provenance["weights_fingerprint"]
    assert facts.limits.vocab_size == len(PROBABILITIES)
    assert BACKENDS["command"].facts(with_model, SILENT.say).limits.vocab_size is None
    program(tmp_path, "pass  # edited")
    assert BACKENDS["command"].facts(spec, SILENT.say).program != facts.program


@pytest.mark.parametrize(
    ("options", "words", "hint"),
    [
        ({"run": ""}, "needs the program", "run="),
        ({"run": "no-such-program --x"}, "`no-such-program` is not a program here", "PATH"),
        ({"run": "./scorer.py"}, "`./scorer.py` is not a program here", "interpreter"),
        ({"run": "python 'score.py"}, "mark is not closed", "pairs"),
        ({"run": "python x.py {model}"}, "no model is given", "model=PATH"),
    ],
)
def test_a_policy_that_cannot_run_is_refused_before_anything_starts(
    tmp_path, monkeypatch, options, words, hint
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scorer.py").write_text("")
    with pytest.raises(RcdiagError, match=words) as caught:
        BACKENDS["command"].check(policy(**options))
    assert hint in caught.value.hint


def test_how_a_command_is_quoted():
    for text in (
        'a=command:bfloat16,run="python score.py --layers 1,2 --name \\"x y\\"",stays=true',
        "a=command:bfloat16,stays=true,run=\"python score.py --layers 1,2 --name 'x y'\"",
    ):
        spec = parse_policy(text)
        assert spec.options["stays"] is True
        assert words_of(spec) == ["python", "score.py", "--layers", "1,2", "--name", "x y"]
    assert words_of(parse_policy("a=command,run=torchrun --nproc-per-node 8 s.py"))[1:3] == [
        "--nproc-per-node",
        "8",
    ]
    with pytest.raises(RcdiagError, match="`2` is not key=value") as caught:
        parse_policy("a=command,run=python score.py --layers 1,2")
    assert "single quotes" in caught.value.hint
    with pytest.raises(RcdiagError, match="not JSON"):
        parse_policy('a=command,run="python" score.py')
    with pytest.raises(RcdiagError, match="lm_head: give the program's own option"):
        parse_policy("a=command,run=python score.py,lm_head=float32")


def test_the_default_model_fills_the_placeholder_of_a_program(tmp_path):
    model = make_checkpoint(tmp_path / "model")
    named = parse_policy("old=command,run=python score.py {model}", str(model))
    assert words_of(named)[-1] == str(model)
    assert BACKENDS["command"].facts(named, SILENT.say).limits.vocab_size == len(PROBABILITIES)
    unnamed = parse_policy("old=command,run=python score.py", str(model))
    assert BACKENDS["command"].facts(unnamed, SILENT.say).limits.vocab_size is None


def test_a_program_named_by_a_table_is_not_run(tmp_path):
    noted = about("x", "command", model=str(tmp_path), run="python")
    assert spec_of(noted, None) is None
    assert spec_of(noted, str(tmp_path)) is None
    noted = about("x", "hf", model=str(tmp_path), python="evil")
    with pytest.raises(RcdiagError, match="not taken from a file"):
        spec_of(noted, None)


def test_the_program_of_the_docs_runs(score, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "scorers.md").read_text()
    (tmp_path / "score.py").write_text(page.split("```python\n")[1].split("```")[0])
    found = score(f"{sys.executable} {tmp_path}/score.py")
    np.testing.assert_allclose(found, -math.log(32_000), rtol=1e-6)
