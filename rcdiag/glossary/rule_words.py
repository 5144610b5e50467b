"""Rules by which `rcdiag replay` judges an update. Sources stand with the rules themselves.

To add a rule: one entry here, and its bounds; the source is read off rcdiag/replaying/health.py.
"""

from __future__ import annotations

from dataclasses import replace

from rcdiag.glossary.entry import Entry, Kind, first_clause, said
from rcdiag.glossary.worked_rules import Given, rules

TITLE = "rule of health"
_JSON = "rcdiag replay rollouts.parquet --json | jq"
_NATS = "nats per token"

# What it looks at is the number of this name in the result, where there is one.
RULES: dict[str, Entry] = {
    "loss_defined": said(
        what="There is a loss: something is kept, and it and its coefficients are finite numbers.",
        see=("undefined", "loss-undefined"),
    ),
    "health.kept_sequences": said(
        what="Share of the sequences with at least one token that stays in the loss.",
        formula="sequences with a kept token / sequences with a token",
        units="share",
        see=("kept_sequences", "kept_sequence_share"),
    ),
    "health.ess_seq": said(
        what="Effective sample size of sequences by their mean weight in the loss, rejected tokens "
        "with weight 0.",
        formula="(sum m)^2 / (n sum m^2), m the mean weight of a sequence's tokens",
        units="fraction",
        see=("ess_seq_applied", "ESS"),
    ),
    "mismatch_k3": said(
        what="Distance of the trainer before the update from the sampler. An error only where "
        "nothing corrects it (naive, disabled): of the others it is what they correct.",
        formula="E[ratio - 1 - log_ratio], ratio = old / rollout",
        direction="KL(rollout || old)",
        units=_NATS,
        see=("mismatch", "k3_kl"),
    ),
    "staleness_k3": said(
        what="Distance of the policy that is updated from the trainer before the update.",
        formula="E[ratio - 1 - log_ratio], ratio = current / old",
        direction="KL(old || current)",
        units=_NATS,
        see=("staleness", "k3_kl"),
    ),
    "uncorrected_ess": said(
        what="Effective sample size of sequences by their raw ratios, only where no weight, no "
        "rejection and no PPO ratio corrects (naive, disabled): all of the mismatch biases the "
        "gradient.",
        formula="(sum w)^2 / (n sum w^2), w = prod of old / rollout over the sequence",
        units="fraction",
        see=("naive", "ess_seq", "mismatch"),
    ),
    "clip_fraction": said(
        what="Share of tokens that the clip acts on, as the trainer logs it; in bypass mode the "
        "mismatch is inside. Not of losses that log none.",
        formula="actor/pg_clipfrac",
        units="share",
        see=("actor/pg_clipfrac", "bypass"),
    ),
    "health.top_sequences": said(
        what="Whether a few sequences hold the loss's pull.",
        formula="sum |c| of the largest 1% of sequences / sum |c|, c the coefficients",
        units="share",
        see=("top_sequences", "shares"),
    ),
    "double_counting": said(
        what="rollout_is beside ppo_clip in bypass mode: the PPO ratio current / rollout corrects "
        "already. Absent elsewhere.",
        see=("ppo_clip", "bypass", "rollout_is"),
    ),
    "health.cosine": said(
        what="Whether the gradient points where the reference does; absent without --model.",
        formula="cosine",
        units="none",
        see=("cosine", "reference"),
    ),
    "health.kl_old_new": said(
        what="How far the step moves the policy; absent without --model.",
        formula="E[ratio - 1 - log_ratio], ratio = new / old",
        direction="KL(old || new)",
        units=_NATS,
        see=("kl_old_new",),
    ),
    "health.mismatch_growth": said(
        what="How many times as far from its sampler the step leaves the policy; absent without "
        "--model.",
        formula="k3(rollout, new) / k3(rollout, old)",
        units="none",
        see=("mismatch_growth",),
    ),
}


def bare(name: str) -> str:
    """As the result names it."""
    return name.removeprefix("health.")


# Where a warning begins and where an error does; a test holds them against the rules.
BOUNDS: dict[str, tuple[float, float]] = {
    "kept_sequences": (0.9, 0.7),
    "ess_seq": (0.5, 0.1),
    "mismatch_k3": (1e-3, 1e-2),
    "staleness_k3": (1e-2, 1e-1),
    "uncorrected_ess": (0.9, 0.5),
    "clip_fraction": (0.1, 0.3),
    "top_sequences": (0.2, 0.5),
    "cosine": (0.9, 0.5),
    "kl_old_new": (1e-2, 1e-1),
    "mismatch_growth": (2.0, 10.0),
}


def _healthy(name: str) -> str:
    rule = rules(Given())[name]
    if name not in BOUNDS:
        worst = "a warning" if name == "double_counting" else "an error"
        return f"{worst} where it fails ({rule.source})"
    warning, error = BOUNDS[name]
    side = "above" if warning < error else "below"
    ends = f"warning {side} {warning:g}, error {side} {error:g}"
    return f"{ends} ({rule.source})"


def _example(name: str) -> str:
    if name not in BOUNDS:
        return f"""{_JSON} '.presets[].health.rules[] | select(.name == "{name}")'"""
    warning, error = BOUNDS[name]
    between = float(f"{(warning * error) ** 0.5:.2g}")
    return f"{between:g}: {rules(Given(name, between))[name].level}"


def entry(name: str) -> Entry:
    found = replace(RULES[name], name=name, kind=TITLE, example=_example(bare(name)))
    return replace(found, healthy=_healthy(bare(name)))


def _lines() -> dict[str, str]:
    return {name: first_clause(found.what) for name, found in RULES.items()}


KIND: Kind = Kind(
    title=TITLE,
    plural="Rules of health in `rcdiag replay`",
    lines=_lines,
    entry=entry,
    aliases={f"health.{name}": name for name in RULES if "." not in name},
)
