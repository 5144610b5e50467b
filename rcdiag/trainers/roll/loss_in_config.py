"""ROLL's pipeline file says which policy loss it takes: PPO, GSPO, or a `pg_variant`.

Sources: ROLL commit 8eb27cc2, roll/configs/base_config.py, roll/pipeline/rlvr/actor_worker.py and
actor_pg_worker.py.
"""

from __future__ import annotations

from rcdiag.trainers.loss_choice import LossChoice, number, numbers, value, word
from rcdiag.trainers.settings_document import Document

_VARIANTS = {
    "vanilla": "gpg",
    "ppo": "vanilla",
    "tis": "pg_tis",
    "topr": "topr",
    "cispo": "cispo",
    "kimi15": "kimi15",
}
_OF_ACTOR = (
    *("tis_lower_bound", "tis_upper_bound", "topr_positive_weight", "topr_negative_weight"),
    *("cispo_epsilon_low", "cispo_epsilon_high", "kimi15_tau"),
)
_REDUCTIONS = (
    *("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"),
)


def loss_in(document: Document) -> LossChoice:
    """Read pg_clip or its range, dual clip, the level of PPO's ratio, the variant and the mean.

    The dual clip is at 1 + 2 pg_clip, whatever the range.
    """
    loss, refused = word(document, "actor_train.pg_variant", _VARIANTS, "a pg_variant")
    if not loss and value(document, "importance_sampling") is not None:
        loss = {"seq": "gspo"}.get(str(value(document, "importance_sampling")), "vanilla")
    mean, unknown = word(
        document, "loss_agg_mode", {name: name for name in _REDUCTIONS}, "an aggregation"
    )
    clip = number(document, "pg_clip")
    own: dict[str, object] = {}
    if value(document, "use_pg_clip_range") is True:
        own |= {"clip_low": 0.2, "clip_high": 0.2}
        own |= numbers(document, clip_low="pg_clip_low", clip_high="pg_clip_high")
    elif clip is not None:
        own |= {"clip_low": clip, "clip_high": clip}
    if value(document, "dual_clip_loss") is True:
        own["clip_c"] = 1.0 + 2.0 * (0.2 if clip is None else clip)
    own |= numbers(document, **{name: f"actor_train.{name}" for name in _OF_ACTOR})
    if (unified := value(document, "actor_train.cispo_use_unified_mask")) is not None:
        own["cispo_use_unified_mask"] = unified
    return LossChoice(loss=loss, aggregation=mean or None, own=own, refused=refused or unknown)
