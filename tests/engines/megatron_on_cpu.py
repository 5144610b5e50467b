"""Run a script that uses Megatron-core where there is no GPU: megatron_on_cpu.py SCRIPT ARGUMENT...

Megatron asks for the GPU by number, waits for it, and takes its random numbers for dropout, which
is 0 here. Everything that is computed is Megatron's own.
"""

from __future__ import annotations

import contextlib
import runpy
import sys

import torch
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

torch.cuda.current_device, torch.cuda.synchronize = (lambda: "cpu"), (lambda: None)
CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
