"""SGLang's own server: `input_token_logprobs` of /generate.

Read from SGLang 0.5.23 (`srt/entrypoints/http_server.py`, `srt/managers/io_struct.py`,
`scheduler_components/logprob_result_processor.py`, `layers/logits_processor.py`). With
`logprob_start_len` s the answer has an entry [log-prob, token id, text] for each token from index s
on, counted from 0; the first has None for its log-prob. Log-probs are a log-softmax of the raw
logits, whatever `temperature` says (SGLang #36213).
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from rcdiag.engines.server.client import Client
from rcdiag.engines.server.served import (
    Served,
    choose_model,
    limit_of,
    malformed,
    server_changed,
    wrong_tokens,
)

# Arguments in /server_info that affect log-probs. The others are paths, ports and keys.
SETTINGS = (
    *("dtype", "quantization", "kv_cache_dtype", "attention_backend", "sampling_backend"),
    *("tp_size", "pp_size", "dp_size", "ep_size", "enable_fp32_lm_head", "revision"),
    *("chunked_prefill_size", "disable_radix_cache", "speculative_algorithm"),
    "enable_deterministic_inference",
)


class SglangApi:
    """Scores through `return_logprob` and `logprob_start_len` of /generate."""

    name = "sglang"
    path = "/generate"

    def identify(self, client: Client, wanted: str) -> Served | None:
        model = client.find("/model_info", "/get_model_info")
        if model is None or "model_path" not in model:
            return None
        server = client.find("/server_info", "/get_server_info") or {}
        listed = (client.find("/v1/models") or {}).get("data", [])
        base = model.get("served_model_name") or server.get("served_model_name")
        base = str(base or model["model_path"])
        adapters = {one["id"]: one for one in listed if one.get("parent")}
        name = choose_model(client, wanted or base, {base: None, **adapters})
        weights = model.get("weight_version")
        settings = {key: server[key] for key in SETTINGS if server.get(key) is not None}
        # An input must be below both of the server's limits.
        limits = [limit_of(one, "max_model_len") for one in listed]
        limits.append(limit_of(server, "max_req_input_len"))
        known = [limit for limit in limits if limit is not None]
        return Served(
            address=client.address,
            api=self.name,
            model=name,
            adapter=name in adapters,
            longest=min(known) - 1 if known else None,
            version=None if "version" not in server else str(server["version"]),
            weight_version=None if weights is None else str(weights),
            settings={"root": model["model_path"], **settings},
        )

    def request(self, served: Served, ids: list[int], start: int) -> dict[str, Any]:
        body = {
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": start - 1,
            "stream": False,
        }
        return {**body, "lora_path": served.model} if served.adapter else body

    def read(self, served: Served, answer: dict[str, Any], ids: list[int], start: int) -> list[Any]:
        about = answer.get("meta_info")
        entries = about.get("input_token_logprobs") if isinstance(about, dict) else None
        if not isinstance(about, dict) or not isinstance(entries, list):
            raise malformed("no meta_info.input_token_logprobs")
        if about.get("weight_version") not in (None, served.weight_version):
            now = replace(served, weight_version=str(about["weight_version"]))
            raise server_changed(served, now)  # a trainer updated the weights meanwhile
        if about.get("prompt_tokens") != len(ids):
            raise wrong_tokens(f"{about.get('prompt_tokens')} tokens, not {len(ids)}")
        tokens = ids[start - 1 :]
        if len(entries) != len(tokens):
            raise wrong_tokens(f"{len(entries)} values for {len(tokens)} tokens")
        for position, (entry, token) in enumerate(zip(entries, tokens, strict=True), start - 1):
            if not isinstance(entry, list) or len(entry) < 2:
                raise malformed(f"no pair of log-prob and token id at position {position}")
            if entry[1] != token:
                raise wrong_tokens(f"position {position} has {entry[1]} and not token {token}")
        if entries[0][0] is not None:
            raise malformed("a log-prob at logprob_start_len, where None is expected")
        return [entry[0] for entry in entries[1:]]
