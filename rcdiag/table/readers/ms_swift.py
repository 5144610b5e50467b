"""ms-swift's log of prompts and completions as text, one line per logging step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.jsonl import Int, records_with_rest
from rcdiag.table.readers.reader import Notes, Reader
from rcdiag.table.readers.text_only import RECORD, TextRow, encoding

# Numeric fields of a response that are not rewards.
NO_REWARDS = ("entropy", "solution")

# Larger integers are not rewards, and text with more digits is not a step.
LARGEST, DIGITS = 2**63, 18


class SwiftLine(msgspec.Struct):
    """A logging step of ms-swift (each field is a list), or one response of its Ray trainer."""

    prompt: str | list[str]
    completion: str | list[Any]
    step: str | Int | list[str | Int] | None = None
    gen_step: str | Int | list[str | Int | None] | None = None
    advantages: float | list[float | None] | None = None
    reward: float | list[float | None] | None = None


def _swift_rows(file: Path, notes: Notes) -> Iterator[TextRow]:
    before: Any = None
    for where, number, line, rest in records_with_rest(file, SwiftLine):
        prompts = line.prompt if isinstance(line.prompt, list) else [line.prompt]
        size = len(prompts)
        step = line.gen_step if line.step is None else line.step
        columns = {
            "step": _listed(step, size, where, "step"),
            "advantage": _listed(line.advantages, size, where, "advantages"),
            "reward": _listed(line.reward, size, where, "reward"),
        }
        columns |= _rewards(rest, size, line.reward is None)
        completions = _listed(line.completion, size, where, "completion")
        these = (prompts, completions, columns["advantage"])
        if isinstance(line.prompt, list) and these == before:
            notes.change("A logging step that repeats the rows of the one before: left out.", size)
            continue
        before = these
        for place in range(size):
            own: dict[str, Any] = {name: values[place] for name, values in columns.items()}
            own["step"] = _step(own["step"], where)
            text = completions[place]
            if not isinstance(text, str):
                raise RcdiagError(
                    f"{where}: `completion[{place}]` is {type(text).__name__}, not text",
                    hint="completions with images or token lists cannot be encoded again",
                )
            yield TextRow(number, prompts[place], text, own)


def _rewards(rest: dict[str, Any], size: int, alone: bool) -> dict[str, list[Any]]:
    """Return one column per reward function; if there is only one function, it is the reward."""
    numbers = {}
    for name, values in rest.items():
        if name in NO_REWARDS or not isinstance(values, list) or len(values) != size:
            continue
        if all(
            value is None
            or type(value) is float
            or (type(value) is int and abs(value) < LARGEST)  # fits a column
            for value in values
        ):
            numbers[name] = values
    if alone and len(numbers) == 1:
        return {"reward": next(iter(numbers.values()))}
    return numbers


def _step(value: str | int | None, where: str) -> int | None:
    """Return a step, which some versions write as text, as an integer."""
    if value is None or isinstance(value, int):
        return value
    if not value.isdecimal() or len(value) > DIGITS:
        raise RcdiagError(
            f"{where}: `step` is {value[:DIGITS]!r}, not a whole number",
            hint="no version of ms-swift writes that; repair the line",
        )
    return int(value)


def _listed(value: Any, size: int, where: str, name: str) -> list[Any]:
    """Return one value per response of a logging step."""
    values = value if isinstance(value, list) else [value] * size
    if len(values) != size:
        raise RcdiagError(
            f"{where}: `{name}` has {len(values)} values, `prompt` has {size}",
            hint="values of this line do not belong together; was the file edited by hand?",
        )
    return values


MS_SWIFT = Reader(
    name="ms-swift",
    says="ms-swift's log of completions, text: completions.jsonl.",
    patterns=("completions.jsonl",),
    detect=lambda peek: (
        {"prompt", "completion"} <= peek.keys
        and not peek.keys.isdisjoint({"step", "gen_step"})
        and peek.keys.isdisjoint({"task_id", "response_ids"})
    ),
    read=encoding(_swift_rows, specials=True),
    source="https://github.com/modelscope/ms-swift/blob/main/swift/rlhf_trainers/grpo_trainer.py",
    text_only=f"ms-swift has no option that dumps tokens; {RECORD}",
)
