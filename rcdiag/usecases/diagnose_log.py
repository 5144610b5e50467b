"""Use case `diagnose` for training logs: what a run's logged numbers show, without any tokens."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from rcdiag.diagnosis.logged.judge import judge
from rcdiag.diagnosis.logged.over_steps import parting
from rcdiag.diagnosis.logged.run import QUANTITIES, LoggedRun, logged_run
from rcdiag.errors import RcdiagError, setting
from rcdiag.formats import after_colon, as_sentence, shortest_names
from rcdiag.logs import Log, LogFile, NoNumbersError, log_files, read_log
from rcdiag.results.diagnose import DiagnoseResult
from rcdiag.results.diagnosis import VERDICTS, Diagnosis
from rcdiag.usecases.log_alone import summarised
from rcdiag.usecases.provenance import provenance_of_files
from rcdiag.usecases.run_setup import setups_of

STEP = "step"  # the name by which a user names the key of the training step
# Verdicts; of several runs, the one whose verdict comes first gives the diagnosis.
WORST_FIRST = ("broken", "correctable", "inconclusive", "healthy")
assert set(WORST_FIRST) == set(VERDICTS)


def logged_runs(
    source: object, keys: Mapping[str, str] | None, *, no_dump: bool
) -> list[LoggedRun] | None:
    """Read files as training logs; None if one of them is not a log.

    A log is recognised by a key of the mismatch, or by given keys. If the files are `no_dump` of
    any format, any key of a training log is enough; otherwise the user sees the dump's error.
    `keys` may also name the key of the training step, under STEP. A folder stands for its files,
    and a file that is named twice counts once.
    """
    sources = [source] if isinstance(source, (str, Path)) else source
    if not isinstance(sources, (list, tuple)) or not sources:
        return None
    if any(not isinstance(path, (str, Path)) or "://" in str(path) for path in sources):
        return None
    keys = dict(keys or {})
    step_key = keys.pop(STEP, None)
    logs: list[Log] = []
    named = [Path(name) for name in sources]
    for path in {file.resolve(): file for name in named for file in log_files(name)}.values():
        try:
            log = read_log(path, step_key)
        except RcdiagError as refused:
            empty = isinstance(refused, NoNumbersError) and path in named
            if no_dump and (empty or _names_a_quantity(path)):
                raise  # a damaged log
            return None
        logs += (*log.earlier, log)
    if not logs:
        return None
    for key in keys.values():
        if not any(key in log.keys for log in logs):
            files = ", ".join(dict.fromkeys(str(log.path) for log in logs))
            some = ", ".join(list(logs[0].keys)[:8])
            raise RcdiagError(f"{files}: no key {key!r}", hint=f"{logs[0].path.name} has {some}")
    names = shortest_names([str(log.path.with_name(_name(log, logs))) for log in logs])
    runs = [logged_run(name, log, keys) for name, log in zip(names, logs, strict=True)]
    for run in runs:
        if not (run.of_mismatch or ((keys or no_dump) and run.series)):
            if no_dump and len(run.log.rows) > 1 and b"[" not in LogFile.at(run.log.path).head:
                # Steps of numbers without lists: a log, with keys of its own names.
                raise RcdiagError(
                    f"{run.log.path}: {len(run.log.rows)} steps of numbers, but under no key that "
                    f"rcdiag knows (it has {', '.join(list(run.log.keys)[:8])})",
                    hint="name those of the mismatch: --key k3=KEY, with k1, ratio_mean, ess, "
                    "entropy, reward, ... alike; a dump would have lists of token ids and "
                    "log-probs",
                )
            return None
    return runs


def _name(log: Log, logs: Sequence[Log]) -> str:
    """Return the name of a log's file, and which run of the file it is, where it holds several."""
    of_file = [one for one in logs if one.path == log.path]
    if len(of_file) == 1:
        return log.path.name
    place = 1 + next(at for at, one in enumerate(of_file) if one is log)
    which = log.run.replace("/", "_") or f"run {place} of {len(of_file)}"
    return f"{log.path.name} ({which})"


def _names_a_quantity(path: Path) -> bool:
    """Tell whether the first bytes of a file contain a key of the mismatch, in JSON or CSV."""
    head = LogFile.at(path).head.decode(errors="replace")
    keys = (key for one in QUANTITIES.values() if one.mismatch for key in (*one.keys, *one.negated))
    return any(f"{key}{end}" in head for key in keys for end in '",\n')


def diagnose_logs(
    runs: Sequence[LoggedRun],
    *,
    trainer: str | None,
    trainer_config: str | Path | None = None,
    given: Mapping[str, Any],
    seed: int,
) -> DiagnoseResult:
    """Diagnose training logs; the diagnosis is the worst run's, and each run has a summary."""
    began = time.monotonic()
    setups = setups_of(runs, trainer, trainer_config)
    if "vocab_size" in given:
        vocabulary = _vocabulary(given["vocab_size"])
        setups = [
            replace(setup, known=replace(setup.known, vocabulary=vocabulary)) for setup in setups
        ]
    runs = [replace(run, known=setup.known) for run, setup in zip(runs, setups, strict=True)]
    found = [judge(run, family=setup.family) for run, setup in zip(runs, setups, strict=True)]
    worst = min(range(len(found)), key=lambda index: _urgency(found[index].diagnosis))
    return DiagnoseResult(
        provenance=provenance_of_files(list(dict.fromkeys(run.log.path for run in runs)), seed),
        num_sequences=0,
        num_tokens=0,
        trainer_model=None,
        checkpoints=[],
        steps_of_model=None,
        rows_read=0,
        noise_scale=None,
        token_temperature=None,
        experiments=[],
        weights=[],
        open=[],
        duration=time.monotonic() - began,
        diagnosis=_beside_others(found[worst].diagnosis, runs[worst], runs),
        logs=[
            summarised(run, setup, judged)
            for run, setup, judged in zip(runs, setups, found, strict=True)
        ],
    )


def _urgency(diagnosis: Diagnosis) -> tuple[int, bool]:
    """Rank runs by their verdict; of equal verdicts, one that names a fault comes first."""
    return WORST_FIRST.index(diagnosis.verdict), diagnosis.fault is None


def _beside_others(diagnosis: Diagnosis, worst: LoggedRun, runs: Sequence[LoggedRun]) -> Diagnosis:
    """Name the worst of several runs in its diagnosis, and say where it leaves the others."""
    if len(runs) == 1 or diagnosis.over_steps is None:
        return diagnosis
    since = None
    if (fault := diagnosis.fault) is not None:
        since = int(worst.steps[0]) if fault.from_step is None else fault.from_step
    others = [parting(worst, other, since) for other in runs if other is not worst]
    says = " ".join([*others, as_sentence(diagnosis.over_steps.says)])
    return replace(
        diagnosis,
        summary=f"{worst.name}: {after_colon(diagnosis.summary)}",
        over_steps=replace(diagnosis.over_steps, says=says),
    )


def _vocabulary(value: object) -> int:
    try:
        size = int(str(value))
    except ValueError:
        size = 0
    if size < 2:
        raise RcdiagError(
            f"{setting('given', f'vocab_size={value}')}: not a number of tokens",
            hint="give what the model's config.json has as vocab_size",
        )
    return size
