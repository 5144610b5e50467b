"""The GPUs of this machine, found without torch."""

from __future__ import annotations

import os
import subprocess
from functools import cache

from rcdiag.errors import RcdiagError

VISIBLE = "CUDA_VISIBLE_DEVICES"


def gpus_here() -> list[str]:
    """Return the GPUs that this process may use, in the notation of CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get(VISIBLE)
    if visible is None:
        return list(_of_the_machine())
    names = [name.strip() for name in visible.split(",")]
    # CUDA reads the list up to the first invalid name; `-1` and an empty list hide all GPUs.
    end = next((at for at, name in enumerate(names) if name in ("", "-1")), len(names))
    return names[:end]


@cache
def _of_the_machine() -> tuple[str, ...]:
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ()
    return tuple(listed.stdout.split())


def refuse_idle_gpus() -> None:
    """Refuse to continue on the CPU if the machine has GPUs that torch cannot use.

    With a CPU build of torch, or a driver too old for its CUDA build, scoring would silently take
    hours. If CUDA_VISIBLE_DEVICES hides the GPUs, the user asked for the CPU.
    """
    if _of_the_machine() and gpus_here():
        raise RcdiagError(
            f"nvidia-smi lists GPUs ({', '.join(gpus_here())}), but torch cannot use them",
            hint="compare the driver's CUDA version (nvidia-smi) with torch.version.cuda; to score "
            f"on the CPU, put `{VISIBLE}=` before the command (hf also takes device=cpu)",
        )
