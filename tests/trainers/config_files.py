"""A trainer's configuration file, written and read."""

from __future__ import annotations

from pathlib import Path

from rcdiag.trainers.own_config import TrainerConfig, read_trainer_config


def read(folder: Path, text: str, trainer: str | None = None) -> TrainerConfig:
    """Read a file with this text, with format and trainer detected."""
    file = folder / "config"
    file.write_text(text)
    return read_trainer_config(file, trainer)
