"""Names that stand in results of every kind. To add one: an entry here."""

from __future__ import annotations

from rcdiag.glossary.entry import LOG_RATIO, Entry, by_hand, said

_SCORE = "rcdiag score rollouts.parquet --json | jq"
_INTERVAL = "95% by resampling prompt groups; null where there are too few to tell"

WORDS: dict[str, Entry] = {
    "kind": said(
        what="Which command made the result: score, compare, sweep or replay.",
        example=f"{_SCORE} .kind",
    ),
    "format_version": said(
        what="Version of the result document; another one cannot be rendered.",
        example=f"{_SCORE} .format_version",
    ),
    "provenance": said(
        what="Where a result comes from: command, versions, dump, rows, fingerprint, seed, time.",
        example=f"{_SCORE} .provenance",
        see=("command", "versions", "dump", "rows", "fingerprint", "seed", "time"),
    ),
    "command": said(what="The command line.", example=f"{_SCORE} .provenance.command"),
    "versions": said(
        what="Versions of rcdiag and of the libraries that computed.",
        example=f"{_SCORE} .provenance.versions",
    ),
    "dump": said(what="Files of the table.", example=f"{_SCORE} .provenance.dump"),
    "rows": said(
        what="Rows of the table; in a family of a sweep one for each setting that was tried.",
        units="rows",
        example=f"{_SCORE} .provenance.rows",
    ),
    "fingerprint": said(
        what="Hash of the table: results of equal fingerprints are of the same data.",
        example=f"{_SCORE} .provenance.fingerprint",
    ),
    "seed": said(
        what="Seed of everything that is drawn; the same seed makes the same result.",
        example="rcdiag score rollouts.parquet --seed 1",
    ),
    "time": said(what="When it was made, in UTC.", example=f"{_SCORE} .provenance.time"),
    "result.trainer": said(
        what="The trainer generation whose definitions and names were used.",
        example="rcdiag score rollouts.parquet --trainer verl-0.9",
        see=("verl-0.9", "slime"),
    ),
    "config": said(
        what="Settings of a correction as its trainer has them.",
        example=f"{_SCORE} '.corrections[].config'",
        see=("rollout_is", "rollout_rs"),
    ),
    "metrics": said(
        what="What the trainer logs, under its own names and with its own definitions.",
        example=f"{_SCORE} '.corrections[].metrics'",
        see=("rollout_corr/rollout_is_mean", "actor/pg_clipfrac"),
    ),
    "honest": said(
        what="Numbers of a correction beside the trainer's own: no clamp, by sequence with a "
        "token, float64.",
        example=f"{_SCORE} '.corrections[].honest'",
        see=("ess_seq_applied", "lost_target_mass_seq", "truncation_loss"),
    ),
    "num_sequences": said(
        what="Sequences with at least one unmasked token.",
        units="sequences",
        example=f"{_SCORE} .num_sequences",
        see=("empty_sequences",),
    ),
    "num_tokens": said(
        what="Unmasked tokens: those that the policy sampled.",
        units="tokens",
        example=f"{_SCORE} .num_tokens",
    ),
    "num_groups": said(
        what="Prompt groups; of a sweep those of at least two sequences.",
        units="groups",
        example="rcdiag replay rollouts.parquet --json | jq .num_groups",
        see=("few-clusters",),
    ),
    "num_clusters": said(
        what="Prompt groups, or sequences without a group: what intervals are made from.",
        units="clusters",
        example=f"{_SCORE} .num_clusters",
        see=("few-clusters", "low"),
    ),
    "empty_sequences": said(
        what="Rows without an unmasked token: left out of the mismatch; trainers count them in "
        "means over rows.",
        units="sequences",
        healthy="ideal 0",
        example=f"{_SCORE} .empty_sequences",
        see=("sequences-without-tokens",),
    ),
    "step": said(
        what="Training step: a batch of the trainer. A replay takes the last one of the table, or "
        "--step.",
        example="rcdiag replay rollouts.parquet --step 40",
        see=("steps",),
    ),
    "steps": said(
        what="The same for every training step, where there are several; of a replay with --steps "
        "every preset goes on with a copy of its own.",
        example="rcdiag replay rollouts.parquet --model CHECKPOINT --steps 3",
        see=("step", "updates-part"),
    ),
    "value": said(
        what="A number itself; null where it is not defined on the data, NaN where a NaN log-prob "
        "touches it.",
        example=f"{_SCORE} .mismatch.k3_kl.value",
        see=("low", "high", "level"),
    ),
    "low": said(
        what=f"Lower end of a number's interval: {_INTERVAL}.",
        example=f"{_SCORE} .mismatch.k3_kl.low",
        see=("high", "few-clusters"),
    ),
    "high": said(
        what=f"Upper end of a number's interval: {_INTERVAL}.",
        example=f"{_SCORE} .mismatch.k3_kl.high",
        see=("low", "few-clusters"),
    ),
    "level": said(
        what="Level of a number by its guide: ok, warning or error; null without a guide. Of a "
        "family of a sweep: what its bounds hold by.",
        example=f"{_SCORE} .mismatch.k3_kl.level",
        see=("ok", "warning", "error"),
    ),
    "verdict": said(
        what="The worst of what was judged: of an update ok, warning, error or cannot judge; of "
        "three policies in a comparison the finding that says who stands apart.",
        example="rcdiag replay rollouts.parquet --json | jq '.presets[].health.verdict'",
        see=("health", "health.cannot judge", "three-agree"),
    ),
    "findings": said(
        what="What the reader should know, the gravest first.",
        example=f"{_SCORE} '.findings[].slug'",
        see=("slug", "severity", "evidence"),
    ),
    "slug": said(what="Name of a finding.", example="rcdiag explain mirrored-bounds"),
    "severity": said(
        what="How grave a finding is: note, warning or error.",
        example="rcdiag score rollouts.parquet --fail-on warning",
        see=("note", "warning", "error"),
    ),
    "evidence": said(
        what="The numbers that a finding rests on.", example=f"{_SCORE} '.findings[].evidence'"
    ),
    "edges": said(
        what="Edges of a histogram's bins, one more than bins; what lies beyond is in the last.",
        example="rcdiag replay rollouts.parquet --json | jq '.presets[].shares.histogram.edges'",
        see=("counts",),
    ),
    "counts": said(
        what="How many a histogram's bins hold.",
        example="rcdiag replay rollouts.parquet --json | jq '.presets[].shares.histogram.counts'",
        see=("edges",),
    ),
    "tokens": said(
        what="Unmasked tokens: of a bin, or of a token id.",
        units="tokens",
        example=f"{_SCORE} '.worst_token_ids[0].tokens'",
    ),
    "log_ratio_rms": said(
        what="Typical size of the log-ratio of a bin's tokens.",
        formula="sqrt(E[log_ratio^2])",
        units="nats",
        healthy="ideal 0",
        example="log-ratios 0.3 and -0.4: 0.354",
        see=("k2", "share_of_squares"),
    ),
    "share_of_squares": said(
        what="What a bin, or a token id, holds of the whole mismatch.",
        formula="sum log_ratio^2 of the bin / sum log_ratio^2",
        units="share",
        healthy="its share of the tokens, where no bin stands out",
        example="log-ratios 0.3 in the bin, 0.4 outside: 0.36",
        see=("share_of_tokens", "top_share"),
    ),
    "share_of_tokens": said(
        what="How many of all tokens a token id makes up.",
        formula="tokens of the id / all tokens",
        units="share",
        example=f"{_SCORE} '.worst_token_ids[0].share_of_tokens'",
        see=("share_of_squares",),
    ),
    "log_ratio_sum": said(
        what="Summed log-ratio of a sequence: the log of the product of its ratios.",
        formula="sum log_ratio over the tokens of the sequence",
        direction=LOG_RATIO,
        units="nats",
        healthy="ideal 0",
        example="log-ratios 0.1, -0.1, 1.5: 1.5",
        see=("log_ratio", "sequence"),
    ),
    "length_quartiles": said(
        what="The three lengths that cut the sequences of a sweep into quarters.",
        units="tokens",
        example="rcdiag sweep rollouts.parquet --json | jq .length_quartiles",
        see=("kept_by_length",),
    ),
    "tokens_differ": said(
        what="Of a comparison of tables: samples that are left out because their tokens differ.",
        units="samples",
        healthy="ideal 0",
        example="rcdiag compare a.parquet b.parquet --json | jq .joined.tokens_differ",
        see=("rows-left-out-of-the-join",),
    ),
}

KIND = by_hand("name in results", "Names in results of every kind", WORDS)
