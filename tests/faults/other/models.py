"""Random recurrent language models whose next-token logits depend on the whole context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

BOS, EOS, PAD, TOOL = 0, 1, 2, 3
WIDTH = 48
FREQUENCIES = 2.0 ** -np.arange(10)
NOT_WEIGHTS = ("decay", "end")

Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Model:
    """The weights, and settings of the forward pass."""

    weights: Weights
    frequency: float = 1.0  # factor on the frequencies of the position features
    eps: float = 1e-5
    softcap: float = 0.0  # logits become cap * tanh(logits / cap); 0: no cap
    padding_rows: int = 0  # rows of the head beyond the vocabulary, with logits of 0
    state_rounding: Callable[[np.ndarray], np.ndarray] | None = None  # a quantised cache
    logit_rounding: Callable[[np.ndarray], np.ndarray] | None = None

    @property
    def vocabulary(self) -> int:
        return len(self.weights["bias"])

    def with_weights(self, **weights: np.ndarray) -> Model:
        return replace(self, weights={**self.weights, **weights})


@dataclass(frozen=True)
class Noise:
    """Rounding noise of an engine, on the hidden vector and on an expert model's router.

    It is independent of the token that follows, so a sampler that samples from its own noisy
    distribution still records correct log-probs.
    """

    scale: float = 0.0
    router: float = 0.0
    tails: float = 0.0  # degrees of freedom of Student's t by token; 0: Gaussian
    row_scale: np.ndarray | None = field(default=None, repr=False)  # factor of each row

    def draw(
        self, rng: np.random.Generator, rows: np.ndarray, experts: int
    ) -> tuple[np.ndarray | None, np.ndarray | None]:
        factor = np.ones(len(rows))
        if self.tails:
            factor = np.sqrt(self.tails / rng.chisquare(self.tails, len(rows)))
        if self.row_scale is not None:
            factor = factor * self.row_scale[rows]
        hidden = router = None
        if self.scale:
            hidden = (self.scale * factor)[:, None] * rng.standard_normal((len(rows), WIDTH))
            hidden = hidden.astype(np.float32)
        if self.router and experts:
            router = self.router * factor[:, None] * rng.standard_normal((len(rows), experts))
            router = router.astype(np.float32)
        return hidden, router


def random_weights(
    rng: np.random.Generator, vocabulary: int, zipf: float = 1.0, experts: int = 0
) -> Weights:
    """Return unscaled weights; `set_entropy` scales the head."""

    def matrix(*shape: int, gain: float = 1.0) -> np.ndarray:
        return (gain / np.sqrt(shape[-2]) * rng.standard_normal(shape)).astype(np.float32)

    ranks = rng.permutation(vocabulary) + 1.0
    weights = {
        "embedding": rng.standard_normal((vocabulary, WIDTH)).astype(np.float32),
        "input": matrix(WIDTH, WIDTH),
        "recurrent": matrix(WIDTH, WIDTH, gain=0.5),
        "position": matrix(2 * len(FREQUENCIES), WIDTH, gain=0.15),
        # From channels that hold only the last token to those that remember the prompt.
        "decay": rng.choice([0.0, 0.3, 0.6, 0.8, 0.9, 0.97, 0.99], WIDTH).astype(np.float32),
        "norm": np.ones(WIDTH, np.float32),
        "head": rng.standard_normal((vocabulary, WIDTH)).astype(np.float32) / np.sqrt(WIDTH),
        "bias": (-0.4 * zipf * np.log(ranks)).astype(np.float32),
        "end": np.zeros(1, np.float32),  # logit of the end token, from the largest other logit
    }
    if experts:
        weights["router"] = matrix(WIDTH, experts)
        weights["experts"] = matrix(experts, WIDTH, WIDTH, gain=1.5)
    else:
        weights["up"] = matrix(WIDTH, WIDTH, gain=1.2)
        weights["down"] = matrix(WIDTH, WIDTH, gain=1.2)
    weights["bias"][[BOS, PAD, TOOL]] = weights["bias"].min() - 2.0
    weights["head"][[BOS, EOS, PAD, TOOL]] *= 0.2
    weights["end"][:] = -5.0
    return weights


def advance(
    model: Model, state: np.ndarray, tokens: np.ndarray, positions: np.ndarray
) -> np.ndarray:
    """Return the state (rows, width) after one more token each."""
    w = model.weights
    angles = positions[:, None] * (FREQUENCIES * model.frequency)
    features = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
    new = w["embedding"][tokens] @ w["input"] + features @ w["position"]
    new = np.tanh(new + state @ w["recurrent"])
    # Slow channels have smaller weight, so that distant tokens matter less than recent ones.
    state = w["decay"] * state + (1.0 - w["decay"]) ** 0.75 * new
    return model.state_rounding(state) if model.state_rounding else state


def hidden(
    model: Model,
    state: np.ndarray,
    noise: tuple[np.ndarray | None, np.ndarray | None] = (None, None),
) -> np.ndarray:
    """Return the normalised hidden vector (rows, width) that the head reads."""
    w = model.weights
    if "experts" in w:
        gates = 3.0 * (state @ w["router"])
        if noise[1] is not None:
            gates = gates + noise[1]
        rows, experts = np.arange(len(state))[:, None], np.argsort(gates, axis=1)[:, -2:]
        chosen = np.exp(gates[rows, experts] - gates.max(1, keepdims=True))
        chosen /= chosen.sum(1, keepdims=True)
        out = np.tanh(np.einsum("nd,edf->nef", state, w["experts"], optimize=True))
        mixed = state + 0.5 * (chosen[:, :, None] * out[rows, experts]).sum(1)
    else:
        mixed = state + np.tanh(state @ w["up"]) @ w["down"]
    mixed = w["norm"] * mixed / np.sqrt((mixed**2).mean(1, keepdims=True) + model.eps)
    return mixed if noise[0] is None else mixed + noise[0]


def logits(model: Model, vectors: np.ndarray) -> np.ndarray:
    z = vectors @ model.weights["head"].T
    z += model.weights["bias"]
    # Relative to the largest logit; else a sharp model ends at once or never, by context.
    z[:, EOS] = z[:, PAD:].max(1) + model.weights["end"]
    if model.softcap:
        z = model.softcap * np.tanh(z / model.softcap)
    return model.logit_rounding(z) if model.logit_rounding else z


@dataclass
class Distributions:
    """Next-token distributions, one a row, from logits."""

    odds: np.ndarray  # probabilities up to a factor by row
    norm: np.ndarray  # log-sum-exp of the logits (rows,)
    entropy: np.ndarray
    top_one: np.ndarray  # largest log-prob
    total: np.ndarray  # what `odds` sum to, padding rows counted

    @property
    def p(self) -> np.ndarray:
        return self.odds / self.total[:, None]


def distributions(z: np.ndarray, padding_rows: int = 0) -> Distributions:
    top = z.max(1)
    odds = np.exp(z - top[:, None])
    total = odds.sum(1)
    if padding_rows:
        total = total + padding_rows * np.exp(-top)
    norm = top + np.log(total)
    entropy = norm - np.einsum("nv,nv->n", odds, z) / total
    return Distributions(odds, norm, entropy, top - norm, total)


def random_contexts(rng: np.random.Generator, model: Model, rows: int) -> np.ndarray:
    """Return hidden vectors after twelve tokens drawn from the model's biases."""
    odds = np.exp(2.5 * model.weights["bias"].astype(np.float64))
    state = np.zeros((rows, WIDTH), np.float32)
    for position in range(12):
        tokens = rng.choice(model.vocabulary, rows, p=odds / odds.sum())
        state = advance(model, state, tokens, np.full(rows, position))
    return hidden(model, state)


def set_entropy(
    rng: np.random.Generator, model: Model, entropy: float, end_probability: float
) -> Model:
    """Scale head and bias to a mean entropy (nats), and set the hazard of ending a response."""
    vectors = random_contexts(rng, model, 64 if model.vocabulary > 10_000 else 256)
    low, high = 0.05, 400.0
    for _ in range(12):
        scale = np.sqrt(low * high)
        made = distributions(logits(_scaled(model, scale), vectors))
        low, high = (scale, high) if made.entropy.mean() > entropy else (low, scale)
    end = np.log(end_probability) - made.top_one.mean()
    return _scaled(model, scale).with_weights(end=np.array([end], np.float32))


def _scaled(model: Model, scale: float) -> Model:
    head, bias = model.weights["head"], model.weights["bias"]
    return model.with_weights(head=np.float32(scale) * head, bias=np.float32(scale**0.5) * bias)
