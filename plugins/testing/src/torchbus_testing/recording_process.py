"""The process of a ``recording_server``: answers requests, and writes them to a file.

::

    python recording_process.py ANSWERS FOLDER

The process writes its port to FOLDER/port once it listens, and each request as a line of
FOLDER/requests.jsonl.
"""

from __future__ import annotations

import json
import runpy
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

PORT = "port"
REQUESTS = "requests.jsonl"


class RecordingHandler(BaseHTTPRequestHandler):
    folder: Path
    answer: Callable[[str, object, str], object]
    lock = threading.Lock()

    def do_GET(self) -> None:
        url = urlparse(self.path)
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = parsed(data.decode(errors="replace"))
        reported = type(self).answer(url.path, body, f"http://{self.headers['Host']}")
        authorization, query = self.headers.get("Authorization"), parse_qs(url.query)
        self.note(path=url.path, query=query, authorization=authorization, body=body)
        self.respond(404 if reported is None else 200, json.dumps(reported).encode())

    do_POST = do_PUT = do_GET

    def note(self, **request: object) -> None:
        with self.lock, open(self.folder / REQUESTS, "a") as file:
            file.write(json.dumps(request) + "\n")

    def respond(self, status: int, text: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: object) -> None:
        pass


def parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def serve(answers: str, folder: Path) -> None:
    RecordingHandler.folder, RecordingHandler.answer = folder, runpy.run_path(answers)["answer"]
    server = ThreadingHTTPServer(("127.0.0.1", 0), RecordingHandler)
    (folder / "port.new").write_text(str(server.server_address[1]))
    (folder / "port.new").rename(folder / PORT)
    server.serve_forever()


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))
