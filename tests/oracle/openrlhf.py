"""OpenRLHF's own policy loss, out of the published wheels of 0.11.2 and 0.11.0.

The weights are not handed out: at current = old the loss is -weight x advantage for each token, so
that they are read off its gradient by the advantages.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

from tests.oracle.cases import corrected_case, updated_case
from tests.oracle.published import arithmetic, functions, module, space_of
from tests.oracle.trl import Refusal
from tests.trainers.answers import Answers, Corrected, Settings, Updated
from tests.trainers.batches import BATCHES

FILE = "openrlhf/models/loss.py"
VERSIONS = {"openrlhf-0.11.2": "0.11.2", "openrlhf-0.11.0": "0.11.0"}
CORRECTION: dict[str, Settings] = {
    "openrlhf-0.11.2": {
        "is_correction_level": "off",
        "is_correction_mode": "mask",
        "is_correction_gating": "ratio",
        "is_correction_threshold": [0.5, 5.0],
    },
    "openrlhf-0.11.0": {
        "is_correction_enable": False,
        "is_correction_type": "tis",
        "is_correction_threshold": [0.5, 5.0],
    },
}
LOSS: Settings = {
    "policy_loss_type": "ppo",
    "eps_clip_low": 0.2,
    "eps_clip_high": 0.2,
    "dual_clip": None,
    "loss_agg_mode": "token-mean",
}


def _set(level: str, mode: str, gating: str = "ratio", *threshold: float) -> Settings:
    given = {
        "is_correction_level": level,
        "is_correction_mode": mode,
        "is_correction_gating": gating,
    }
    return given | ({"is_correction_threshold": list(threshold)} if threshold else {})


KINDS = ("tis", "icepop", "seq-mask-tis")
CORRECTIONS: dict[str, list[Settings]] = {
    "openrlhf-0.11.2": [
        {},
        _set("token", "clip"),
        _set("token", "mask"),
        _set("seq", "mask"),
        *(
            _set(level, mode, "ratio", *threshold)
            for level, mode in (("token", "clip"), ("token", "mask"), ("seq", "mask"))
            for threshold in ((2.0,), (0.9, 1.1), (0.2, 8.0))
        ),
        *(
            _set(level, "mask", gating, *threshold)
            for level in ("token", "seq")
            for gating, threshold in (
                ("binary_kl", (0.002,)),
                ("binary_kl", (0.05,)),
                ("binary_kl", (0.0, 0.5)),
                ("tv", (0.01,)),
                ("tv", (0.2,)),
            )
        ),
    ],
    "openrlhf-0.11.0": [
        {},
        *(
            {"is_correction_enable": True, "is_correction_type": kind} | threshold
            for kind in KINDS
            for threshold in (
                {},
                {"is_correction_threshold": [0.9, 1.1]},
                {"is_correction_threshold": [0.2, 8.0]},
                {"is_correction_threshold": [0.7, 1.4]},
            )
        ),
    ],
}
CLIP = {
    "openrlhf-0.11.2": _set("token", "clip"),
    "openrlhf-0.11.0": {"is_correction_enable": True},
}


def losses_of(trainer: str) -> list[Settings]:
    """Return settings of the loss, with and without a correction."""
    own: list[Settings] = [
        {},
        {"loss_agg_mode": "seq-mean-token-mean"},
        {"dual_clip": 1.5},
        {"eps_clip_low": 0.1, "eps_clip_high": 0.28},
        {"policy_loss_type": "gspo"},
        {"policy_loss_type": "gspo", "dual_clip": 2.0, "eps_clip_low": 3e-2, "eps_clip_high": 4e-2},
    ]
    return [*own, *({**each, **CLIP[trainer]} for each in own)]


@cache
def _code(trainer: str) -> SimpleNamespace:
    version = VERSIONS[trainer]
    utils = module("openrlhf", version, "openrlhf/models/utils.py")
    masked_mean = functions(utils, ("masked_mean",), space_of()).masked_mean
    import torch

    space = space_of(masked_mean=masked_mean, nn=torch.nn)
    return functions(module("openrlhf", version, FILE), ("aggregate_loss", "PolicyLoss"), space)


def _threshold(settings: Settings) -> list[float]:
    """Convert a threshold as `train_ppo_ray` does: one number is an upper bound."""
    threshold = settings["is_correction_threshold"]
    return [0.0, *threshold] if len(threshold) == 1 else threshold


def policy_loss(trainer: str, settings: Settings) -> Any:
    """Return a PolicyLoss, constructed as in `ActorPPOTrainer`."""
    given = LOSS | CORRECTION[trainer] | settings
    own: dict[str, Any]
    if trainer == "openrlhf-0.11.2":
        own = {name: given[name] for name in CORRECTION[trainer]}
        own["is_correction_threshold"] = _threshold(given)
    else:
        own = {
            "enable_vllm_is_correction": given["is_correction_enable"],
            "vllm_is_truncated_threshold": given["is_correction_threshold"],
            "vllm_is_correction_type": given["is_correction_type"],
        }
    try:
        return _code(trainer).PolicyLoss(
            clip_eps_low=given["eps_clip_low"],
            clip_eps_high=given["eps_clip_high"],
            dual_clip=given["dual_clip"],
            token_level_loss=given["loss_agg_mode"] == "token-mean",
            policy_loss_type=given["policy_loss_type"],
            **own,
        )
    except (ValueError, AssertionError) as error:
        raise Refusal(str(error)) from error


def _tensors(batch: str, dtype: Any) -> dict[str, Any]:
    """Return the batch as in OpenRLHF: advantages per token, a boolean mask."""
    import torch

    rows = BATCHES[batch]
    columns = {
        "log_probs": rows.current,
        "old_log_probs": rows.old,
        "rollout_log_probs": rows.rollout,
        "advantages": rows.token_advantages,
    }
    tensors = {name: torch.tensor(values, dtype=dtype) for name, values in columns.items()}
    return tensors | {"action_mask": torch.tensor(rows.mask)}


NAMES = ("vllm_kl", "is_filter_ratio")


def corrected(trainer: str, batch: str, settings: Settings, dtype: str = "float64") -> Corrected:
    """Run the correction on one micro-batch with the whole batch."""
    import torch

    given_on = CORRECTION[trainer] | settings
    on = given_on.get("is_correction_level", "off") != "off" or given_on.get("is_correction_enable")
    with arithmetic(dtype) as wide:
        given = _tensors(batch, wide)
        given["log_probs"] = given["old_log_probs"]
        given["advantages"] = torch.ones_like(given["old_log_probs"]).requires_grad_()
        loss, _, _, *logged = policy_loss(trainer, settings)(**given, batch_num_tokens=1.0)
        loss.backward()
        weights = -given["advantages"].grad.double().numpy()
    metrics = dict(zip(NAMES, logged, strict=False))
    metrics = {name: value for name, value in metrics.items() if value is not None}
    return corrected_case(batch, settings, dtype, weights if on else None, metrics)


def updated(trainer: str, batch: str, settings: Settings) -> Updated:
    """Run the loss on one micro-batch that is the whole step."""
    rows = BATCHES[batch]
    with arithmetic("float64") as wide:
        given = _tensors(batch, wide)
        current = given["log_probs"].requires_grad_()
        loss, clipped, ppo_kl, *logged = policy_loss(trainer, settings)(
            **given,
            batch_num_tokens=float(rows.mask.sum()),
            global_batch_size=float(rows.mask.any(axis=1).sum()),
        )
        loss.backward()
    metrics = {
        "ppo_clip_ratio": clipped,
        "ppo_kl": ppo_kl,
        **dict(zip(NAMES, logged, strict=False)),
    }
    metrics = {name: value for name, value in metrics.items() if value is not None}
    return updated_case(batch, settings, loss, current.grad, metrics)


def answers(trainer: str) -> Answers:
    """Return all stored results of a generation."""
    batches = [batch for batch in BATCHES if batch not in ("missing", "infinite")]
    return Answers(
        trainer=trainer,
        source=f"openrlhf {VERSIONS[trainer]} on PyPI, {FILE}: PolicyLoss and aggregate_loss; "
        "openrlhf/models/utils.py: masked_mean",
        corrections=[
            corrected(trainer, batch, settings, dtype)
            for dtype in ("float64", "float32")
            for settings in CORRECTIONS[trainer]
            for batch in batches
        ],
        losses=[
            updated(trainer, batch, settings)
            for settings in losses_of(trainer)
            for batch in ("mild", "rough", "beyond")
        ],
    )
