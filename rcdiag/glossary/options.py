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


def _of_k1(option: str) -> Entry:
    """Explain a bound on k1 by both readings: that of verl's code, and that of its documents."""
    over, _ = place_and_statistic(option)
    k1 = _REDUCED[over].format(k=STATISTICS["k1"].formula)
    ends = "tokens" if over == "token" else "sequences"
    return Entry(
        what=_what(option),
        formula=f"keeps ln lower <= {k1} <= ln upper",
        direction=f"the code keeps {_RATIO[over]} within [1/upper, 1/lower], since it compares "
        "-log_ratio with the logs of the bounds; verl's documents say [lower, upper]",
        units="bounds as ratios, the statistic in nats",
        healthy=_GUIDES.get(option),
        example=f'"0.6_1.6": the code keeps {ends} with a ratio within [0.625, 1.667], the '
        "documents say [0.6, 1.6]; both agree for 0.5_2.0 and all bounds that are each other's "
        "inverse",
        see=("rollout_rs_threshold", "mirrored-bounds", "k1"),
    )


def _of_other(option: str) -> Entry:
    """Explain a bound on another statistic than k1, of verl or of the trainer that has it."""
    over, name = place_and_statistic(option)
    see: tuple[str, ...] = ()
    if name in ("k2", "k3"):
        see = ("rollout_rs_threshold", name)
        example = f"rollout_rs: {option}, rollout_rs_threshold: 0.01"
    else:
        having = next(trainer for trainer in TRAINERS.values() if option in trainer.rejects_by)
        example = f"rcdiag score rollouts.parquet --trainer {having.name}"
    return Entry(
        what=_what(option),
        formula=f"keeps {_REDUCED[over].format(k=STATISTICS[name].formula)} <= upper",
        direction=LOG_RATIO,
        units=STATISTICS[name].unit,
        healthy=_GUIDES.get(option),
        example=example,
        see=see,
    )


def _option(option: str, line: str) -> Entry:
    if option in LEVELS:
        return _of_ratio(option)
    return _of_k1(option) if place_and_statistic(option)[1] == "k1" else _of_other(option)


OPTIONS_OF_REJECTION = NameKind(
    title="option of rejection",
    plural="Options of rejection and levels of weights",
    # The levels of weights, and the statistics that some trainer can reject by.
    definitions=lambda: (
        LEVELS
        | {option: statistic(option) for one in TRAINERS.values() for option in one.rejects_by}
    ),
    line=lambda line: line,
    entry=_option,
)
