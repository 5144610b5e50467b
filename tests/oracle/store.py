"""Writes the numbers of trainers' own code that quick tests read: python -m tests.oracle.store."""

from __future__ import annotations

from collections.abc import Callable

from tests.oracle import (
    areal,
    axolotl,
    ms_swift,
    nemo_rl,
    openrlhf,
    pipelinerl,
    rlinf,
    rllm,
    skyrl,
    tinker_cookbook,
    torchtitan,
    trl,
    trl_async,
    tunix,
    unsloth,
    xtuner,
)
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
    "rllm/rllm-verl": rllm.answers_of_verl,
    "rllm/rllm-fireworks": rllm.answers_of_fireworks,
    "rlinf/rlinf": rlinf.answers,
    "xtuner/xtuner": xtuner.answers,
    "pipelinerl/pipelinerl": pipelinerl.answers,
    "tunix/tunix": tunix.answers,
    "tinker_cookbook/tinker-cookbook": tinker_cookbook.answers,
    "torchtitan/torchtitan": torchtitan.answers,
    "unsloth/unsloth": unsloth.answers,
}
# Checkouts that the answers need.
CHECKOUTS: dict[str, tuple[Checkout, ...]] = {
    "nemo_rl/nemo-rl": (nemo_rl.NEMO_RL,),
    "areal/areal-20260822": (AREAL,),
    "rllm/rllm-fireworks": (rllm.RLLM, rllm.COOKBOOK),
    "rlinf/rlinf": (rlinf.RLINF,),
    "xtuner/xtuner": (xtuner.XTUNER,),
    "pipelinerl/pipelinerl": (pipelinerl.PIPELINERL,),
    "tunix/tunix": (tunix.TUNIX,),
    "tinker_cookbook/tinker-cookbook": (tinker_cookbook.TINKER_COOKBOOK,),
    "torchtitan/torchtitan": (torchtitan.TORCHTITAN,),
    "unsloth/unsloth": (unsloth.UNSLOTH, unsloth.UNSLOTH_ZOO),
}

if __name__ == "__main__":
    for name, answers in ANSWERS.items():
        if all(checkout.folder for checkout in CHECKOUTS.get(name, ())):
            write_answers(FOLDER / f"{name}.json", answers())
