"""The threads of the library that multiplies matrices for numpy."""

from __future__ import annotations

import os


def let_blas_threads_sleep() -> None:
    """Tell OpenBLAS, before it is loaded, to let its threads sleep where there is nothing to do.

    After every product they else wait for the next one in a loop, a tenth of a second on every
    core. A command that makes a few small products spends a fifth of its processor time on that.
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # 2^4 turns of that loop, the fewest
