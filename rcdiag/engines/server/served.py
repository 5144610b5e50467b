"""A server's description of itself: engine, model, versions and settings."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Protocol

from msgspec import Struct

from rcdiag.engines.server.client import Client
from rcdiag.errors import RcdiagError


class Served(Struct, frozen=True, kw_only=True):
    """The model that a server scores with, as far as the server reports it."""

    address: str
    api: str  # vllm or sglang
    model: str  # served name
    adapter: bool = False  # `model` is the name of a LoRA adapter
    longest: int | None  # limit on the tokens of a scored sequence; None if not reported
    version: str | None  # of the engine
    weight_version: str | None = None  # SGLang's, which a weight update changes
    settings: dict[str, Any]  # the server's arguments that affect log-probs

    @property
    def reported(self) -> dict[str, Any]:
        """Return everything that can reveal a changed model; new weights in place may not show."""
        return {
            "model": self.model,
            "adapter": self.adapter,
            "longest": self.longest,
            "version": self.version,
            "weight_version": self.weight_version,
            **self.settings,
        }

    @property
    def fingerprint(self) -> str:
        """Hash the address, the kind of server, and everything it reports."""
        text = json.dumps([self.address, self.api, self.reported], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def provenance(self) -> dict[str, Any]:
        """Return the server's entry in the metadata of a scored table.

        It has no `weights_fingerprint`: the server's weights are not hashed, and another kind of
        hash would be compared with those of checkpoints.
        """
        served = {**self.reported, "fingerprint": self.fingerprint}
        return {"versions": {self.api: served.pop("version")}, "served": served}


class Api(Protocol):
    """The HTTP interface of one kind of server: its requests and answers."""

    name: str
    path: str  # of requests for scores

    def identify(self, client: Client, wanted: str) -> Served | None:
        """Return what is served under the name `wanted`; "" for a server with one model.

        None if it is another kind of server.
        """
        ...

    def request(self, served: Served, ids: list[int], start: int) -> dict[str, Any]:
        """Return a request's body for the log-probs of `ids[start:]`; start is at least 1."""
        ...

    def read(self, served: Served, answer: dict[str, Any], ids: list[int], start: int) -> list[Any]:
        """Return the log-probs of `ids[start:]`; refuse an answer about other tokens."""
        ...


def limit_of(description: dict[str, Any], name: str) -> int | None:
    """Return a limit in tokens that a server states: at least 1; None if it states none."""
    value = description.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise malformed(f"{name} {value!r}, which is not a number of tokens")
    return value


def choose_model(client: Client, wanted: str, names: dict[str, Any]) -> str:
    """Return the served name of the model to score with; refuse an unknown or ambiguous one."""
    if not all(isinstance(name, str) for name in names):
        raise malformed("a model name that is not text")
    if wanted in names:
        return wanted
    listed = ", ".join(names) or "none"
    if wanted:
        raise RcdiagError(
            f"model={wanted}: {client.address} serves no such model; there are: {listed}",
            hint="model= is a served name, not a path; leave it out if only one model is served",
        )
    if len(names) != 1:
        many = f"several models: {listed}" if names else "no model of its own"
        raise RcdiagError(f"{client.address} serves {many}", hint="name one: model=NAME")
    return next(iter(names))


def server_changed(before: Served, now: Served) -> RcdiagError:
    """Return the error for a server whose model or settings changed during the run."""
    old, new = before.reported, now.reported
    differs = [key for key in old | new if old.get(key) != new.get(key)]
    changes = ", ".join(f"{key} {old.get(key)} -> {new.get(key)}" for key in differs)
    return RcdiagError(
        f"{before.address} serves something else than when the run began: {changes}",
        hint="the same command starts again with what is served now",
    )


def answer_size(ids: list[int]) -> int:
    """Return the bytes that an answer may have: one entry for each token, with its text."""
    return (1 << 20) + 1024 * len(ids)


def wrong_tokens(what: str) -> RcdiagError:
    """Return the error for a server that scored other tokens than were sent to it."""
    return RcdiagError(
        f"the server scored other tokens than were sent: {what}",
        hint="does it add, cut off or encode tokens again, or is something between it and rcdiag?",
    )


def malformed(what: str) -> RcdiagError:
    """Return the error for an answer that lacks what was asked for."""
    return RcdiagError(
        f"the server's answer has {what}",
        hint="is it a version of the server whose format rcdiag does not know (docs/engines.md)?",
    )
