"""The way to the server of a policy, which is asked what it is and what it serves."""

from __future__ import annotations

from rcdiag.engines.server.address import REQUEST_SECONDS, check_address, server_key
from rcdiag.engines.server.client import Client, Unavailable
from rcdiag.engines.server.served import Api, Served, malformed
from rcdiag.engines.server.sglang import SglangApi
from rcdiag.engines.server.vllm import VllmApi
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError

# In the order in which a server is asked: /model_info is SGLang's alone, and /version is not
# vLLM's alone.
APIS: dict[str, Api] = {"sglang": SglangApi(), "vllm": VllmApi()}


def identify(client: Client, spec: PolicySpec) -> Served:
    """Ask a server what it is and serves; `api` of the policy says what to take it for."""
    given = spec.options.get("api")
    for name, api in APIS.items():
        if given not in (None, name):
            continue
        try:
            served = api.identify(client, spec.model)
        except (KeyError, TypeError, AttributeError) as error:
            raise malformed(f"another form than {name}'s ({error!r})") from error
        if served is not None:
            return served
    raise RcdiagError(
        f"policy `{spec.name}`: {client.address} is no server of "
        + ("vLLM (/version) or SGLang (/model_info)" if given is None else given),
        hint="wanted is the address of vLLM's OpenAI server or of SGLang's, without a path",
    )


def connect(spec: PolicySpec) -> tuple[Client, Served]:
    """Ask the server of a policy what it serves; the client is that for all later requests."""
    client = Client(
        check_address(spec), server_key(spec), spec.options.get("timeout", REQUEST_SECONDS)
    )
    try:
        return client, identify(client, spec)
    except Unavailable as error:
        raise RcdiagError(
            f"policy `{spec.name}`: no answer from {client.address}: {error}",
            hint="is the server up? Loading its model takes minutes; curl the address + /v1/models",
        ) from error
