"""Load the reward function that a user names by file and function."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rcdiag.errors import RcdiagError

if TYPE_CHECKING:
    from rcdiag.usecases.replay.fresh_samples import Reward


def load_reward(text: str) -> Reward:
    """Give the function of FILE.py:FUNCTION; the file may import what lies in its own folder."""
    path, _, name = text.rpartition(":")
    file = Path(path)
    if not name or not file.is_file():
        raise RcdiagError(
            f"--reward {text}: wanted FILE.py:FUNCTION",
            hint="for example --reward sample_data/reward.py:exact",
        )
    spec = importlib.util.spec_from_file_location("rcdiag_reward", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
        found = getattr(module, name)
        if not callable(found):
            raise TypeError(f"`{name}` is no function")
        return cast("Reward", found)
    except Exception as error:
        raise RcdiagError(
            f"--reward {text}: cannot be loaded ({type(error).__name__}: {error})",
            hint="the file must run by itself and define the function",
        ) from error
    finally:
        sys.path.pop(0)
