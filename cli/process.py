"""Memory, garbage collection and BLAS threads of the process of a command."""

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
    """Tell the C library to use freed memory again instead of handing it back to the system.

    A pass over a table allocates and frees thousands of arrays of up to 16 MB, larger ones where a
    row is long. If they are returned to the system, each page must be mapped and cleared again,
    which takes a fifth of the pass. C libraries other than glibc are left alone.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    # Arrow, not loaded yet, allocates from the same heap, so that it reuses what numpy freed.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(M_MMAP_MAX, 0)  # no array is a mapping of its own
    mallopt(M_TRIM_THRESHOLD, 128 * MB)
    mallopt(M_ARENA_MAX, 1)


def let_blas_threads_sleep() -> None:
    """Tell OpenBLAS, before it is loaded, to let its threads sleep where there is nothing to do.

    By default they spin for a tenth of a second on every core after each product. That is a fifth
    of the processor time of a command that makes a few small products.
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # 2^4 turns of that loop, the fewest


def hold_collection() -> None:
    """Switch Python's cyclic garbage collector off where nearly all new objects stay in use.

    That is so while modules are imported and while a page is made: collecting takes a tenth of the
    time of `explain`, and of a page.
    """
    gc.disable()


def allow_collection() -> None:
    """Allow a last garbage collection at exit if torch is loaded.

    Without it engine libraries print warnings of leaks; without these libraries it would only cost
    a twentieth of the time of a page.
    """
    if "torch" in sys.modules:
        gc.enable()


def resume_collection() -> None:
    """Switch the garbage collector on again, for objects made from now on, as the work begins.

    The arrays of a batch are part of reference cycles: without it a table would fill the memory.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
