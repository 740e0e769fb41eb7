"""``torchbus report --live``: a server on this machine whose pages follow runs in a browser.

It reads the files of the local logger in a separate process with a low priority.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from torchbus.plugin import UsageError

from torchbus_report.page import index, page
from torchbus_report.runs import columns, reading
from torchbus_report.runs.columns import Known, Wish
from torchbus_report.runs.files import showable

ADDRESS, PORT = "127.0.0.1", 8265
HOSTS = ("127.0.0.1", "localhost")
"""The names of this machine in a request. Requests with another name may come from a foreign page.
"""
MOST_RUNS, MOST_PAGES = 16, 32
SHORTEST_PAUSE_S, PART_OF_TIME = 1.0, 0.05
SILENT_S, NICE = 30.0, 10
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:;"
        " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def serve(folder: Path, port: int | None) -> int:
    """Serve until Ctrl+C. Raises UsageError if the port is taken.

    If ``port`` is None, use the default port, or a free one if that is taken.
    """
    key = secrets.token_hex(16)
    with _server(Site(folder), port, key) as server:
        print(
            f"http://{ADDRESS}:{server.server_port}/?key={key} follows the runs in {folder};"
            " Ctrl+C ends it",
            flush=True,
        )
        with suppress(OSError):
            os.nice(NICE)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


class LiveServer(ThreadingHTTPServer):
    """The HTTP server. It ignores connections that end before their answer."""

    def handle_error(self, request: object, client_address: object) -> None: ...


def _server(site: Site, port: int | None, key: str) -> LiveServer:
    class ThisSite(PageHandler):
        pages = site
        is_key = partial(hmac.compare_digest, key)

    for one in (PORT, 0) if port is None else (port,):
        try:
            return LiveServer((ADDRESS, one), ThisSite)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
    raise UsageError(f"port {port} can't be used: {reason}. Name another one, or leave --port out")


@dataclass(frozen=True)
class CachedPage:
    """A finished page, which is served again until ``until_s``."""

    text: str
    kind: str = "text/html"
    status: HTTPStatus = HTTPStatus.OK
    until_s: float = 0.0

    @property
    def body(self) -> bytes:
        return self.text.encode(errors="replace")


LOCKED = CachedPage(
    "Open the address that torchbus report --live has printed, with its key.",
    "text/plain",
    HTTPStatus.FORBIDDEN,
)


class Site:
    """Makes pages about the runs in a folder, one at a time, with a small share of CPU time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._readers: dict[Path, reading.RunReader] = {}
        self._known: dict[Path, tuple[object, Known]] = {}
        self._answers: dict[str, CachedPage] = {}

    def answer(self, target: str) -> CachedPage:
        """Return the page at an address, which may be some seconds old."""
        with self._lock:
            found = self._answers.get(target)
            if found is None or time.monotonic() >= found.until_s:
                if len(self._answers) >= MOST_PAGES:
                    self._answers.clear()
                self._answers[target] = found = self._made(target)
            return found

    def _made(self, target: str) -> CachedPage:
        begun_s = time.monotonic()
        try:
            made = self._page(urlsplit(target).path, parse_qs(urlsplit(target).query))
        except (UsageError, ValueError) as error:
            made = CachedPage(index.problem(showable(str(error))), status=HTTPStatus.NOT_FOUND)
        now_s = time.monotonic()
        pause_s = max(SHORTEST_PAUSE_S, (now_s - begun_s) / PART_OF_TIME)
        return dataclasses.replace(made, until_s=now_s + pause_s)

    def _page(self, path: str, query: Mapping[str, Sequence[str]]) -> CachedPage:
        if path == "/":
            return CachedPage(self._list(_wish(query)))
        if path == "/runs.csv":
            rows = [cells for _, cells in columns.chosen(self._runs(), _wish(query))]
            return CachedPage(columns.as_csv(rows, columns.everything(rows)), "text/csv")
        if path == "/run":
            return CachedPage(self._compared(query.get("name", ())))
        raise UsageError(f"there is no page {path}")

    def _list(self, wish: Wish) -> str:
        try:
            runs = self._runs()
            chosen = columns.chosen(runs, wish)
        except UsageError as error:  # no folder yet, or a name that no run has
            return index.page([], wish, str(error))
        note = "" if chosen else f"no {'such ' if runs else ''}run in {self._folder}"
        return index.page(chosen, wish, note)

    def _compared(self, names: Sequence[str]) -> str:
        if not 0 < len(names) <= MOST_RUNS:
            raise UsageError(f"choose 1 to {MOST_RUNS} runs, not {len(names)}")
        folders = {folder.name: folder for folder in self._folders()}
        for name in names:
            if name not in folders:
                raise UsageError(f"there is no run {name!r} in {self._folder}")
        return page([self._reader(folders[name]).read() for name in names], live=True)

    def _runs(self) -> list[Known]:
        """Return what is known of all runs. A run that has not changed is not read again."""
        for folder in (folders := self._folders()):
            stamp = reading.stamp(folder)
            if folder not in self._known or self._known[folder][0] != stamp:
                run = self._reader(folder).read()
                self._known[folder] = stamp, columns.known(run)
                if run.state != "running":
                    self._readers.pop(folder)
        return [self._known[folder][1] for folder in folders]

    def _folders(self) -> list[Path]:
        return [one for one in reading.all_runs(self._folder) if not reading.leads_out(one)]

    def _reader(self, folder: Path) -> reading.RunReader:
        return self._readers.setdefault(folder, reading.RunReader(folder))


def _wish(query: Mapping[str, Sequence[str]]) -> Wish:
    where = [text for text in ",".join(query.get("where", ())).split(",") if text.strip()]
    return Wish([text.strip() for text in where], query.get("sort", [""])[0], "reverse" in query)


class PageHandler(BaseHTTPRequestHandler):
    """Answers GET requests from this machine that have the key, as other users can connect, too.

    A browser that opens an address with the key gets the key as a cookie.
    """

    pages: Site
    is_key: Callable[[str], bool]
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "torchbus", ""
    timeout = SILENT_S

    def do_GET(self) -> None:
        try:
            given = self._given_key()
            answer = self.pages.answer(self.path) if given else LOCKED
        except Exception as error:  # only this page is lost, and the server continues
            text = index.problem(showable(f"{type(error).__name__}: {error}"))
            answer = CachedPage(text, status=HTTPStatus.INTERNAL_SERVER_ERROR)
            given = ""
        with suppress(ConnectionError):  # the browser has closed the connection
            self._send(answer, given)

    def _given_key(self) -> str:
        """Return the key from the request's address or cookie, or "" if it is missing or wrong."""
        if urlsplit(f"//{self.headers.get('Host')}").hostname not in HOSTS:
            return ""
        cookies = self.headers.get("Cookie", "").split("; ")
        name = f"{self._cookie_name()}="
        given = [one.removeprefix(name) for one in cookies if one.startswith(name)]
        given += parse_qs(urlsplit(self.path).query).get("key", ())
        return next((one for one in given if one.isascii() and self.is_key(one)), "")

    def _cookie_name(self) -> str:
        """Return a name that differs by port, because browsers send cookies to all ports."""
        return f"torchbus-{self.connection.getsockname()[1]}"

    def _send(self, answer: CachedPage, key: str) -> None:
        body = answer.body
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        is_known = answer.status is HTTPStatus.OK and self.headers.get("If-None-Match") == tag
        self.send_response(HTTPStatus.NOT_MODIFIED if is_known else answer.status)
        for name, value in {**HEADERS, "ETag": tag}.items():
            self.send_header(name, value)
        if key:
            cookie = f"{self._cookie_name()}={key}; HttpOnly; SameSite=Strict; Path=/"
            self.send_header("Set-Cookie", cookie)
        if not is_known:
            self.send_header("Content-Type", f"{answer.kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not is_known:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing for a request."""
