"""Writes the numbers of trainers' own code that quick tests read: python -m tests.oracle.store."""

from __future__ import annotations

from collections.abc import Callable

from tests.oracle import areal, axolotl, ms_swift, nemo_rl, openrlhf, skyrl, trl, trl_async
from tests.oracle.checkouts import AREAL, Checkout
from tests.trainers.answers import FOLDER, Answers, write_answers

ANSWERS: dict[str, Callable[[], Answers]] = {
    "trl/trl-1.16": trl.answers,
    "trl_async/trl-async-1.16": trl_async.answers,
    "axolotl/axolotl-0.21": axolotl.answers,
    "ms_swift/ms-swift-4.6": ms_swift.answers,
    "openrlhf/openrlhf-0.11.2": lambda: openrlhf.answers("openrlhf-0.11.2"),
    "openrlhf/openrlhf-0.11.0": lambda: openrlhf.answers("openrlhf-0.11.0"),
    "skyrl/skyrl-0.4": skyrl.answers,
    "areal/areal-1.0": areal.answers,
    "areal/areal-20260822": lambda: areal.answers(areal.NEWEST),
    "nemo_rl/nemo-rl": nemo_rl.answers,
}
CHECKOUTS: dict[str, Checkout] = {
    "nemo_rl/nemo-rl": nemo_rl.NEMO_RL,
    "areal/areal-20260822": AREAL,
}

if __name__ == "__main__":
    for name, answers in ANSWERS.items():
        if name not in CHECKOUTS or CHECKOUTS[name].folder:
            write_answers(FOLDER / f"{name}.json", answers())
