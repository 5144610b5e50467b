"""How the process of a command holds its memory, and when threads of numpy sleep."""

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

    A pass over a table makes and frees arrays of up to 16 MB by the thousand, larger ones where a
    row is long. Handed back, every page of them has to be asked for and cleared anew, which takes a
    fifth of the pass. Other C libraries than glibc are left as they are.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    # Arrow, which is not loaded yet, takes its buffers there too: each uses what others freed.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(M_MMAP_MAX, 0)  # no array is a mapping of its own
    mallopt(M_TRIM_THRESHOLD, 128 * MB)
    mallopt(M_ARENA_MAX, 1)


def let_blas_threads_sleep() -> None:
    """Tell OpenBLAS, before it is loaded, to let its threads sleep where there is nothing to do.

    After every product they else wait for the next one in a loop, a tenth of a second on every
    core. A command that makes a few small products spends a fifth of its processor time on that.
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # 2^4 turns of that loop, the fewest


def hold_collection() -> None:
    """Tell Python not to look for cycles of unused objects, where nearly all that is made stays.

    It stays while modules are imported, and while the page is made; looking through it takes a
    tenth of the time of `explain`, and of a page.
    """
    gc.disable()


def allow_collection() -> None:
    """Tell Python to look for cycles as it ends, where an engine's libraries are loaded.

    They print what they think has leaked without that last look; without them it would only take a
    twentieth of the time of a page.
    """
    if "torch" in sys.modules:
        gc.enable()


def resume_collection() -> None:
    """Tell Python to look for cycles again, among objects made from now on: the work begins.

    The arrays of a batch hang in cycles, so that a table would fill the memory.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
