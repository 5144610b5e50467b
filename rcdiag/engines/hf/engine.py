"""Score with a Hugging Face model, in the precision of a trainer."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor

from rcdiag.engines.backend import Progress
from rcdiag.engines.checkpoint import check_checkpoint, fingerprint
from rcdiag.engines.hf.head import scores_in_chunks
from rcdiag.engines.hf.model import (
    BATCH_TOKENS,
    body_and_head,
    check_head,
    choose_device,
    context_of,
    device_name,
    dtype_named,
    load_model,
    quantization_of,
)
from rcdiag.engines.hf.routers import OWN, Routers
from rcdiag.engines.hf.support import KeptSets, kept_sets_of
from rcdiag.engines.matmul import (
    ROUNDED,
    RoundedProducts,
    kernel_environment,
    product_settings,
    rounds,
)
from rcdiag.engines.padded_batches import (
    gather_scores,
    length_buckets,
    padded,
    padded_width,
    whole_sequences,
)
from rcdiag.engines.scored_by import NOTE
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError, is_out_of_memory
from rcdiag.table.trajectories import Scores, Trajectories


class HfEngine:
    """A transformers model on its device, without dropout, key-value cache and TF32."""

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec
        self.options = spec.options
        self.device = choose_device(self.options.get("device"))
        self.folder = check_checkpoint(spec.model)
        self.weights = fingerprint(self.folder)
        low = "bfloat16" if "bfloat16" in (spec.dtype, self.options.get("autocast")) else spec.dtype
        self.rounds = rounds(self.options.get("matmul"), self.device.type, low)
        self.experts_of = self.options.get("experts")  # the policy whose recorded experts are used
        self.records_experts = bool(self.options.get("record_experts", False))
        watched = self.records_experts or self.experts_of is not None
        self.batch_tokens = int(self.options.get("batch_tokens", BATCH_TOKENS[self.device.type]))
        self.no_room_for: int | None = None  # tokens of the first batch that did not fit
        try:
            self.model = load_model(spec, self.folder.as_posix(), self.device)
            self.body, self.to_logits = body_and_head(self.model, self.options.get("lm_head"))
            self.vocab_size = self.model.get_output_embeddings().weight.shape[0]
            self.context = context_of(self.model)
            self.routers = Routers(self.model) if watched else None
            if self.options.get("compile"):
                self.body = torch.compile(self.body, dynamic=True)
            # In the modes of `score`, so that compile=true does not compile twice.
            with torch.inference_mode(), self._precision():
                check_head(spec, self.model, self.body, self.to_logits)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise self._no_room("while the model was loaded and tried on a few tokens") from error

    @torch.inference_mode()
    def score(self, trajectories: Trajectories, progress: Progress) -> Scores:
        """Score the response tokens of rows, in batches of rows with similar length."""
        tokens, starts = whole_sequences(trajectories)
        lengths = np.array([len(row) for row in tokens])
        first, responses = trajectories.response_ids.offsets, trajectories.response_ids.lengths
        kept_sets = kept_sets_of(self.spec, trajectories)
        scores: list[NDArray[np.float32] | None] = [None] * len(tokens)
        chosen = np.zeros((0, 0), np.uint16)  # experts of [response tokens, layers x top-k]
        left = np.where(responses > 0, lengths, 0)
        while left.any():
            rows = next(length_buckets(left, self.batch_tokens))
            own = np.concatenate([np.arange(first[row], first[row + 1]) for row in rows])
            made = self._score_bucket(
                [tokens[r] for r in rows],
                starts[rows],
                trajectories.scoring_temperature[rows],
                None if kept_sets is None else kept_sets.take(own),
                [self._given(trajectories, row) for row in rows],
            )
            if made is None:
                self._take_smaller_batches(lengths[rows])
                continue
            values, routed = made
            for row, of_row in zip(
                rows, np.split(values, np.cumsum(responses[rows])[:-1]), strict=True
            ):
                scores[row] = of_row
            if routed is not None:
                if not len(chosen):
                    chosen = np.zeros((first[-1], *routed.shape[1:]), routed.dtype)
                chosen[own] = routed
            left[rows] = 0
            progress(int(lengths[rows].sum()))
        gathered = gather_scores(trajectories, scores, **self._score_options())
        return replace(gathered, routed_experts=chosen) if self.records_experts else gathered

    def _given(self, trajectories: Trajectories, row: int) -> NDArray[np.int64] | None:
        """Return the recorded experts of a row's response tokens; None without `experts=`."""
        if self.routers is None or self.experts_of is None:
            return None
        column, number = f"{self.experts_of}_routed_experts", trajectories.row[row]
        first, last = trajectories.response_ids.offsets[row : row + 2]
        return self.routers.recorded(
            trajectories.token_lists[column].slice(first, last),
            lambda token: f"row {number}, response token {token}: `{column}`",
        )

    def _take_smaller_batches(self, lengths: NDArray[Any]) -> None:
        """Halve the batch size for the rest of the run, or refuse a row that does not fit alone.

        `lengths` are the token counts of the rows in the batch that ran out of memory.
        """
        if len(lengths) == 1:
            raise self._no_room(f"at 1 row of {lengths[0]} tokens")
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # blocks cached by the failed forward have unsuitable sizes
        width = padded_width(int(lengths.max()))
        self.no_room_for = self.no_room_for or len(lengths) * width
        self.batch_tokens = len(lengths) // 2 * width

    def _no_room(self, when: str) -> RcdiagError:
        """Return the error for a lack of memory that smaller batches would not end."""
        return RcdiagError(
            f"policy `{self.spec.name}`: out of memory on {self.device}, {when}",
            hint="a smaller batch_tokens= does not help: take a lower dtype, gpus=2 where there "
            "are two, or a GPU with more memory",
        )

    def _score_options(self) -> dict[str, Any]:
        return {
            "entropy": bool(self.options.get("entropy", False)),
            "top_k": int(self.options.get("top_k", 0)),
        }

    def _give_experts(
        self,
        experts: list[NDArray[np.int64] | None],
        shape: tuple[int, ...],
        rows: NDArray[Any],
        columns: NDArray[Any],
    ) -> None:
        """Give the routers of the next forward the recorded experts of the response tokens.

        `shape` is that of the padded ids; the token i of all responses is at [rows, columns][i].
        """
        recorded = [row for row in experts if row is not None]
        if self.routers is not None and recorded:
            given = np.full((*shape, *recorded[0].shape[1:]), OWN)
            given[rows, columns] = np.concatenate(recorded)
            self.routers.give(given)

    def _score_bucket(
        self,
        tokens: list[NDArray[Any]],
        starts: NDArray[Any],
        temperature: NDArray[Any],
        kept_sets: KeptSets | None,
        experts: list[NDArray[np.int64] | None],
    ) -> tuple[NDArray[np.float32], NDArray[np.uint16] | None] | None:
        """Score a few sequences, padded on the right: [response tokens, 1 + entropy + 2 top_k].

        `kept_sets` has one set for each response token. `experts` are the recorded experts of each
        row; None lets the model route for itself. The second result holds the experts that were
        used, if the policy records them. Returns None if the batch does not fit into memory.

        Under a causal mask no token attends to the padding on its right, so no attention mask is
        needed and the fast causal kernels stay in use.
        """
        ids = padded(tokens, self.context)
        lengths = np.array([len(row) for row in tokens])
        rows = np.repeat(np.arange(len(tokens)), lengths - starts)
        columns = np.concatenate(
            [np.arange(s, n) for s, n in zip(starts, lengths, strict=True)]
        ).astype(np.int64)
        self._give_experts(experts, ids.shape, rows, columns)
        try:
            with self._precision():
                inputs = torch.from_numpy(ids).to(self.device)
                hidden: Tensor = self.body(input_ids=inputs, use_cache=False).last_hidden_state
                # The state at position t - 1 predicts the token at t.
                before = hidden[_index(rows, hidden.device), _index(columns - 1, hidden.device)]
                scores = scores_in_chunks(
                    before,
                    self.to_logits,
                    self.vocab_size,
                    torch.from_numpy(ids[rows, columns]),
                    torch.from_numpy(temperature[rows]),
                    kept_sets=kept_sets,
                    low_division=self.options.get("division") == "logits",
                    **self._score_options(),
                )
            values = scores.float().cpu().numpy()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return None
        if self.routers is None or not self.records_experts:
            return values, None
        return values, self.routers.last_chosen(_index(rows * ids.shape[1] + columns, self.device))

    def _precision(self) -> contextlib.AbstractContextManager[object]:
        contexts = contextlib.ExitStack()
        if (autocast := self.options.get("autocast")) is not None:
            dtype = dtype_named("autocast", autocast)
            contexts.enter_context(torch.autocast(self.device.type, dtype=dtype))
        if self.rounds:
            contexts.enter_context(RoundedProducts())
        return contexts

    def provenance(self) -> dict[str, Any]:
        """Return weights, attention, device, batch size, versions and matrix-product settings."""
        about: dict[str, Any] = {
            "weights_fingerprint": self.weights,
            "attention": self.model.config._attn_implementation,
            "device": device_name(self.device),
            "batch_tokens": self.batch_tokens,
            "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
            **product_settings(),
            "environment": kernel_environment(),
        }
        if self.rounds:
            about["matmul"] = ROUNDED
        if (quantized := quantization_of(self.folder, self.spec.dtype)) is not None:
            about["quantization"] = quantized
        if self.experts_of is not None:
            about["experts"] = {
                "response_tokens": f"{self.experts_of}_routed_experts",
                "prompt_tokens": "own",
                "tokens_without_recorded_experts": "own",
            }
        if self.no_room_for is not None:
            about[NOTE] = (
                f"a batch of {self.no_room_for:,} tokens did not fit into memory; later ones had "
                f"{self.batch_tokens:,} at most (batch_tokens={self.batch_tokens} in the policy "
                "begins with these)"
            )
        return about


def _index(values: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(values).to(device)
