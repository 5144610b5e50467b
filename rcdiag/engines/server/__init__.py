"""An engine that is served: vLLM or SGLang over HTTP, asked for the log-probs of stored tokens.

Standard library and numpy only: the model runs elsewhere. A server gives log-probs of prompt tokens
at temperature 1 alone, so other rows are refused before the first request.
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
    "adapter": "a server holds its adapters itself: model=NAME names one that it serves",
    "entropy": "a server returns no entropy",
    "top_k": "a server's likeliest tokens are not read",
    "lm_head": "the head is the server's own",
    "matmul": "products are the server's own",
}


def _check(spec: PolicySpec) -> None:
    """Refuse an address or an option before anything is sent."""
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
    says="An engine that is served over HTTP, vLLM's OpenAI server or SGLang's: the log-probs of "
    "prompt tokens that it returns, which are those of temperature 1. Rows of another temperature "
    "are refused. The model is the server's, the dtype what you know of it: a server does not "
    "tell in what it computes.",
    role="engine",
    dtypes=("served", "bfloat16", "float16", "float32"),
    default_dtype="served",
    example="rollout=server,url=http://127.0.0.1:8000",
    load=_load,
    refuses=CANNOT,
    options={
        "url": Option(says="address of the server: HOST:PORT after http:// or https://", shown=""),
        "api": Option(
            says="what serves, asked of the server where it is not given", takes=("vllm", "sglang")
        ),
        "model": Option(
            says="the name of the model or adapter among those served; not needed where one is"
        ),
        "key_env": Option(
            says="the environment variable that holds the server's key, sent as a bearer token",
            shown="",
            decides=False,
        ),
        "concurrency": Option(
            says=f"the most requests at a time, {MOST_REQUESTS} where none is given",
            takes=int,
            shown="{} requests at a time",
            decides=False,
        ),
        "timeout": Option(
            says=f"seconds that one request may take, {REQUEST_SECONDS} where none are given",
            takes=int,
            shown="",
            decides=False,
        ),
        "patience": Option(
            says="seconds that a server is waited for while it loads, is down or overloaded, "
            f"{PATIENCE_SECONDS} where none are given",
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
