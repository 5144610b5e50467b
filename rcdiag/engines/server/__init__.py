"""An engine that is already served: vLLM or SGLang over HTTP returns log-probs of stored tokens.

Needs the standard library and numpy only, since the model runs elsewhere. Servers give log-probs
of prompt tokens at temperature 1 only, so rows of another temperature are refused before the first
request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rcdiag.engines.backend import Backend, Option, OtherBatches, Say
from rcdiag.engines.server.address import (
    MOST_REQUESTS,
    PATIENCE_SECONDS,
    REQUEST_SECONDS,
    check_address,
    server_key,
)
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError

if TYPE_CHECKING:
    from pathlib import Path

    from rcdiag.engines.checkpoint import ModelFacts
    from rcdiag.engines.server.engine import ServerEngine

CANNOT = {
    "adapter": "a server loads adapters itself: model=NAME names one that it serves",
    "entropy": "servers return no entropy",
    "top_k": "the likeliest tokens of a server are not read",
    "lm_head": "the server decides the dtype of the head",
    "matmul": "the server decides how it multiplies",
}


def _check(spec: PolicySpec) -> None:
    """Refuse an invalid address or option before a request is sent."""
    check_address(spec)
    server_key(spec)
    for key in ("concurrency", "timeout"):
        if spec.options.get(key, 1) < 1:
            raise RcdiagError(f"policy `{spec.name}`: {key}=0", hint="take 1 or more")


def _facts(spec: PolicySpec, say: Say) -> ModelFacts:
    from rcdiag.engines.checkpoint import ModelFacts
    from rcdiag.engines.server.connection import connect
    from rcdiag.table.trajectories import ModelLimits

    client, served = connect(spec, say)
    limits = ModelLimits(
        model=f"the server at {client.address}",
        vocab_size=None,
        context=served.longest,
        temperature=1.0,
    )
    return ModelFacts(limits, served.fingerprint)


def _load(spec: PolicySpec, max_length: int, log: Path) -> ServerEngine:
    from rcdiag.engines.server.engine import ServerEngine

    return ServerEngine(spec)


SERVER = Backend(
    name="server",
    says="An engine that is served over HTTP: vLLM's OpenAI server or SGLang's. It returns the "
    "log-probs of prompt tokens, which are those of temperature 1, so rows of another temperature "
    "are refused. The model is the one that the server has loaded. Servers do not report the dtype "
    "that they compute in, so the policy's dtype is what you state.",
    role="engine",
    dtypes=("served", "bfloat16", "float16", "float32"),
    default_dtype="served",
    example="rollout=server,url=http://127.0.0.1:8000",
    load=_load,
    refuses=CANNOT,
    options={
        "url": Option(says="address of the server: HOST:PORT after http:// or https://", shown=""),
        "api": Option(
            says="the kind of server; found out from the server by default",
            takes=("vllm", "sglang"),
        ),
        "model": Option(
            says="the served name of the model or adapter; needed if the server has several"
        ),
        "key_env": Option(
            says="the environment variable that holds the server's key, sent as a bearer token",
            shown="",
            decides=False,
        ),
        "concurrency": Option(
            says=f"the largest number of requests at a time; {MOST_REQUESTS} by default",
            takes=int,
            shown="{} requests at a time",
            decides=False,
        ),
        "timeout": Option(
            says=f"the seconds that one request may take; {REQUEST_SECONDS} by default",
            takes=int,
            shown="",
            decides=False,
        ),
        "patience": Option(
            says="the seconds to wait for a server that loads, is down or overloaded; "
            f"{PATIENCE_SECONDS} by default",
            takes=int,
            shown="",
            decides=False,
        ),
    },
    other_batches=OtherBatches(option="concurrency", size=3, smaller=2),
    check=_check,
    needs_model=False,
    facts=_facts,
    runs_outside=True,
)
