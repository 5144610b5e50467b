"""Changes to a forward pass that reproduce a fault: wrong rotary base, quantised weights, ...

A change is plain data; `rcdiag.engines.hf.changed` applies it to a loaded model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.table.trajectories import Ragged


class RotaryBase(Struct, frozen=True):
    """The base of the rotary embedding is `factor` times the checkpoint's."""

    factor: float


class PositionScale(Struct, frozen=True):
    """Positions are multiplied by `factor` before the rotary embedding."""

    factor: float


class NormEpsilon(Struct, frozen=True):
    """All normalisation layers use this epsilon."""

    epsilon: float


class SlidingWindow(Struct, frozen=True):
    """A query attends to the last `tokens` tokens only, its own included."""

    tokens: int


class LowPrecision(Struct, frozen=True):
    """Weights, activations and the output projection are in bfloat16."""


class KeyValueCache(Struct, frozen=True):
    """Keys and values are stored as float8 e4m3 after division by `scale`."""

    scale: float = 1.0


class Quantised(Struct, frozen=True):
    """Weights of linear layers are rounded to a coarser number format and back."""

    form: Literal["int8", "int4", "fp8"]
    per: Literal["tensor", "channel", "group"] = "channel"
    group: int = 64  # weights of a row that share a scale, where `per` is "group"
    attention: bool = True  # False leaves the weights of attention unquantised


class Moved(Struct, frozen=True):
    """Weights move by `fraction` of the difference to another checkpoint's weights.

    `part` names the tensors that move: all, attention, mlp, embedding (and a head that is tied to
    it), head (also where it is tied, without the embedding), norms, or layers.N+M.
    """

    folder: Path
    fraction: float = 1.0
    part: str = "all"


class Shards(Struct, frozen=True):
    """Tensor-parallel ranks hold the wrong part of a weight: two are exchanged, or one is a copy.

    Each parameter in `tensors` is cut into `ranks` parts along `axis`. Part `at` gets the values of
    part `of`; with `exchanged`, part `of` also gets the values of part `at`.
    """

    tensors: tuple[str, ...]
    axis: int
    ranks: int
    at: int
    of: int
    exchanged: bool


class SwappedExperts(Struct, frozen=True):
    """Experts `one` and `other` of a layer are exchanged."""

    layer: int
    one: int
    other: int


class RecordedExperts(Struct, frozen=True):
    """Tokens of a mixture of experts use the experts that their passage records."""


Change = (
    RotaryBase
    | PositionScale
    | NormEpsilon
    | SlidingWindow
    | LowPrecision
    | KeyValueCache
    | Quantised
    | Moved
    | Shards
    | SwappedExperts
    | RecordedExperts
)


class Passage(Struct, frozen=True):
    """A sequence of token ids as a model reads it, and which of its tokens to score.

    `places` are indices into `ids`, at least 1: the logits at the token before predict the scored
    one. `positions` are those of the rotary embedding; None counts from 0. The first `prefix`
    tokens are the prompt. `experts` lists the experts of the last tokens, layer by layer; an empty
    list means that they are not recorded.
    """

    ids: NDArray[np.int32]  # [length]
    places: NDArray[np.int64]  # [scored]
    row: int = 0  # row of the case, which determines the checkpoint if it changes by step
    positions: NDArray[np.int64] | None = None  # [length]
    prefix: int = 0
    temperature: float = 1.0
    experts: Ragged | None = None  # [tokens after the prompt]

    def __len__(self) -> int:
        return len(self.ids)


class Reading(Struct, frozen=True, kw_only=True):
    """Log-probs, entropies and logits of a model at the scored tokens, at temperature 1."""

    log_prob: NDArray[np.float64]  # [scored] nats
    entropy: NDArray[np.float64]  # [scored] nats
    top: NDArray[np.float64]  # [scored] log-prob of the likeliest token, nats
    # [scored] standard deviation of the token's log-prob under independent noise of unit variance
    # in every logit: sqrt((1 - p)^2 + sum of p^2 over the other tokens).
    noise_gain: NDArray[np.float64]
    logits_at: Callable[
        [NDArray[np.int64]], NDArray[np.float32]
    ]  # [chosen] -> [chosen, vocabulary]
    # Temperatures [scored] -> log-probs [scored], nats.
    tempered: Callable[[NDArray[np.float64]], NDArray[np.float64]]


class Tensors(Struct, frozen=True):
    """Names and shapes of a decoder's tensors, which changes refer to."""

    layers: int
    experts: Mapping[int, int]  # layer -> number of experts; layers without experts are absent
    shapes: Mapping[str, tuple[int, ...]]
    vocabulary: int
    context: int | None
    special_ids: tuple[int, ...]  # begin, end, padding and other special tokens
    end_ids: tuple[int, ...]
    pad_id: int
    routers: int = 0  # layers with a router that can be given recorded experts


class Forward(Protocol):
    """A trainer's model that scores passages, unchanged or under a `Change`."""

    @property
    def tensors(self) -> Tensors:
        """Return names and shapes of the model's tensors, and its special tokens."""
        ...

    def read(self, passages: Sequence[Passage]) -> Reading:
        """Return log-prob, entropy and logits of every scored token, model unchanged."""
        ...

    def log_probs(
        self, passages: Sequence[Passage], change: Change | None = None
    ) -> NDArray[np.float64]:
        """Return log-probs of the scored tokens, [scored] nats, at the passages' temperature."""
        ...

    def after(self, passages: Sequence[Passage]) -> NDArray[np.float64]:
        """Return log-probs of scored tokens by the logits one position late, [scored] nats."""
        ...

    def after_other_prefix(self, passages: Sequence[Passage], folder: Path) -> NDArray[np.float64]:
        """Score passages whose prompt was read by another checkpoint's weights, [scored] nats."""
        ...
