"""The forward pass of the sample policy, written so that each step can be changed.

It is Qwen3 (rotary positions, grouped queries, normalised queries and keys, gated MLP, tied head)
on a key-value cache. With the default options it is the trainer's pass in float32, equal to that of
transformers; an engine rounds its activations to bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional

LAYERS, HEADS, KEY_HEADS, HEAD = 5, 6, 2, 32
EMBEDDING = "model.embed_tokens.weight"
FLOAT8_MAX = 448.0

Tensors = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a forward pass; the defaults are those of the trainer in float32."""

    rounding: str | None = (
        None  # where activations are rounded to bfloat16: "decode", "prefill", or nowhere
    )
    coarse: bool = False  # float8 inputs of the MLPs
    float8_inputs: bool = False
    theta: float = 10_000.0
    position_scale: float = 1.0
    eps: float = 1e-6
    window: int | None = None  # attention window, tokens
    softcap: float | None = None
    bfloat16_logits: bool = False
    float8_cache: float | None = None  # scale of float8 keys and values
    dropout: float = 0.0
    # Probability of rerouting per token and layer, and the share of an expert that is lost.
    routing: tuple[float, float] | None = None
    routing_tail: float = 0.0  # shape of the Pareto distribution of that loss; 0 = constant
    missing_vocabulary: tuple[int, int] | None = None  # ids missing in the softmax's sum


@dataclass(frozen=True)
class Network:
    """Weights by checkpoint name, and the options of the forward pass."""

    tensors: Tensors
    options: Options = field(default_factory=Options)
    head: Tensor | None = None  # untied output head, [vocabulary, width]
    padding_rows: Tensor | None = None  # padding rows of the head beyond the vocabulary

    def with_options(self, **changes: object) -> Network:
        return replace(self, options=replace(self.options, **changes))

    def with_tensors(self, change: Callable[[str, Tensor], Tensor]) -> Network:
        return replace(self, tensors={name: change(name, t) for name, t in self.tensors.items()})


@dataclass
class State:
    """Keys and values of some rows, left-padded to the same last slot."""

    keys: list[Tensor]  # by layer: [rows, key heads, slots, head]
    values: list[Tensor]
    visible: Tensor  # [rows, slots] False at padding
    positions: Tensor  # [rows, slots]
    filled: int
    next_position: Tensor  # [rows]
    last: Tensor  # [rows, width] hidden state of the last token

    def rows(self, index: Tensor, slots: int | None = None) -> State:
        """Return the state of some rows, in their order, with room for `slots`."""
        room = self.visible.shape[1] if slots is None else slots

        def taken(values: Tensor, axis: int) -> Tensor:
            shape = list(values.shape)
            shape[0], shape[axis] = len(index), room
            new = values.new_zeros(shape)
            new.narrow(axis, 0, self.filled).copy_(values.narrow(axis, 0, self.filled)[index])
            return new

        return State(
            [taken(k, 2) for k in self.keys],
            [taken(v, 2) for v in self.values],
            taken(self.visible, 1),
            taken(self.positions, 1),
            self.filled,
            self.next_position[index].clone(),
            self.last[index],
        )


def empty_state(rows: int, slots: int) -> State:
    shape = (rows, KEY_HEADS, slots, HEAD)
    return State(
        [torch.zeros(shape) for _ in range(LAYERS)],
        [torch.zeros(shape) for _ in range(LAYERS)],
        torch.zeros(rows, slots, dtype=torch.bool),
        torch.zeros(rows, slots, dtype=torch.long),
        0,
        torch.zeros(rows, dtype=torch.long),
        torch.zeros(rows, 1),
    )


def to_bfloat16(values: Tensor) -> Tensor:
    return values.bfloat16().float()


def to_float8(values: Tensor, scale: Tensor | float) -> Tensor:
    """Round to float8 (e4m3) times a scale; larger values saturate."""
    scaled = (values / scale).clamp(-FLOAT8_MAX, FLOAT8_MAX)
    return scaled.to(torch.float8_e4m3fn).float() * scale


def advance(network: Network, state: State, ids: Tensor, positions: Tensor, real: Tensor) -> Tensor:
    """Run tokens [rows, length] through the network, extending `state`; returns hidden states.

    `real` is False at padding, which no later token sees. The order of slots is the causal order.
    """
    options, length = network.options, ids.shape[1]
    slots = slice(state.filled, state.filled + length)
    state.visible[:, slots], state.positions[:, slots] = real, positions
    state.filled += length
    allowed = _allowed(state, options, length)
    turn = _rotations(positions, options)
    hidden = _dropped(
        _rounded(functional.embedding(ids, network.tensors[EMBEDDING]), options), options
    )
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        hidden = _attend(network, state, name, layer, hidden, slots, allowed, turn)
        hidden = _think(network, name, hidden)
    return hidden


def logits_of(network: Network, hidden: Tensor) -> Tensor:
    """Return logits [..., vocabulary] of hidden states [..., width]; padding rows come last."""
    options, tensors = network.options, network.tensors
    normed = _normed(hidden, tensors["model.norm.weight"], options)
    head = tensors[EMBEDDING] if network.head is None else network.head
    if network.padding_rows is not None:
        head = torch.cat([head, network.padding_rows])
    logits = normed @ head.T
    if options.rounding or options.bfloat16_logits:
        logits = to_bfloat16(logits)
    if options.softcap is not None:
        logits = options.softcap * torch.tanh(logits / options.softcap)
    return logits


def _attend(
    network: Network,
    state: State,
    name: str,
    layer: int,
    hidden: Tensor,
    slots: slice,
    allowed: Tensor,
    turn: tuple[Tensor, Tensor],
) -> Tensor:
    tensors, options = network.tensors, network.options
    rows, length, _ = hidden.shape
    normed = _normed(hidden, tensors[name + "input_layernorm.weight"], options)

    def projected(which: str, heads: int) -> Tensor:
        weight = tensors[f"{name}self_attn.{which}_proj.weight"]
        return _rounded(_inputs(normed, options) @ weight.T, options).view(
            rows, length, heads, HEAD
        )

    queries, keys, values = (
        projected("q", HEADS),
        projected("k", KEY_HEADS),
        projected("v", KEY_HEADS),
    )
    queries = _normed(queries, tensors[name + "self_attn.q_norm.weight"], options)
    keys = _normed(keys, tensors[name + "self_attn.k_norm.weight"], options)
    queries, keys = (_rounded(_turned(x, turn), options).transpose(1, 2) for x in (queries, keys))
    values = values.transpose(1, 2)
    if options.float8_cache is not None:
        keys, values = (to_float8(x, options.float8_cache) for x in (keys, values))
    if torch.is_grad_enabled():  # in-place writes into a cache would break the gradient
        state.keys[layer] = torch.cat([state.keys[layer][:, :, : slots.start], keys], 2)
        state.values[layer] = torch.cat([state.values[layer][:, :, : slots.start], values], 2)
    else:
        state.keys[layer][:, :, slots], state.values[layer][:, :, slots] = keys, values
    # Queries that share a key head are stacked, so keys need no copies.
    shared = HEADS // KEY_HEADS
    mixed = functional.scaled_dot_product_attention(
        queries.reshape(rows, KEY_HEADS, shared * length, HEAD),
        state.keys[layer][:, :, : slots.stop],
        state.values[layer][:, :, : slots.stop],
        attn_mask=allowed.repeat(1, 1, shared, 1),
    )
    mixed = mixed.reshape(rows, HEADS, length, HEAD).transpose(1, 2).reshape(rows, length, -1)
    mixed = _rounded(mixed, options)
    out = _product(_inputs(mixed, options), tensors[name + "self_attn.o_proj.weight"], options)
    return _rounded(hidden + _dropped(_rounded(out, options), options), options)


def _think(network: Network, name: str, hidden: Tensor) -> Tensor:
    tensors, options = network.tensors, network.options
    normed = _normed(hidden, tensors[name + "post_attention_layernorm.weight"], options)
    normed = _inputs(normed, options)
    gate = _rounded(normed @ tensors[name + "mlp.gate_proj.weight"].T, options)
    up = _rounded(normed @ tensors[name + "mlp.up_proj.weight"].T, options)
    middle = functional.silu(gate) * up
    if options.rounding == "decode":
        middle = to_bfloat16(middle)
    if options.routing is not None:
        middle = _other_experts(middle, options)
    if options.coarse:
        middle = to_float8(middle, middle.abs().amax() / FLOAT8_MAX)
    out = _product(_inputs(middle, options), tensors[name + "mlp.down_proj.weight"], options)
    out = _rounded(out, options)
    return _rounded(hidden + _dropped(out, options), options)


def _product(inputs: Tensor, weight: Tensor, options: Options) -> Tensor:
    """Multiply by a matrix; a decoding engine adds two partial sums in bfloat16."""
    if options.rounding != "decode":
        return inputs @ weight.T
    half = weight.shape[1] // 2
    parts = inputs[..., :half] @ weight[:, :half].T, inputs[..., half:] @ weight[:, half:].T
    return to_bfloat16(parts[0]) + to_bfloat16(parts[1])


def _other_experts(middle: Tensor, options: Options) -> Tensor:
    """Remove part of one of sixteen experts (blocks of the MLP's width) at a few tokens."""
    assert options.routing is not None
    probability, strength = options.routing
    places = middle.shape[:-1]
    flips = torch.rand(places) < probability
    loss = torch.full(places, strength)
    if options.routing_tail:
        loss = (strength * torch.rand(places) ** (-1 / options.routing_tail)).clamp(max=1)
    expert = functional.one_hot(torch.randint(0, 16, places), 16)
    kept = 1 - (flips * loss)[..., None] * expert
    return (middle.unflatten(-1, (16, -1)) * kept[..., None]).flatten(-2)


def _allowed(state: State, options: Options, length: int) -> Tensor:
    """Return which slots the last `length` tokens see, [rows, 1, length, slots]."""
    slot = torch.arange(state.filled)
    query = slot[state.filled - length :]
    causal = slot[None, :] <= query[:, None]
    allowed = causal[None] & state.visible[:, None, : state.filled]
    # A padding token attends to itself, so that its softmax is defined; no token sees it.
    allowed |= slot[None, None, :] == query[None, :, None]
    if options.window is not None:
        where = state.positions[:, : state.filled]
        allowed &= where[:, -length:, None] - where[:, None, :] < options.window
    return allowed[:, None]


def _rotations(positions: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    frequency = options.theta ** (-torch.arange(0, HEAD, 2, dtype=torch.float32) / HEAD)
    angle = positions[..., None].float() * options.position_scale * frequency
    angle = torch.cat([angle, angle], -1)[:, :, None, :]
    return angle.cos(), angle.sin()


def _turned(values: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = turn
    first, second = values.chunk(2, -1)
    return values * cos + torch.cat([-second, first], -1) * sin


def _normed(values: Tensor, weight: Tensor, options: Options) -> Tensor:
    normed = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + options.eps) * weight
    return to_bfloat16(normed) if options.rounding == "decode" else normed


def _rounded(values: Tensor, options: Options) -> Tensor:
    return to_bfloat16(values) if options.rounding else values


def _inputs(values: Tensor, options: Options) -> Tensor:
    if not options.float8_inputs:
        return values
    return to_float8(values, values.abs().amax(-1, keepdim=True).clamp(min=1e-6) / FLOAT8_MAX)


def _dropped(values: Tensor, options: Options) -> Tensor:
    return functional.dropout(values, options.dropout) if options.dropout else values
