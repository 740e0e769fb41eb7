"""A small server that speaks what the ``wandb`` client needs, and writes down what it is sent::

    python recording_server.py FOLDER

writes its port into FOLDER/port when it listens, and each request as a line of FOLDER/requests.jsonl.
"""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ENTITY, PROJECT = "team", "uncategorized"
VIEWER = {"id": "u1", "entity": ENTITY, "username": "tester", "email": "tester@example.org", "flags": "{}", "teams": {"edges": []}}


def upserted(given: dict[str, Any]) -> dict[str, Any]:
    """A run that is there now, under the name that the client gave it."""
    entity = {"id": "e1", "name": given.get("entity") or ENTITY}
    project = {"id": "p1", "name": given.get("project") or PROJECT, "entity": entity}
    run = {"id": f"id-{given['name']}", "name": given["name"], "displayName": given.get("displayName") or given["name"], "historyLineCount": 0}
    return {"upsertBucket": {"bucket": {**run, "config": "{}", "project": project}, "inserted": True}}


def places(given: dict[str, Any], address: str) -> dict[str, Any]:
    """Where the client shall put its files."""
    files = [{"name": name, "uploadUrl": f"{address}/storage/{given['run']}/{name}"} for name in given["files"]]
    return {"createRunFiles": {"runID": f"id-{given['run']}", "uploadHeaders": [], "files": files}}


def answer(operation: str | None, given: dict[str, Any], address: str) -> dict[str, Any]:
    """To a GraphQL operation; nothing for one that is not known, which the client takes for a server that is older."""
    if operation == "UpsertBucket":
        return upserted(given)
    if operation == "CreateRunFiles":
        return places(given, address)
    known: dict[str | None, dict[str, Any]] = {"Viewer": {"viewer": VIEWER}, "ServerFeaturesQuery": {"serverInfo": {"features": []}}}
    return known.get(operation, {})


class Handler(BaseHTTPRequestHandler):
    folder: Path
    lock = threading.Lock()

    def do_PUT(self) -> None:
        self.do_POST()

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode(errors="replace")
        body = json.loads(text) if text.startswith("{") and not self.path.startswith("/storage/") else text
        told: dict[str, Any] = {}
        if self.path == "/graphql":
            told = {"data": answer(body.get("operationName"), body.get("variables") or {}, f"http://{self.headers['Host']}")}
        self.note({"path": self.path, "authorization": self.headers.get("Authorization"), "body": body})
        self.tell(json.dumps(told).encode())

    def note(self, request: dict[str, Any]) -> None:
        with self.lock, open(self.folder / "requests.jsonl", "a") as file:
            file.write(json.dumps(request) + "\n")

    def tell(self, text: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: Any) -> None:
        pass


if __name__ == "__main__":
    Handler.folder = Path(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    (Handler.folder / "port.new").write_text(str(server.server_address[1]))
    (Handler.folder / "port.new").rename(Handler.folder / "port")
    server.serve_forever()
