"""Numbers that policy losses log, with what each loss means by them.

Sources: reference/verl.md 3, reference/frameworks.md 1.4. To add a key: one entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rcdiag.glossary.entry import Entry, Kind, first_clause
from rcdiag.glossary.generations import SLIME, VERL, label
from rcdiag.glossary.logged import LOGGERS
from rcdiag.glossary.worked import UPDATE

TITLE = "number that a policy loss logs"
Losses = tuple[str, ...]
_JSON = "rcdiag replay rollouts.parquet --json | jq"
_FROM = "a loss that has none logs 0 in verl-0.6.0 and verl-20251027, and nothing later"
_ROWS = "a mean over sequences of their means, rejected tokens in all denominators and as 0"
_OWN = "the reducer is that of the loss, so it shrinks when tokens are rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossKey:
    """A key without its prefix: what each loss of verl, and slime, computes under it."""

    what: str
    of: Mapping[Losses, str]  # losses of verl -> formula
    slime: str | None = None  # note on slime's; None: slime has no such key
    formula: str | None = None  # slime's own
    direction: str | None = None
    units: str = "share"
    healthy: str
    example: str
    see: tuple[str, ...] = ()


KEYS: dict[str, LossKey] = {
    "pg_clipfrac": LossKey(
        what="Share of tokens that the clip of the loss acts on. What that is depends on the loss; "
        "in bypass mode the mismatch is inside the ratio.",
        of={
            ("vanilla", "gspo"): "E[1(-A clip(r) > -A r)], r of the token, or of the sequence",
            ("cispo",): "E[1(r != clip(r))], whichever sign A has",
            ("geo_mean",): "E[1(d outside the range, A > 0)]",
            ("dppo_tv", "dppo_kl"): "share that leaves the gradient",
            ("clip_cov",): "share left out by lot, not that of PPO's clip",
            ("sapo",): "0",
        },
        slime=f"{_ROWS}; {_OWN}",
        healthy="ideal 0 at the first mini-batch, if old and current are the same (theory.md 4.3); "
        "for bounds see clip_fraction",
        example=f"vanilla, {UPDATE}: 0.6 in verl-0.6.0 to verl-0.9; 0.6667 in slime",
        see=("clip_fraction", "clip_low", "actor/pg_clipfrac_lower", "vanilla"),
    ),
    "pg_clipfrac_lower": LossKey(
        what="Share of tokens that the dual clip acts on, of negative advantage.",
        of={
            ("vanilla",): "E[1(max(-A r, -A clip(r)) > -A clip_c, A < 0)]",
            ("geo_mean",): "E[1(d outside the range, A < 0)]",
            ("dppo_tv", "dppo_kl"): "E[1(r > clip_c, in the gradient)], whichever sign A has",
            ("gspo", "cispo", "sapo"): "0",
        },
        healthy="ideal 0; no source for a bound",
        example="A = -1, r = 4, clip_c = 3: the loss is 3 and not 4, and the token counts",
        see=("clip_c", "actor/pg_clipfrac"),
    ),
    "ppo_kl": LossKey(
        what="KL of the old and the current policy by k1; in bypass mode old is the rollout's, and "
        "the mismatch is inside. 0 at the first mini-batch of a decoupled update.",
        of={
            ("vanilla", "sapo", "cispo", "dppo_tv", "dppo_kl"): "E[-d], d within +-20 nats",
            ("gspo", "geo_mean", "clip_cov", "dro", "reinforce"): "E[-d]",
            ("kl_cov",): "E[|d|], a mean of sizes",
        },
        slime=f"{_ROWS}; of gspo of sequences; {_OWN}",
        direction="d = log_ratio = current - old; above 0 where the current policy gives the "
        "tokens less",
        units="nats",
        healthy="ideal 0; no source for a bound: see staleness_k3",
        example=f"vanilla, {UPDATE}: 0.04 in verl-0.6.0 to verl-0.9; 0.175 in slime",
        see=("staleness_k3", "rollout_corr/kl", "ois"),
    ),
    "pg_loss": LossKey(
        what="The policy loss without entropy and KL terms. Of verl it stands in the result as "
        "`loss`.",
        of={},
        slime="the loss itself",
        direction="minimised",
        units="loss",
        healthy="no bound: its size says nothing, its gradient does",
        example=f"vanilla, {UPDATE}: -0.135 in slime",
        see=("loss", "coefficients"),
    ),
    "ois": LossKey(
        what="The PPO ratio, not the mismatch: slime #1907 confuses it with tis.",
        of={},
        slime="logged with weights alone; of gspo of sequences",
        formula="E[current / old probability]",
        direction="current / old",
        units="ratio",
        healthy="ideal 1, at the first mini-batch exactly 1",
        example="log-ratios 0.1 and -0.1: (1.105 + 0.905) / 2 = 1.005",
        see=("actor/ppo_kl", "train/tis"),
    ),
    "tis": LossKey(
        what="Mean ratio of trainer and sampler before the bounds: the mismatch, not the weight.",
        of={},
        slime="only with --use-tis; bounds --tis-clip-low 0 and --tis-clip 2",
        formula="E[old / rollout probability], not bounded",
        direction="old / rollout",
        units="ratio",
        healthy="ideal 1",
        example="log-ratios 0.1 and 1.5: (1.105 + 4.482) / 2 = 2.793, though the bound is 2",
        see=("TIS", "tis_clipfrac", "ois"),
    ),
    "tis_clipfrac": LossKey(
        what="Share of tokens whose ratio of trainer and sampler lies outside the bounds.",
        of={},
        slime="only with --use-tis; icepop_function logs under the same name",
        formula="E[1(clamp(old / rollout, low, high) != old / rollout)]",
        direction="old / rollout",
        healthy="ideal 0; no source for a bound",
        example="ratios 1.1 and 4.5, bounds 0 and 2: 0.5",
        see=("train/tis", "truncation_loss"),
    ),
    "tis_abs": LossKey(
        what="Mean distance of the ratio of trainer and sampler from 1.",
        of={},
        slime="only with --use-tis",
        formula="E[|old / rollout - 1|]",
        units="ratio",
        healthy="ideal 0; below 0.03 green, above 0.1 red (theory.md 4.4, SER)",
        example="ratios 1.1 and 0.9: 0.1",
        see=("train/tis", "tv_token"),
    ),
    "opsm_clipfrac": LossKey(
        what="Misnamed: a sum over sequences of their share of tokens that OPSM drops, no mean.",
        of={},
        slime="only with --use-opsm; drops A < 0 in sequences whose mean of old - current is "
        "above --opsm-delta 1e-4",
        formula="sum over sequences of dropped tokens / tokens, then divided as the loss is",
        units="sequences",
        healthy="ideal 0; no source for a bound",
        example="--use-opsm --opsm-delta 1e-4",
        see=("actor/ppo_kl",),
    ),
    "train_rollout_logprob_abs_diff": LossKey(
        what="Mean distance of the trainer's log-probs from the sampler's; current in place of old "
        "in bypass mode. Rejection takes the tokens that mismatch most out of it.",
        of={},
        slime=f"whenever the sampler's log-probs are there; {_OWN}",
        formula="E[|log p_old - log p_rollout|]",
        units="nats",
        healthy="ideal 0; slime has a threshold for its CI and names no number",
        example="0.515 nats, logged as 0.048 after rejection (frameworks.md 1.4)",
        see=("log_ratio_abs_mean", "k1_kl"),
    ),
}


def find(name: str) -> str | None:
    """A key with or without its logger's prefix."""
    bare = name
    for prefix in LOGGERS:
        bare = bare.removeprefix(prefix)
    return bare if bare in KEYS else None


def listed(key: str) -> str:
    """As verl logs it, or slime if it alone does; `tis` alone is the treatment of weights."""
    if key == "tis":
        return "train/tis"
    return f"actor/{key}" if KEYS[key].of else key


def _formula(about: LossKey) -> str | None:
    said = [f"{', '.join(losses)}: {text}" for losses, text in about.of.items()]
    return "; ".join(said) or about.formula


def _generations(key: str) -> dict[str, str]:
    about, found = KEYS[key], {}
    if about.of:
        found[label(VERL)] = f"actor/{key}: over kept tokens; {_FROM}"
    if key == "pg_loss":
        found[label(VERL)] = "actor/pg_loss"
    if about.slime is not None:
        found[label(SLIME)] = f"{key}: {about.slime}"
    return found


def entry(name: str) -> Entry:
    key = find(name) or name
    about = KEYS[key]
    return Entry(
        name=name,
        kind=TITLE,
        what=about.what,
        formula=_formula(about),
        direction=about.direction,
        units=about.units,
        healthy=about.healthy,
        generations=_generations(key),
        example=about.example,
        see=about.see,
    )


KIND: Kind = Kind(
    title=TITLE,
    plural="Numbers that policy losses log (a prefix may be left out)",
    lines=lambda: {listed(key): first_clause(about.what) for key, about in KEYS.items()},
    entry=entry,
    find=find,
)
