"""Servers that refuse, disconnect or never answer, and incomplete addresses."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rcdiag.errors import RcdiagError
from rcdiag.table import remote
from rcdiag.table.opening import open_table
from rcdiag.table.remote import system_of


@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1:9/x.parquet",
        "http://127.0.0.1:9/x.parquet",
        "http://127.0.0.1:9/**",
        "reference://x",
        "reference://x::http://127.0.0.1:9/x",
        "zip://a::http://127.0.0.1:9/x",
        "zip://a::/nowhere.zip",
        "dir://x",
        "github://x",
        "http://",
        "http://[/x",
        "s3://",
        "://x",
        "a://",
    ],
)
def test_an_address_that_leads_nowhere_is_refused_by_name(url):
    with pytest.raises(RcdiagError) as caught:
        open_table(url)
    assert caught.value.message.startswith(f"{url}: ")
    assert caught.value.hint


@contextmanager
def server(answer: bytes) -> Iterator[str]:
    """A server that accepts, sends the beginning of an answer, then nothing."""
    ended = threading.Event()
    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.1)

        def serve() -> None:
            while not ended.is_set():
                try:
                    connection, _ = listening.accept()
                except TimeoutError:
                    continue
                kept.append(connection)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            ended.set()
            thread.join()
            for connection in kept:
                connection.close()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"


@pytest.mark.parametrize("source", ["/x.jsonl", "/**", "/x.parquet"])
@pytest.mark.parametrize("answer", [b"", HEAD, HEAD + b"Content-Length: 1000\r\n\r\n{"])
def test_a_silent_server_times_out(monkeypatch, answer, source):
    """Without rcdiag's limit it would take minutes, or forever if bytes trickle."""
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(remote, "SILENCE", 0.3)
    with server(answer) as address, pytest.raises(RcdiagError) as caught:
        open_table(f"{address}{source}")
    assert address in caught.value.message


def test_a_long_download_is_not_aborted(monkeypatch):
    """The limit is on silence, while aiohttp's own is on the whole download."""
    pytest.importorskip("aiohttp")
    for url in ("https://host/x", "zip://a::http://host/x.zip"):
        (options,) = remote._patience(url).values()
        assert options["client_kwargs"]["timeout"].total is None
    system, _ = system_of("https://host/x")
    again = pickle.loads(pickle.dumps(system))  # as nodes of a cluster get it
    assert again.client_kwargs["timeout"].sock_read == remote.SILENCE
