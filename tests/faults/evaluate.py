"""How often the diagnosis names the fault of generated tables: `make faults`.

`python -m tests.faults.evaluate --tables 120 --seed 11 41 --out benchmarks/results/diagnosis.json`
makes tables whose faults, strengths and columns are drawn, asks for the diagnosis of each, prints
how often it is right and stores the same numbers. With `--with-model` the trainer's checkpoint is
at hand as well.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import rcdiag
from benchmarks import machine
from rcdiag.errors import RcdiagError
from tests.faults.prompts import ROOT
from tests.faults.tables import make_table

BINS = (0.0, 0.3, 0.6, 0.8, 0.95, 1.0)
NOTHING_WRONG = "nothing wrong"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The diagnosis of one table, with its answer key."""

    label: dict[str, Any]
    verdict: str | None  # None if the table was refused
    causes: tuple[tuple[str, float], ...]  # (slug, confidence), the deciding one first
    seconds: float
    error: str | None = None

    def keys(self, model: bool) -> list[list[str]]:
        """Return the correct answers for each fault of the table."""
        return self.label["acceptable_each" + ("_with_model" if model else "")]

    def verdicts(self, model: bool) -> list[str]:
        return self.label["verdicts" + ("_with_model" if model else "")]

    @property
    def top(self) -> str:
        return self.causes[0][0] if self.causes else "refused" if self.error else "silent"

    @property
    def family(self) -> str:
        return self.label["family"] if len(self.keys(False)) == 1 else "two faults"

    def right(self, model: bool) -> bool:
        """Return whether the first cause is correct for one of the table's faults."""
        return any(self.top in key for key in self.keys(model))

    def all_named(self, model: bool) -> bool:
        named = {slug for slug, _ in self.causes}
        return all(named & set(key) for key in self.keys(model))

    @property
    def healthy(self) -> bool:
        return self.label["family"] == NOTHING_WRONG


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Required shares of tables for a diagnosis."""

    right: float = 0.9  # first cause, among tables with one fault
    fix_missed: float = 0.02  # among tables with a visible fault that no weights repair
    false_alarms: float = 0.03  # verdict "broken" among healthy tables
    both_named: float = 0.7
    calibration: float = 0.1  # largest difference of confidence and correct share in a full bin


def diagnose(path: Path, model: str | None) -> Any:
    """Return rcdiag's diagnosis of a table, with the trainer's checkpoint if given."""
    return rcdiag.diagnose(path, model=model).diagnosis


def judge(label: dict[str, Any], folder: Path, *, model: bool) -> Judged:
    """Diagnose one table."""
    began = time.perf_counter()
    try:
        numbers = diagnose(folder / label["file"], str(ROOT / label["model"]) if model else None)
    except RcdiagError as error:
        seconds = time.perf_counter() - began
        return Judged(label=label, verdict=None, causes=(), seconds=seconds, error=str(error))
    causes = tuple((cause.slug, cause.confidence) for cause in numbers.causes)
    seconds = time.perf_counter() - began
    return Judged(label=label, verdict=numbers.verdict, causes=causes, seconds=seconds)


def made_and_judged(
    number: int, *, seed: int, folder: Path, models: Sequence[bool] = (False,), small: bool = False
) -> list[Judged]:
    """Make one table of a seed, and diagnose it without and with the checkpoint."""
    torch.set_num_threads(1)
    label = make_table(seed, number, folder / f"t{number:03}.parquet", small=small)
    return [judge(label, folder, model=model) for model in models]


def share(values: Iterable[bool]) -> float | None:
    listed = list(values)
    return round(sum(listed) / len(listed), 4) if listed else None


def summary(judged: Sequence[Judged], *, model: bool = False) -> dict[str, Any]:
    """Return every share in the targets, with its number of tables."""
    single = [item for item in judged if item.family not in ("two faults", NOTHING_WRONG)]
    healthy = [item for item in judged if item.healthy]
    double = [item for item in judged if item.family == "two faults"]
    must = [
        item
        for item in judged
        if item.label["verdict"] == "broken" and (model or item.label["table_alone_tells"])
    ]
    narrow = [item for item in single if len(item.keys(True)[0]) == 1]
    families = sorted({item.family for item in judged})
    return {
        "tables": len(judged),
        "refused": sum(item.error is not None for item in judged),
        "right": {"share": share(item.right(model) for item in single), "tables": len(single)},
        "right_narrowly": {
            "share": share(item.right(model) for item in narrow),
            "tables": len(narrow),
        },
        "right_by_family": {
            family: {
                "share": share(item.right(model) for item in judged if item.family == family),
                "tables": sum(item.family == family for item in judged),
            }
            for family in families
        },
        "fix_called_fine_or_correct": {
            "share": share(item.verdict in ("healthy", "correctable") for item in must),
            "tables": len(must),
        },
        "healthy_called_fix": {
            "share": share(item.verdict == "broken" for item in healthy),
            "tables": len(healthy),
        },
        "verdict_right": share(item.verdict in item.verdicts(model) for item in judged),
        "both_named": {
            "share": share(item.all_named(model) for item in double),
            "tables": len(double),
        },
        "calibration": calibration(judged, model=model),
        "seconds_per_table": {
            "mean": round(sum(item.seconds for item in judged) / max(len(judged), 1), 3),
            "largest": round(max((item.seconds for item in judged), default=0.0), 3),
        },
        "confusions": confusions(judged, model=model),
    }


def calibration(judged: Sequence[Judged], *, model: bool) -> list[dict[str, float]]:
    """Return the share of correct causes by bin of confidence."""
    named = [
        (confidence, any(slug in key for key in item.keys(model)))
        for item in judged
        for slug, confidence in item.causes
    ]
    numbers = []
    for low, high in pairwise(BINS):
        inside = [(c, right) for c, right in named if low <= c < high or c == high == 1]
        if inside:
            mean = sum(c for c, _ in inside) / len(inside)
            right = sum(right for _, right in inside) / len(inside)
            numbers.append(
                {
                    "from": low,
                    "to": high,
                    "causes": len(inside),
                    "confidence": round(mean, 4),
                    "right": round(right, 4),
                }
            )
    return numbers


def confusions(judged: Sequence[Judged], *, model: bool) -> dict[str, dict[str, int]]:
    """Return the wrong causes that were named in place of each cause."""
    counted: dict[str, Counter[str]] = {}
    for item in judged:
        if not item.right(model):
            counted.setdefault("+".join(item.label["labels"]), Counter())[item.top] += 1
    return {label: dict(counts.most_common()) for label, counts in sorted(counted.items())}


def shortfalls(numbers: dict[str, Any], thresholds: Thresholds, *, full_bin: int = 20) -> list[str]:
    """Return a sentence for each number of a summary that misses its threshold."""
    right, both = numbers["right"]["share"], numbers["both_named"]["share"]
    missed = numbers["fix_called_fine_or_correct"]["share"]
    alarms = numbers["healthy_called_fix"]["share"]
    text = [
        (right is not None and right < thresholds.right, f"first cause right in {right}"),
        (
            missed is not None and missed > thresholds.fix_missed,
            f"called fine or correct, to be mended: {missed}",
        ),
        (alarms is not None and alarms > thresholds.false_alarms, f"healthy called fix: {alarms}"),
        (both is not None and both < thresholds.both_named, f"both faults named in {both}"),
    ]
    text += [
        (
            abs(item["right"] - item["confidence"]) > thresholds.calibration,
            f"{item['right']} right at confidence {item['confidence']}",
        )
        for item in numbers["calibration"]
        if item["causes"] >= full_bin
    ]
    return [sentence for misses, sentence in text if misses]


def judge_folder(folder: Path, *, model: bool = False) -> list[Judged]:
    """Judge the tables of a folder that has an answer key."""
    labels = json.loads((folder / "labels.json").read_text())["tables"]
    return [judge(label, folder, model=model) for label in labels]


def lines(numbers: dict[str, Any]) -> list[str]:
    """Write a summary as text for the terminal."""
    text = [f"{numbers['tables']} tables, {numbers['refused']} refused"]
    for family, values in numbers["right_by_family"].items():
        text.append(f"  {family:<16} {values['share']:>7.1%} of {values['tables']}")
    for name in ("right", "right_narrowly", "fix_called_fine_or_correct", "healthy_called_fix"):
        text.append(f"{name.replace('_', ' '):<30} {_percent(numbers[name])}")
    text.append(f"{'both of two faults named':<30} {_percent(numbers['both_named'])}")
    text.append("confidence, share right, causes")
    for item in numbers["calibration"]:
        text.append(f"  {item['confidence']:.2f}  {item['right']:.2f}  {item['causes']}")
    text.append("named in place of the cause")
    for label, answers in numbers["confusions"].items():
        text.append(f"  {label}: " + ", ".join(f"{n} {slug}" for slug, n in answers.items()))
    return [*text, f"{numbers['seconds_per_table']['mean']} s a table"]


def _percent(value: dict[str, Any]) -> str:
    return "-" if value["share"] is None else f"{value['share']:.1%} of {value['tables']}"


def wrong(judged: Sequence[Judged], *, model: bool) -> list[str]:
    """Write one line per table with a wrong answer."""
    return [
        f"{item.label['file']} {'+'.join(item.label['labels'])} ({item.label['note']}): "
        f"{item.verdict}, {item.causes[:3]} {item.error or ''}"
        for item in judged
        if not item.right(model) or item.verdict not in item.verdicts(model)
    ]


def run_of(seed: int | None, answers: Mapping[bool, Sequence[Judged]]) -> dict[str, Any]:
    """Return the numbers of one run; `answers` are without and with the checkpoint."""
    names = {False: "table_alone", True: "with_model"}
    return {"seed": seed} | {
        names[model]: summary(judged, model=model) for model, judged in answers.items()
    }


def document_of(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the stored document of some runs."""
    return {
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
        "aims": asdict(Thresholds()),
        "runs": list(runs),
    }


def judge_seed(
    seed: int, tables: int, models: Sequence[bool], processes: int
) -> dict[bool, list[Judged]]:
    """Make the first tables of a seed and judge them, in several processes."""
    with tempfile.TemporaryDirectory() as folder:
        work = partial(made_and_judged, seed=seed, folder=Path(folder), models=models)
        with ProcessPoolExecutor(processes) as pool:
            judged = list(pool.map(work, range(tables)))
    return {model: [answers[n] for answers in judged] for n, model in enumerate(models)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=300)
    parser.add_argument("--seed", type=int, nargs="+", default=[11])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--with-model", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--wrong", action="store_true", help="print every table that is not right")
    parser.add_argument("--folder", type=Path, help="judge tables that are there, with their key")
    options = parser.parse_args()
    models = (False, True) if options.with_model else (False,)
    runs: list[dict[str, Any]] = []
    for seed in [None] if options.folder else options.seed:
        if seed is None:
            answers = {model: judge_folder(options.folder, model=model) for model in models}
        else:
            answers = judge_seed(seed, options.tables, models, options.processes)
        runs.append(run_of(seed, answers))
        for model, judged in answers.items():
            numbers = summary(judged, model=model)
            text = [f"seed {seed}, " + ("with the checkpoint" if model else "the table alone")]
            text += lines(numbers)
            if options.wrong:
                text += wrong(judged, model=model)
            text += [f"misses: {sentence}" for sentence in shortfalls(numbers, Thresholds())]
            sys.stdout.write("\n".join(text) + "\n")
    if options.out:
        options.out.write_text(json.dumps(document_of(runs), indent=1) + "\n")


if __name__ == "__main__":
    main()
