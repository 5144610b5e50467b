"""Read torch files: zip archives with a pickle and one member of bytes per storage.

Layout: https://github.com/pytorch/pytorch/blob/v2.8.0/torch/serialization.py (`_save`). The archive
is not extracted: storages are views of the file.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.safe.content import Content, damaged, open_content
from rcdiag.table.readers.safe.stand_ins import Name, Pair
from rcdiag.table.readers.safe.unpickler import unpickled
from rcdiag.table.readers.safe.views import KINDS, STORAGES, UNTYPED, Storage

ZIP = b"PK\x03\x04"
# Header of a member: magic bytes, and the lengths of its name and of the extra field after it.
MEMBER = struct.Struct("<4s22xHH")
LOCAL_HEADER = MEMBER.size  # bytes
LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the magic number of files before torch 1.6


def is_torch_file(head: bytes | memoryview) -> bool:
    """Tell whether bytes begin like a zip archive, which torch.save writes."""
    return bytes(head[:4]) == ZIP


def load_torch(source: Path | Content, names: Mapping[Pair, Name] | None = None) -> Any:
    """Return what torch.save wrote: plain containers with tensors that are views of the file.

    `names` are replacements for the classes of a trainer, in addition to those for every file.
    """
    content = open_content(source)
    if bytes(content.view[: len(LEGACY)]) == LEGACY:
        raise RcdiagError(
            f"{content.name}: a torch file in the format of torch before 1.6",
            hint="write it again: torch.save(torch.load(FILE, weights_only=True), NEW)",
        )
    archive = _Archive(content)
    pickle = content.inner(archive.member("data.pkl"), "data.pkl")
    return unpickled(pickle, names, archive.storage)


class _Archive:
    """The members of a torch file, which are stored uncompressed."""

    def __init__(self, content: Content) -> None:
        self.content = content
        self.storages: dict[str, Storage] = {}
        try:
            with zipfile.ZipFile(content.stream()) as archive:
                self.members = {info.filename: info for info in archive.infolist()}
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, LookupError) as error:
            raise damaged(content, f"not a zip archive of torch.save ({error})") from error
        pickles = [name for name in self.members if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise damaged(content, "not a zip archive of torch.save (it needs one data.pkl)")
        self.root = pickles[0].removesuffix("data.pkl")
        self.order = "<"
        if self.root + "byteorder" in self.members:
            order = bytes(self.member("byteorder"))
            if order not in (b"little", b"big"):
                raise damaged(self.content, "an unknown byte order")
            self.order = "<" if order == b"little" else ">"

    def member(self, name: str) -> memoryview:
        """Return the bytes of a member, after verifying their checksum."""
        info = self.members.get(self.root + name)
        if info is None:
            raise damaged(self.content, f"{name} is missing")
        view, header = self.content.view, info.header_offset
        if info.compress_type != zipfile.ZIP_STORED or not 0 <= header <= len(view) - LOCAL_HEADER:
            raise damaged(self.content, f"{name} is not stored as by torch.save")
        mark, length_of_name, length_of_extra = MEMBER.unpack_from(view, header)
        start = header + LOCAL_HEADER + length_of_name + length_of_extra
        end = start + info.file_size
        if mark != ZIP or end > len(view):
            raise damaged(self.content, f"{name} is truncated")
        part = view[start:end]
        # The checksum is missing with torch.serialization.set_crc32_options(False).
        if info.CRC and zlib.crc32(part) != info.CRC:
            raise damaged(self.content, f"the checksum of {name} does not match its bytes")
        return part

    def storage(self, reference: Any) -> Storage:
        """Return the storage that a persistent id refers to."""
        what, kind_name, key, _, count = reference
        if what != "storage" or not isinstance(kind_name, Name) or not isinstance(key, str):
            raise TypeError("a reference to something other than a storage")
        name = kind_name.name.rpartition(".")[2]
        kind = "uint8" if name == UNTYPED else STORAGES[name]
        stored = self.storages.get(key)
        if stored is None:
            stored = self.storages[key] = Storage(kind, self.member(f"data/{key}"), self.order)
        itemsize = int(KINDS[kind][1:])
        if type(count) is not int or count * itemsize != len(stored.view):
            raise ValueError("a storage whose size differs from the one stated in the file")
        return stored if stored.kind == kind else Storage(kind, stored.view, self.order)
