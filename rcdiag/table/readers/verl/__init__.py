"""verl's batches of responses, from its options that dump rollouts or from users' hooks."""

from __future__ import annotations

from collections.abc import Iterator

from rcdiag.table.readers.peek import Peek
from rcdiag.table.readers.reader import Dump, Reader, Rows
from rcdiag.table.readers.safe import laid_out, open_content
from rcdiag.table.readers.verl.contents import (
    DATA_PROTO,
    INPUT_BATCH,
    MARK,
    QUEUE,
    lost_batch,
    missing_responses,
    open_batch,
)
from rcdiag.table.readers.verl.cut_rows import rows_of


def _is_verl(peek: Peek) -> bool:
    """Recognise a DataProto, the tensor names of a batch, or a batch of TransferQueue."""
    if DATA_PROTO in peek.pickle_calls or (peek.name == QUEUE and peek.is_torch_file):
        return True
    words = peek.pickle_words
    return {"tensordict", "tags", "keys"} <= words or (
        "responses" in words and not words.isdisjoint({"attention_mask", "response_mask"})
    )


def _read(dump: Dump) -> Iterator[Rows]:
    """Read one file after the other; skip batches that are the sampler's input."""
    held = 0
    for number, path in enumerate(dump.files):
        batch = open_batch(open_content(path))
        if "responses" not in batch.tensors and path.name == INPUT_BATCH:
            dump.notes.change(f"{INPUT_BATCH}, the sampler's input, is left out")
            continue
        held += 1
        with laid_out(str(path), "verl"):
            yield from rows_of(batch, path, number, dump.notes)
    if not held:
        raise missing_responses(dump.files[0])


VERL = Reader(
    name="verl",
    says="Batches of verl: DataProto files of its rollout dumps, batches of TransferQueue, and "
    "what a hook in the trainer saves with torch.save or save_to_disk.",
    patterns=("*.dp", "*.pt", "*.pth", "*.pkl", "*GBS*_N*"),
    beside=(MARK,),
    detect=_is_verl,
    read=_read,
    lost=lost_batch,
    source="https://github.com/verl-project/verl/blob/v0.9.1/verl/protocol.py",
)
