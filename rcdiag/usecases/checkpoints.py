"""Names of checkpoints that a user gives stand for folders: one, one for every step, or several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from rcdiag.engines.checkpoint import check_checkpoint, text_config, weight_files
from rcdiag.errors import RcdiagError, setting

STEP = "{step}"
MOST_CHECKPOINTS = 12  # of a folder, those nearest to the trainer's first
NEIGHBOURS = 2  # checkpoints beside the trainer's that are tried unasked


class Model(Struct, frozen=True):
    """The trainer's checkpoint: one folder for all rows, or one for every step."""

    name: str

    @property
    def by_step(self) -> bool:
        """Tell whether the folder depends on the row's step."""
        return STEP in self.name

    def of_step(self, step: int | None) -> Path:
        """Return the folder for a step of the table, checked."""
        if not self.by_step:
            return check_checkpoint(self.name)
        if step is None:
            return check_checkpoint(str(self._newest()))
        return check_checkpoint(self.name.replace(STEP, str(step)))

    def has(self, step: int) -> bool:
        """Tell whether there is a folder for a step of the table."""
        return Path(self.name.replace(STEP, str(step))).is_dir()

    def _newest(self) -> Path:
        folders = neighbours(Path(self.name))
        if not folders:
            raise RcdiagError(
                f"{setting('model', self.name)}: the table has no column `step`, and no folder "
                "fits the name",
                hint="name one folder",
            )
        return folders[-1]


def neighbours(pattern: Path) -> list[Path]:
    """List the checkpoints that a name with {step} in place of the number stands for, in order."""
    parent, name = pattern.parent, pattern.name
    before, _, after = name.partition(STEP)
    numbered = []
    for folder in parent.glob(f"{before}*{after}") if parent.is_dir() else ():
        number = folder.name.removeprefix(before).removesuffix(after)
        if number.isdigit() and (folder / "config.json").is_file() and weight_files(folder):
            numbered.append((int(number), folder))
    return [folder for _, folder in sorted(numbered)]


def beside(model: Path) -> list[Path]:
    """List checkpoints of other steps beside a checkpoint, nearest in number first.

    `step_4` lies beside `step_8`: the same name but for its last number, the same architecture.
    """
    digits = "".join(reversed([c for c in _reversed_number(model.name)]))
    if not digits:
        return []
    start = model.name.rindex(digits)
    pattern = model.parent / f"{model.name[:start]}{STEP}{model.name[start + len(digits) :]}"
    own = text_config(model)
    sizes = ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")
    others = [
        folder
        for folder in neighbours(pattern)
        if folder.resolve() != model.resolve()
        and all(text_config(folder).get(size) == own.get(size) for size in sizes)
    ]
    number = int(digits)
    return sorted(
        others,
        key=lambda folder: abs(
            int(folder.name[start:].removesuffix(model.name[start + len(digits) :])) - number
        ),
    )


def _reversed_number(name: str) -> str:
    """Return the last run of digits of a name, from its end to its beginning."""
    made = ""
    for letter in reversed(name):
        if letter.isdigit():
            made += letter
        elif made:
            break
    return made


def folders_of(names: Sequence[str | Path]) -> list[Path]:
    """Return the checkpoints that a user names: each a checkpoint, or a folder of checkpoints."""
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
    """Return the checkpoints to try: those named, else neighbours of the trainer's."""
    if named:
        own = {model.of_step(step).resolve() for step in steps} if not model.by_step else set()
        return [folder for folder in named if folder.resolve() not in own]
    if model.by_step:
        return list(reversed(neighbours(Path(model.name))))[: MOST_CHECKPOINTS // 2]
    return beside(model.of_step(None))[:NEIGHBOURS]
