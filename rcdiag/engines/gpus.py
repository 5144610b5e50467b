"""The GPUs of this machine, found without torch."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

from rcdiag.errors import RcdiagError

VISIBLE = "CUDA_VISIBLE_DEVICES"
# The driver's file of the first GPU.
DEVICE = Path("/dev/nvidia0")
# What nvidia-smi prints where a driver is installed and no GPU is there.
NO_GPU = "No devices were found"


def gpus_here() -> list[str]:
    """Return the GPUs that this process may use, in the notation of CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get(VISIBLE)
    if visible is None:
        listed = _nvidia_smi()
        return [] if listed is None else [word for word in listed.stdout.split() if word.isdigit()]
    names = [name.strip() for name in visible.split(",")]
    # CUDA reads the list up to the first invalid name; `-1` and an empty list hide all GPUs.
    end = next((at for at, name in enumerate(names) if name in ("", "-1")), len(names))
    return names[:end]


@cache
def _nvidia_smi() -> subprocess.CompletedProcess[str] | None:
    """Have nvidia-smi list the GPUs of this machine; None where it is not installed."""
    try:
        return subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None


def refuse_idle_gpus() -> None:
    """Refuse to continue on the CPU if the machine has GPUs that torch cannot use.

    With a CPU build of torch, a driver too old for its CUDA build, or one whose update waits for a
    restart (nvidia-smi fails), scoring would silently take hours. If CUDA_VISIBLE_DEVICES hides the
    GPUs, the user asked for the CPU.
    """
    if VISIBLE in os.environ and not gpus_here():
        return
    listed = _nvidia_smi()
    said = "" if listed is None else (listed.stdout + listed.stderr).strip()
    if listed is not None and listed.returncode != 0 and NO_GPU not in said:
        sign = f"nvidia-smi fails ({next(iter(said.splitlines()), 'no message')})"
    elif listed is not None and gpus_here():
        sign = f"nvidia-smi lists GPUs ({', '.join(gpus_here())})"
    elif DEVICE.exists():
        sign = f"{DEVICE} is there"
    else:
        return
    raise RcdiagError(
        f"{sign}, but torch cannot use a GPU",
        hint="compare the driver's CUDA version (nvidia-smi) with torch.version.cuda; to score "
        f"on the CPU, put `{VISIBLE}=` before the command (hf also takes device=cpu)",
    )
