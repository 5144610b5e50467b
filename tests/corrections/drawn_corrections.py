"""Random corrections in canonical form that a trainer can express."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from rcdiag.corrections.correction import Correction, Rejection, Weighting


def ratios(low: float, high: float) -> SearchStrategy[float]:
    return st.floats(np.log(low), np.log(high)).map(lambda value: float(np.exp(value)))


WEIGHTS = {
    "truncate": st.builds(Weighting, st.sampled_from(("token", "sequence")), ratios(0.5, 100.0)),
    "zero": st.builds(
        Weighting,
        st.sampled_from(("token", "sequence")),
        ratios(1.0, 100.0),
        st.none() | ratios(0.01, 1.0),
        st.just("zero"),
    ),
    "clip": st.builds(
        Weighting,
        st.sampled_from(("token", "sequence", "geometric")),
        ratios(1.001, 100.0),
        st.none() | ratios(0.01, 0.999),
        st.just("clip"),
    ),
}
LOWER = st.none() | st.just(0.0) | ratios(0.1, 0.999)
BY_RATIO = {
    name: st.builds(Rejection, st.just(name), ratios(1.001, 10.0), LOWER)
    for name in ("token", "sequence", "geometric")
}
BY_K = {
    **{
        name: st.builds(Rejection, st.just(name), st.floats(1e-3, 2.0), st.floats(-2.0, -1e-3))
        for name in ("token_k1", "seq_sum_k1", "seq_mean_k1")
    },
    **{
        name: st.builds(Rejection, st.just(name), st.floats(1e-6, 2.0))
        for name in ("token_k2", "seq_sum_k3", "seq_mean_k3", "seq_max_k2")
    },
}
ONE_RATIO = st.one_of(*BY_RATIO.values()).map(lambda it: (it,))
OF_VERL = st.sampled_from(
    (
        {},
        {"mode": "bypass", "loss": "reinforce"},
        {"batch_normalize": True},
    )
)


@st.composite
def masked(draw: st.DrawFn) -> Correction:
    """MIS: the untruncated ratio, with a rejection at the same level."""
    level = draw(st.sampled_from(("token", "sequence")))
    upper, lower = draw(ratios(1.001, 10.0)), draw(ratios(0.1, 0.999))
    weighting = Weighting(level, upper, lower, "mask")
    return Correction(weighting, (Rejection(level, upper, lower),))


@st.composite
def by_k(draw: st.DrawFn, icepop: bool) -> Correction:
    weights = [st.none(), WEIGHTS["truncate"]] + [WEIGHTS["zero"]] * icepop
    of = st.lists(st.sampled_from(sorted({**BY_RATIO, **BY_K})), unique=True, max_size=3)
    rejections = tuple(draw({**BY_RATIO, **BY_K}[name]) for name in draw(of))
    return Correction(draw(st.one_of(*weights)), rejections, **draw(OF_VERL))


@st.composite
def by_ratio(draw: st.DrawFn) -> Correction:
    rejections = draw(st.just(()) | ONE_RATIO)
    veto = draw(st.none() | ratios(1e-6, 0.9))
    weighting = draw(st.none() | WEIGHTS["truncate"])
    return Correction(weighting, rejections, veto, **draw(OF_VERL))


@st.composite
def of_slime(draw: st.DrawFn) -> Correction:
    weighting = draw(WEIGHTS["truncate"] | WEIGHTS["clip"])
    normalize = weighting.level != "geometric" and draw(st.booleans())
    rejections = draw(st.just(()) | ONE_RATIO)
    return Correction(
        weighting, rejections, draw(st.none() | ratios(1e-6, 0.9)), batch_normalize=normalize
    )


def corrections_of(trainer: str) -> SearchStrategy[Correction]:
    """Draw corrections that the trainer can express."""
    if trainer == "slime":
        return of_slime() | masked()
    if trainer in ("verl-0.9", "verl-0.8.0", "verl-0.7.1"):
        return by_k(icepop=trainer != "verl-0.7.1") | masked()
    return by_ratio() | masked()
