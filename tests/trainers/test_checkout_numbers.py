"""Corrections and losses against stored numbers of the trainers' own code (`tests/oracle`)."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from rcdiag.results import CorrectionResult
from rcdiag.statistics.pair import pair_of
from rcdiag.table.trajectories import Ragged, Trajectories
from rcdiag.trainers import find_trainer
from rcdiag.trainers.plan import Plan, plan_corrections
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.trainer import Trainer
from rcdiag.usecases.corrected import CorrectionRows, asked_by, correction_results
from rcdiag.usecases.replay.preset import loss_of_preset
from tests.trainers.checkout_batches import BATCHES, CURRENT, Batch
from tests.trainers.differences import differing
from tests.trainers.update_settings import update_of
from tests.usecases.replay.builders import batch_of

FOLDERS = ("prime_rl", "open_instruct", "roll", "miles")
# Some counts and flags are float32 in the trainers.
TOLERANCE = 1e-7


@cache
def stored(folder: str) -> Mapping[str, Any]:
    return json.loads((Path(__file__).parent / folder / "numbers.json").read_text())


def variants(folder: str) -> Any:
    return importlib.import_module(f"tests.trainers.{folder}.variants")


def trainer_of(folder: str) -> Trainer:
    """Return the generation of the stored numbers."""
    return find_trainer(getattr(variants(folder), "TRAINER", folder.replace("_", "-")))


def settings_of(folder: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under rcdiag's names; those in mappings are dotted."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        inner = value if isinstance(value, dict) else {}
        flat |= {f"{name}.{key}": one for key, one in inner.items()} or {name: value}
    return flat


def trajectories_of(batch: Batch) -> Trajectories:
    def flat(rows: list[Any]) -> np.ndarray:
        return np.array([value for row in rows for value in row], np.float64)

    offsets = np.concatenate([[0], np.cumsum(batch.lengths)])
    return Trajectories(
        first_row=0,
        response_ids=Ragged(np.zeros(offsets[-1], np.int32), offsets),
        mask=flat(batch.mask) > 0,
        log_probs={"rollout": flat(batch.rollout), "old": flat(batch.old)},
        advantage=np.array(batch.advantages),
    )


def result_of(plan: Plan, batch: Batch) -> CorrectionResult:
    pair = pair_of(trajectories_of(batch), "rollout", "old")
    rows = CorrectionRows.of(pair.by_step(), plan, asked_by(plan))
    return correction_results(plan, rows.whole)["it"]


def cases() -> Iterator[Any]:
    for folder in FOLDERS:
        for case in stored(folder)["cases"]:
            yield pytest.param(folder, case, id=f"{folder}-{case['variant']}-{case['batch']}")


@pytest.mark.parametrize(("folder", "case"), cases())
def test_a_correction(folder: str, case: Mapping[str, Any]) -> None:
    config = settings_of(folder, variants(folder).VARIANTS[case["variant"]])
    plan = plan_corrections(trainer_of(folder), {"it": config})
    result = result_of(plan, BATCHES[case["batch"]])
    elsewhere = getattr(variants(folder), "OF_THE_UPDATE", ())
    wanted = {name: case[name] for name in ("weight_sum", "kept_tokens", "kept_sequences")}
    found: dict[str, Any] = {name: getattr(result, name) for name in wanted}
    wanted["metrics"] = {
        name: value for name, value in case["metrics"].items() if name not in elsewhere
    }
    found["metrics"] = dict(result.metrics)
    assert differing(wanted, found, TOLERANCE) == []


def document_of(folder: str, config: Mapping[str, Any]) -> Document:
    """Return the settings as a document in the trainer's own layout."""
    if folder == "prime_rl":
        return Document({"trainer": {"loss": config}})
    if folder == "roll":
        place = "actor_train."
        actor = {key.removeprefix(place): one for key, one in config.items() if place in key}
        if "pg_variant" in config:
            actor["pg_variant"] = config["pg_variant"]
        return Document({**config, "actor_train": actor})
    return Document(config)


# Settings of an update that do not belong to the correction.
ELSEWHERE = {
    *("loss_fn", "clip_higher", "loss_denominator", "use_opsm", "opsm_delta"),
    *("advantage_estimator", "importance_sampling", "pg_variant", "loss_agg_mode"),
    *("dual_clip_loss", "use_pg_clip_range", "pg_clip_low", "pg_clip_high"),
}
# Metrics that the trainer logs under another name or reduction, or that rcdiag lacks.
LOGGED = {
    "miles": {"pg_clipfrac", "ppo_kl", "ess_ratio", "ois", "pg_loss", "opsm_clipfrac"},
    "open_instruct": {"policy/clipfrac_avg", "loss/policy_avg", "val/ratio"},
    "roll": {
        *("actor/clipfrac@sum", "actor/pg_loss@sum", "actor/approxkl@sum", "actor/policykl@sum"),
        *("actor/ratio_mean@sum", "actor/ratio_max@max", "actor/ratio_min@min"),
        *("actor/ppo_ratio_high_clipfrac@sum", "actor/ppo_ratio_low_clipfrac@sum"),
        *("actor/ppo_ratio_clipfrac@sum", "actor/tis_clipped_ratio_mean@sum"),
        *("actor/cispo_clipped_ratio_mean", "actor/topr_scores_mean", "actor/topr_scores_std"),
        *(
            f"actor/topr_{name}"
            for sign in ("positive", "negative")
            for name in (
                *(f"{sign}_samples@sum", f"{sign}_ratio", f"{sign}_loss"),
                f"weighted_{sign}_loss",
            )
        ),
    },
    "prime_rl": set(),
}


def updates() -> Iterator[Any]:
    for folder in FOLDERS:
        for case in stored(folder)["updates"]:
            yield pytest.param(folder, case, id=f"{folder}-{case['update']}-{case['batch']}")


@pytest.mark.parametrize(("folder", "case"), updates())
def test_a_loss(folder: str, case: Mapping[str, Any]) -> None:
    config = variants(folder).UPDATES[case["update"]]
    own = {
        name: value
        for name, value in config.items()
        if name not in ELSEWHERE and not name.startswith("actor_train.")
    }
    trainer = trainer_of(folder)
    plan = plan_corrections(trainer, {"it": settings_of(folder, own)})
    batch, current = BATCHES[case["batch"]], CURRENT[case["batch"]]
    replayed = batch_of(
        batch.rollout,
        batch.old,
        [[one] * length for one, length in zip(batch.advantages, batch.lengths, strict=True)],
        current,
        batch.mask,
    )
    update = update_of(replace(plan, document=document_of(folder, config)))
    # ROLL's own code was run with the advantages as scores.
    rewards = np.array(batch.advantages)[[any(row) for row in batch.mask]]
    replayed = replace(replayed, tokens=replace(replayed.tokens, reward=rewards))
    result = loss_of_preset("it", replayed, update).result
    assert result.loss == pytest.approx(case["loss"], rel=1e-6, abs=1e-7)
    assert result.coefficients == pytest.approx(case["gradient"], rel=1e-6, abs=1e-7)
    wanted = {key: value for key, value in case["metrics"].items() if key in LOGGED[folder]}
    found = {key: value for key, value in result.metrics.items() if key in wanted}
    assert differing(wanted, found, 1e-6) == []
