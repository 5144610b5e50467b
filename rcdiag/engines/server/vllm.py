"""vLLM's OpenAI server: `prompt_logprobs` of /v1/completions.

Read from vLLM 0.32.0 (`entrypoints/openai/completion/protocol.py` and `serving.py`). An answer has
one entry for each prompt token: None for the first, {token id: {logprob, rank, decoded_token}} for
the others, with -9999.0 for minus infinity. The values are computed from raw logits: neither
temperature nor `logprobs_mode=processed_logprobs` changes them.
"""

from __future__ import annotations

import math
import re
import secrets
from typing import Any

from msgspec.structs import replace

from rcdiag.engines.server.client import Client
from rcdiag.engines.server.served import (
    Served,
    answer_size,
    choose_model,
    limit_of,
    malformed,
    server_changed,
    wrong_tokens,
)
from rcdiag.errors import RcdiagError

CLAMPED = -9999.0  # vLLM's value for minus infinity
LIKELIEST = 5  # tokens of each position that the check of a server asks for
# Bounds on the total probability of the LIKELIEST tokens: at least their share of a uniform
# distribution over the largest vocabulary, at most 1 and rounding.
LEAST_MASS, MOST_MASS = LIKELIEST / 2**20, 1.001
# Labels of vllm:cache_config_info that affect log-probs.
CACHE_SETTINGS = ("enable_prefix_caching", "cache_dtype", "block_size")


class VllmApi:
    """Scores by `prompt_logprobs`."""

    name = "vllm"
    path = "/v1/completions"

    def identify(self, client: Client, wanted: str) -> Served | None:
        version = (client.find("/version") or {}).get("version")
        listed = client.find("/v1/models")
        if version is None or listed is None:
            return None
        models = {model["id"]: model for model in listed.get("data", [])}
        bases = {name: model for name, model in models.items() if not model.get("parent")}
        if not wanted:  # --served-model-name may give a model several names: take its first
            first = {model.get("root"): name for name, model in reversed(bases.items())}
            bases = {name: bases[name] for name in first.values()}
        model = models[choose_model(client, wanted, models if wanted else bases)]
        base = models.get(model.get("parent"), model)
        longest = limit_of(base, "max_model_len")
        metrics = client.text("/metrics") or ""
        _refuse_speculation(client, metrics)
        served = Served(
            address=client.address,
            api=self.name,
            model=model["id"],
            adapter=model is not base,
            # A request generates at least one token, which counts towards the limit.
            longest=None if longest is None else longest - 1,
            version=str(version),
            settings={"root": model.get("root"), **_cache_settings(metrics)},
        )
        ids = [0, 1, 0, 1]
        body = self.request(served, ids, 1) | {"prompt_logprobs": LIKELIEST}
        answer = client.ask(self.path, body, answer_size(ids))
        _refuse_logits(client, answer, ids)
        # A hash of quantization, kernels and parallel sizes, which only answers state.
        told = answer.get("system_fingerprint")
        stated = {} if told is None else {"system_fingerprint": str(told)}
        return replace(served, settings={**served.settings, **stated})

    def request(self, served: Served, ids: list[int], start: int) -> dict[str, Any]:
        return {
            "model": served.model,
            "prompt": ids,
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": 0,
            "return_token_ids": True,
            "add_special_tokens": False,
            # The salt is unique to the request, so no prefix comes from the cache (vLLM #42019).
            "cache_salt": secrets.token_hex(8),
        }

    def read(self, served: Served, answer: dict[str, Any], ids: list[int], start: int) -> list[Any]:
        told = answer.get("system_fingerprint")
        if told not in (None, served.settings.get("system_fingerprint")):
            settings = {**served.settings, "system_fingerprint": told}
            raise server_changed(served, replace(served, settings=settings))
        values = [
            entry[str(token)].get("logprob") for entry, token in _entries(answer, ids)[start - 1 :]
        ]
        return [-math.inf if value == CLAMPED else value for value in values]


def _refuse_logits(client: Client, answer: dict[str, Any], ids: list[int]) -> None:
    """Refuse a server whose values for a few ids are not log-probs.

    With `--logprobs-mode raw_logits` the values are logits, some of which would pass for log-probs.
    But the likeliest tokens of a position have a total probability of at most 1.
    """
    for entry, _ in _entries(answer, ids):
        mass = sum(math.exp(min(value["logprob"], 1.0)) for value in entry.values())
        if not LEAST_MASS <= mass <= MOST_MASS:
            raise RcdiagError(
                f"{client.address}: the {LIKELIEST} likeliest tokens of a position have a "
                f"total probability of {mass:.3g}: these are not log-probs",
                hint="start vllm serve without --logprobs-mode raw_logits or processed_logits",
            )


def _entries(answer: dict[str, Any], ids: list[int]) -> list[tuple[dict[str, Any], int]]:
    """Return the entry and id of every token but the first; refuse entries for other tokens."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise malformed("no single choice")
    choice = choices[0]
    entries, sent = choice.get("prompt_logprobs"), choice.get("prompt_token_ids")
    if not isinstance(entries, list):
        raise malformed("no prompt_logprobs")
    if not isinstance(sent, list):  # the only evidence of the first token, which has no entry
        raise malformed("no prompt_token_ids")
    if sent != ids:
        raise wrong_tokens("prompt_token_ids is not what was sent")
    if len(entries) != len(ids):
        raise wrong_tokens(f"{len(entries)} values for {len(ids)} tokens")
    if entries[0] is not None:
        raise malformed("a log-prob of the first token, which has nothing before it")
    for position, (entry, token) in enumerate(zip(entries[1:], ids[1:], strict=True), start=1):
        if not isinstance(entry, dict) or not isinstance(entry.get(str(token)), dict):
            found = ", ".join(entry) if isinstance(entry, dict) else "nothing"
            raise wrong_tokens(f"position {position} has {found} and not token {token}")
    return list(zip(entries[1:], ids[1:], strict=True))


def _refuse_speculation(client: Client, metrics: str) -> None:
    """Refuse a server with speculative decoding, whose counters its /metrics have only then.

    The prompt log-probs of some requests are wrong, and vLLM gives no warning (vLLM #53488).
    """
    if "vllm:spec_decode_num_drafts" in metrics:
        raise RcdiagError(
            f"{client.address}: speculative decoding is on, with which prompt log-probs are wrong "
            "(vllm #53488)",
            hint="start vllm serve without --speculative-config",
        )


def _cache_settings(metrics: str) -> dict[str, str]:
    """Return the settings of the cache from /metrics; vLLM reports them nowhere else."""
    line = re.search(r"^vllm:cache_config_info\{(.*)\}", metrics, re.MULTILINE)
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line[1])) if line else {}
    return {name: labels[name] for name in CACHE_SETTINGS if name in labels}
