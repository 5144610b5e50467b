"""Where a table is written: a path of this machine, or a URL of a storage.

A table for a URL is written to local disk first and then uploaded.
"""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any

from msgspec import Struct

from rcdiag.errors import RcdiagError, setting
from rcdiag.table.remote import is_url, local_path, reason, system_of
from rcdiag.url_secrets import without_own_secrets

# Uploads to these are atomic: a file appears once it is complete. In other storages, a file is
# uploaded under a temporary name and renamed.
OBJECT_STORAGE = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss"}
READ_ONLY = {"http", "https", "hf", "github", "zip", "tar"}


class Destination(Struct, frozen=True):
    """Where a table is written: to the local `path`, then uploaded to `url` if it is set."""

    path: Path
    url: str = ""

    @classmethod
    def of(cls, output: str | Path) -> Destination:
        """Return the destination for the output that a user names.

        A table for a URL is first written to the current folder, together with its finished parts,
        so that the same command resumes from there if it was killed.
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
        name = posixpath.basename(without_own_secrets(text))
        if not name:
            raise RcdiagError(f"{text}: a folder, not a file", hint=f"{text}scored.parquet")
        return cls(Path(f"{name}.upload"), text)

    def __str__(self) -> str:
        return without_own_secrets(self.url) or str(self.path)

    def check_free(self, *, force: bool) -> None:
        """Raise an error if a file exists at the URL, or if the storage cannot be reached."""
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
        """Copy the file to its URL; it becomes visible there only when it is complete."""
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
            raise RcdiagError(f"{self}: only {size:,} bytes arrived", hint=kept)

    def _not_written(self, error: Exception, kept: str) -> RcdiagError:
        return RcdiagError(
            f"{self}: cannot be written ({reason(self.url, error)})",
            hint=f"check the address and the credentials in the environment; {kept}",
        )


def _rename(system: Any, source: Path, path: str) -> None:
    """Upload under a temporary name in the same folder, then rename."""
    folder, name = posixpath.split(path)
    temporary = posixpath.join(folder, f".{name}.tmp")
    if folder:
        system.makedirs(folder, exist_ok=True)
    system.put_file(str(source), temporary)
    if system.exists(path):
        system.rm_file(path)
    system.mv(temporary, path)
