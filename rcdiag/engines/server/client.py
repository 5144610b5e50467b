"""JSON requests over HTTP with limits on size and time, without redirects and proxies."""

from __future__ import annotations

import json
import socket
import ssl
import time
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
)
from typing import Any
from urllib.parse import urlsplit

from rcdiag.errors import RcdiagError

BUSY = (408, 429, 500, 502, 503, 504)  # status codes after which a retry may succeed
ABSENT = (404, 405)
SMALL_ANSWER = 8 << 20  # bytes, for all answers but scores: server information and metrics
MOST_QUOTED = 300  # characters of a message that quotes a server
LONGEST_WAIT = 60.0  # seconds, the largest Retry-After that is respected


class Unavailable(Exception):
    """The server cannot answer now: it is down, restarting or overloaded."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait  # seconds, from the server's Retry-After


class _Socket(socket.socket):
    """A socket whose waits all end at one deadline, however slowly bytes arrive or are taken.

    The timeout of an ordinary socket begins again with each byte of a header.
    """

    deadline: float  # of time.monotonic()

    def recv_into(self, *args: Any) -> int:
        self.limit_wait()
        return super().recv_into(*args)

    def send(self, *args: Any) -> int:  # TLS sends long requests in pieces
        self.limit_wait()
        return super().send(*args)

    def limit_wait(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.settimeout(left)


class _TlsSocket(_Socket, ssl.SSLSocket):
    """The same over TLS."""


class Client:
    """Requests to one address; each has its own connection, so that threads share nothing.

    Proxies of the environment are not used: requests, which carry the key, go only to the address
    that the user gives.
    """

    def __init__(self, address: str, key: str | None, timeout: float) -> None:
        self.address, self._key, self._timeout = address, key, timeout
        self._parts = urlsplit(address)

    def ask(self, path: str, body: dict[str, Any] | None = None, most: int = SMALL_ANSWER) -> Any:
        """Return the JSON object that a path answers; `most` limits the answer's size in bytes."""
        content, response = self._content(path, body, most)
        answer, kind = _parsed(content), response.headers.get_content_type()
        announced = response.length is not None or response.chunked
        if answer is None and not announced and kind == "application/json":
            raise Unavailable("the answer breaks off")
        if not isinstance(answer, dict):
            wanted = "valid JSON" if answer is None else "a JSON object"
            raise RcdiagError(
                f"{self.address}{path}: the answer ({kind}) is not {wanted}",
                hint="give the address of the server itself, not that of a page or proxy before it",
            )
        return answer

    def redacted(self, text: str) -> str:
        """Return a text of the server without the key, which a server may send back."""
        if self._key is not None:
            for form in (self._key, json.dumps(self._key)[1:-1]):  # quotes are escaped in JSON
                text = text.replace(form, "***")
        return text

    def quoted(self, text: str) -> str:
        """Return a text of the server as messages quote it: without the key, then shortened."""
        text = self.redacted(text)
        return text if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]}..."

    def find(self, *paths: str) -> dict[str, Any] | None:
        """Return the answer of the first path that exists on the server; None if none does."""
        for path in paths:
            try:
                answer: dict[str, Any] = self.ask(path)
            except _AbsentError:
                continue
            return answer
        return None

    def text(self, path: str) -> str | None:
        """Return a path's answer as text; None if the path does not exist on the server."""
        try:
            return self._content(path, None, SMALL_ANSWER)[0].decode(errors="replace")
        except _AbsentError:
            return None

    def _content(
        self, path: str, body: dict[str, Any] | None, most: int
    ) -> tuple[bytes, HTTPResponse]:
        """Return the body of an answer with status 200, and the answer itself."""
        headers = {"Content-Type": "application/json", "Connection": "close"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        connection = self._connection()
        try:
            self._connect(connection)
            connection.request(
                "GET" if body is None else "POST",
                self._parts.path + path,
                None if body is None else json.dumps(body).encode(),
                headers,
            )
            with connection.getresponse() as response:
                content = self._read(path, response, most)
        except ssl.SSLCertVerificationError as error:
            raise RcdiagError(
                f"{self.address}: {error.verify_message}",
                hint="name the certificate that signs it in SSL_CERT_FILE",
            ) from error
        except TimeoutError as error:
            raise Unavailable(f"no complete answer within timeout={self._timeout:g} s") from error
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise Unavailable(reason[:1].lower() + reason[1:]) from error
        except IncompleteRead as error:
            raise Unavailable("the answer breaks off") from error
        except HTTPException as error:  # its text quotes the server, so it is not chained
            raise Unavailable(self.quoted(f"not an answer in HTTP ({error})")) from None
        finally:
            connection.close()
        if response.status != 200:
            raise self._error_of_status(path, response, content)
        return content, response

    def _connection(self) -> HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "https":
            context = ssl.create_default_context()
            context.sslsocket_class = _TlsSocket
            return HTTPSConnection(host, port, timeout=self._timeout, context=context)
        return HTTPConnection(host, port, timeout=self._timeout)

    def _connect(self, connection: HTTPConnection) -> None:
        """Open a connection whose answer must be complete `timeout` seconds from now.

        A host may have several addresses, tried in turn: each gets an equal share of the time.
        """
        deadline = time.monotonic() + self._timeout
        host, port = connection.host, connection.port
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        connection.timeout = self._timeout / len(addresses)
        connection.connect()
        if not isinstance(connection.sock, _TlsSocket):
            connection.sock = _Socket(fileno=connection.sock.detach())
        connection.sock.deadline = deadline
        connection.sock.limit_wait()

    def _read(self, path: str, response: HTTPResponse, most: int) -> bytes:
        """Read a body completely, unless it exceeds the limit on size."""
        pieces: list[bytes] = []
        size = 0
        while piece := response.read1(1 << 16):
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise RcdiagError(
                    f"{self.address}{path}: an answer of more than {most:,} bytes, which is more "
                    "than the request can need",
                    hint="is it the address of a vLLM or SGLang server?",
                )
        if response.length:  # announced bytes that did not arrive
            raise ConnectionResetError("the answer breaks off")
        return b"".join(pieces)

    def _error_of_status(self, path: str, response: HTTPResponse, content: bytes) -> Exception:
        """Return the error for an answer whose status is not 200."""
        status, where = response.status, f"{self.address}{path}"
        said = content.decode(errors="replace").strip()
        if (answer := _parsed(content)) is not None:  # written anew, without escapes in the key
            said = json.dumps(answer, ensure_ascii=False)
        said = self.quoted(said)
        if status in BUSY:
            wait = response.getheader("Retry-After", "")  # seconds; a date is ignored
            seconds = min(float(wait), LONGEST_WAIT) if wait.isdecimal() else 0.0
            return Unavailable(f"HTTP {status} {said}".strip(), seconds)
        if status in ABSENT:
            return _AbsentError(f"{where}: HTTP {status} {said}", hint="is it the right address?")
        if 300 <= status < 400:
            return RcdiagError(
                f"{where}: redirects (HTTP {status}), and redirects are not followed",
                hint="give the address that it leads to as url=",
            )
        hint = "the server's message and log say why"
        if status in (401, 403):
            hint = (
                "put its key into an environment variable, and name it: key_env=VAR"
                if self._key is None
                else "it does not take the key in the environment variable that key_env names"
            )
        return RcdiagError(f"{where}: HTTP {status} {said}", hint=hint)


class _AbsentError(RcdiagError):
    """The path does not exist on the server."""


def _parsed(content: bytes) -> Any:
    """Return the value of a JSON text; None if it is not valid JSON."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None
