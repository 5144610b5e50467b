"""Record batches of TRL's GRPOTrainer as they are sampled and trained on.

    with rcdiag.Recorder("dump/") as recorder, recording(trainer, recorder):
        trainer.train()

Written against trl 1.16.0, trainer/grpo_trainer.py: methods `_generate_and_score_completions`,
`_calculate_rewards`, `_compute_loss` and `_get_per_token_logps_and_entropies`.
https://github.com/huggingface/trl/blob/v1.16.0/trl/trainer/grpo_trainer.py
"""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Callable, Iterator
from typing import Any

from rcdiag.errors import RcdiagError
from rcdiag.table.recorder import Recorder

# The key that carries each row's number through TRL's shuffling and splitting of a batch.
ROW = "rcdiag_row"
METHODS = (
    "_generate_and_score_completions",
    "_calculate_rewards",
    "_compute_loss",
    "_get_per_token_logps_and_entropies",
)


@contextlib.contextmanager
def recording(trainer: Any, recorder: Recorder) -> Iterator[None]:
    """Record every training batch of a GRPOTrainer, or of a subclass, within a `with` block.

    The rows have prompts, responses, masks, both log-probs, rewards, advantages, groups, the step
    and the sampling parameters. `rollout_log_probs` are vLLM's, or, if transformers samples, those
    of the generating model: of its whole distribution at the temperature, before top-k, top-p and
    min-p. `old_log_probs` are TRL's `old_per_token_logps`. TRL does not compute these if generation
    and update fall on the same step; the log-probs of the loss, computed before that step, are then
    used. Columns that TRL does not compute are absent. Evaluation batches are not recorded.
    """
    missing = [name for name in METHODS if not callable(getattr(trainer, name, None))]
    if missing:
        raise RcdiagError(
            f"{type(trainer).__name__} has no method {', '.join(missing)}",
            hint="rcdiag.recorders.trl knows GRPOTrainer of trl 1.16 and its subclasses; another "
            "trainer can call recorder.add itself",
        )
    rollouts = _Rollouts(trainer, recorder)
    try:
        with contextlib.ExitStack() as stack:
            for owner, name, wrapper in rollouts.wrappers():
                stack.enter_context(_wrapped(owner, name, wrapper))
            yield
    finally:
        rollouts.release()


@contextlib.contextmanager
def _wrapped(owner: Any, name: str, wrapper: Callable[..., Any]) -> Iterator[None]:
    """Replace a method of one object; its class and other objects keep theirs."""
    own = vars(owner).get(name)
    original = getattr(owner, name)

    def method(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(owner, name, method)
    try:
        yield
    finally:
        delattr(owner, name)
        if own is not None:
            setattr(owner, name, own)


class SampledLogProbs:
    """A transformers logits processor that keeps the log-probs of the sampled tokens.

    It changes no scores. Custom processors run before the temperature and the kept sets are
    applied, so the scores are those of the whole distribution at temperature 1.
    """

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature
        self._columns: list[Any] = []  # a tensor [rows] for each sampled token but the last
        self._last: Any = None  # log-probs of the next token, [rows, vocabulary]

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Keep the log-probs for the next token; `input_ids` end with the token sampled last."""
        self._take(input_ids[:, -1])
        self._last = (scores.detach().float() / self.temperature).log_softmax(-1)
        return scores

    def _take(self, tokens: Any) -> None:
        if self._last is not None:
            column = self._last.gather(1, tokens.to(self._last.device)[:, None])[:, 0]
            self._columns.append(column.cpu())

    def of(self, sequences: Any) -> tuple[Any, list[Any]]:
        """Return the generated tokens, [rows, tokens], and a list of log-probs, [rows] each."""
        self._take(sequences[:, -1])
        self._last = None
        return sequences[:, sequences.shape[1] - len(self._columns) :], self._columns


class _Rollouts:
    """The sampled batch of a trainer, held until its old log-probs are known."""

    def __init__(self, trainer: Any, recorder: Recorder) -> None:
        self.trainer = trainer
        self.recorder = recorder
        self._generations = 0
        self._held: dict[str, Any] | None = None
        self._step = 0  # training step at which the held rows were sampled
        self._old: list[Any] = []  # log-probs from the loss for each held row; None until known
        self._entropy: list[Any] = []
        self._rewards: Any = None  # [rows of all processes, reward functions]
        self._tokens: list[Any] | None = None  # of each response, without padding
        self._sampled: list[tuple[Any, list[Any]]] = []
        self._log_probs: Any = None  # of the model in the current loss, [rows, width]
        self._entropies: Any = None
        self._describe()

    def wrappers(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        """Yield the methods to replace: object, name and the replacement."""
        mine = (self.generate_and_score, self.calculate_rewards, self.loss, self.log_probs)
        for name, wrapper in zip(METHODS, mine, strict=True):
            yield self.trainer, name, wrapper
        if not getattr(self.trainer, "use_vllm", False):
            yield self.trainer.accelerator.unwrap_model(self.trainer.model), "generate", self.sample

    def _describe(self) -> None:
        """Give the recorder the metadata of both policies, whose weights change every step."""
        trainer = self.trainer
        versions = {"trl": importlib.metadata.version("trl")}
        sampler: dict[str, Any] = {"backend": "vllm", "versions": versions}
        if getattr(trainer, "vllm_mode", None) == "colocate":
            # Set by trl/generation/vllm_generation.py; a server has settings of its own.
            sampler["engine_options"] = {"logprobs_mode": "processed_logprobs"}
        if not getattr(trainer, "use_vllm", False):
            transformers = {"transformers": importlib.metadata.version("transformers")}
            sampler = {"backend": "hf", "versions": versions | transformers}
            sampler["temperature"] = trainer.temperature  # of the recorded log-probs
        sampling = {"sampling_temperature": trainer.temperature}
        self.recorder.describe("rollout", name="rollout", **sampling, **sampler)
        self.recorder.describe(
            "old",
            name="old",
            backend="hf",
            dtype=str(trainer.model.dtype).removeprefix("torch."),
            temperature=trainer.temperature,
            versions=versions,
        )

    # Replacements of the trainer's methods

    def sample(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Let transformers generate, and keep the log-probs of the sampled tokens."""
        watch = SampledLogProbs(self.trainer.temperature)
        processors = [*(kwargs.pop("logits_processor", None) or []), watch]
        sequences = original(*args, logits_processor=processors, **kwargs)
        if hasattr(sequences, "shape"):  # not the dict of `return_dict_in_generate`
            self._sampled.append(watch.of(sequences))
        return sequences

    def calculate_rewards(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Compute rewards, and keep them with the responses that they belong to."""
        self._rewards = original(*args, **kwargs)
        self._tokens = kwargs.get("completion_ids_list", args[3] if len(args) > 3 else None)
        return self._rewards

    def generate_and_score(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Sample a batch, and hold it until its old log-probs are known."""
        self._sampled = []
        self._rewards = self._tokens = None
        output = original(*args, **kwargs)
        if not self.trainer.model.training:
            return output
        self.release()
        rows = len(output["completion_ids"])
        self._held = self._columns(output, rows)
        self._step = self.trainer.state.global_step
        self._generations += 1
        self._old, self._entropy = [None] * rows, [None] * rows
        if "old_log_probs" in self._held:
            self.release()
        else:
            output = {**output, ROW: output["completion_ids"].new_tensor(list(range(rows)))}
        return output

    def loss(self, original: Callable[..., Any], model: Any, inputs: Any) -> Any:
        """Compute a loss, and use its log-probs as those before the update."""
        self._log_probs = self._entropies = None
        result = original(model, inputs)
        of_held_rows = self._held is not None and self.trainer.state.global_step == self._step
        if of_held_rows and ROW in inputs and self._log_probs is not None:
            for place, row in enumerate(inputs[ROW].tolist()):
                if self._old[row] is None:
                    self._old[row] = self._log_probs[place]
                    self._entropy[row] = None if self._entropies is None else self._entropies[place]
            if all(values is not None for values in self._old):
                self.release()
        self._log_probs = self._entropies = None
        return result

    def log_probs(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Compute log-probs, and keep them for the loss that requested them."""
        result = original(*args, **kwargs)
        log_probs, entropies, *_ = (*result, None) if isinstance(result, tuple) else (result, None)
        self._log_probs = log_probs.detach().float().cpu()
        same = getattr(entropies, "shape", None) == log_probs.shape
        self._entropies = entropies.detach().float().cpu() if same else None
        return result

    # From the sampled batch to rows of the table

    def release(self) -> None:
        """Record the held rows, with the old log-probs that are known so far."""
        held, self._held = self._held, None
        if held is None:
            return
        if "old_log_probs" not in held:
            lengths = held["lengths"]
            held["old_log_probs"] = _cut(self._old, lengths)
            held["old_entropy"] = _cut(self._entropy, lengths)
        self.recorder.add(**held)

    def _columns(self, output: dict[str, Any], rows: int) -> dict[str, Any]:
        """Return a batch as columns of the table, on the CPU."""
        trainer, step = self.trainer, self.trainer.state.global_step
        mask = output["completion_mask"]
        own = self._tokens if self._tokens is not None and len(self._tokens) == rows else None
        lengths = [len(ids) for ids in own] if own else mask.sum(1).tolist()
        ends, finish_reasons = getattr(trainer, "eos_token_ids", None), None
        if own is not None and ends is not None:  # as TRL itself detects truncation
            finish_reasons = ["stop" if len(ids) and ids[-1] in ends else "length" for ids in own]
        if "tool_mask" in output:
            mask = mask * output["tool_mask"]
        first = trainer.accelerator.process_index * rows
        advantages = output["advantages"]
        columns = {
            "response_ids": output["completion_ids"],
            "lengths": lengths,
            "response_mask": mask,
            "prompt_ids": output["prompt_ids"],
            "prompt_mask": output["prompt_mask"],
            "rollout_log_probs": output.get("sampling_per_token_logps"),
            "old_log_probs": output.get("old_per_token_logps"),
            "ref_log_probs": output.get("ref_per_token_logps"),
            "advantage" if advantages.ndim == 1 else "advantages": advantages,
            "reward": self._rewards_of(first, rows),
            "group_id": [
                f"{step}-{self._generations}-{(first + row) // trainer.num_generations}"
                for row in range(rows)
            ],
            "step": step,
            "finish_reason": finish_reasons,
            "temperature": trainer.temperature,
            **{name: getattr(trainer, name, None) for name in ("top_p", "top_k", "min_p")},
        }
        if columns["rollout_log_probs"] is None:
            columns["rollout_log_probs"] = self._sampled_log_probs(output, lengths)
        return {
            name: value.detach().cpu() if hasattr(value, "detach") else value
            for name, value in columns.items()
            if value is not None
        }

    def _rewards_of(self, first: int, rows: int) -> Any:
        """Return the weighted sum of rewards of this process's rows; NaN without any."""
        rewards = self._rewards
        if rewards is None:
            return None
        total = (rewards * self.trainer.reward_weights.to(rewards.device)).nansum(1)
        total[rewards.isnan().all(1)] = float("nan")
        return total[first : first + rows] if len(total) > rows else total

    def _sampled_log_probs(self, output: dict[str, Any], lengths: list[int]) -> Any:
        """Return the log-probs of transformers' sampling if they belong to these responses."""
        if len(self._sampled) != 1 or "tool_mask" in output:
            return None
        tokens, columns = self._sampled[0]
        responses = output["completion_ids"]
        if len(tokens) != len(responses) or not columns:
            return None
        for row, length in enumerate(lengths):
            if tokens[row, :length].tolist() != responses[row, :length].tolist():
                return None
        return [
            [float(columns[token][row]) for token in range(length)]
            for row, length in enumerate(lengths)
        ]


def _cut(rows: list[Any], lengths: list[int]) -> list[Any] | None:
    """Return rows without padding; None if all rows are unknown."""
    if all(row is None for row in rows):
        return None
    pairs = zip(rows, lengths, strict=True)
    return [None if row is None else row[:length] for row, length in pairs]
