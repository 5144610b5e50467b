"""Memory, garbage collection and BLAS threads of a command's process."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import sys

# Numbers of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
MB = 1 << 20


def keep_freed_memory() -> None:
    """Make the C library reuse freed memory instead of returning it to the system.

    A pass over a table allocates and frees thousands of arrays of up to 16 MB, larger ones for long
    rows. If they are returned to the system, each page must be mapped and cleared again, which
    takes a fifth of the pass. Only glibc is changed.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    # Arrow, which is not loaded yet, then uses the same heap and what numpy freed.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(M_MMAP_MAX, 0)  # never allocate an array by mmap
    mallopt(M_TRIM_THRESHOLD, 128 * MB)
    mallopt(M_ARENA_MAX, 1)


def let_blas_threads_sleep() -> None:
    """Make OpenBLAS, before it is loaded, let its threads sleep when there is nothing to do.

    By default they spin for a tenth of a second on every core after each product, which is a fifth
    of the processor time of a command with a few small products.
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # 2^4 turns of that loop, the minimum


def hold_collection() -> None:
    """Switch Python's cyclic garbage collector off while nearly all new objects stay in use.

    This holds during imports and while a page is made: collecting would take a tenth of the time of
    `explain`, and of a page.
    """
    gc.disable()


def allow_collection() -> None:
    """Allow a last garbage collection at exit if torch is loaded.

    Without it engine libraries print warnings about leaks; if they are not loaded it would only
    cost a twentieth of the time of a page.
    """
    if "torch" in sys.modules:
        gc.enable()


def resume_collection() -> None:
    """Switch the garbage collector on again, only for objects made from now on.

    The arrays of a batch are part of reference cycles, so a pass over a table needs it.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
