"""How far apart both policies are: divergences, of tokens and of whole sequences."""

from __future__ import annotations

from rcdiag.statistics.metrics.metric import PROPOSAL, Averaged, Guide, Metric


def _kl(formula: str, level: str, about: str, guide: Guide | None = None) -> Metric:
    words, _, reverse = formula.partition("_")
    name, of = (f"seq_{formula}", " of sequences") if level == "seq" else (formula, "")
    of += ", from the target's side" if reverse else ""
    return Averaged(
        label=f"KL by {words}{of}",
        unit="nats",
        ideal=0.0,
        about=about
        + (" per sequence, with the product of its ratios" if level == "seq" else " per token"),
        guide=guide,
        formula=lambda t: t.per_sequence(name) if level == "seq" else t.per_token(name),
    )


_K1_REVERSE = "KL(target || behavior), E[ratio log_ratio]"
_K2_REVERSE = "KL(target || behavior) to second order, E[ratio log_ratio^2] / 2"
_K3_REVERSE = "KL(target || behavior), E[ratio log_ratio - ratio + 1]; never negative"

DIVERGENCES: dict[str, Metric] = {
    "k3_kl": Averaged(
        label="KL by k3",
        unit="nats",
        ideal=0.0,
        about="KL(behavior || target) per token, E[ratio - 1 - log_ratio]; never negative",
        guide=Guide(
            1e-3,
            1e-2,
            f"{PROPOSAL} for dense models (mixture of experts: 0.005, 0.03); NeMo RL calls below "
            "0.001 acceptable",
        ),
        headline=True,
        formula=lambda t: t.per_token("k3"),
    ),
    "k1_kl": Averaged(
        label="KL by k1",
        unit="nats",
        ideal=0.0,
        about="KL(behavior || target) per token, E[-log_ratio]; unbiased, noisy, may be negative",
        guide=Guide(0.05, 0.1, "verl guide: |kl| above 0.1 is an alarm; half of it warns", 0.0),
        headline=True,
        formula=lambda t: -t.per_token("log_ratio"),
    ),
    "k2_kl": Averaged(
        label="KL by k2",
        unit="nats",
        ideal=0.0,
        about="E[log_ratio^2] / 2 per token; the size of the mismatch whoever sampled",
        guide=Guide(5e-3, 2e-2, f"{PROPOSAL}; M2PO keeps E[log_ratio^2] below 0.04"),
        formula=lambda t: t.per_token("k2"),
    ),
    "k1_kl_reverse": _kl("k1_reverse", "token", _K1_REVERSE),
    "k2_kl_reverse": _kl("k2_reverse", "token", _K2_REVERSE),
    "k3_kl_reverse": _kl("k3_reverse", "token", _K3_REVERSE),
    "k1_kl_seq": Averaged(
        label="KL by k1 of sequences",
        unit="nats",
        ideal=0.0,
        about="KL(behavior || target) per sequence, E[-sum log_ratio]",
        headline=True,
        formula=lambda t: -t.per_sequence("seq_log_ratio"),
    ),
    "k2_kl_seq": _kl("k2", "seq", "E[(sum log_ratio)^2] / 2"),
    "k3_kl_seq": _kl("k3", "seq", "KL(behavior || target), E[ratio - 1 - log_ratio]"),
    "k1_kl_reverse_seq": _kl("k1_reverse", "seq", _K1_REVERSE),
    "k2_kl_reverse_seq": _kl("k2_reverse", "seq", _K2_REVERSE),
    "k3_kl_reverse_seq": _kl("k3_reverse", "seq", _K3_REVERSE),
    "tv_token": Averaged(
        label="total variation of tokens",
        ideal=0.0,
        about="E[(1 - ratio)+], within [0, 1]; right where the sampler cuts off tokens too",
        headline=True,
        formula=lambda t: t.per_token("shortfall"),
    ),
    "tv_seq": Averaged(
        label="total variation of sequences",
        ideal=0.0,
        about="E[(1 - prod ratio)+], within [0, 1]",
        formula=lambda t: t.per_sequence("seq_shortfall"),
    ),
    "hellinger2_token": Averaged(
        label="squared Hellinger distance of tokens",
        ideal=0.0,
        about="1 - E[sqrt(ratio)]; the divergence with the steadiest estimate",
        formula=lambda t: t.per_token("root_shortfall"),
    ),
    "hellinger2_seq": Averaged(
        label="squared Hellinger distance of sequences",
        ideal=0.0,
        about="1 - E[sqrt(prod ratio)]",
        formula=lambda t: t.per_sequence("seq_root_shortfall"),
    ),
}
