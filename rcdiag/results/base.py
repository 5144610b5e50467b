"""Fields and structs that results of several kinds share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from msgspec import field

from rcdiag.errors import setting
from rcdiag.formats import plural
from rcdiag.results.doc import Anything, Doc, Number
from rcdiag.results.parts import Part

# 1: the first. 2: some fields are renamed (`results/older.py`).
FORMAT_VERSION = 3

SEVERITIES = ("note", "warning", "error")

LOG_RATIO = "log_ratio = target - behavior, in nats; tokens are sampled by the behavior policy"
RATIO = "ratio = target / behavior probability"

# A worked example of a correction: it rejects the longer sequence's last token and the whole
# shorter sequence.
TOY = (
    "sequence weights truncated at 2, token_k1 0.6_1.6 (verl-0.9), log-ratios [0.1, -0.1, 1.5], "
    "[-1.2, -0.5]: "
)
_INTERVAL = (
    "of the 95% interval of a number, from a jackknife over prompt groups; null where there are "
    "too few groups to tell, and where the end depends on ratios too large and rare to be in the "
    "table."
)


class _Draw(TypedDict, total=False):
    """Keys of a provenance that may be missing: unknown, or nothing was drawn or renamed."""

    host: Annotated[str, Doc("Name of the machine that computed the result.")]
    device: Annotated[
        str,
        Doc(
            "Device that computed the result: the processor, or the GPU on which a model ran.",
            example="NVIDIA H200",
        ),
    ]
    commit: Annotated[
        str,
        Doc("Commit of rcdiag's own source, where it runs from a clone or was installed from one."),
    ]

    columns_read_as: Annotated[
        dict[str, str],
        Doc(
            "Columns that have other names in the files: rcdiag's name -> the name in the files. "
            "The finding `columns-read-by-name` says which of them rcdiag chose itself.",
            see=("columns-read-by-name",),
        ),
    ]
    rows_drawn: Annotated[
        int,
        Doc(
            f"Number of rows that the result is computed from, where {setting('rows')} drew some "
            "of the table's prompt groups.",
            unit="rows",
            example="rcdiag score rollouts.parquet --rows 2000",
            see=("rows", "seed"),
        ),
    ]


class Provenance(_Draw):
    """Provenance says where a result comes from."""

    command: Annotated[str, Doc("The command line that made the result.")]
    versions: Annotated[
        dict[str, str], Doc("Versions of rcdiag and of the libraries that computed the result.")
    ]
    dump: Annotated[list[str], Doc("Paths of the files that make up the table.")]
    rows: Annotated[int, Doc("Number of rows of the table.", unit="rows")]
    fingerprint: Annotated[
        str,
        Doc(
            "Hash of the table, or of the rows that were drawn: equal fingerprints mean the same "
            "data."
        ),
    ]
    seed: Annotated[
        int,
        Doc(
            "Seed of everything that is drawn at random; the same seed gives the same result.",
            example="rcdiag score rollouts.parquet --seed 1",
        ),
    ]
    time: Annotated[str, Doc("Date and time at which the result was made, in UTC.")]


PROVENANCE = Doc(
    "Where a result comes from: command, versions, host, device, commit, dump, rows, fingerprint, "
    "seed and time.",
    see=(
        *("command", "versions", "host", "device", "commit"),
        *("dump", "rows", "fingerprint", "seed", "time"),
    ),
    keys=Provenance,
)
Behavior = Annotated[str, Doc("Name of the policy that is assumed to have sampled the tokens.")]
Target = Annotated[
    str,
    Doc(
        "Name of the policy that is compared with the behavior policy; empty where the table has "
        "one policy."
    ),
]
TrainerName = Annotated[
    str,
    Doc(
        "The trainer generation whose definitions and names the result uses.",
        example="rcdiag score rollouts.parquet --trainer verl-0.9",
        see=("verl-0.9", "slime"),
    ),
]
Config = Annotated[
    dict[str, Anything],
    Doc(
        "Settings of a correction under its trainer's names for them.",
        see=("rollout_is", "rollout_rs"),
    ),
]
LoggedMetrics = Annotated[
    dict[str, Number],
    Doc(
        "What the trainer logs, under its own names and with its own definitions.",
        see=("rollout_corr/rollout_is_mean", "actor/pg_clipfrac"),
    ),
]
Step = Annotated[
    int | None,
    Doc(
        "Training step: a batch of the trainer; null where the table has no column `step`. "
        f"`rcdiag replay` takes the last step of the table, or the one given by {setting('step')}.",
        example="rcdiag replay rollouts.parquet --step 40",
        see=("steps",),
    ),
]
NumSequences = Annotated[
    int,
    Doc(
        "Number of sequences with at least one unmasked token.",
        unit="sequences",
        see=("empty_sequences",),
    ),
]
NumTokens = Annotated[
    int, Doc("Number of unmasked tokens: those that the policy sampled.", unit="tokens")
]
NumClusters = Annotated[
    int,
    Doc(
        "Number of prompt groups, or of sequences without a group: the units of the jackknife "
        "that gives the intervals.",
        unit="clusters",
        see=("few-clusters", "low"),
    ),
]
EmptySequences = Annotated[
    int,
    Doc(
        "Number of rows without an unmasked token. They are left out of the mismatch; trainers "
        "count them in means over rows.",
        unit="sequences",
        healthy="ideal 0",
        see=("sequences-without-tokens",),
    ),
]
RowsLeftOut = Annotated[
    int,
    Doc(
        "Number of rows that are left out of `mismatch` because an unmasked log-prob of the row is "
        "NaN, infinite, positive or below -1e12. If fewer than half of the rows remain, every "
        "number of `mismatch` is null.",
        unit="sequences",
        healthy="ideal 0",
        see=("non-finite-log-probs", "positive-log-probs"),
        added=True,
    ),
]
KeptTokens = Annotated[
    int,
    Doc(
        "Number of tokens that stay in the loss mask after rejection and veto.",
        unit="tokens",
        formula="count of kept tokens",
        healthy="0 is an error: no loss is left",
        example="log-ratios [0.1, -0.1, 1.5], [-1.2, -0.5] under token_k1 0.6_1.6 of verl-0.9: 2",
        heading="tokens",
    ),
]
KeptSequences = Annotated[
    int,
    Doc(
        "Number of sequences with at least one token that stays in the loss mask.",
        unit="sequences",
        formula="count of sequences with a kept token",
        example="log-ratios [0.1, -0.1, 1.5], [-1.2, -0.5] under token_k1 0.6_1.6 of verl-0.9: 1",
        heading="seqs",
    ),
]
KeepLengthCorrelation = Annotated[
    Number | None,
    Doc(
        "Whether rejection selects by length; null where all or nothing is kept everywhere.",
        unit="none",
        formula="Pearson correlation over sequences of kept share and length",
        healthy="ideal 0; not judged; beyond 0.2 either way rejection selects by length (rcdiag's "
        "proposal)",
        example="the longer of two sequences is kept and the shorter one rejected: 1",
    ),
]
BiasBound = Annotated[
    Number | None,
    Doc(
        "Bound on the bias of an estimate of any quantity between -1 and 1, for sequence weights; "
        "null for other weights, which have no such bound.",
        unit="none",
        formula="E|prod ratio - weight| / E[prod ratio] over sequences, weight 0 where rejected",
        direction=RATIO,
        healthy="ideal 0",
        example="sequences of ratios e^1.5 and e^-1.7, the first one truncated at 2, of whose "
        "tokens two of three are kept, the second one rejected: 0.7141",
        see=("truncation_loss", "lost_target_mass_seq"),
    ),
]

# A plain number for a batch, a number with an interval in a sweep.
ESS_TOKEN_APPLIED = Doc(
    "Effective sample size of tokens, with the weights as they enter the loss and 0 for rejected "
    "tokens.",
    unit="fraction",
    formula="(sum w)^2 / (N sum w^2) over all unmasked tokens",
    healthy="ideal 1",
    example=TOY + "0.4",
    see=("rollout_corr/rollout_is_eff_sample_size", "ess_token"),
    heading="ESS tok",
)
ESS_SEQ_APPLIED = Doc(
    "Effective sample size of sequences, each with the mean weight of its tokens, rejected tokens "
    "with weight 0.",
    unit="fraction",
    formula="(sum w)^2 / (n sum w^2) over sequences",
    healthy="ideal 1",
    example=TOY + "0.5",
    see=("ess_seq",),
    heading="ESS seq",
)
# At the level of the weights; a plain number for a batch, with an interval in a sweep.
TRUNCATION_LOSS = Doc(
    "Share of the ratios that the upper bound C cuts off, at the level of the weights; for "
    "sequence weights a bound on the bias. Null where nothing is truncated or clipped.",
    unit="share",
    formula="E[(ratio - C)+] / E[ratio]",
    direction=RATIO,
    healthy="ideal 0",
    example="sequences of ratios e^1.5 and e^-1.7, the bound 2: 0.5321",
)


class Histogram(TypedDict):
    """A histogram counts values between edges."""

    edges: Annotated[
        list[Number],
        Doc(
            "Edges of a histogram's bins, one more than there are bins; values beyond the last "
            "edge are counted in the last bin.",
            see=("counts",),
        ),
    ]
    counts: Annotated[
        list[Number],
        Doc(
            "Number of values in each bin of a histogram.",
            see=("edges",),
            one_fewer_than="edges",
        ),
    ]


LEVELS = ("ok", "unknown", "warning", "error")  # of a number; the last is the worst


class MetricValue(Part, frozen=True, kw_only=True):
    """A metric value is a number with its 95% interval and its level."""

    value: Annotated[
        Number | None,
        Doc(
            "A number itself; null where it is not defined on the data, NaN where it is computed "
            "from a NaN log-prob.",
            see=("low", "high", "level"),
        ),
    ]
    low: Annotated[
        Number | None,
        Doc(
            "Lower end " + _INTERVAL,
            see=("high", "few-clusters"),
            heading="95% interval",
        ),
    ] = None
    high: Annotated[
        Number | None,
        Doc("Upper end " + _INTERVAL, see=("low", "few-clusters")),
    ] = None
    level: Annotated[
        str | None,
        Doc(
            "Level of a number by its guide: ok, warning or error. With the verdict correctable it "
            "is a warning at most, and with healthy it is ok. Unknown where the interval is too "
            "wide to tell or lacks one or both ends, and where the number itself cannot be "
            "estimated from tokens that another policy sampled; null where it has no guide.",
            see=LEVELS,
            one_of=LEVELS,
        ),
    ] = None
    expected: Annotated[
        Number | None,
        Doc(
            "Value that typical rounding alone gives a number, at the precisions of `expected_of`: "
            "the least ess_seq, the largest khat_seq that it explains, since many engines round "
            "less. Computed from the recorded probabilities and the lengths of responses only, not "
            "from differences between the policies. Null for numbers that do not depend on the "
            "length, and for precisions of unknown noise.",
            formula="from the KL per token noise^2 E[(1 - p)^2] / 2, with a logit noise of 0.1 "
            "nats in bfloat16, 0.0125 in float16 (rcdiag's proposal)",
            see=("expected_of", "ess_seq", "khat_seq"),
            sparse=True,
        ),
    ] = None
    expected_of: Annotated[
        str | None,
        Doc(
            "Precisions that `expected` is computed for, the behavior policy's first: those that "
            "the table's metadata declares, or bfloat16 against float32, `(assumed)`, where it "
            "declares none.",
            example="bfloat16 against float32 (assumed)",
            see=("expected",),
            sparse=True,
        ),
    ] = None


def counted_rows(rows: int, left_out: int, what: str = "sequence") -> str:
    """Write how many rows there are, and how many of them are left out of all numbers."""
    counted = plural(rows, what)
    if not left_out:
        return counted
    why = "log-probs that are NaN, infinite, positive or below -1e12"
    return f"{counted} ({left_out:,} of them left out: {why})"


class Finding(Part, frozen=True, kw_only=True):
    """A finding is a fact about the data, with its severity and what to do about it."""

    slug: Annotated[
        str,
        Doc("Name of a finding, which `rcdiag explain` answers.", example="mirrored-bounds"),
    ]
    severity: Annotated[
        str,
        Doc(
            "How serious a finding is: note, warning or error.",
            example="rcdiag score rollouts.parquet --fail-on warning",
            see=SEVERITIES,
            one_of=SEVERITIES,
        ),
    ]
    message: Annotated[str, Doc("What a finding says about the data, in a sentence.")]
    fix: Annotated[str, Doc("What to do about a finding.")]
    evidence: Annotated[dict[str, Anything], Doc("The numbers that a finding is based on.")] = (
        field(default_factory=dict)
    )


TokensOfPart = Annotated[
    int, Doc("Number of unmasked tokens of a bin, or with a token id.", unit="tokens")
]
ShareOfSquares = Annotated[
    Number,
    Doc(
        "Share of the whole mismatch that is in a bin, or on a token id.",
        unit="share",
        formula="sum log_ratio^2 of the bin / sum log_ratio^2",
        healthy="equal to the share of the tokens if no bin stands out",
        example="log-ratios 0.3 in the bin, 0.4 outside: 0.36",
        see=("share_of_tokens", "top_share"),
    ),
]
LogRatioMean = Annotated[
    MetricValue,
    Doc(
        "Mean log-ratio of the tokens of a bin, or with a token id.",
        unit="nats per token",
        formula="E[log_ratio] over the tokens",
        direction=LOG_RATIO,
        healthy="ideal 0",
        see=("log_ratio", "k1_kl"),
    ),
]
_RMS = Doc(
    "Typical size of the log-ratio of a bin's tokens, or of those with a token id.",
    unit="nats",
    formula="sqrt(E[log_ratio^2])",
    healthy="ideal 0",
    example="log-ratios 0.3 and -0.4: 0.354",
    see=("k2", "share_of_squares"),
)
LogRatioRms = Annotated[MetricValue, _RMS]
LogRatioRmsNumber = Annotated[Number, _RMS]


class ProfileBin(Part, frozen=True, kw_only=True):
    """A profile bin says how much both policies differ on the tokens of one bin."""

    label: Annotated[str, Doc("Values of the axis that fall into a bin of a profile.")]
    tokens: TokensOfPart
    log_ratio_mean: LogRatioMean
    log_ratio_rms: LogRatioRms
    k3_kl: Annotated[
        MetricValue,
        Doc(
            "Estimate of KL(behavior || target) on the tokens of a bin.",
            unit="nats per token",
            formula="E[ratio - 1 - log_ratio] over the tokens of the bin",
            direction="KL(behavior || target)",
            healthy="ideal 0",
            see=("k3",),
        ),
    ]
    share_of_squares: ShareOfSquares


class Profile(Part, frozen=True, kw_only=True):
    """A profile gives the mismatch along one axis; only bins with tokens are listed."""

    title: Annotated[str, Doc("Name of a profile's axis.")]
    unit: Annotated[str, Doc("Unit of a profile's axis; empty for a pure number.")]
    about: Annotated[str, Doc("How to read a profile.")]
    bins: Annotated[
        list[ProfileBin],
        Doc(
            "Non-empty bins of a profile, in the order of the axis.",
            see=("share_of_squares", "log_ratio_rms"),
        ),
    ]


def drawn_sentence(provenance: Mapping[str, Any]) -> str:
    """Say how many rows of a table a result is computed from; empty if it is all of them."""
    if "rows_drawn" not in provenance:
        return ""
    drawn, rows, seed = (provenance[name] for name in ("rows_drawn", "rows", "seed"))
    return f"a first look: {drawn:,} of {rows:,} rows, drawn by prompt group with seed {seed}"


def by_severity(findings: list[Finding]) -> list[Finding]:
    """Sort findings by severity, errors first; findings of one severity keep their order."""
    order = tuple(reversed(SEVERITIES))
    return sorted(findings, key=lambda finding: order.index(finding.severity))
