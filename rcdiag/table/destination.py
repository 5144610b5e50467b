"""A table is written to a path of this machine, or here first and then to object storage."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any

from msgspec import Struct

from rcdiag.errors import RcdiagError, setting, without_secrets
from rcdiag.table.remote import is_url, local_path, reason, system_of

# Storages in which a file appears when it was uploaded whole; in others it is renamed at the end.
OBJECT_STORAGE = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss"}
READ_ONLY = {"http", "https", "hf", "data", "github", "zip", "tar"}


class Destination(Struct, frozen=True):
    """Where a table goes: to `path`, and on to `url` where that is given."""

    path: Path
    url: str = ""

    @classmethod
    def of(cls, output: str | Path) -> Destination:
        """Return the destination that a user names.

        What goes to a URL is written to the current folder first, with its finished parts, so that
        the same command goes on from there after a kill.
        """
        text = str(output)
        if not is_url(text):
            return cls(Path(local_path(text)))
        protocol = text.partition("://")[0]
        if protocol in READ_ONLY:
            raise RcdiagError(
                f"{text}: nothing can be written to {protocol}://",
                hint="write to a path of this machine, or to s3://, gs:// or az://",
            )
        name = posixpath.basename(without_secrets(text))
        if not name:
            raise RcdiagError(f"{text}: a folder, not a file", hint=f"{text}scored.parquet")
        return cls(Path(f"{name}.upload"), text)

    def __str__(self) -> str:
        return without_secrets(self.url) or str(self.path)

    def check_free(self, *, force: bool) -> None:
        """Refuse a URL behind which a file is already, and one that cannot be asked."""
        if not self.url:
            return
        system, path = system_of(self.url)
        try:
            there = system.exists(path)
        except Exception as error:  # every file system has errors of its own
            raise self._not_written(error, "nothing was computed yet") from error
        if there and not force:
            raise RcdiagError(f"{self}: already there", hint=f"another URL, or {setting('force')}")

    def upload(self) -> None:
        """Copy the file to its URL, where it appears when all of it is there."""
        system, path = system_of(self.url)
        kept = f"the whole table is in {self.path}: the same command uploads it"
        try:
            if self.url.partition("://")[0] in OBJECT_STORAGE:
                system.put_file(str(self.path), path)
            else:
                _rename(system, self.path, path)
            system.invalidate_cache()
            size = system.size(path)
        except Exception as error:
            raise self._not_written(error, kept) from error
        if size is not None and size != self.path.stat().st_size:
            raise RcdiagError(f"{self}: {size:,} bytes arrived, not all", hint=kept)

    def _not_written(self, error: Exception, kept: str) -> RcdiagError:
        return RcdiagError(
            f"{self}: cannot be written ({reason(self.url, error)})",
            hint=f"check the address and the credentials in the environment; {kept}",
        )


def _rename(system: Any, source: Path, path: str) -> None:
    """Upload under a temporary name beside the path, then rename."""
    folder, name = posixpath.split(path)
    temporary = posixpath.join(folder, f".{name}.tmp")
    if folder:
        system.makedirs(folder, exist_ok=True)
    system.put_file(str(source), temporary)
    if system.exists(path):
        system.rm_file(path)
    system.mv(temporary, path)
