"""Policy losses of Axolotl's own GRPO trainer: TRL's without VESPO, and its own LUSPO.

Source: axolotl 0.21.0, axolotl/core/trainers/grpo/async_trainer.py, `_compute_loss`.
"""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.errors import RcdiagError
from rcdiag.losses.batch import LossBatch, TokenLosses
from rcdiag.losses.policy_loss import CLIPPED_TO, SYMBOLS, PolicyLoss
from rcdiag.losses.rules import UpdateRules, by_name
from rcdiag.losses.settings import LossSettings
from rcdiag.trainers.trl import losses as trl


def vanilla(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return TRL's PPO losses; Axolotl logs clips of the ratio before `delta` bounds it."""
    ratio = trl.ppo_ratio(batch, settings)
    return replace(trl.vanilla(batch, settings), logged=trl.clipped_sides(batch, ratio, settings))


def luspo(batch: LossBatch, settings: LossSettings) -> TokenLosses:
    """Return the PPO loss of each row times its number of tokens, [rows].

    Token weights enter by their mean over the padded row, in which every position that is not a
    sampled token has weight 1.
    """
    if not trl.by_sequence(settings):
        raise RcdiagError(
            "luspo: with importance_sampling_level=token Axolotl averages over the padded grid, "
            "including padding and its log-probs, which no table holds",
            "set importance_sampling_level=sequence, as the method asks for",
        )
    losses = vanilla(batch, settings)
    lengths, of_rows = batch.lengths.double(), batch.row_means(losses.values)
    if batch.weights is not None and batch.weights_of_rows:
        of_rows = of_rows * batch.row_means(batch.weights)
    elif batch.weights is not None:
        rest = batch.padded_width - lengths
        of_rows = of_rows * (batch.row_sums(batch.weights) + rest) / batch.padded_width
    return replace(losses, values=of_rows * lengths, by_row=True, weighted=True)


def logged(batch: LossBatch, losses: TokenLosses, settings: LossSettings) -> dict[str, float]:
    """Return what Axolotl logs of a loss."""
    shares = trl.clip_shares(batch, losses, settings, batch.kept.new_ones(batch.kept.shape))
    return shares | trl.extremes_of_one_process(shares)


_FILE = "axolotl 0.21.0, axolotl/core/trainers/grpo/async_trainer.py, _compute_loss"
LUSPO = PolicyLoss(
    name="luspo",
    says="PPO on the geometric mean of a sequence's ratios, times the sequence's tokens. It needs "
    "importance_sampling_level=sequence. Token weights enter by their mean over the padded row, "
    "with weight 1 at padding.",
    formula=f"T max(-A s, -A clip(s)), s = exp(mean d), T the row's tokens; {CLIPPED_TO}; "
    f"{SYMBOLS}",
    source=_FILE,
    function=luspo,
    settings=trl.PPO_SETTINGS,
    given="importance_sampling_level sequence",
    see=("gspo", "vanilla", "seq-mean-token-sum"),
)
UPDATE = UpdateRules(
    losses=by_name(
        (
            replace(trl.VANILLA, function=vanilla, source=_FILE),
            replace(trl.CISPO, source=_FILE),
            replace(trl.SAPO, source=_FILE),
            LUSPO,
        )
    ),
    aggregations={
        name: trl.AGGREGATIONS[name]
        for name in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")
    },
    fixed={"cispo": "token-mean", "sapo": "seq-mean-token-mean"},
    sees_rejected=True,
    logged=logged,
    defaults=LossSettings(scale_factor=512.0),
)
