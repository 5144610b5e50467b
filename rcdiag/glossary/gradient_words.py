"""Numbers of a real gradient in `rcdiag replay --model`. Source: reference/theory.md 2.7."""

from __future__ import annotations

import re
from dataclasses import replace

from rcdiag.glossary.entry import Entry, Kind, by_hand, said
from rcdiag.glossary.worked_replay import directed

_WITH = "G the preset's gradient, R the reference's, sums over each prompt group"
_OFF = "<..> by products of different groups"
_JSON = "rcdiag replay rollouts.parquet --model CHECKPOINT --json | jq"
_FEW = "null below three groups, and where noise leaves no squared norm above 0"
_UNIT = "loss per unit of weight"

GRADIENTS: dict[str, Entry] = {
    "gradient": said(
        what="The gradient of a preset's loss by all trained parameters, against the reference; "
        "null without --model and where coefficients are not finite.",
        formula="sum over tokens of c d log p / d parameters, c its coefficient",
        units=_UNIT,
        example=f"{_JSON} '.presets[].gradient.cosine'",
        see=("cosine", "norm_ratio", "gradient.bias", "gradient.variance", "reference"),
    ),
    "norm": said(
        what="Norm of the gradient before any clipping by it.",
        formula="|sum over groups of G|",
        units=_UNIT,
        healthy="no bound; above max_grad_norm the step is scaled down",
        see=("norm_by_layer", "max_grad_norm", "coefficients.norm"),
    ),
    "norm_by_layer": said(
        what="Norm of the gradient in each part of the model: embedding, layer 0, ..., norm, head.",
        formula="|G| of the part; squares add up to norm^2",
        units=_UNIT,
        example=f"{_JSON} '.presets[].gradient.norm_by_layer'",
        see=("norm", "embedding", "layer 0", "norm_by_layer.norm", "head"),
    ),
    "cosine": said(
        what=f"Direction of the gradient against the reference, unbiased by noise; {_FEW}.",
        formula=f"<G, R> / sqrt(<G, G> <R, R>), {_OFF}, held within -1 and 1; {_WITH}",
        direction="1 the same direction, 0 across, below 0 against it",
        units="none",
        healthy="ideal 1; for bounds see health.cosine",
        see=("health.cosine", "cosine_whole", "reference"),
    ),
    "cosine_whole": said(
        what="The same of both whole gradients: they share the noise of the batch, which makes it "
        "larger. Null without a reference and for a gradient of 0.",
        formula=f"sum G . sum R / (|sum G| |sum R|); {_WITH}",
        direction="1 the same direction, 0 across, below 0 against it",
        units="none",
        healthy="not judged: see cosine",
        see=("cosine",),
    ),
    "norm_ratio": said(
        what="Length of the gradient over that of the reference, of both whole gradients.",
        formula=f"|sum G| / |sum R|; {_WITH}",
        direction="below 1: a shorter step than the reference's",
        units="none",
        healthy="ideal 1; not judged",
        see=("norm_ratio_unbiased",),
    ),
    "norm_ratio_unbiased": said(
        what=f"The same without the noise of either; {_FEW}.",
        formula=f"sqrt(<G, G> / <R, R>), {_OFF}; {_WITH}",
        direction="below 1: a shorter step than the reference's",
        units="none",
        healthy="ideal 1; not judged",
        see=("norm_ratio", "cosine"),
    ),
    "gradient.bias": said(
        what="Squared distance of the mean gradient from the mean reference, relative to the "
        "latter and without their noise; null below three groups.",
        formula=f"max(<G - R, G - R>, 0) / <R, R>, {_OFF}; {_WITH}",
        units="none",
        healthy="ideal 0; not judged; 1 is the bias of no step at all",
        see=("gradient.variance", "bias", "cosine"),
    ),
    "gradient.variance": said(
        what="Noise of the gradient: trace of the covariance of its sum over the squared norm of "
        "its mean; null below three groups and where noise is all there is.",
        formula=f"(sum |G|^2 - |sum G|^2 / n) / <G, G>, {_OFF}, n groups; {_WITH}",
        units="none",
        healthy="ideal 0; not judged; above 1 noise is larger than the signal",
        see=("signal_to_noise", "variance"),
    ),
    "signal_to_noise": said(
        what="Squared norm of the mean gradient over its noise.",
        formula="1 / gradient.variance",
        units="none",
        healthy="not judged; below 1 noise is larger than the signal",
        see=("gradient.variance",),
    ),
    "sequence_norms": said(
        what="Norm of each sequence's gradient, the largest first, at most 100 of them; estimated "
        "from a random sketch.",
        formula="|gradient of the sequence|",
        units=_UNIT,
        example=f"{_JSON} '.presets[].gradient.sequence_norms[0]'",
        see=("gradient.top_share",),
    ),
    "gradient.top_share": said(
        what="Share of the squared norms that the 1% of sequences with the largest have, one "
        "sequence at least.",
        formula="sum of the largest 1% of |gradient of the sequence|^2 / their sum",
        units="share",
        healthy="not judged; above 0.5 is flagged for shares of weights (theory.md 2.1, proposal)",
        example="norms 2, 1, 1: 4 / 6 = 0.667",
        see=("sequence_norms", "top_sequences"),
    ),
    "skew": said(
        what="How much leaving out token weights would change a gradient of unclipped losses, "
        "relative to this gradient (theory.md 2.7, after arXiv 2605.14220).",
        formula="|sum over tokens of (ratio - 1) A / N d log p| / norm, ratio = old / rollout",
        units="none",
        healthy="ideal 0; not judged",
        example=f"{_JSON} '.presets[].gradient.skew'",
        see=("gradient.bias", "mismatch"),
    ),
    "embedding": said(
        what="Part of the model: the token embedding, and the head where both share a weight.",
        example=f"{_JSON} '.presets[].gradient.norm_by_layer.embedding'",
        see=("norm_by_layer", "head"),
    ),
    "layer 0": said(
        what="Part of the model: its first layer; the others are counted on, layer 1 and so forth.",
        example=f"""{_JSON} '.presets[].gradient.norm_by_layer["layer 0"]'""",
        see=("norm_by_layer",),
    ),
    "norm_by_layer.norm": said(
        what="Part of the model: what stands after the layers, as a rule the last norm.",
        example=f"{_JSON} '.presets[].gradient.norm_by_layer.norm'",
        see=("norm_by_layer",),
    ),
    "head": said(
        what="Part of the model: the output head, where it has a weight of its own.",
        example=f"{_JSON} '.presets[].gradient.norm_by_layer.head'",
        see=("norm_by_layer", "embedding"),
    ),
}

_WRITTEN = by_hand("number of a gradient", "Numbers of a gradient in `rcdiag replay`", GRADIENTS)


def find(name: str) -> str | None:
    """`layer 17` and all others."""
    return "layer 0" if re.fullmatch(r"layer[\s_-]*\d+", name.lower()) else None


def entry(name: str) -> Entry:
    """With a worked example."""
    found = _WRITTEN.entry(name)
    return found if found.example else replace(found, example=directed(name))


KIND: Kind = replace(_WRITTEN, entry=entry, find=find)
