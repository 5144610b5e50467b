"""Where a file of verl lies tells its step and the number of responses to a prompt.

Folders of the options that dump rollouts, by version:
https://github.com/verl-project/verl/blob/v0.9.1/verl/utils/skip/rollout_skip.py and
https://github.com/verl-project/verl/blob/v0.7.1/verl/utils/rollout_skip.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

RESPONSES_PER_PROMPT = re.compile(r"GBS(?P<prompts>\d+)_+N(?P<responses>\d+)(?:_|$)")
STEP = re.compile(r"(?:^|[^a-z])(?:global_|gen)?steps?[_-]?(?P<step>\d+)", re.IGNORECASE)
INPUT_BATCH = "new_batch.dp"
OUTPUT_BATCH, QUEUE = "gen_batch.dp", "tq_batch.pt"
DUMPED = (OUTPUT_BATCH, QUEUE)


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
    try:
        facts = json.loads((path.parent / "meta.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if path.name in DUMPED and isinstance(facts, dict) else {}
