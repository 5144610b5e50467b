"""The gradient of every preset against a reference: direction, bias and noise.

All are estimated from inner products of the gradients of prompt groups, which are independent. The
product of a group with itself contains its noise, so only products of different groups are used,
which are unbiased.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.learning.learner import Fresh
from rcdiag.results import GradientReport, MetricValue
from rcdiag.table.trajectories import segment_sum
from rcdiag.usecases.replay.preset import PresetLoss
from rcdiag.usecases.replay.real_updates import ModelReplay
from rcdiag.usecases.replay.update_batch import ReplayBatch

if TYPE_CHECKING:
    from rcdiag.learning.gradient import Gradient

Array = NDArray[np.float64]

REPLICATES = 300  # bootstrap draws of prompt groups
TOP = 0.01  # share of the sequences, those with the largest norms, for `top_norm_share`
LISTED = 100  # at most this many norms of sequences are in a result
REFERENCE, SKEW = "reference", "skew"  # names of coefficient vectors that are not of presets


class Products(Struct, frozen=True):
    """Inner products [groups, groups] of two sets of gradients G and R, sums over each group."""

    gg: Array
    gr: Array
    rr: Array

    @classmethod
    def of(cls, g: Array, r: Array) -> Products:
        """Return the products of two sets of sketches [groups, dims]."""
        return cls(g @ g.T, g @ r.T, r @ r.T)

    def __len__(self) -> int:
        return len(self.gg)


def by_group(sketches: Array, group: NDArray[Any]) -> Array:
    """Return sketches [rows, dims] summed by group, [groups, dims]."""
    keys, index = np.unique(group, return_inverse=True)
    sums = np.zeros((len(keys), sketches.shape[1]))
    np.add.at(sums, index, sketches)
    return sums


def off_diagonal(products: Array, counts: Array) -> Array:
    """Return sum_{c != d} w_c w_d <c, d> for each row w of `counts` [replicates, groups].

    Products of a group with its own copies are left out. Times n / (n - 1) this estimates the
    squared norm (or the product) of the expected sum without bias.
    """
    whole = ((counts @ products) * counts).sum(axis=1)
    result: Array = whole - np.square(counts) @ np.diag(products)
    return result


def draws(groups: int, seed: int) -> Array:
    """Draw bootstrap counts of the groups, [1 + REPLICATES, groups]; the first row is all ones."""
    random = np.random.default_rng(seed)
    counts = np.ones((1 + REPLICATES, groups))
    for replicate in range(1, 1 + REPLICATES):
        counts[replicate] = np.bincount(random.integers(groups, size=groups), minlength=groups)
    return counts


def cosine(products: Products, seed: int) -> MetricValue:
    """Return E<G, R> / sqrt(E|G|^2 E|R|^2), estimated by products of different groups.

    None with fewer than three groups, and if an estimated squared norm is not above 0: then noise
    hides the direction.
    """

    def of(gg: Array, gr: Array, rr: Array) -> Array:
        return np.clip(np.where((gg > 0) & (rr > 0), gr / np.sqrt(gg * rr), np.nan), -1.0, 1.0)

    return _by_groups(products, of, seed)


def relative_norm(products: Products, seed: int) -> MetricValue:
    """Return sqrt(E|G|^2 / E|R|^2) by products of different groups; None if noise hides either."""

    def of(gg: Array, gr: Array, rr: Array) -> Array:
        return np.where((gg > 0) & (rr > 0), np.sqrt(gg / rr), np.nan)

    return _by_groups(products, of, seed)


def relative_bias(products: Products, seed: int) -> MetricValue:
    """Return |E[G - R]|^2 / |E[R]|^2, both estimated by products of different groups."""

    def of(apart: Array, gr: Array, rr: Array) -> Array:
        return np.where(rr > 0, np.maximum(apart, 0.0) / rr, np.nan)

    difference = products.gg - products.gr - products.gr.T + products.rr
    return _by_groups(Products(difference, products.gr, products.rr), of, seed)


def _by_groups(
    products: Products, formula: Callable[[Array, Array, Array], Array], seed: int
) -> MetricValue:
    """Return a formula of E|G|^2, E<G, R> and E|R|^2 with its bootstrap interval over groups."""
    if len(products) < 3:
        return MetricValue(value=None)
    counts = draws(len(products), seed)
    with np.errstate(invalid="ignore", divide="ignore"):
        sums = [off_diagonal(one, counts) for one in (products.gg, products.gr, products.rr)]
        return _with_interval(formula(*sums))


def relative_variance(gg: Array) -> float | None:
    """Return trace(covariance of the summed gradient) / |its expectation|^2, estimated by groups.
    n / (n - 1) sum_c |G_c - mean|^2 over n / (n - 1) sum_{c != d} <G_c, G_d>.
    """
    count = len(gg)
    if count < 3:
        return None
    expected = float(off_diagonal(gg, np.ones((1, count)))[0])
    noise = float(np.trace(gg) - gg.sum() / count)
    return noise / expected if expected > 0 else None


def _with_interval(values: Array) -> MetricValue:
    """Return the first value with an interval from the replicates, if nearly all are finite."""
    value, replicates = float(values[0]), values[1:]
    finite = replicates[np.isfinite(replicates)]
    if not np.isfinite(value):
        return MetricValue(value=None)
    if len(finite) < 0.95 * len(replicates):
        return MetricValue(value=value)
    low, high = np.quantile(finite, [0.025, 0.975])
    return MetricValue(value=value, low=float(min(low, value)), high=float(max(high, value)))


class Reference(Struct, frozen=True, eq=False):
    """The gradient that presets' gradients are compared with; its rows may be fresh samples."""

    sketches: Array  # [rows, dims]
    group: NDArray[np.uint64]  # [rows]
    whole: Gradient
    backwards: int  # backward passes in addition to those of the presets


class PresetGradients(Struct, frozen=True, eq=False):
    """Whole gradients of presets, and sketches of each sequence's gradient, by preset."""

    whole: Mapping[str, Gradient]
    sketches: Mapping[str, Array]  # [rows, dims]
    group: NDArray[np.uint64]  # [rows]
    reference: Reference | None
    backwards: int


def seq_is_coefficients(batch: ReplayBatch) -> Array:
    """Return -A rho_seq / N of each token: its gradient estimates the on-policy one without bias.

    rho_seq is the product of old / rollout over the sequence, without any clamp. Source: Precup,
    Sutton and Singh 2000, Eligibility Traces for Off-Policy Policy Evaluation, section 3.
    """
    log_ratio = segment_sum(batch.old - batch.rollout, batch.lengths)
    with np.errstate(over="ignore"):
        ratio = np.exp(log_ratio)
    result: Array = -batch.advantages * np.repeat(ratio, batch.lengths) / batch.num_tokens
    return result


def skew_coefficients(batch: ReplayBatch) -> Array:
    """Return (ratio - 1) A / N of each token: the effect of leaving out token weights.

    Source: arXiv 2605.14220.
    """
    with np.errstate(over="ignore"):
        return np.expm1(batch.old - batch.rollout) * batch.advantages / batch.num_tokens


def on_policy_coefficients(advantages: Array, tokens: int) -> Array:
    """Return -A / N of each token: samples of the policy itself need no correction."""
    return -advantages / tokens


def gradients(
    replay: ModelReplay, presets: Mapping[str, PresetLoss], fresh: tuple[Fresh, Array] | None
) -> PresetGradients:
    """Compute the gradients of all presets and of the reference, in one pass if rows are shared.

    `fresh` are samples of the policy itself, and the advantage of each of their tokens.
    """
    batch, training = replay.batch, replay.training
    vectors = {name: loss.coefficients for name, loss in presets.items()}
    vectors[SKEW] = skew_coefficients(batch)
    if training.reference == "seq_is":
        vectors[REFERENCE] = seq_is_coefficients(batch)
    usable = {name: values for name, values in vectors.items() if np.isfinite(values).all()}
    computed = replay.learner.gradients(
        batch.parts, np.stack(list(usable.values())), sketch=training.sketch
    )
    assert computed.sketches is not None
    whole = dict(zip(usable, computed.whole, strict=True))
    sketches = dict(zip(usable, computed.sketches, strict=True))
    if fresh is not None:
        samples, advantages = fresh
        vector = on_policy_coefficients(advantages, len(advantages))
        own = replay.learner.gradients(samples.parts, vector[None], sketch=training.sketch)
        assert own.sketches is not None
        reference = Reference(own.sketches[0], samples.group, own.whole[0], own.backwards)
    elif REFERENCE in sketches:
        reference = Reference(sketches[REFERENCE], batch.group, whole[REFERENCE], 0)
    else:
        reference = None
    backwards = computed.backwards + (0 if reference is None else reference.backwards)
    return PresetGradients(whole, sketches, batch.group, reference, backwards)


def gradient_report(sketched: PresetGradients, name: str, seed: int) -> GradientReport | None:
    """Return the statistics of one preset's gradient; None if its coefficients are not finite."""
    if name not in sketched.whole:
        return None
    norm, sketch = sketched.whole[name].norm(), sketched.sketches[name]
    reference = None if sketched.reference is None else sketched.reference.whole
    of_reference = None if reference is None else reference.norm()
    sizes = np.sort(np.square(sketch).sum(axis=1))[::-1]
    g = by_group(sketch, sketched.group)
    products = None
    if sketched.reference is not None:  # of the same prompt groups, in the same order
        r = by_group(sketched.reference.sketches, sketched.reference.group)
        products = Products.of(g, r)
    variance = relative_variance(g @ g.T)
    nothing = cosine(Products.of(g[:0], g[:0]), seed)
    count = max(round(TOP * len(sizes)), 1)
    return GradientReport(
        grad_norm=norm,
        norm_by_layer=sketched.whole[name].norm_by_layer(),
        cosine=nothing if products is None else cosine(products, seed),
        cosine_whole=sketched.whole[name].dot(reference) / (norm * of_reference)
        if norm and reference is not None and of_reference
        else None,
        norm_ratio=norm / of_reference if of_reference else None,
        norm_ratio_unbiased=nothing if products is None else relative_norm(products, seed),
        squared_bias=nothing if products is None else relative_bias(products, seed),
        relative_variance=variance,
        signal_to_noise=1.0 / variance if variance else None,
        sequence_norms=np.sqrt(sizes[:LISTED]).tolist(),
        top_norm_share=float(sizes[:count].sum() / sizes.sum()) if sizes.sum() > 0 else None,
        skew=sketched.whole[SKEW].norm() / norm if norm and SKEW in sketched.whole else None,
    )
