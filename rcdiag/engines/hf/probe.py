"""A checkpoint in float32 that scores passages, unchanged or under a `Change`."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rcdiag.engines.changes import (
    Change,
    KeyValueCache,
    LowPrecision,
    Passage,
    Reading,
    RecordedExperts,
    SlidingWindow,
    Tensors,
)
from rcdiag.engines.checkpoint import check_checkpoint
from rcdiag.engines.hf.changed import changed, float8, moved_head
from rcdiag.engines.hf.head import rows_at_once, scores_in_chunks
from rcdiag.engines.hf.model import (
    BATCH_TOKENS,
    body_and_head,
    check_head,
    choose_device,
    context_of,
    load_model,
)
from rcdiag.engines.hf.routers import OWN, Routers, routers_of
from rcdiag.engines.matmul import RoundedProducts, rounds
from rcdiag.engines.padded_batches import length_buckets
from rcdiag.engines.spec import PolicySpec

NEVER = torch.finfo(torch.float32).min
# Special tokens are usually among the first ids; used in addition to those that the config names.
LOW_IDS = 8


class Probe:
    """One checkpoint in float32 on its device, without dropout and TF32."""

    def __init__(self, model: str | Path, device: str | None = None) -> None:
        self.folder = check_checkpoint(str(model))
        spec = PolicySpec(name="probe", backend="hf", model=str(self.folder), dtype="float32")
        self.device = choose_device(device)
        self.model = load_model(spec, self.folder.as_posix(), self.device)
        self.body, self.to_logits = body_and_head(self.model, None)
        check_head(spec, self.model, self.body, self.to_logits)
        self.head = self.model.get_output_embeddings()
        self.vocab_size = int(self.head.weight.shape[0])
        self.batch_tokens = BATCH_TOKENS[self.device.type]

    @cached_property
    def tensors(self) -> Tensors:
        """Return names and shapes of the decoder's tensors, and the special tokens."""
        config = self.model.config.get_text_config()
        shapes = {name: tuple(value.shape) for name, value in self.model.named_parameters()}
        experts = {
            int(name.split(".layers.")[1].split(".")[0]): shape[0]
            for name, shape in shapes.items()
            if ".experts." in name and len(shape) == 3
        }
        end = getattr(config, "eos_token_id", None)
        ends = tuple(end) if isinstance(end, (list, tuple)) else () if end is None else (int(end),)
        pad = getattr(config, "pad_token_id", None)
        named = (getattr(config, "bos_token_id", None), pad, *ends)
        special = {int(token) for token in named if token is not None} | set(range(LOW_IDS))
        return Tensors(
            layers=int(config.num_hidden_layers),
            experts=experts,
            shapes=shapes,
            vocabulary=self.vocab_size,
            context=context_of(self.model),
            special_ids=tuple(sorted(token for token in special if token < self.vocab_size)),
            end_ids=ends,
            pad_id=0 if pad is None else int(pad),
            routers=len(routers_of(self.model)),
        )

    @torch.inference_mode()
    def read(self, passages: Sequence[Passage]) -> Reading:
        """Return log-prob, entropy and logits of every scored token, model unchanged."""
        hidden = self._hidden(passages, None)
        wanted = self._targets(passages)
        step = rows_at_once(self.device.type, self.vocab_size)
        parts = []
        for start in range(0, len(hidden), step):
            logits = self.to_logits(hidden[start : start + step]).float()
            chosen = wanted[start : start + step, None]
            log_probs = logits - logits.logsumexp(dim=-1, keepdim=True)
            weights = log_probs.exp()
            own = log_probs.gather(1, chosen).squeeze(1)
            square = weights.square().sum(dim=-1)
            gain = ((1 - own.exp()).square() + square - own.exp().square()).clamp(min=0).sqrt()
            entropy = -(weights * log_probs).sum(dim=-1)
            parts.append(torch.stack([own, entropy, log_probs.amax(dim=-1), gain], dim=1))
        empty = torch.zeros((0, 4), device=self.device)
        table = torch.cat([empty, *parts]).double().cpu().numpy()

        def logits_at(chosen: NDArray[np.int64]) -> NDArray[np.float32]:
            with torch.inference_mode():
                states = hidden[torch.from_numpy(chosen).to(self.device)]
                return self.to_logits(states).float().cpu().numpy()

        def tempered(temperature: NDArray[np.float64]) -> NDArray[np.float64]:
            with torch.inference_mode():
                return self._log_probs_of(hidden, passages, self.to_logits, temperature)

        return Reading(
            log_prob=table[:, 0],
            entropy=table[:, 1],
            top=table[:, 2],
            noise_gain=table[:, 3],
            logits_at=logits_at,
            tempered=tempered,
        )

    @torch.inference_mode()
    def log_probs(
        self, passages: Sequence[Passage], change: Change | None = None
    ) -> NDArray[np.float64]:
        """Return log-probs of the scored tokens, [scored] nats, at the passages' temperature."""
        hidden = self._hidden(passages, change)
        with self._head(change) as to_logits:
            return self._log_probs_of(hidden, passages, to_logits)

    @torch.inference_mode()
    def after(self, passages: Sequence[Passage]) -> NDArray[np.float64]:
        """Return log-probs of the scored tokens under the logits one position late, [scored] nats.

        The state at a token's own position, which has already read it, predicts it.
        """
        hidden = self._hidden(passages, None, after=True)
        return self._log_probs_of(hidden, passages, self.to_logits)

    def _log_probs_of(
        self,
        hidden: Tensor,
        passages: Sequence[Passage],
        to_logits: Any,
        temperature: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """Return log-probs of the scored tokens from hidden states [scored, width], in nats.

        `temperature` is that of every scored token, by default the one of its passage.
        """
        if temperature is None:
            by_passage = [np.full(len(one.places), one.temperature) for one in passages]
            temperature = np.concatenate(by_passage)
        scores = scores_in_chunks(
            hidden,
            to_logits,
            self.vocab_size,
            self._targets(passages),
            torch.from_numpy(temperature),
            entropy=False,
            top_k=0,
        )
        return scores[:, 0].double().cpu().numpy()

    def _targets(self, passages: Sequence[Passage]) -> Tensor:
        ids = np.concatenate([one.ids[one.places] for one in passages]).astype(np.int64)
        return torch.from_numpy(ids).to(self.device)

    @contextlib.contextmanager
    def _head(self, change: Change | None) -> Iterator[Any]:
        """Return the function from hidden states to logits under a change, for the `with` block."""
        if isinstance(change, LowPrecision):
            with self._rounding():
                yield body_and_head(self._low, None)[1]
            return
        kept = self.head.weight.data
        names = {id(value): name for name, value in self.model.named_parameters()}
        self.head.weight.data = moved_head(kept, change, names[id(self.head.weight)])
        try:
            with changed(self.model, change):
                yield self.to_logits
        finally:
            self.head.weight.data = kept

    @cached_property
    def _low(self) -> Any:
        """Return a copy of the model in bfloat16."""
        return copy.deepcopy(self.model).to(torch.bfloat16)

    def _rounding(self) -> contextlib.AbstractContextManager[None]:
        low = rounds(None, self.device.type, "bfloat16")
        return RoundedProducts() if low else contextlib.nullcontext()

    def _hidden(
        self, passages: Sequence[Passage], change: Change | None, *, after: bool = False
    ) -> Tensor:
        """Return the hidden state before each scored token, or at it (`after`), [scored, width]."""
        lengths = np.array([len(one.ids) for one in passages])
        states: list[Tensor | None] = [None] * len(passages)
        with contextlib.ExitStack() as stack:
            body = self.body
            if isinstance(change, LowPrecision):
                body, _ = body_and_head(self._low, None)
                stack.enter_context(self._rounding())
            else:
                stack.enter_context(changed(self.model, change))
            for bucket in length_buckets(lengths, self.batch_tokens):
                chosen = [passages[index] for index in bucket]
                hidden = self._hidden_of_batch(body, chosen, change)
                for index, one, state in zip(bucket, chosen, hidden, strict=True):
                    places = one.places if after else one.places - 1
                    states[index] = state[torch.from_numpy(places).to(self.device)]
        return torch.cat([state for state in states if state is not None])

    def _hidden_of_batch(
        self, body: Any, passages: Sequence[Passage], change: Change | None
    ) -> Tensor:
        """Run the decoder on a batch of passages, padded right: [passages, width, hidden]."""
        width = max(len(one.ids) for one in passages)
        ids = np.zeros((len(passages), width), np.int64)
        positions = np.tile(np.arange(width), (len(passages), 1))
        for index, one in enumerate(passages):
            ids[index, : len(one.ids)] = one.ids
            if one.positions is not None:
                positions[index, : len(one.ids)] = one.positions
        given: dict[str, Any] = {"use_cache": isinstance(change, KeyValueCache)}
        counted = all(one.positions is None for one in passages)
        if not counted:
            given["position_ids"] = torch.from_numpy(positions).to(self.device)
        if isinstance(change, SlidingWindow) or not counted:
            # An explicit mask also keeps transformers from treating positions that restart at 0 as
            # the start of another packed sequence.
            reach = change.tokens if isinstance(change, SlidingWindow) else width
            at = torch.arange(width, device=self.device)
            back = at[:, None] - at[None, :]
            mask = torch.where((back >= 0) & (back < reach), 0.0, NEVER).to(torch.float32)
            given["attention_mask"] = mask.expand(len(passages), 1, width, width)
        if isinstance(change, KeyValueCache):
            given["past_key_values"] = _float8_cache(change.scale)
        inputs = torch.from_numpy(ids).to(self.device)
        if isinstance(change, RecordedExperts):
            self.routers.give(self._experts_of(passages, ids.shape))
        try:
            hidden: Tensor = body(input_ids=inputs, **given).last_hidden_state
        finally:
            if isinstance(change, RecordedExperts):
                self.routers.give(None)
        return hidden

    @cached_property
    def routers(self) -> Routers:
        """Return the routers of a mixture of experts; a dense model is refused."""
        return Routers(self.model)

    def _experts_of(self, passages: Sequence[Passage], shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Return the experts that passages record, [passages, width, layers, top_k]."""
        routers = self.routers
        given = np.full((*shape, len(routers.layers), routers.top_k), OWN)
        for index, one in enumerate(passages):
            if one.experts is not None:
                own = slice(len(one.ids) - len(one.experts), len(one.ids))
                given[index, own] = routers.recorded(
                    one.experts, "the sampler's column of experts, response token {}".format
                )
        return given

    @torch.inference_mode()
    def after_other_prefix(self, passages: Sequence[Passage], other: Probe) -> NDArray[np.float64]:
        """Score passages whose prompt was read by another checkpoint's weights, [scored] nats.

        This imitates a prefix cache that was not cleared when the weights were updated. The last
        token of the prompt is read by the model's own weights.
        """
        from transformers import DynamicCache

        states = []
        for one in passages:
            ids = torch.from_numpy(one.ids.astype(np.int64))[None].to(self.device)
            cache = DynamicCache()
            prefix = max(one.prefix - 1, 1)
            other.body(input_ids=ids[:, :prefix], past_key_values=cache, use_cache=True)
            own = self.body(input_ids=ids[:, prefix:], past_key_values=cache, use_cache=True)
            before = torch.from_numpy(one.places - 1 - prefix).to(self.device)
            states.append(own.last_hidden_state[0][before])
        return self._log_probs_of(torch.cat(states), passages, self.to_logits)


def _float8_cache(scale: float) -> Any:
    """Return a cache that rounds keys and values to float8 e4m3 with a scale."""
    from transformers import DynamicCache

    class Float8Cache(DynamicCache):
        def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> Any:
            held = [float8(states / scale) * scale for states in (key_states, value_states)]
            return super().update(*held, *args, **kwargs)

    return Float8Cache()
