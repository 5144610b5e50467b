"""The address and key of a policy's server, and how long to wait for it."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError

# Defaults of timeout=, patience= and concurrency=.
REQUEST_SECONDS, PATIENCE_SECONDS, MOST_REQUESTS = 600, 600, 64


def check_address(spec: PolicySpec) -> str:
    """Return the address of a policy's server without a trailing slash; refuse an invalid one."""
    address = spec.options.get("url")
    if not address:
        raise RcdiagError(
            f"policy `{spec.name}`: no url", hint="give the server's address, url=http://HOST:PORT"
        )
    try:
        parts = urlsplit(address)
        parts.port  # noqa: B018  # raises for an invalid port
    except ValueError as error:
        raise RcdiagError(f"policy `{spec.name}`: url: {error}", "write http://HOST:PORT") from None
    if parts.username is not None or parts.password is not None:
        raise RcdiagError(
            f"policy `{spec.name}`: the url holds a user or a password, which the table would keep",
            hint="put the key into an environment variable, and name it: key_env=VAR",
        )
    printable = address.isascii() and address.isprintable() and " " not in address
    if parts.scheme not in ("http", "https") or not parts.hostname or not printable:
        raise RcdiagError(
            f"policy `{spec.name}`: url={address}: not the address of a server",
            hint="write http://HOST:PORT or https://HOST:PORT",
        )
    if "?" in address or "#" in address:
        raise RcdiagError(
            f"policy `{spec.name}`: the url has a query or a fragment",
            hint="write http://HOST:PORT; a key goes into an environment variable, key_env=VAR",
        )
    return str(address).rstrip("/").removesuffix("/v1")


def patience_of(spec: PolicySpec) -> int:
    """Return the seconds for which a server that does not answer is asked again."""
    return int(spec.options.get("patience", PATIENCE_SECONDS))


def server_key(spec: PolicySpec) -> str | None:
    """Return the server's key from the environment; None if the policy names no variable."""
    name = spec.options.get("key_env")
    if name is None:
        return None
    key = os.environ.get(name, "")
    if not key or not (key.isascii() and key.isprintable()) or " " in key:
        raise RcdiagError(
            f"policy `{spec.name}`: key_env={name}: the environment variable {name} "
            + ("holds a key that HTTP cannot carry" if key else "is not set"),
            hint=f"export {name}=... with the key that the server was started with",
        )
    return key
