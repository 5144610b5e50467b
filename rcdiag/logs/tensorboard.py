"""TensorBoard events: one file, or the folder of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rcdiag.extras import saying_what_to_install
from rcdiag.logs.log import LogFile, LogReader

NAMES = "events.out.tfevents.*"
# The first record of an event file holds the version of the format.
VERSION = b"brain.Event:"


def _read(file: LogFile) -> Iterator[Mapping[str, Any]]:
    with saying_what_to_install(f"{file.path} holds TensorBoard events: "):
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util import tensor_util
    paths = sorted(file.path.glob(NAMES)) if file.path.is_dir() else [file.path]
    for path in paths:
        # The loader converts scalars of all versions to zero-dimensional tensors.
        for event in EventFileLoader(str(path)).Load():
            arrays = {
                value.tag: tensor_util.make_ndarray(value.tensor)
                for value in event.summary.value
                if value.HasField("tensor") and not value.tensor.tensor_shape.dim
            }
            numbers = {
                tag: float(array) for tag, array in arrays.items() if array.dtype.kind in "fiu"
            }
            if numbers:
                yield {"step": event.step, **numbers}


TENSORBOARD = LogReader(
    name="tensorboard",
    says="TensorBoard event files, or the folder of a run with them",
    detect=lambda file: (
        VERSION in file.head[:64] or (file.path.is_dir() and any(file.path.glob(NAMES)))
    ),
    read=_read,
)
