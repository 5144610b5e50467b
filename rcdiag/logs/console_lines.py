"""Metrics printed to a console, in the lines of several trainers: a table of patterns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from rcdiag.logs.log import STEP_KEYS, LogFile, LoggedNumber, LogReader

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
NUMPY = re.compile(r"^(?:np|numpy)\.\w+\((.*)\)$")  # how numpy 2 prints a scalar
# NeMo-RL prints the step above its metrics, and counts it from 1 in each epoch.
STEP_ABOVE = re.compile(r"={10,} Step (\d+)/\d+ ={10,}")
EPOCH_ABOVE = re.compile(r"={10,} Epoch (\d+)/\d+ ={10,}")


class Printed(Struct, frozen=True):
    """The lines that one trainer prints."""

    line: re.Pattern[str]  # (step) and (items) of a line with metrics
    item: re.Pattern[str]  # (key) and (value) of an item, whose end may be a unit or a comma
    keys: Mapping[str, str] = {}  # printed label -> key that the trainer logs, where they differ
    step_above: bool = False  # the step stands in a line above, and not in this one


DICT_ITEM = re.compile(r"'([^']+)': ([^,}]+)")
PRINTED = (
    # verl, verl/utils/logger/aggregate_logger.py, `concat_dict_to_str`: `step:12 - key:value`.
    # Ray puts a prefix before it, and behind it how many processes printed the same line.
    Printed(
        re.compile(r"(?:^|[\s)])step:(\d+) - (\S+:.*)"),
        re.compile(r"(?:^| - )(.+?):([^:\s]+)(?=\s|$)"),
    ),
    # slime (miles prints the same), slime/observability/train_metric_utils.py, rollout_metrics.py.
    Printed(re.compile(r"(?:^|\s)(?:rollout|step|perf|eval) (\d+): (\{'.*\})\s*$"), DICT_ITEM),
    # The progress callback of HF's Trainer prints its dict of metrics without a step.
    Printed(re.compile(r"^()(\{'.*\})\s*$"), DICT_ITEM),
    # prime-rl, src/prime_rl/trainer/rl/train.py and orchestrator/orchestrator.py (`step_message`):
    # `Step 12 | Loss 0.01 | ...` since commit f6563ff0 (June 2026), `Loss: 0.01` before.
    Printed(
        re.compile(r"(?:^|\s)Step (\d+) \| (.*)"),
        re.compile(r"(?:^| \| )\s*(\D+?):? (-?(?:\d|nan|inf)\S*)"),
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
        re.compile(r"^()\W*• (.*)"),
        re.compile(r"^(.+?): (\S+)"),
        {
            "Loss": "train/loss",
            "Policy Loss": "train/loss",
            "Generation KL Error": "train/gen_kl_error",
            "Avg Reward": "train/reward",
            "Mean Generation Length": "train/mean_gen_tokens_per_sample",
            "Avg Trajectory Age": "train/avg_trajectory_age",
        },
        step_above=True,
    ),
)


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


def _records(file: LogFile) -> Iterator[Mapping[str, Any]]:
    above: int | None = None  # the step in a line above
    epoch, earlier = 0, 0  # the epoch of that step, and the steps of the epochs before
    with file.path.open(encoding="utf-8-sig", errors="replace") as stream:
        for line in stream:
            text = COLOUR.sub("", line).rpartition("\r")[2].rstrip("\n")
            if begun := EPOCH_ABOVE.search(text):
                if int(begun[1]) > epoch:
                    epoch, earlier = int(begun[1]), above or 0
            elif begun := STEP_ABOVE.search(text):
                above = earlier + int(begun[1])
            for printed in PRINTED:
                if (found := printed.line.search(text)) is None:
                    continue
                step = found[1] or ("" if above is None else str(above))
                numbers = _numbers(printed, found[2])
                if numbers and (step or not printed.step_above):
                    named = step and not any(key.lower() in STEP_KEYS for key in numbers)
                    yield {"step": LoggedNumber.read(step), **numbers} if named else numbers
                break


def _is_console(file: LogFile) -> bool:
    if not file.path.is_file() or b"\0" in file.head:
        return False
    return next(_records(file), None) is not None


CONSOLE = LogReader(
    name="console",
    says="console output: lines `step:12 - actor/pg_loss:0.01 - ...` of verl, "
    "`rollout 12: {...}` and `step 12: {...}` of slime and miles, dicts of HF trainers, "
    "`Step 12 | Loss 0.01 | ...` of prime-rl, training results of NeMo-RL",
    detect=_is_console,
    read=_records,
)
