"""Store results of trainers' own code: `python -m tests.oracle.store_checkouts`.

Checkouts are named by environment variables.

The files are read by `tests/trainers/test_checkout_numbers.py`, which needs no checkout.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.oracle import miles, open_instruct, prime_rl, roll
from tests.oracle.checkout_answers import Answer, LossAnswer, Numbers, loss_numbers_of, numbers_of
from tests.oracle.checkouts import MILES, OPEN_INSTRUCT, PRIME_RL, ROLL, Checkout
from tests.trainers.checkout_batches import BATCHES, CURRENT, Batch, Rows

FOLDER = Path(__file__).parent.parent / "trainers"


@dataclass(frozen=True, slots=True)
class Oracle:
    """One trainer's own code, and where its numbers are stored."""

    folder: str
    checkout: Checkout
    sources: tuple[str, ...]  # file and functions
    ask: Callable[[dict[str, Any], Batch], Answer]
    update: Callable[[dict[str, Any], Batch, Rows], LossAnswer]

    @property
    def settings(self) -> Any:
        """Return the module with VARIANTS of the correction and UPDATES of the loss."""
        return importlib.import_module(f"tests.trainers.{self.folder}.variants")

    @property
    def path(self) -> Path:
        return FOLDER / self.folder / "numbers.json"

    def numbers(self) -> Numbers:
        """Run every variant on two batches, and the default on all."""
        cases = [
            {"variant": variant, "batch": batch, **numbers_of(self.ask(config, rows), rows)}
            for variant, config in self.settings.VARIANTS.items()
            for batch, rows in BATCHES.items()
            if variant == "default" or batch in ("toy", "wild", "advantage 0")
        ]
        updates = [
            {"update": update, "batch": batch, **self._loss_numbers(config, batch)}
            for update, config in self.settings.UPDATES.items()
            for batch in CURRENT
            if batch != "wild" or self.folder == "prime_rl"
        ]
        source = {"url": self.checkout.url, "commit": self.checkout.commit, "code": self.sources}
        return {"source": source, "cases": cases, "updates": updates}

    def _loss_numbers(self, config: dict[str, Any], batch: str) -> Numbers:
        answer = self.update(config, BATCHES[batch], CURRENT[batch])
        return loss_numbers_of(answer, BATCHES[batch])


ORACLES = (
    Oracle(
        "prime_rl",
        PRIME_RL,
        (f"{prime_rl.LOSS}: default_loss_fn, ipo_loss_fn", f"{prime_rl.UTILS}: Tensors"),
        prime_rl.ask,
        prime_rl.update,
    ),
    Oracle(
        "open_instruct",
        OPEN_INSTRUCT,
        (
            f"{open_instruct.UTILS}: compute_rho_correction, compute_vllm_local_debug_metrics, "
            "mask_logprobs, compute_metrics_from_loss_stats, compute_grpo_loss",
            "open_instruct/rl_utils.py: masked_mean",
        ),
        open_instruct.ask,
        open_instruct.update,
    ),
    Oracle(
        "roll",
        ROLL,
        (
            f"{roll.CORRECTIONS}: compute_train_infer_correction",
            f"{roll.FUNCTIONALS}: agg_loss, masked_mean, masked_sum",
            f"{roll.AGENTIC}: compute_segment_masked_mean",
            f"{roll.RLVR}/actor_worker.py, {roll.RLVR}/actor_pg_worker.py: loss_func",
        ),
        roll.ask,
        roll.update,
    ),
    Oracle(
        "miles",
        MILES,
        (
            f"{miles.HUB}/losses.py: policy_loss_function",
            f"{miles.HUB}/corrections.py: vanilla_tis_function, icepop_function",
            f"{miles.HELPER}/mis.py: compute_mis_weights_with_cp",
        ),
        miles.ask,
        miles.update,
    ),
)


def main() -> None:
    """Write the numbers of every trainer whose checkout is named."""
    for oracle in ORACLES:
        if oracle.checkout.folder:
            text = json.dumps(oracle.numbers(), indent=1)
            oracle.path.write_text(f"{text}\n")
            sys.stdout.write(f"{oracle.path}: {len(text)} bytes\n")


if __name__ == "__main__":
    main()
