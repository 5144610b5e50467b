"""Write small files so that a reader sees the old one or the new one, never half of it."""

from __future__ import annotations

import os
from pathlib import Path

from rcdiag.errors import RcdiagError


def write_bytes(path: Path, content: bytes) -> None:
    """Write under a temporary name in the same folder, then rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        temporary_is_there = path.parent.is_dir() and temporary.exists()
        if temporary_is_there:
            temporary.unlink()
        raise not_writable(path, error) from error


def write_text(path: Path, content: str) -> None:
    write_bytes(path, content.encode())


def not_writable(path: Path, error: OSError) -> RcdiagError:
    """The error for an output that the system refuses."""
    return RcdiagError(
        f"{path}: cannot be written ({error.strerror or error})",
        hint="choose another output path, or free space and permissions there",
    )
