"""slime's debug dumps: samples after sampling and after training; a run has one or both.

Samples of one step are joined by their position in the rollout, else by their index. Their tokens
must be equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.given import REWARD_KEY
from rcdiag.table.readers.gather import gather
from rcdiag.table.readers.peek import Peek
from rcdiag.table.readers.reader import Dump, Notes, Reader, Rows, natural_order
from rcdiag.table.readers.slime_rollouts import SlimeSample, dashboard_samples, rollout_samples
from rcdiag.table.readers.slime_training import TrainSample, train_samples

DASHBOARD = frozenset(("tokens", "response_length", "loss_mask", "rollout_log_probs"))
# Fields that only samples of miles have.
OF_MILES = frozenset({"routing_key", "rollout_indexer_topk", "opd_reverse_kl", "reward_spec"})

# The file name of a training dump of miles: rollout number and rank.
RANK = re.compile(r"\d+_(\d+)")

EVALUATIONS = "files of evaluations (eval_N) are not read together with those of training"
MIRRORED = "the dashboard's parquet repeats the content of the rollout files, and is not read"
MATCHED = "a sample of training takes group and reward from the rollout file, by position or index"
UNTRAINED = "a sample of a rollout file that was not trained on is left out"
UNKNOWN = "a sample of training is not in the rollout file of its step: it is grouped by its prompt"


@dataclass
class _Step:
    """The files of one training step."""

    rollout: list[Path] = field(default_factory=list)
    train: list[Path] = field(default_factory=list)
    dashboard: list[Path] = field(default_factory=list)


def read(dump: Dump) -> Iterator[Rows]:
    """Yield the rows of the files of slime or miles, step by step."""
    notes, key = dump.notes, dump.given.get(REWARD_KEY)
    for number, files in sorted(_steps(dump.files, notes).items()):
        # The dashboard's parquet is read only where there are no rollout files.
        samples = {path: rollout_samples(path, notes, key) for path in files.rollout}
        if files.rollout and files.dashboard:
            notes.change(MIRRORED)
        elif files.dashboard:
            samples = {p: dashboard_samples(p, number, notes, key) for p in files.dashboard}
        if not files.train:
            for path, own in samples.items():
                yield from gather(((s.position, s.row) for s in own), path, "sample")
            continue
        known = [sample for own in samples.values() for sample in own]
        trained = train_samples(sorted(files.train, key=natural_order), notes)
        if known:
            _join(trained, known, notes)
        for path in dict.fromkeys(sample.path for sample in trained):
            rows = ((s.position, s.row) for s in trained if s.path == path)
            yield from gather(rows, path, "sample")


def _steps(files: Sequence[Path], notes: Notes) -> dict[int, _Step]:
    """Return the files of each step; evaluations only if there are no training files."""
    training = [file for file in files if "eval_" not in file.name]
    if training and len(training) < len(files):
        notes.change(EVALUATIONS)
    steps: dict[int, _Step] = {}
    ranks: dict[int, set[int]] = {}
    for file in training or files:
        peek = Peek(file)
        number = peek.pickle_number("rollout_id")
        if number is None:
            digits = re.search(r"\d+", file.stem)
            number = int(digits[0]) if digits else 0
        step = steps.setdefault(number, _Step())
        if peek.columns:
            step.dashboard.append(file)
        elif _is_train(peek):
            step.train.append(file)
            if (rank := RANK.fullmatch(file.stem)) is not None:
                ranks.setdefault(number, set()).add(int(rank[1]))
        else:
            step.rollout.append(file)
    notes.missing_ranks(ranks)
    return steps


def _join(trained: Sequence[TrainSample], known: Sequence[SlimeSample], notes: Notes) -> None:
    """Add to the samples of training what is only in the rollout file."""
    by_place = {sample.position: sample for sample in known}
    by_index = {sample.index: sample for sample in known if sample.index is not None}
    groups = {_key(sample.row["prompt_ids"]): sample.row["group_id"] for sample in known}
    unique = len(by_index) == len(known)
    used = set()
    for sample in trained:
        other = None
        if sample.rollout_position is not None and len(by_place) == len(known):
            other = by_place.get(sample.rollout_position)
        elif unique and sample.index is not None:
            other = by_index.get(sample.index)
        if other is None:
            notes.change(UNKNOWN, 1)
            sample.row["group_id"] = groups.get(_key(sample.row["prompt_ids"]))
            continue
        used.add(id(other))
        both = [(sample.row[name], other.row[name]) for name in ("prompt_ids", "response_ids")]
        if not all(np.array_equal(one, two) for one, two in both):
            raise RcdiagError(
                f"{sample.path}, sample {sample.position}: its tokens differ from those of sample "
                f"{other.position} in the rollout file of the same step",
                hint="do both files belong to the same run? Give only one of them",
            )
        for name, value in other.row.items():
            if sample.row.get(name) is None:
                sample.row[name] = value
        notes.change(MATCHED, 1)
    if left := len(known) - len(used):
        notes.change(UNTRAINED, left)


def _key(tokens: NDArray[np.int32]) -> bytes:
    return tokens.tobytes()


def _is_train(peek: Peek) -> bool:
    words = peek.pickle_words
    return {"rollout_id", "rollout_data"} <= words or {"rollout_id", "format_version"} <= words


def _is_rollout(peek: Peek) -> bool:
    return {"rollout_id", "samples"} <= peek.pickle_words


def of_miles(peek: Peek) -> bool:
    """Tell whether a file of this layout was written by miles, a fork of slime."""
    if peek.columns >= DASHBOARD:
        return True
    if not peek.is_torch_file:
        return False
    if _is_train(peek):
        return "format_version" not in peek.pickle_words and not _beside_slime(peek)
    if not _is_rollout(peek):
        return False
    texts = peek.pickle_texts
    before = texts[: texts.index("samples")]
    beside = peek.path.parent.parent / "dashboard_columns"
    return "metadata" in before or bool(OF_MILES & peek.pickle_words) or beside.is_dir()


def _beside_slime(peek: Peek) -> bool:
    """Tell whether slime's rollout file lies next to a training dump of one rank.

    Before format_version 2, slime wrote one file per rank too, as miles does.
    """
    number = peek.path.stem.split("_")[0]
    rollout = peek.path.parent.parent / "rollout_data" / f"{number}.pt"
    if not rollout.is_file():
        return False
    beside = Peek(rollout)
    return not _is_train(beside) and of_slime(beside)


def of_slime(peek: Peek) -> bool:
    """Tell whether a file is a debug dump of slime."""
    return peek.is_torch_file and (_is_train(peek) or _is_rollout(peek)) and not of_miles(peek)


def dump_reader(name: str, says: str, detect: Callable[[Peek], bool], source: str) -> Reader:
    """Return a reader of debug dumps, of slime or of its fork miles."""
    return Reader(
        name=name,
        says=says,
        patterns=("*.pt",) if name == "slime" else ("*.pt", "rollout_*.parquet"),
        detect=detect,
        read=read,
        source=source,
        asks_for=(REWARD_KEY,),
    )


SLIME = dump_reader(
    "slime",
    "slime's debug dumps: rollout files (--save-debug-rollout-data), train files "
    "(--save-debug-train-data), or a folder of both (--dump-details).",
    of_slime,
    "https://github.com/THUDM/slime/blob/main/slime/observability/train_data_utils.py",
)

# A fork of slime that writes one training dump per rank, and a parquet for its dashboard.
MILES = dump_reader(
    "miles",
    "miles' debug dumps (--dump-details): rollout files, train files of all ranks, the "
    "dashboard's parquet, or a folder of them.",
    of_miles,
    "https://github.com/radixark/miles/blob/main/miles/utils/train_dump_utils.py",
)
