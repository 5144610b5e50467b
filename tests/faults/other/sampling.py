"""Sample responses from models and score given responses, with exact log-probs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.faults.other.models import (
    EOS,
    WIDTH,
    Model,
    Noise,
    advance,
    distributions,
    hidden,
    logits,
)

BLOCK = 64
NEVER = np.float32(-1e30)  # finite: 0 * NEVER is 0


@dataclass
class Sampling:
    """How the sampler changes the logits before it samples, in vLLM's order."""

    temperature: float | np.ndarray = 1.0  # or one for each row
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    bias: np.ndarray | None = None  # by token id; NEVER bans
    min_tokens: int = 0

    @property
    def plain(self) -> bool:
        """Whether the tokens are sampled from the model's own distribution."""
        scale = not isinstance(self.temperature, np.ndarray) and self.temperature == 1.0
        cuts = self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0 or self.min_tokens > 0
        pushes = self.repetition != 1.0 or self.presence != 0.0 or self.bias is not None
        return scale and not cuts and not pushes

    def apply(self, z: np.ndarray, rows: np.ndarray, t: int, seen: np.ndarray) -> np.ndarray:
        """Return the logits to sample from; `seen` (table rows, vocabulary) marks earlier ids."""
        z = z.copy()
        if t < self.min_tokens:
            z[:, EOS] = NEVER
        if self.bias is not None:
            z += self.bias
        if self.repetition != 1.0:
            scaled = np.where(z > 0, z / self.repetition, z * self.repetition)
            z = np.where(seen[rows], scaled, z)
        if self.presence:
            z -= np.float32(self.presence) * seen[rows]
        if isinstance(self.temperature, np.ndarray):
            z /= self.temperature[rows, None].astype(np.float32)
        elif self.temperature != 1.0:
            z /= np.float32(self.temperature)
        if self.min_p:
            z[z < z.max(1, keepdims=True) + np.log(self.min_p)] = NEVER
        if self.top_k:
            z[z < np.partition(z, -self.top_k, axis=1)[:, -self.top_k, None]] = NEVER
        if self.top_p < 1.0:
            descending = -np.sort(-z, axis=1)
            p = np.exp(descending - descending[:, :1], dtype=np.float64)
            p /= p.sum(1, keepdims=True)
            # A token stays when the mass before it is below top_p.
            kept = (p.cumsum(1) - p < self.top_p).sum(1)
            z[z < descending[np.arange(len(z)), kept - 1, None]] = NEVER
        return z


@dataclass
class Sample:
    """Sampled rows; token arrays are flat, row after row."""

    lengths: np.ndarray
    tokens: np.ndarray
    sampled: np.ndarray  # log-prob under the distribution that sampled
    raw: np.ndarray  # log-prob under the model's own distribution
    entropy: np.ndarray  # of the distribution that sampled
    raw_entropy: np.ndarray
    top_one: np.ndarray  # log-prob of the likeliest token, of the distribution that sampled
    divergence: np.ndarray  # KL(distribution that sampled || model's own distribution)
    free: np.ndarray  # sampled, not forced (a tool's token)
    kept_mass: np.ndarray  # probability that the model's own distribution gives the kept set

    @property
    def offsets(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.lengths)])

    def rows(self, flat: np.ndarray) -> list[np.ndarray]:
        return np.split(flat, self.offsets[1:-1])

    @property
    def row_of(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def place(self) -> np.ndarray:
        """Return the index of each token in its row."""
        return np.arange(len(self.tokens)) - np.repeat(self.offsets[:-1], self.lengths)


def draw(rng: np.random.Generator, odds: np.ndarray) -> np.ndarray:
    """Draw one id per row of unnormalised probabilities, by blocks of the cumulative sum."""
    n, size = odds.shape
    if size % BLOCK:
        odds = np.pad(odds, ((0, 0), (0, -size % BLOCK)))
    blocks = odds.reshape(n, -1, BLOCK)
    upto = blocks.sum(2).cumsum(1, dtype=np.float64)
    rows, u = np.arange(n), rng.random(n) * upto[:, -1] * (1.0 - 1e-7)
    block = (upto <= u[:, None]).sum(1)
    before = np.where(block > 0, upto[rows, np.maximum(block - 1, 0)], 0.0)
    inner = blocks[rows, block].cumsum(1, dtype=np.float64)
    # A float32 sum of the block may exceed its float64 sum by a rounding.
    u = np.minimum(u - before, inner[:, -1] * (1.0 - 1e-7))
    return block * BLOCK + (inner <= u[:, None]).sum(1)


def generate(
    rng: np.random.Generator,
    models: Sequence[Model],
    which: np.ndarray,
    prompts: Sequence[np.ndarray],
    lengths: np.ndarray,
    *,
    sampling: Sampling,
    noise: Noise,
    forced: np.ndarray | None = None,
    switch: np.ndarray | None = None,
    prefix: Model | None = None,
) -> Sample:
    """Sample responses of at most `lengths`; a response ends after the end token.

    Args:
        which: index into `models` for each row.
        forced: (rows, longest) ids of tokens that are not sampled; -1 where the model samples.
        switch: place from which on a row is sampled by the next model of the list; the state
            of the earlier tokens is kept, as in-flight updates keep the cache.
        prefix: the model that reads the prompts, if it is another one.
    """
    count, longest = len(prompts), int(lengths.max())
    vocabulary, experts = models[0].vocabulary, models[0].weights.get("router", np.empty((0, 0)))
    start = np.array([len(prompt) for prompt in prompts])
    state = np.zeros((count, WIDTH), np.float32)
    seen = np.zeros((count, vocabulary if not sampling.plain else 1), bool)
    for t in range(int(start.max())):
        for m in range(len(models)):
            rows = np.flatnonzero((start > t) & (which == m))
            if len(rows):
                ids = np.array([prompts[row][t] for row in rows])
                state[rows] = advance(prefix or models[m], state[rows], ids, np.full(len(rows), t))
                if sampling.repetition != 1.0:
                    seen[rows, ids] = True
    tokens = np.full((count, longest), -1, np.int32)
    numbers = {
        name: np.zeros((count, longest))
        for name in ("sampled", "raw", "entropy", "raw_entropy", "top_one", "divergence", "mass")
    }
    alive = np.ones(count, bool)
    for t in range(longest):
        now = np.flatnonzero(alive & (lengths > t))
        if not len(now):
            break
        current = which[now] + (0 if switch is None else (t >= switch[now]).astype(int))
        for m in np.unique(current):
            rows = now[current == m]
            vectors = hidden(models[m], state[rows], noise.draw(rng, rows, experts.shape[1]))
            z = logits(models[m], vectors)
            raw = own = distributions(z)
            chosen, mass, divergence = z, np.ones(len(z)), np.zeros(len(z))
            if not sampling.plain:
                chosen = sampling.apply(z, rows, t, seen)
                own = distributions(chosen)
                # A banned token's logit is far below any that a model returns.
                mass = np.where(chosen > NEVER / 100, raw.p, 0.0).sum(1)
                shift = np.where(own.odds > 0, chosen - z, 0.0)
                divergence = (own.p * shift).sum(1) - own.norm + raw.norm
            ids = draw(rng, own.odds)
            if forced is not None:
                ids = np.where(forced[rows, t] >= 0, forced[rows, t], ids)
            at = np.arange(len(rows))
            tokens[rows, t] = ids
            for name, value in (
                ("sampled", chosen[at, ids] - own.norm),
                ("raw", z[at, ids] - raw.norm),
                ("entropy", own.entropy),
                ("raw_entropy", raw.entropy),
                ("top_one", own.top_one),
                ("divergence", divergence),
                ("mass", mass),
            ):
                numbers[name][rows, t] = value
            state[rows] = advance(models[m], state[rows], ids, start[rows] + t)
            if not sampling.plain:
                seen[rows, ids] = True
        alive[now] &= tokens[now, t] != EOS
    there = tokens >= 0
    free = there if forced is None else there & (forced[:, :longest] < 0)
    flat = {name: value[there] for name, value in numbers.items()}
    kept_mass = flat.pop("mass")
    return Sample(
        lengths=there.sum(1), tokens=tokens[there], free=free[there], kept_mass=kept_mass, **flat
    )


@dataclass
class View:
    """One row as a scorer saw it: tokens, positions, and where each target is read."""

    inputs: np.ndarray
    read: np.ndarray  # for each target, index into `inputs` of the last token before it
    targets: np.ndarray
    positions: np.ndarray = field(default_factory=lambda: np.empty(0, int))
    state: np.ndarray | None = None  # state before the first input

    def __post_init__(self) -> None:
        if not len(self.positions):
            self.positions = np.arange(len(self.inputs))


def plain_view(prompt: np.ndarray, response: np.ndarray) -> View:
    return View(
        inputs=np.concatenate([prompt, response]),
        read=len(prompt) - 1 + np.arange(len(response)),
        targets=response,
    )


@dataclass
class Scores:
    log_probs: np.ndarray
    entropy: np.ndarray
    top_one: np.ndarray


def read_hidden(
    model: Model, views: Sequence[View], rng: np.random.Generator, noise: Noise
) -> np.ndarray:
    """Return the hidden vectors (targets, width) that predict the targets of all rows, flat."""
    sizes = np.array([len(view.inputs) for view in views])
    starts = np.concatenate([[0], np.cumsum(sizes)])[:-1]
    inputs = np.concatenate([view.inputs for view in views])
    positions = np.concatenate([view.positions for view in views])
    state = np.zeros((len(views), WIDTH), np.float32)
    for row, view in enumerate(views):
        if view.state is not None:
            state[row] = view.state
    states = np.zeros((len(inputs), WIDTH), np.float32)
    for t in range(int(sizes.max())):
        rows = np.flatnonzero(sizes > t)
        at = starts[rows] + t
        state[rows] = states[at] = advance(model, state[rows], inputs[at], positions[at])
    reads = np.concatenate([start + view.read for start, view in zip(starts, views, strict=True)])
    row_of = np.repeat(np.arange(len(views)), [len(view.read) for view in views])
    experts = model.weights["router"].shape[1] if "router" in model.weights else 0
    pieces = [
        hidden(model, states[reads[piece]], noise.draw(rng, row_of[piece], experts))
        for piece in np.array_split(np.arange(len(reads)), max(1, len(reads) // 4000))
    ]
    return np.concatenate(pieces)


def score(
    model: Model,
    views: Sequence[View],
    rng: np.random.Generator,
    noise: Noise,
    *,
    temperature: float = 1.0,
    change: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Scores:
    """Return log-probs of the targets; `change` is applied to the hidden vectors (dropout)."""
    vectors = read_hidden(model, views, rng, noise)
    if change is not None:
        vectors = change(vectors)
    targets = np.concatenate([view.targets for view in views])
    out = Scores(*(np.zeros(len(targets)) for _ in range(3)))
    chunk = max(16, 500_000 // model.vocabulary)
    for begin in range(0, len(targets), chunk):
        part = slice(begin, begin + chunk)
        z = logits(model, vectors[part])
        if temperature != 1.0:
            z /= np.float32(temperature)
        made = distributions(z, model.padding_rows)
        out.log_probs[part] = z[np.arange(len(z)), targets[part]] - made.norm
        out.top_one[part] = made.top_one
        out.entropy[part] = made.entropy
    return out
