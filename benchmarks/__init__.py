"""Measurements of rcdiag: each program prints a table and stores it in `benchmarks/results`."""

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def store(path: Path, numbers: dict[str, Any]) -> None:
    """Write measured numbers with the machine and the date."""
    document = {"machine": machine(), "date": time.strftime("%Y-%m-%d"), **numbers}
    path.write_text(json.dumps(document, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """Return processor, cores, GPU and torch."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {"cpu": cpu, "cores": os.cpu_count(), "gpu": gpu, "torch": torch.__version__}
