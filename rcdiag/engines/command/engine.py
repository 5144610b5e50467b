"""Give the parts of a table to a program one after the other, and read its scores."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from rcdiag.engines.backend import Progress
from rcdiag.engines.checkpoint import check_checkpoint, fingerprint, limits
from rcdiag.engines.command import (
    about_model,
    is_given_a_checkpoint,
    is_given_the_model,
    supervisor,
)
from rcdiag.engines.command.answer import read_answer
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError
from rcdiag.table.token_columns import MOST_TOKEN_IDS
from rcdiag.table.trajectories import Ragged, Scores, Trajectories
from rcdiag.table.writer import TableWriter

PAUSE = 0.05  # seconds between checks for the output
TAIL, TAIL_BYTES = 5, 1 << 16  # last lines, of so many bytes, that the error quotes from the log
KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
}
# The last line of a traceback. torchrun prints a long summary after it, without the error's text.
PYTHON_ERROR = re.compile(r"(\[rank\d+\]: )?[\w.]*(Error|Exception): \S")


class CommandEngine:
    """A program that reads a part from INPUT and writes OUTPUT, both beside its log.

    A program with stays=true knows that INPUT is the next part once OUTPUT has been removed.
    """

    def __init__(self, spec: PolicySpec, words: Sequence[str], log: Path) -> None:
        self.spec, self._log = spec, log
        self._input = log.with_name("input.parquet")
        self._output = log.with_name("output.parquet")
        self._words = [*words, str(self._input), str(self._output)]
        self._vocabulary = MOST_TOKEN_IDS
        if is_given_a_checkpoint(spec):
            self._vocabulary = limits(spec.model, Path(spec.model)).vocab_size or MOST_TOKEN_IDS
        self._stays = bool(spec.options.get("stays"))
        self._staying: subprocess.Popen[bytes] | None = None
        self._printed = 0  # size of the log in bytes when the program was started

    def score(self, trajectories: Trajectories, progress: Progress) -> Scores:
        """Let the program score a part."""
        assert trajectories.prompt_ids is not None
        self._write_input(trajectories)
        if self._stays:
            self._wait_for_output()
        else:
            with self._start() as program:
                program.wait()
            if program.returncode:
                raise self._failed(program.returncode)
        if not self._has_written():
            raise self._error(
                "it ended with exit code 0 and wrote no output",
                "its last argument is the path to write to",
            )
        who = f"policy `{self.spec.name}`: the program `{self.spec.options['run']}`"
        scores = read_answer(
            self._output,
            trajectories,
            who,
            wants_entropy=bool(self.spec.options.get("entropy")),
            vocabulary=self._vocabulary,
        )
        progress(len(trajectories.prompt_ids.values) + len(trajectories.response_ids.values))
        return scores

    def provenance(self) -> dict[str, Any]:
        """Return the fingerprint if the command names the model, and what the user states."""
        about = about_model(self.spec)
        if is_given_the_model(self.spec) and Path(self.spec.model).is_dir():
            about["weights_fingerprint"] = fingerprint(check_checkpoint(self.spec.model))
        return about

    def _write_input(self, rows: Trajectories) -> None:
        """Write a part to INPUT, under a temporary name until complete, then remove OUTPUT."""
        assert rows.prompt_ids is not None
        table = pa.table(
            {
                "row": pa.array(rows.row),
                "prompt_ids": _lists(rows.prompt_ids),
                "response_ids": _lists(rows.response_ids),
                "temperature": pa.array(rows.scoring_temperature),
            }
        )
        with TableWriter(self._input, table.schema, {}) as writer:
            writer.write(table)
        if self._has_written():  # for the part before, or in an earlier run
            self._output.unlink()

    def _has_written(self) -> bool:
        """Tell whether OUTPUT is there; refuse a pipe, which blocks its reader, a link or a folder.

        A link could lead to a file that the program did not write.
        """
        try:
            mode = os.lstat(self._output).st_mode
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(mode):
            raise RcdiagError(
                f"policy `{self.spec.name}`: {self._output} is not a regular file, but "
                f"{KINDS.get(stat.S_IFMT(mode), 'a device')}",
                hint="remove it, and let the program write a parquet file to that path",
            )
        return True

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the program under a supervisor, which ends it when this process ends."""
        with self._log.open("ab") as log:
            self._printed = log.tell()
            return subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, *self._words],
                stdin=subprocess.PIPE,  # closes when this process ends, which the supervisor sees
                stdout=log,
                stderr=log,
                start_new_session=True,  # a signal to our process group must not end the supervisor
            )

    def _wait_for_output(self) -> None:
        """Wait until a program with stays=true has written its output; start it at first."""
        self._staying = self._staying or self._start()
        while True:
            code = self._staying.poll()
            if self._has_written():
                return
            if code:
                raise self._failed(code)
            if code == 0:
                raise self._error(
                    "it has ended without an output for the current part",
                    "leave stays=true out if the program ends after each part",
                )
            time.sleep(PAUSE)

    def _failed(self, code: int) -> RcdiagError:
        number = code - supervisor.SIGNAL_BASE
        if number in set(signal.Signals):
            memory = ", out of memory?" if number == signal.SIGKILL else ""
            why = f"killed by signal {number} ({signal.Signals(number).name}{memory})"
        else:
            why = f"exit code {code}"
        return self._error(why, "with -o FILE the same command goes on from the finished parts")

    def _error(self, why: str, hint: str) -> RcdiagError:
        """Return the error for a failed program, with the last lines that it printed."""
        with self._log.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(self._printed, size - TAIL_BYTES))
            printed = log.read().decode(errors="replace").splitlines()
        lines = [line.rstrip() for line in printed if line.strip()]
        errors = [line for line in lines[:-TAIL] if PYTHON_ERROR.match(line)]
        last = [*errors[-1:], *lines[-TAIL:]]
        quoted = "".join(f"\n  {line[:200]}" for line in last)
        return RcdiagError(
            f"policy `{self.spec.name}`: the program `{self.spec.options['run']}` failed: {why}"
            + (f"; it printed last:{quoted}" if last else "; it printed nothing"),
            hint=f"all that it printed is in {self._log}; {hint}" if last else hint,
        )


def _lists(column: Ragged) -> pa.Array:
    return pa.ListArray.from_arrays(column.offsets.astype("int32"), pa.array(column.values))
