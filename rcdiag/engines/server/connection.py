"""Connect to the server of a policy, and find out which kind it is and what it serves."""

from __future__ import annotations

import math
import time

from rcdiag.engines.backend import Say
from rcdiag.engines.server.address import REQUEST_SECONDS, check_address, patience_of, server_key
from rcdiag.engines.server.client import Client, Unavailable
from rcdiag.engines.server.pace import Pace
from rcdiag.engines.server.served import Api, Served, malformed
from rcdiag.engines.server.sglang import SglangApi
from rcdiag.engines.server.vllm import VllmApi
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError

# In the order in which they are tried: only SGLang has /model_info, while /version is not specific
# to vLLM.
APIS: dict[str, Api] = {"sglang": SglangApi(), "vllm": VllmApi()}


def identify(client: Client, spec: PolicySpec) -> Served:
    """Find out what a server is and serves; with the policy's `api` only that kind is tried."""
    given = spec.options.get("api")
    for name, api in APIS.items():
        if given not in (None, name):
            continue
        try:
            served = api.identify(client, spec.model)
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise malformed(f"another form than {name}'s") from error
        except RcdiagError as error:
            raise RcdiagError(client.quoted(error.message), error.hint) from None
        if served is not None:
            _check(client, served)
            return served
    raise RcdiagError(
        f"policy `{spec.name}`: {client.address} is not a server of "
        + ("vLLM (/version) or SGLang (/model_info)" if given is None else given),
        hint="give the address of vLLM's OpenAI server or of SGLang's server, without a path",
    )


def _check(client: Client, served: Served) -> None:
    """Refuse a description that cannot be stored in the table's metadata, or holds the key."""
    for name, value in served.reported.items():
        is_plain = value is None or isinstance(value, (str, int, float))
        if not is_plain or (isinstance(value, float) and not math.isfinite(value)):
            raise malformed(client.quoted(f"{name} {value!r}, which is no text or number"))
        if client.redacted(str(value)) != str(value):
            raise RcdiagError(
                f"{client.address}: the server states its key as its {name}",
                hint="the table's metadata would hold the key: what answers at this address?",
            )


def connect(spec: PolicySpec, say: Say) -> tuple[Client, Served]:
    """Wait until a policy's server is up; return a client for it, and what it serves.

    `say` takes a sentence for the user while the server does not answer yet.
    """
    client = Client(
        check_address(spec), server_key(spec), spec.options.get("timeout", REQUEST_SECONDS)
    )
    began = time.monotonic()
    try:
        return client, identify(client, spec)
    except Unavailable as failure:
        patience = patience_of(spec)
        if patience:
            say(
                f"{spec.name}: no answer from {client.address} yet ({failure}); waiting for "
                f"{patience} s at most (patience=SECONDS in the policy)"
            )
        pace = Pace(most=1)
        served = wait_for(client, spec, pace, failure, began, f"policy `{spec.name}`")
    say(f"{spec.name}: {client.address} is up after {time.monotonic() - began:.0f} s")
    return client, served


def wait_for(
    client: Client, spec: PolicySpec, pace: Pace, failure: Unavailable, since: float, who: str
) -> Served:
    """Ask a server what it serves until it answers, after a failure.

    Raises:
        RcdiagError: the policy's patience is over, counted `since` then; `who` begins the message.
    """
    patience = patience_of(spec)
    while time.monotonic() - since <= patience:
        pace.failed()
        time.sleep(max(pace.pause, failure.wait))
        try:
            return identify(client, spec)
        except Unavailable as error:
            failure = error
    raise RcdiagError(
        f"{who}: no answer from {client.address} in {patience} s: {failure}",
        hint="patience=SECONDS in the policy waits longer, and the same command goes on from the "
        f"finished parts; this asks whether the server is up: curl {client.address}/v1/models",
    )
