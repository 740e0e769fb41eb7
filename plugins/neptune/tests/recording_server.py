"""A small server that speaks what the ``neptune`` client needs, and writes down what it is sent::

    python recording_server.py FOLDER

writes its port into FOLDER/port when it listens, and each request as a line of FOLDER/requests.jsonl.
"""

from __future__ import annotations

import base64
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

TEXT = {"type": "string"}


def model(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def operation(name: str, result: dict[str, Any], *parameters: dict[str, Any]) -> dict[str, Any]:
    return {"operationId": name, "tags": ["api"], "parameters": list(parameters), "responses": {"200": {"description": "", "schema": result}}}


def reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/definitions/{name}"}


def parameter(name: str, place: str, **more: Any) -> dict[str, Any]:
    kind = {"schema": {"type": "object"}} if place == "body" else {"type": "string"}
    return {"name": name, "in": place, "required": False, **kind, **more}


TOKEN = parameter("X-Neptune-Api-Token", "header")
OPERATIONS = parameter("operations", "body", schema={"type": "array", "items": {"type": "object"}})
PATHS: dict[str, dict[str, Any]] = {
    "backend": {
        "/api/backend/v1/clients/config": {"get": operation("getClientConfig", reference("Config"), TOKEN, parameter("alpha", "query"))},
        "/api/backend/v1/authorization/oauth-token": {"get": operation("exchangeApiToken", reference("Tokens"), TOKEN)},
        "/api/backend/v1/projects/get": {"get": operation("getProject", reference("Project"), parameter("projectIdentifier", "query"))},
    },
    "leaderboard": {
        "/api/leaderboard/v1/experiments": {
            "get": operation("getExperiment", reference("Experiment"), parameter("experimentId", "query")),
            "post": operation(
                "createExperiment", reference("Experiment"),
                parameter("experimentCreationParams", "body"), parameter("X-Neptune-CliVersion", "header"),
            ),
        },
        "/api/leaderboard/v1/ping": {"post": operation("ping", {"type": "object"}, parameter("experimentId", "query"))},
        "/api/leaderboard/v1/operations": {
            "post": operation("executeOperations", {"type": "array", "items": reference("Problem")}, parameter("experimentId", "query"), OPERATIONS)
        },
        "/api/leaderboard/v1/attributes": {
            "get": operation("getExperimentAttributes", reference("Attributes"), parameter("experimentId", "query"))
        },
    },
}  # fmt: skip
UPLOADS = (
    "fileSetFileMultipartUploadStart", "fileSetFileMultipartUploadFinish", "fileSetFileMultipartUploadPart", "fileSetFileUpload",
    "uploadFileSetAttributeTar",
)  # fmt: skip
PATHS["leaderboard"] |= {f"/api/leaderboard/v1/upload/{name}": {"post": operation(name, {"type": "object"})} for name in UPLOADS}
SIZES = {"enabled": True, "minChunkSize": 5242880, "maxChunkSize": 1073741824, "maxChunkCount": 1000, "maxSinglePartSize": 5242880}
DEFINITIONS = {
    "Upload": model(**{name: {"type": "boolean" if name == "enabled" else "integer"} for name in SIZES}),
    "Versions": model(minRecommendedVersion=TEXT, minCompatibleVersion=TEXT, maxCompatibleVersion=TEXT),
    "Config": model(apiUrl=TEXT, applicationUrl=TEXT, pyLibVersions=reference("Versions"), multiPartUpload=reference("Upload")),
    "Tokens": model(accessToken=TEXT, refreshToken=TEXT),
    "Project": model(id=TEXT, name=TEXT, organizationName=TEXT, projectKey=TEXT, version={"type": "integer"}),
    "Experiment": model(id=TEXT, type=TEXT, shortId=TEXT, organizationName=TEXT, projectName=TEXT, trashed={"type": "boolean"}),
    "Problem": model(errorDescription=TEXT),
    "Attributes": model(attributes={"type": "array", "items": {"type": "object"}}),
}


def answers(address: str) -> dict[str, Any]:
    """By the last word of the path."""
    claims = {"exp": time.time() + 3600, "azp": "client", "iss": f"{address}/auth"}
    coded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({"alg": "HS256", "typ": "JWT"}, claims)]
    access = ".".join([*coded, "c2ln"])
    run = {"id": "11111111-1111-1111-1111-111111111111", "type": "run", "shortId": "DIG-1", "organizationName": "team", "projectName": "digits"}
    return {
        "config": {"apiUrl": address, "applicationUrl": address, "pyLibVersions": {}, "multiPartUpload": SIZES},
        "oauth-token": {"accessToken": access, "refreshToken": access},
        "token": {"access_token": access, "refresh_token": access, "expires_in": 3600, "token_type": "Bearer"},
        "get": {"id": "22222222-2222-2222-2222-222222222222", "name": "digits", "organizationName": "team", "projectKey": "DIG", "version": 2},
        "experiments": {**run, "trashed": False},
        "ping": {},
        "operations": [],
        "attributes": {"attributes": []},
    }


class Handler(BaseHTTPRequestHandler):
    folder: Path
    lock = threading.Lock()

    def do_PUT(self) -> None:
        self.do_POST()

    def do_GET(self) -> None:
        self.answer(None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer(json.loads(body) if body.startswith((b"{", b"[")) else None)

    def answer(self, body: Any) -> None:
        address = f"http://{self.headers['Host']}"
        path, query = urlparse(self.path).path, parse_qs(urlparse(self.path).query)
        if path.endswith("swagger.json"):
            told: Any = {
                "swagger": "2.0", "info": {"title": "recorded", "version": "1"}, "host": self.headers["Host"], "schemes": ["http"],
                "consumes": ["application/json"], "produces": ["application/json"],
                "paths": PATHS[path.split("/")[2]], "definitions": DEFINITIONS,
            }  # fmt: skip
        else:
            told = {"errors": []} if "/upload/" in path else answers(address).get(path.rsplit("/", 1)[-1])
            with self.lock, open(self.folder / "requests.jsonl", "a") as file:
                file.write(json.dumps({"path": path, "query": query, "body": body}) + "\n")
        text = json.dumps(told).encode()
        self.send_response(404 if told is None else 200)
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
