"""`--devices 4` and `--devices 0,1,2,3`: the GPUs, or shares of a processor, that engines use."""

from __future__ import annotations

import os
import subprocess

from rcdiag.errors import RcdiagError, setting
from rcdiag.frozen import dataclass

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices that a user allows: so many, or those of these names."""

    count: int
    names: tuple[str, ...] = ()  # GPUs as CUDA_VISIBLE_DEVICES has them; empty: any of them

    @classmethod
    def parse(cls, text: str) -> Devices:
        """Read a number of devices, or the numbers of GPUs with commas between (`3,` is one)."""
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        if "," not in text and text.strip().isdecimal() and int(text) > 0:
            return cls(int(text))
        bad = [name for name in names if not name.isdecimal()]
        if "," not in text or not names or bad or len(set(names)) < len(names):
            raise RcdiagError(
                f"{setting('devices', text)}: neither a number of devices nor different GPUs",
                hint="4 takes four of them; 0,1,2,3 takes these; 3, takes the one of number 3",
            )
        return cls(len(names), names)


def gpus_here() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get(VISIBLE)
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return []
    return listed.stdout.split()


def cores_here() -> list[int]:
    """Return the cores of the processor that this process may use."""
    return sorted(os.sched_getaffinity(0))
