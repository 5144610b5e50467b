"""A local web server, whose pages and listings are defined by the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HTML, BINARY = "text/html", "application/octet-stream"


def listing(*links: str) -> bytes:
    """Return a page of links, as in a server's folder listing."""
    return "".join(f'<a href="{link}">x</a>\n' for link in links).encode()


@contextmanager
def serving(pages: Mapping[str, bytes], content: bytes = b"") -> Iterator[str]:
    """Serve listings by their paths, and `content` under each that ends with .jsonl.

    Yields the address. The path of a listing ends with a slash.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            page = pages.get(path, pages.get(f"{path}/"))
            body = content if page is None else page
            if page is None and (not path.endswith(".jsonl") or "*" in path):
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", HTML if page is not None else BINARY)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
