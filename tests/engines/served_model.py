"""A loopback server with the API of vLLM or SGLang, for a model in closed form.

The log-prob of a token given the one before it is a row of a small table. Faults change an answer
on its way out.
"""

from __future__ import annotations

import itertools
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY, CONTEXT = 12, 64
LOGITS = 3.0 * np.random.default_rng(5).standard_normal((VOCABULARY, VOCABULARY))
# By enumeration of the next tokens, in the precision that engines return.
LOG_PROBS = (LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True))).astype(np.float32)

Answer = tuple[int, dict[str, str], bytes]  # status, headers, body
# Changes the answer for a row, given its request.
Fault = Callable[["Model", dict[str, Any], Answer], Answer]
GREETING = [0, 1, 0, 1]  # the request that rcdiag sends to vLLM before any row


def expected(prompt: list[int], response: list[int]) -> np.ndarray:
    before = [prompt[-1], *response[:-1]]
    return LOG_PROBS[before, response]


class Model:
    """State of a server: its settings, and the requests that it received."""

    def __init__(self, api: str, fault: Fault | None = None, table: np.ndarray = LOG_PROBS) -> None:
        self.api, self.fault, self.table = api, fault, table
        self.rows: list[dict[str, Any]] = []  # rows that it was asked to score
        self.headers: list[dict[str, str]] = []
        self.version = "0.32.0" if api == "vllm" else "0.5.23"
        self.fingerprint = "vllm-0.32.0-6490b793"
        self.names = ["policy"]
        self.adapters: list[str] = []
        self.weight_version = "default"
        self.metrics = 'vllm:cache_config_info{enable_prefix_caching="True",block_size="16"} 1.0\n'
        self.loading = 0  # number of requests that are still answered by 503
        self.running = self.most_running = 0
        self.lock = threading.Lock()

    def answer(self, path: str, body: dict[str, Any] | None) -> Answer:
        if self.loading:
            self.loading -= 1
            return 503, {}, b"loading"
        ids = (body or {}).get("prompt") or (body or {}).get("input_ids")
        is_row = ids is not None and ids != GREETING
        if is_row:
            with self.lock:
                self.rows.append(body or {})
        pages = self._vllm_pages() if self.api == "vllm" else self._sglang_pages()
        if path == "/v1/completions" and self.api == "vllm" and body is not None:
            made = as_json(self._completion(body))
        elif path == "/generate" and self.api == "sglang" and body is not None:
            made = as_json(self._generate(body))
        elif path in pages:
            made = pages[path]
        else:
            return as_json({"detail": "Not Found"}, 404)
        return self.fault(self, body or {}, made) if is_row and self.fault else made

    def _vllm_pages(self) -> dict[str, Answer]:
        cards = [{"id": n, "root": "ckpt", "max_model_len": CONTEXT} for n in self.names]
        cards += [{"id": n, "root": n, "parent": self.names[0]} for n in self.adapters]
        return {
            "/version": as_json({"version": self.version}),
            "/v1/models": as_json({"object": "list", "data": cards}),
            "/metrics": (200, {"Content-Type": "text/plain"}, self.metrics.encode()),
        }

    def _sglang_pages(self) -> dict[str, Answer]:
        about = {
            "model_path": "ckpt",
            "served_model_name": self.names[0],
            "weight_version": self.weight_version,
        }
        cards = [{"id": n, "root": n, "max_model_len": CONTEXT} for n in self.names]
        cards += [{"id": n, "root": n, "parent": self.names[0]} for n in self.adapters]
        server = {"version": self.version, "dtype": "auto", "api_key": "sesame"}
        return {
            "/model_info": as_json(about),
            "/server_info": as_json({**server, "max_req_input_len": CONTEXT - 1}),
            "/v1/models": as_json({"data": cards}),
        }

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = body["prompt"]
        entries: list[dict[str, Any] | None] = [None]
        for before, token in itertools.pairwise(ids):
            row = self.table[before]
            likeliest = np.argsort(-row)[: body["prompt_logprobs"]].tolist()
            entries.append(
                {
                    str(one): {"logprob": float(row[one]), "rank": 1, "decoded_token": "x"}
                    for one in dict.fromkeys([token, *likeliest])
                }
            )
        choice = {"prompt_logprobs": entries, "prompt_token_ids": ids, "text": "x"}
        return {
            "system_fingerprint": self.fingerprint,
            "choices": [choice],
            "usage": {"prompt_tokens": len(ids)},
        }

    def _generate(self, body: dict[str, Any]) -> dict[str, Any]:
        ids, first = body["input_ids"], body["logprob_start_len"]
        entries: list[list[Any]] = [[None, ids[first], None]]
        for before, token in itertools.pairwise(ids[first:]):
            entries.append([float(self.table[before, token]), token, None])
        about = {
            "prompt_tokens": len(ids),
            "weight_version": self.weight_version,
            "input_token_logprobs": entries,
        }
        return {"text": "", "meta_info": about}


def as_json(value: Any, status: int = 200) -> Answer:
    return status, {"Content-Type": "application/json"}, json.dumps(value).encode()


class DropError(Exception):
    """A fault that closes the connection without an answer."""


@contextmanager
def serve(model: Model, certificate: Path | None = None, port: int = 0) -> Iterator[str]:
    """Serve a model; yields the address. A file with key and certificate makes it https."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(self.path, None)

        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            with model.lock:
                model.headers.append(dict(self.headers))
            self._send(self.path, json.loads(self.rfile.read(size)))

        def _send(self, path: str, body: dict[str, Any] | None) -> None:
            with model.lock:
                model.running += 1
                model.most_running = max(model.running, model.most_running)
            try:
                status, headers, content = model.answer(path, body)
            except DropError:
                return
            finally:  # before the client can see the answer and send the next request
                with model.lock:
                    model.running -= 1
            try:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    if value:  # "" leaves a header out
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)
            except OSError:
                pass  # the client has read enough

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 128

    with Server(("127.0.0.1", port), Handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            scheme = "http" if certificate is None else "https"
            yield f"{scheme}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
