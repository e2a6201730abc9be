"""The app's web server: five addresses, for this machine alone unless another host is named."""

import json
import re
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from legroom.cli.app import model_name
from legroom.cli.app.estimates import Estimates, NotWanted
from legroom.cli.app.form import Form, read
from legroom.errors import Refusal
from legroom.report.page import embed

ASSETS = Path(__file__).parent / "assets"
MOST_BYTES = 2**17  # of a request
MOST_DIGITS = 12  # of a Content-Length
LOOPBACK = ("127.0.0.1", "localhost", "::1")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HTML = "text/html; charset=utf-8"
SCRIPT = "text/javascript; charset=utf-8"
STYLE = "text/css; charset=utf-8"
JSON = "application/json; charset=utf-8"


class Server(ThreadingHTTPServer):
    """The server of the page and of its answers.

    host: the address to listen on. With a loopback address, requests for other host names are refused, so that a page
    of another server cannot reach it under a name of its own.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, form: Form, estimates: Estimates):
        super().__init__((host, port), Handler)
        self.form = form
        self.estimates = estimates
        self.only_loopback = host in LOOPBACK

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A traceback for errors of ours, and nothing for a tab that was closed."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server  # type: ignore[assignment]  (the base class has a wider type)
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        """A file of the app, the choices, or the page of an estimate."""
        if not self._allowed():
            return
        content = None
        page = re.fullmatch(r"/pages/(\d{1,9})", self.path)
        if page:
            content = self.server.estimates.page(int(page[1]))
        if self.path == "/":
            self._send(200, HTML, (ASSETS / "app.html").read_bytes())
        elif self.path == "/app.js":
            self._send(200, SCRIPT, embed.asset("common.js").encode() + (ASSETS / "app.js").read_bytes())
        elif self.path == "/app.css":
            self._send(200, STYLE, embed.asset(embed.STYLE).encode() + (ASSETS / "app.css").read_bytes())
        elif self.path == "/choices":
            self._send_json(200, self.server.form.choices())
        elif content is not None:
            self._send(200, HTML, content, policy=None)  # it has a policy of its own
        else:
            self._send(404, HTML, b"There is no such page. It may have been replaced: estimate again.")

    def do_POST(self) -> None:
        """An estimate of what was chosen, or what a text for another trainer says."""
        if not self._allowed():
            return
        length = self.headers.get("Content-Length", "")
        if self.path not in ("/estimate", "/read") or self.headers.get_content_type() != "application/json":
            return self._close(404, "POST /estimate and /read take JSON.")
        if not length.isdecimal() or len(length) > MOST_DIGITS or int(length) > MOST_BYTES:
            return self._close(413, f"A request has at most {MOST_BYTES // 1024} KiB.")
        try:
            values = json.loads(self.rfile.read(int(length)))
            if self.path == "/read":
                return self._send_json(200, read(values.get("text")))
            overrides = self.server.form.overrides(values)
            advise = values.get("advise") is True
            result = self.server.estimates.answer(overrides, advise, self._client_is_gone)
            self._send_json(200, self.server.form.named(values, overrides, result))
        except NotWanted:
            self.close_connection = True
        except model_name.Unclear as error:
            self._send_json(200, {"refused": str(error), "near": error.near})
        except (Refusal, ValueError, RecursionError) as error:
            self._send_json(200, {"refused": str(error)})

    def _client_is_gone(self) -> bool:
        """Whether the client has closed its connection; never waits."""
        try:
            return bool(wait([self.connection], 0)) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _allowed(self) -> bool:
        """Whether the request is meant for this server, and comes from its own page."""
        host = self.headers.get("Host", "")
        name = host
        if not host.endswith("]"):  # as IPv6 without a port does
            name = host.rpartition(":")[0]
        is_other_host = self.server.only_loopback and name.strip("[]") not in LOOPBACK
        if is_other_host or self.headers.get("Origin") not in (None, f"http://{host}"):
            self._close(403, "This server answers its own page alone.")
            return False
        return True

    def _close(self, status: int, text: str) -> None:
        """Answer without reading the rest of the request."""
        self.close_connection = True
        self._send_json(status, {"refused": text})

    def _send_json(self, status: int, value: Any) -> None:
        self._send(status, JSON, json.dumps(value).encode())

    def _send(self, status: int, kind: str, content: bytes, policy: str | None = POLICY) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(content))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Content-Security-Policy", policy),
        ):
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the page shows every answer."""
