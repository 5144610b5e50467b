"""Entries of the values of verl's `rollout_rs`: ratios up to 0.7.0, k1, k2 and k3 from 0.7.1 on.

Sources: packages verl 0.6.1 to 0.9.1, verl/trainer/ppo/rollout_corr_helper.py.
"""

from __future__ import annotations

from rcdiag.corrections.describe import statistic
from rcdiag.corrections.statistics import STATISTICS, place_and_statistic
from rcdiag.entry import LOG_RATIO, Entry
from rcdiag.glossary.kinds import NameKind
from rcdiag.trainers import TRAINERS

# Level of a statistic -> its formula in terms of the token's.
_REDUCED = {"token": "{k}", "segment": "mean of {k}"} | {
    f"seq_{name}": f"{name} of {{k}}" for name in ("sum", "mean", "max", "min")
}
# What a bound on k1 is a bound on.
_RATIO = {
    "token": "the token's ratio",
    "seq_sum": "the product of the sequence's ratios",
    "seq_mean": "the geometric mean of the sequence's ratios",
}
LEVELS = {
    "token": "the token's ratio",
    "segment": "the geometric mean of the ratios of a run of sampled tokens, exp(mean log_ratio)",
    "sequence": "the product of the sequence's ratios, exp(sum log_ratio)",
    "geometric": "the geometric mean of the sequence's ratios, exp(mean log_ratio)",
}
_GUIDES = {
    "seq_mean_k1": "a sharp cut on the mean KL, not a smooth filter: 0.999_1.001 keeps every long "
    "sequence below 0.001 nats per token and none above; kept sequences have weight 1 unless "
    "rollout_is is set",
    "seq_mean_k3": "a sharp cut on the mean KL; kept sequences have weight 1 unless rollout_is is "
    "set",
    "seq_sum_k1": "keeps fewer the longer the sequences are",
    "seq_max_k2": "keeps fewer the longer the sequences are",
    "seq_max_k3": "keeps fewer the longer the sequences are",
    "geometric": "a sharp cut on the mean KL; kept sequences have weight 1 unless rollout_is is "
    "set",
    "sequence": "keeps fewer the longer the sequences are",
}


def _what(option: str) -> str:
    whole = "a token" if option.startswith("token") else "a whole sequence"
    if option in LEVELS:
        return f"Level of weights or rejection: {LEVELS[option]}."
    return f"Removes {whole} from the loss mask by {statistic(option)}."


def _of_ratio(level: str) -> Entry:
    return Entry(
        what=_what(level),
        formula=LEVELS[level].rpartition(", ")[2] if level != "token" else "exp(log_ratio)",
        direction=LOG_RATIO,
        units="ratio",
        healthy=_GUIDES.get(level),
        example="log-ratios [0.1, -0.1, 1]: token 1.105, 0.9048, 2.718; sequence 2.718; "
        "geometric 1.396",
        see=("rollout_is", "rollout_rs", "tis_level"),
    )


def _of_k(option: str) -> Entry:
    over, k = place_and_statistic(option)
    is_k1, of_verl = k == "k1", k in ("k1", "k2", "k3")
    formula = _REDUCED[over].format(k=STATISTICS[k].formula)
    return Entry(
        what=_what(option),
        formula=f"keeps {'ln lower <= ' if is_k1 else ''}{formula} <= {'ln ' * is_k1}upper",
        direction=_sets(over) if is_k1 else LOG_RATIO,
        units="bounds as ratios, the statistic in nats" if is_k1 else STATISTICS[k].unit,
        healthy=_GUIDES.get(option),
        example=_example(over) if is_k1 else _without_ratio(option, of_verl),
        see=("rollout_rs_threshold", *(("mirrored-bounds",) if is_k1 else ()), k)
        if of_verl
        else (),
    )


def _without_ratio(option: str, of_verl: bool) -> str:
    """Return how to ask for the option: verl's setting, or the trainer that has it."""
    if of_verl:
        return f"rollout_rs: {option}, rollout_rs_threshold: 0.01"
    having = next(trainer for trainer in TRAINERS.values() if option in trainer.rejects_by)
    return f"rcdiag score rollouts.parquet --trainer {having.name}"


def _sets(over: str) -> str:
    """Describe both readings of k1 bounds: that of verl's code and that of its documents."""
    return (
        f"the code keeps {_RATIO[over]} within [1/upper, 1/lower], since it compares -log_ratio "
        "with the logs of the bounds; verl's documents say [lower, upper]"
    )


def _example(over: str) -> str:
    ends = "tokens" if over == "token" else "sequences"
    return (
        f'"0.6_1.6": the code keeps {ends} with a ratio within [0.625, 1.667], the documents say '
        "[0.6, 1.6]; both agree for 0.5_2.0 and all bounds that are each other's inverse"
    )


def _options() -> dict[str, str]:
    """Return a line for each level of weights, and each statistic that a trainer can reject by."""
    statistics = (option for trainer in TRAINERS.values() for option in trainer.rejects_by)
    return LEVELS | {option: statistic(option) for option in statistics}


OPTIONS_OF_REJECTION = NameKind(
    title="option of rejection",
    plural="Options of rejection and levels of weights",
    definitions=_options,
    line=lambda line: line,
    entry=lambda option, line: _of_ratio(option) if option in LEVELS else _of_k(option),
)
