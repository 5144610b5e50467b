"""The entry point of `rcdiag`: turns errors and signals, also during imports, into exit codes."""

from __future__ import annotations

import errno
import sys
import traceback
from typing import NoReturn

from cli.interrupts import interrupts
from cli.terminal.visible import visible

# Operating system errors that a user can fix but that the input does not cause.
SYSTEM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE}


def main() -> None:
    """Run a command; 0 ran, 1 findings, 2 could not run, 130 interrupted."""
    # A signal may also arrive while the handlers are being restored.
    try:
        # A terminated command ends like an interrupted one: temporary folders are removed, parts
        # are kept.
        with interrupts():
            _run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        # If SIGINT arrived during exec() of a source text (dataclasses do that at import), CPython
        # remembers it and ends by the signal even though it was handled. Another exec() clears
        # this.
        exec("")


def _run() -> None:
    from cli.process import (
        hold_collection,
        keep_freed_memory,
        let_blas_threads_sleep,
        resume_collection,
    )

    let_blas_threads_sleep()
    keep_freed_memory()
    hold_collection()
    from cli.app import app
    from rcdiag.errors import RcdiagError, is_out_of_memory
    from rcdiag.url_secrets import remember_secrets, without_secrets

    remember_secrets(*sys.argv[1:])

    try:
        app()
    except (SystemExit, KeyboardInterrupt):
        raise
    except RcdiagError as error:
        _refuse(error.message, error.hint)
    except BaseException as error:
        if is_out_of_memory(error):
            said = str(error).partition("\n")[0]
            _refuse(
                f"out of memory ({said})" if said else "out of memory",
                "take fewer rows (--rows), a shorter part of the dump, or a larger machine or GPU",
            )
        if isinstance(error, OSError) and error.errno in SYSTEM:
            where = f"{error.filename}: " if error.filename else ""
            said = without_secrets(f"{where}{error.strerror}")
            _refuse(said, "free space there, or set TMPDIR to another disk")
        # A bug in rcdiag: print the traceback, and never use the exit code that means "findings".
        shown = without_secrets("".join(traceback.format_exception(error)))
        print(visible(shown), file=sys.stderr, end="")
        sys.exit(2)
    finally:
        resume_collection()


def _refuse(message: str, hint: str) -> NoReturn:
    from rcdiag.errors import on_command_line

    print(f"error: {visible(on_command_line(message))}", file=sys.stderr)
    if hint:
        print(f"hint: {visible(on_command_line(hint))}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
