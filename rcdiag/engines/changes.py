"""Changes to a forward pass, each the effect of a fault: wrong rotary base, quantised weights, ...

Changes are plain data; `rcdiag.engines.hf.changed` puts them on a loaded model.
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
    """Positions are multiplied by `factor` in the rotary embedding."""

    factor: float


class NormEpsilon(Struct, frozen=True):
    """All norms have this epsilon."""

    epsilon: float


class SlidingWindow(Struct, frozen=True):
    """Attention reaches over the last `tokens` tokens alone, the query's own counted."""

    tokens: int


class LowPrecision(Struct, frozen=True):
    """Weights and activations are bfloat16; the head's product is bfloat16 too."""


class KeyValueCache(Struct, frozen=True):
    """Keys and values are stored as float8 e4m3 after division by `scale`."""

    scale: float = 1.0


class Quantised(Struct, frozen=True):
    """Weights of linear layers are rounded to a coarser number format and back."""

    form: Literal["int8", "int4", "fp8"]
    per: Literal["tensor", "channel", "group"] = "channel"
    group: int = 64  # weights of a row that share a scale, where `per` is "group"
    attention: bool = True  # False: attention's tensors stay as they are


class Moved(Struct, frozen=True):
    """Weights go `fraction` of the way to those of another checkpoint.

    `part` names the tensors that move: all, attention, mlp, embedding (with a tied head), head
    (alone, where it is tied to the embedding too), norms, or layer.N.
    """

    folder: Path
    fraction: float = 1.0
    part: str = "all"


class Shards(Struct, frozen=True):
    """Ranks of one tensor are in each other's place, or one rank holds a copy of another's part.

    `tensor` is the name of a parameter, cut into `ranks` parts along `axis`; part `at` gets what
    part `of` holds, and with `exchanged` part `of` gets what part `at` holds.
    """

    tensors: tuple[str, ...]
    axis: int
    ranks: int
    at: int
    of: int
    exchanged: bool


class SwappedExperts(Struct, frozen=True):
    """Experts `one` and `other` of one layer are in each other's place."""

    layer: int
    one: int
    other: int


class RecordedExperts(Struct, frozen=True):
    """Tokens of a mixture of experts take the experts that their passage records."""


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
    """A passage is a sequence of token ids as a model reads it, and the tokens to score.

    `places` are indices of `ids`, 1 or more: a token is scored by the logits of the one before it.
    `positions` are the positions for the rotary embedding; None counts from 0. The first `prefix`
    tokens are the prompt. `experts` are lists of the last tokens' experts, layer by layer, empty
    where they are not recorded.
    """

    ids: NDArray[np.int32]  # [length]
    places: NDArray[np.int64]  # [scored]
    row: int = 0  # of the case, which says whose weights score it where they change by step
    positions: NDArray[np.int64] | None = None  # [length]
    prefix: int = 0
    temperature: float = 1.0
    experts: Ragged | None = None  # [tokens after the prompt]

    def __len__(self) -> int:
        return len(self.ids)


class Reading(Struct, frozen=True, kw_only=True):
    """Log-probs, entropies and logits of a model at scored tokens of passages, temperature 1."""

    log_prob: NDArray[np.float64]  # [scored] nats
    entropy: NDArray[np.float64]  # [scored] nats
    top: NDArray[np.float64]  # [scored] log-prob of the likeliest token, nats
    # [scored] by how much one unit of noise in every logit moves the token's log-prob:
    # sqrt((1 - p)^2 + sum of the other tokens' p^2).
    reach: NDArray[np.float64]
    logits_at: Callable[
        [NDArray[np.int64]], NDArray[np.float32]
    ]  # [chosen] -> [chosen, vocabulary]
    # Temperatures [scored] -> log-probs [scored], nats.
    tempered: Callable[[NDArray[np.float64]], NDArray[np.float64]]


class Tensors(Struct, frozen=True):
    """Names and shapes of a model's decoder, for changes that name its tensors."""

    layers: int
    experts: Mapping[int, int]  # layer -> number of its experts; layers without experts lack
    shapes: Mapping[str, tuple[int, ...]]
    vocabulary: int
    context: int | None
    special_ids: tuple[int, ...]  # begin, end, padding and other special tokens
    end_ids: tuple[int, ...]
    pad_id: int
    routers: int = 0  # layers whose routers take recorded experts


class Forward(Protocol):
    """A trainer's model that scores passages, as it is or under a change."""

    @property
    def tensors(self) -> Tensors:
        """Describe the model's tensors and special tokens."""
        ...

    def read(self, passages: Sequence[Passage]) -> Reading:
        """Say everything of every scored token, as the model is."""
        ...

    def log_probs(
        self, passages: Sequence[Passage], change: Change | None = None
    ) -> NDArray[np.float64]:
        """Return the log-prob of scored tokens, [scored] nats, at the passages' temperature."""
        ...

    def after(self, passages: Sequence[Passage]) -> NDArray[np.float64]:
        """Return log-probs of scored tokens by the logits one position late, [scored] nats."""
        ...

    def after_other_prefix(self, passages: Sequence[Passage], folder: Path) -> NDArray[np.float64]:
        """Score passages whose prompt was read by another checkpoint's weights, [scored] nats."""
        ...
