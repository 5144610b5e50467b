"""Metrics printed to a console: verl's `step:12 - key:value`, and dicts of slime, miles and HF."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rcdiag.logs.log import STEP_KEYS, LogFile, LoggedNumber, LogReader

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# verl, verl/utils/logger/aggregate_logger.py, `concat_dict_to_str`; Ray puts a prefix before it.
OF_VERL = re.compile(r"(?:^|[\s)])step:(\d+) - (\S+:.*)")
# slime, slime/observability/train_metric_utils.py and rollout_metrics.py; miles prints the same.
OF_SLIME = re.compile(r"(?:^|\s)(?:rollout|step|perf|eval) (\d+): (\{'.*\})\s*$")
# The progress callback of HF's Trainer prints its dict of metrics without a step.
OF_HF = re.compile(r"^()(\{'.*\})\s*$")
ITEM = re.compile(r"'([^']+)': ([^,}]+)")
NUMPY = re.compile(r"^(?:np|numpy)\.\w+\((.*)\)$")  # how numpy 2 prints a scalar


def _line(text: str) -> tuple[str, list[tuple[str, str]]] | None:
    """Parse a printed line: its step ("" without one), and pairs of key and value as text."""
    if match := OF_VERL.search(text):
        parts = (part.rpartition(":") for part in match[2].split(" - "))
        return match[1], [(key, value) for key, colon, value in parts if key and colon]
    if match := OF_SLIME.search(text) or OF_HF.search(text):
        return match[1], ITEM.findall(match[2])
    return None


def _numbers(items: list[tuple[str, str]]) -> dict[str, LoggedNumber]:
    numbers = {}
    for key, value in items:
        # After the last value Ray may print how many processes printed the same line.
        text = (value.split() or [""])[0].strip("'")
        wrapped = NUMPY.match(text)
        try:
            numbers[key.strip()] = LoggedNumber.read(wrapped[1] if wrapped else text)
        except ValueError:
            continue
    return numbers


def _records(file: LogFile) -> Iterator[Mapping[str, Any]]:
    with file.path.open(encoding="utf-8-sig", errors="replace") as stream:
        for line in stream:
            found = _line(COLOUR.sub("", line).rpartition("\r")[2].rstrip("\n"))
            if found is None:
                continue
            step, items = found
            numbers = _numbers(items)
            if not numbers:
                continue
            named = step and not any(key.lower() in STEP_KEYS for key in numbers)
            yield {"step": LoggedNumber.read(step), **numbers} if named else numbers


def _is_console(file: LogFile) -> bool:
    if not file.path.is_file() or b"\0" in file.head:
        return False
    return next(_records(file), None) is not None


CONSOLE = LogReader(
    name="console",
    says="console output: lines `step:12 - actor/pg_loss:0.01 - ...` of verl, "
    "`rollout 12: {...}` and `step 12: {...}` of slime and miles, dicts of HF trainers",
    detect=_is_console,
    read=_records,
)
