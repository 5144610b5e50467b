"""Metrics printed to a console, in the lines of several trainers: a table of patterns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from rcdiag.logs.log import STEP_KEYS, LogFile, LoggedNumber, LogReader, Record, ShortLine

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
NUMPY = re.compile(r"^(?:np|numpy)\.\w+\((.*)\)$")  # how numpy 2 prints a scalar
# NeMo-RL prints the step above its metrics, and counts it from 1 in each epoch.
STEP_ABOVE = re.compile(r"={10,} Step (\d+)/\d+ ={10,}")
EPOCH_ABOVE = re.compile(r"={10,} Epoch (\d+)/\d+ ={10,}")
# The progress bar of HF's Trainer, which has no description: ` 10%|#   | 20/200 [01:20<`.
BAR_ABOVE = re.compile(r"^\s*\d+%\|[^|]*\| (\d+)/\d+ \[")
# In a line that a terminal wrapped: the end of a key of a dict, or of the dict.
IN_A_DICT = re.compile(r"'\s*:|\}$")
# What was left out of a line by hand, with the number that it cuts.
ELLIPSIS = re.compile(r"(?:,| -| \|)?\s*\S*(?:\.{3}|…)")


class Printed(Struct, frozen=True):
    """The lines that one trainer prints."""

    line: re.Pattern[str]  # (step) and (items) of a line with metrics
    item: re.Pattern[str]  # (key) and (value) of an item, whose end may be a unit or a comma
    keys: Mapping[str, str] = {}  # printed label -> key that the trainer logs, where they differ
    end: str = ""  # how every complete line ends
    above: re.Pattern[str] | None = None  # the step in a line above, where this line has none
    parted: bool = False  # a line has one of the metrics of the step above


# slime (miles prints the same), slime/observability/train_metric_utils.py, rollout_metrics.py; and
# the progress callback of HF's Trainer, which prints the dict alone.
OF_DICTS = Printed(
    re.compile(r"(?:^(?=.*\}$|\{[^{]*$)|(?:^|\s)(?:rollout|step|perf|eval) (\d+): )(\{'.*)"),
    re.compile(r"'([^']+)':\s*([^,}]+)"),
    end="}",
    above=BAR_ABOVE,
)
PRINTED = (
    # verl, verl/utils/logger/aggregate_logger.py, `concat_dict_to_str`: `step:12 - key:value`.
    # Ray puts a prefix before it, and behind it how many processes printed the same line.
    Printed(
        re.compile(r"(?:^|[\s)])step:(\d+) - (\S+:.*)"),
        re.compile(r"(?:^| - )(.+?):([^:\s]+)(?=\s|$)"),
    ),
    OF_DICTS,
    # prime-rl, src/prime_rl/trainer/rl/train.py and orchestrator/orchestrator.py (`step_message`):
    # `Step 12 | Loss 0.01 | ...` since commit f6563ff0 (June 2026), `Loss: 0.01` before.
    Printed(
        re.compile(r"(?:^|\s)Step (\d+) \| (.*)"),
        re.compile(r"(?:^| \| )\s*([^\d|]+?):? (-?(?:\d|nan|inf)\S*)"),
        {
            "Loss": "loss/mean",
            "Entropy": "entropy/all/mean",
            "Mismatch KL": "mismatch_kl/all/mean",
            "Grad. Norm": "optim/grad_norm",
            "LR": "optim/lr",
            "Reward": "reward/all/mean",
        },
    ),
    # NeMo-RL, nemo_rl/algorithms/grpo.py and ppo.py, "Training Results" (August 2026).
    Printed(
        re.compile(r"(?:^|\s)()• (.*)"),
        re.compile(r"^(.+?): (\S+)"),
        {
            "Loss": "train/loss",
            "Policy Loss": "train/loss",
            "Generation KL Error": "train/gen_kl_error",
            "Avg Reward": "train/reward",
            "Mean Generation Length": "train/mean_gen_tokens_per_sample",
            "Avg Trajectory Age": "train/avg_trajectory_age",
        },
        above=STEP_ABOVE,
        parted=True,
    ),
)


class _Line(Struct, frozen=True):
    """The metrics of a printed line."""

    number: int  # from 1
    kind: int  # place in PRINTED
    width: int  # characters
    numbers: dict[str, LoggedNumber]
    step: str  # "" where none is known
    short: bool | None  # it lacks keys; None: neither an ellipsis nor the line's end tells

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.numbers)


def _numbers(printed: Printed, items: str) -> dict[str, LoggedNumber]:
    numbers = {}
    for key, value in printed.item.findall(items):
        text = value.strip("'")
        wrapped = NUMPY.match(text)
        try:
            number = LoggedNumber.read(wrapped[1] if wrapped else text)
        except ValueError:
            continue
        numbers[printed.keys.get(key.strip(), key.strip())] = number
    return numbers


def _unwrapped(parts: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Join the lines of a dict that a terminal wrapped, under the number of the first one."""
    first, held = 0, ""
    for number, text in parts:
        if held and (not IN_A_DICT.search(text) or any(one.line.search(text) for one in PRINTED)):
            yield first, held
            held = ""
        first = first if held else number
        opened = held or ("{'" in text and OF_DICTS.line.search(text))
        held += text
        if not opened or held.endswith(OF_DICTS.end):
            yield first, held
            held = ""
    if held:
        yield first, held


def _lines(file: LogFile) -> Iterator[_Line]:
    above: dict[re.Pattern[str], int] = {}  # the last step that a line with it had
    epoch, earlier = 0, 0  # the epoch of that step, and the steps of the epochs before
    with file.path.open(encoding="utf-8-sig", errors="replace", newline="\n") as stream:
        parts = (
            (number, part.rstrip())
            for number, line in enumerate(stream, 1)
            for part in COLOUR.sub("", line).rstrip().split("\r")  # progress bars go back
        )
        for number, text in _unwrapped(parts):
            if begun := EPOCH_ABOVE.search(text):
                if int(begun[1]) > epoch:
                    epoch, earlier = int(begun[1]), above.get(STEP_ABOVE, 0)
            elif begun := STEP_ABOVE.search(text):
                above[STEP_ABOVE] = earlier + int(begun[1])
            elif begun := BAR_ABOVE.search(text):
                above[BAR_ABOVE] = int(begun[1])
            for kind, printed in enumerate(PRINTED):
                if (found := printed.line.search(text)) is None:
                    continue
                items = ELLIPSIS.sub("", found[2])
                numbers = _numbers(printed, items)
                step = found[1] or str(above.get(printed.above, "") if printed.above else "")
                short = not items.endswith(printed.end) if printed.end else None
                if items != found[2]:
                    short = True
                elif short and numbers:
                    numbers.popitem()  # which may be cut
                if numbers and (step or not printed.parted):
                    yield _Line(number, kind, len(text), numbers, step, short)
                break


def _records(file: LogFile) -> Iterator[Record]:
    """Yield the numbers of each line; of one that was cut without the last, which may be cut too.

    A trainer prints its metrics in one order, so a line was cut if it has only the first ones of
    the usual keys, or of those of another line of its width: a terminal cuts at one width.
    """
    lines = list(_lines(file))
    alike: dict[tuple[int, str], Counter[tuple[str, ...]]] = {}
    longest: dict[int, tuple[str, ...]] = {}  # by width
    for line in lines:
        alike.setdefault((line.kind, line.keys[0]), Counter())[line.keys] += 1
        longest[line.width] = max(longest.get(line.width, ()), line.keys, key=len)
    usual = {which: found.most_common(1)[0][0] for which, found in alike.items()}
    widths = {
        line.width
        for line in lines
        for whole in (usual[line.kind, line.keys[0]], longest[line.width])
        if line.short is None
        and len(line.keys) < len(whole)
        and line.keys == whole[: len(line.keys)]
    }
    for line in lines:
        numbers = line.numbers
        cut = line.short is None and line.width in widths
        if cut:
            numbers.popitem()
        if cut or line.short:
            yield ShortLine(line.number)
        named = line.step and not any(key.lower() in STEP_KEYS for key in numbers)
        if numbers:
            yield {"step": LoggedNumber.read(line.step), **numbers} if named else numbers


def _is_console(file: LogFile) -> bool:
    if not file.path.is_file() or b"\0" in file.head:
        return False
    return next(_lines(file), None) is not None


CONSOLE = LogReader(
    name="console",
    says="console output: lines `step:12 - actor/pg_loss:0.01 - ...` of verl, "
    "`rollout 12: {...}` and `step 12: {...}` of slime and miles, dicts of HF trainers, "
    "`Step 12 | Loss 0.01 | ...` of prime-rl, training results of NeMo-RL",
    detect=_is_console,
    read=_records,
)
