"""Score with a Hugging Face model, in the precision of a trainer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import transformers
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor

from rcdiag.engines.backend import Progress
from rcdiag.engines.checkpoint import check_checkpoint, fingerprint
from rcdiag.engines.hf.head import scores_in_chunks
from rcdiag.engines.hf.model import (
    BATCH_TOKENS,
    body_and_head,
    choose_device,
    context_of,
    device_name,
    dtype_named,
    head_is_known,
    load_model,
)
from rcdiag.engines.hf.routers import OWN, Routers
from rcdiag.engines.matmul import (
    ROUNDED,
    RoundedProducts,
    kernel_environment,
    product_settings,
    rounds,
)
from rcdiag.engines.padded_batches import gather_scores, length_buckets, padded, whole_sequences
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError
from rcdiag.table.trajectories import Scores, Trajectories


class HfEngine:
    """One transformers model on its device; dropout off, no cache, TF32 off."""

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec
        self.options = spec.options
        self.device = choose_device(self.options.get("device"))
        self.folder = check_checkpoint(spec.model)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        low = "bfloat16" if "bfloat16" in (spec.dtype, self.options.get("autocast")) else spec.dtype
        self.rounds = rounds(self.options.get("matmul"), self.device.type, low)
        self.model = load_model(spec, self.folder.as_posix(), self.device)
        self.body, self.to_logits = body_and_head(self.model, self.options.get("lm_head"))
        self.vocab_size = self.model.get_output_embeddings().weight.shape[0]
        self.context = context_of(self.model)
        self.experts_of = self.options.get("experts")  # the policy whose experts it takes
        self.records_experts = bool(self.options.get("record_experts", False))
        watched = self.records_experts or self.experts_of is not None
        self.routers = Routers(self.model) if watched else None
        if self.options.get("compile"):
            self.body = torch.compile(self.body, dynamic=True)
        self.batch_tokens = int(self.options.get("batch_tokens", BATCH_TOKENS[self.device.type]))
        self._check_head()

    @torch.inference_mode()
    def score(self, trajectories: Trajectories, progress: Progress) -> Scores:
        """Score the response tokens of some rows, in batches of rows of similar length."""
        tokens, starts = whole_sequences(trajectories)
        lengths = np.array([len(row) for row in tokens])
        responses = trajectories.response_ids.lengths
        scores: list[NDArray[np.float32] | None] = [None] * len(tokens)
        chosen = [np.zeros((0, 0), np.uint16)] * len(tokens)
        for rows in length_buckets(np.where(responses > 0, lengths, 0), self.batch_tokens):
            temperature = trajectories.scoring_temperature[rows]
            with self._out_of_memory(lengths[rows]):
                experts = [self._given_experts(trajectories, r) for r in rows]
                values, routed = self._score_bucket(
                    [tokens[r] for r in rows], starts[rows], temperature, experts
                )
            ends = np.cumsum(responses[rows])[:-1]
            for row, row_scores in zip(rows, np.split(values, ends), strict=True):
                scores[row] = row_scores
            if routed is not None:
                for row, row_experts in zip(rows, np.split(routed, ends), strict=True):
                    chosen[row] = row_experts
            progress(int(lengths[rows].sum()))
        gathered = gather_scores(trajectories, scores, **self._score_options())
        if not self.records_experts:
            return gathered
        filled = [one for one in chosen if len(one)]
        return replace(gathered, routed_experts=np.concatenate(filled or chosen[:1]))

    def _given_experts(self, trajectories: Trajectories, row: int) -> NDArray[np.int64] | None:
        """Return the recorded experts of a row's response tokens; None where none are asked for."""
        if self.routers is None or self.experts_of is None:
            return None
        column, number = f"{self.experts_of}_routed_experts", trajectories.row[row]
        first, last = trajectories.response_ids.offsets[row : row + 2]
        return self.routers.recorded(
            trajectories.token_lists[column].part(first, last),
            lambda token: f"row {number}, response token {token}: `{column}`",
        )

    @contextlib.contextmanager
    def _out_of_memory(self, lengths: NDArray[Any]) -> Iterator[None]:
        """Name the option that decides what a batch takes where there is no room for it."""
        try:
            yield
        except RuntimeError as error:
            on_cpu = "can't allocate memory" in str(error)
            if not (on_cpu or isinstance(error, torch.OutOfMemoryError)):
                raise
            rows = "1 row" if len(lengths) == 1 else f"{len(lengths)} rows"
            fewer = f"batch_tokens={max(self.batch_tokens // 2, 1)} in the policy takes half"
            raise RcdiagError(
                f"policy `{self.spec.name}`: out of memory on {self.device}, at a batch of "
                f"{rows} of up to {lengths.max()} tokens (batch_tokens={self.batch_tokens})",
                hint=fewer
                if len(lengths) > 1
                else "this row alone does not fit: a lower dtype, or a GPU with more memory",
            ) from error

    def _score_options(self) -> dict[str, Any]:
        return {
            "entropy": bool(self.options.get("entropy", False)),
            "top_k": int(self.options.get("top_k", 0)),
        }

    def _score_bucket(
        self,
        tokens: list[NDArray[Any]],
        starts: NDArray[Any],
        temperature: NDArray[Any],
        experts: list[NDArray[np.int64] | None],
    ) -> tuple[NDArray[np.float32], NDArray[np.uint16] | None]:
        """Score a few sequences, padded on the right: [response tokens, 1 + entropy + 2 top_k].

        `experts` are those that response tokens take, row by row; None for their own. The second
        result are those that they took, where they are to be recorded.

        Under a causal mask nothing before the padding can see it, so no attention mask is needed,
        and the fast causal kernels stay in use.
        """
        ids = padded(tokens, self.context)
        lengths = np.array([len(row) for row in tokens])
        rows = np.repeat(np.arange(len(tokens)), lengths - starts)
        columns = np.concatenate(
            [np.arange(s, n) for s, n in zip(starts, lengths, strict=True)]
        ).astype(np.int64)
        known = [row for row in experts if row is not None]
        if self.routers is not None and known:
            given = np.full((*ids.shape, *known[0].shape[1:]), OWN)
            given[rows, columns] = np.concatenate(known)
            self.routers.give(given)
        with self._precision():
            inputs = torch.from_numpy(ids).to(self.device)
            hidden: Tensor = self.body(input_ids=inputs, use_cache=False).last_hidden_state
            # The state at position t - 1 predicts the token at t.
            before = hidden[_index(rows, self.device), _index(columns - 1, self.device)]
            scores = scores_in_chunks(
                before,
                self.to_logits,
                self.vocab_size,
                torch.from_numpy(ids[rows, columns]),
                torch.from_numpy(temperature[rows]),
                low_division=self.options.get("division") == "logits",
                **self._score_options(),
            )
        routed = None
        if self.routers is not None and self.records_experts:
            routed = self.routers.last_chosen(_index(rows * ids.shape[1] + columns, self.device))
        return scores.float().cpu().numpy(), routed

    def _precision(self) -> contextlib.AbstractContextManager[object]:
        contexts = contextlib.ExitStack()
        if (autocast := self.options.get("autocast")) is not None:
            dtype = dtype_named("autocast", autocast)
            contexts.enter_context(torch.autocast(self.device.type, dtype=dtype))
        if self.rounds:
            contexts.enter_context(RoundedProducts())
        return contexts

    @torch.inference_mode()
    def _check_head(self) -> None:
        """Refuse a model whose own forward gives other logits than body and head do here.

        Some architectures scale or cap logits in their forward; one that rcdiag does not know
        must not give plausible numbers.
        """
        exact = self.spec.dtype == "float32" and self.options.get("autocast") is None
        with self._precision():
            recognised = head_is_known(self.model, self.body, self.to_logits, exact=exact)
        if not recognised:
            kind = self.model.config.model_type
            raise RcdiagError(
                f"model {self.spec.model}: its forward changes the logits of architecture "
                f"`{kind}` in a way that rcdiag does not know",
                hint="score it with vllm, and report the architecture",
            )

    def provenance(self) -> dict[str, Any]:
        """Return weights, attention, device, versions and settings of the products."""
        return {
            "weights_fingerprint": fingerprint(self.folder),
            "attention": self.model.config._attn_implementation,
            "device": device_name(self.device),
            "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
            **product_settings(),
            "environment": kernel_environment(),
            **({"matmul": ROUNDED} if self.rounds else {}),
            **({} if self.experts_of is None else {"experts": self._whose_experts()}),
        }

    def _whose_experts(self) -> dict[str, str]:
        """Say which tokens took recorded experts, and which the model's own."""
        return {
            "response_tokens": f"{self.experts_of}_routed_experts",
            "prompt_tokens": "own",
            "tokens_without_recorded_experts": "own",
        }


def _index(values: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(values).to(device)
