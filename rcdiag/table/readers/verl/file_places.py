"""Where a file of verl lies tells its step and the number of responses to a prompt.

Folders of the options that dump rollouts, by version:
https://github.com/verl-project/verl/blob/v0.9.1/verl/utils/skip/rollout_skip.py and
https://github.com/verl-project/verl/blob/v0.7.1/verl/utils/rollout_skip.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rcdiag.table.readers.reader import natural_order

RESPONSES_PER_PROMPT = re.compile(r"GBS(?P<prompts>\d+)_+N(?P<responses>\d+)(?:_|$)")
STEP = re.compile(r"(?:^|[^a-z])(?:global_|gen)?steps?[_-]?(?P<step>\d+)", re.IGNORECASE)
INPUT_BATCH = "new_batch.dp"
OUTPUT_BATCH, QUEUE = "gen_batch.dp", "tq_batch.pt"
DUMPED = (OUTPUT_BATCH, QUEUE)
MARK = "meta.json"


def named_sizes(path: Path) -> tuple[int, int] | None:
    """Return prompts of a step and responses to a prompt, from the name of a folder or file."""
    for name in (path.name, *(parent.name for parent in list(path.parents)[:3])):
        if match := RESPONSES_PER_PROMPT.search(name):
            return int(match["prompts"]), int(match["responses"])
    return None


def recorded_step(path: Path, meta: dict[str, Any]) -> int | None:
    """Return the step that the batch records, or the file beside it that verl writes."""
    for facts in (meta, _beside(path)):
        step = facts.get("global_steps")
        if isinstance(step, int) and not isinstance(step, bool):
            return step
    return None


def named_step(path: Path) -> int | None:
    """Return the step in the name of a file or of its folder."""
    if path.name in DUMPED and path.parent.name.isdecimal():
        inner = path.name == QUEUE and path.parent.parent.name.isdecimal()
        return int(path.parent.parent.name if inner else path.parent.name)
    for name in (path.stem, path.parent.name):
        if match := STEP.search(name):
            return int(match["step"])
    return None


def _beside(path: Path) -> dict[str, Any]:
    return _facts(path.parent / MARK) if path.name in DUMPED else {}


def lost_batch(files: Sequence[Path]) -> Path | None:
    """Return the first batch that is not there although verl wrote its step's meta.json.

    verl writes meta.json behind the batch, so such a batch was lost on the way here.
    """
    dumped = {file.parent for file in files if file.name in DUMPED}
    for file in sorted(files, key=natural_order):
        if file.name == MARK and file.parent not in dumped:
            facts = _facts(file)
            if "global_steps" in facts:
                return file.parent / (QUEUE if "num_trajectories" in facts else OUTPUT_BATCH)
    return None


def _facts(file: Path) -> dict[str, Any]:
    """Return what verl writes of a step beside its batch; nothing where it cannot be read."""
    try:
        facts = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}
