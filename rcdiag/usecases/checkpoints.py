"""Checkpoints that a user names: their folders, and the steps of a table that each can score."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.experiments.rescored_sample import passage_of
from rcdiag.engines.changes import Forward
from rcdiag.engines.checkpoint import check_checkpoint, text_config, weight_files
from rcdiag.errors import RcdiagError, setting

STEP = "{step}"
MOST_CHECKPOINTS = 12  # checkpoints that are tried at most
NEIGHBOURS = 2  # checkpoints next to the trainer's that are tried without being named
ROWS_OF_STEP = 6  # rows of a step that are scored to see whether a checkpoint belongs to it
NEAR = 3.0  # a checkpoint belongs to steps up to this many times the distance of the nearest step
ROUNDING = 2e-3  # nats, rms, by which two correct engines differ
MOST = 0.5  # a checkpoint that belongs to more than this share of the steps is used for all


class Model(Struct, frozen=True):
    """The trainer's checkpoint: one folder for all rows, or one for every step."""

    name: str

    @property
    def by_step(self) -> bool:
        """Tell whether the folder depends on the row's step."""
        return STEP in self.name

    def of_step(self, step: int | None) -> Path:
        """Return the folder for a step of the table; refuse one that is no checkpoint."""
        if not self.by_step:
            return check_checkpoint(self.name)
        if step is None:
            folders = neighbours(Path(self.name))
            if not folders:
                raise RcdiagError(
                    f"{setting('model', self.name)}: the table has no column `step`, and no folder "
                    "fits the name",
                    hint="name one folder",
                )
            return check_checkpoint(str(folders[-1]))
        return check_checkpoint(self.name.replace(STEP, str(step)))

    def has(self, step: int) -> bool:
        """Tell whether there is a folder for a step of the table."""
        return Path(self.name.replace(STEP, str(step))).is_dir()


def neighbours(pattern: Path) -> list[Path]:
    """List the checkpoints that fit a name with {step}, in the order of their step numbers."""
    parent, name = pattern.parent, pattern.name
    before, _, after = name.partition(STEP)
    numbered = []
    for folder in parent.glob(f"{before}*{after}") if parent.is_dir() else ():
        number = folder.name.removeprefix(before).removesuffix(after)
        if number.isdigit() and (folder / "config.json").is_file() and weight_files(folder):
            numbered.append((int(number), folder))
    return [folder for _, folder in sorted(numbered)]


def beside(model: Path) -> list[Path]:
    """List checkpoints of other steps next to a checkpoint, those with the nearest number first.

    `step_4` is next to `step_8`: same name except for the last number, and same architecture.
    """
    numbers = list(re.finditer(r"\d+", model.name))
    if not numbers:
        return []
    start, end = numbers[-1].span()
    number, after = int(numbers[-1].group()), model.name[end:]
    pattern = model.parent / f"{model.name[:start]}{STEP}{after}"
    own = text_config(model)
    sizes = ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")
    others = [
        folder
        for folder in neighbours(pattern)
        if folder.resolve() != model.resolve()
        and all(text_config(folder).get(size) == own.get(size) for size in sizes)
    ]
    return sorted(
        others, key=lambda folder: abs(int(folder.name[start:].removesuffix(after)) - number)
    )


def folders_of(names: Sequence[str | Path]) -> list[Path]:
    """Return the checkpoints that a user names; a name is a checkpoint or a folder of them."""
    folders: list[Path] = []
    for name in names:
        path = Path(name)
        inside = (
            sorted(one for one in path.iterdir() if (one / "config.json").is_file())
            if path.is_dir() and not (path / "config.json").is_file()
            else []
        )
        folders += inside or [check_checkpoint(str(name))]
    if len(folders) > MOST_CHECKPOINTS:
        folders = folders[-MOST_CHECKPOINTS:]
    return folders


def tried_checkpoints(model: Model, named: Sequence[Path], steps: Sequence[int]) -> list[Path]:
    """Return the checkpoints to try: those named, else some next to the trainer's."""
    if named:
        own = {model.of_step(step).resolve() for step in steps} if not model.by_step else set()
        return [folder for folder in named if folder.resolve() not in own]
    if model.by_step:
        return list(reversed(neighbours(Path(model.name))))[: MOST_CHECKPOINTS // 2]
    return beside(model.of_step(None))[:NEIGHBOURS]


def steps_of_model(
    model: Model, case: Case, fleet: Callable[[Callable[[int], Path]], Forward]
) -> list[int] | None:
    """Return the steps whose rows a model can be compared with; None for all steps.

    With {step} in the name these are the steps that have a folder. A single folder, on a table of
    several steps, is compared with the steps whose trainer's column is near to its log-probs; if
    most steps are near, or none is nearer than the others, it is taken for all of them.
    """
    if case.facts.step is None:
        return None
    steps = sorted({int(step) for step in case.facts.step})
    if model.by_step:
        there = [step for step in steps if model.has(step)]
        if not there:
            listed = ", ".join(map(str, steps[:4]))
            if len(steps) > 4:
                listed = f"{listed}, ... {steps[-1]}"
            raise RcdiagError(
                f"{setting('model', model.name)}: no folder for any of the steps {listed}",
                hint="name the checkpoint folder, with {step} in place of the number of the step",
            )
        return None if there == steps else there
    if len(steps) == 1:
        return None
    folder = model.of_step(None)
    distance = _distances(case, steps, fleet(lambda row: folder))
    least = float(np.nanmin(distance)) if np.isfinite(distance).any() else np.nan
    near = distance <= NEAR * least + ROUNDING
    if not near.any() or near.mean() > MOST:
        return None
    return [step for step, chosen in zip(steps, near, strict=True) if chosen]


def _distances(case: Case, steps: list[int], forward: Forward) -> np.ndarray:
    """Return the rms distance of a model's log-probs from the trainer's, nats, [steps].

    The distance at a token is clipped to 1 nat; a step without log-probs has NaN.
    """
    assert case.facts.step is not None
    assert case.prompt_ids is not None
    policy = case.trainer or case.sampler
    distance = np.full(len(steps), np.nan)
    for number, step in enumerate(steps):
        full = [
            row
            for row in np.flatnonzero(case.facts.step == step)
            if len(case.prompt_ids.row(row)) > 0 and case.lengths[row] > 0
        ]
        if not full:
            continue
        # A few rows, evenly spread over the step.
        places = np.linspace(0, len(full) - 1, min(ROWS_OF_STEP, len(full))).astype(int)
        rows = [full[place] for place in np.unique(places)]
        made = forward.log_probs([passage_of(case, int(row)) for row in rows])
        at = np.concatenate(
            [np.arange(case.start[row], case.start[row] + case.lengths[row]) for row in rows]
        )
        recorded = case.log_probs[policy][at]
        known = case.mask[at] & np.isfinite(recorded)
        if known.any():
            distance[number] = np.sqrt(np.mean(np.square(recorded - made)[known].clip(max=1.0)))
    return distance
