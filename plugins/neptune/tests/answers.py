"""The answers of a Neptune server that the client needs."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

TEXT = {"type": "string"}


def model(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def operation(name: str, result: dict[str, Any], *parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        "operationId": name,
        "tags": ["api"],
        "parameters": list(parameters),
        "responses": {"200": {"description": "", "schema": result}},
    }


def reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/definitions/{name}"}


def parameter(name: str, place: str, **more: Any) -> dict[str, Any]:
    kind = {"schema": {"type": "object"}} if place == "body" else {"type": "string"}
    return {"name": name, "in": place, "required": False, **kind, **more}


TOKEN = parameter("X-Neptune-Api-Token", "header")
OPERATIONS = parameter("operations", "body", schema={"type": "array", "items": {"type": "object"}})
PATHS: dict[str, dict[str, Any]] = {
    "backend": {
        "/api/backend/v1/clients/config": {
            "get": operation(
                "getClientConfig", reference("Config"), TOKEN, parameter("alpha", "query")
            )
        },
        "/api/backend/v1/authorization/oauth-token": {
            "get": operation("exchangeApiToken", reference("Tokens"), TOKEN)
        },
        "/api/backend/v1/projects/get": {
            "get": operation(
                "getProject", reference("Project"), parameter("projectIdentifier", "query")
            )
        },
    },
    "leaderboard": {
        "/api/leaderboard/v1/experiments": {
            "get": operation(
                "getExperiment", reference("Experiment"), parameter("experimentId", "query")
            ),
            "post": operation(
                "createExperiment",
                reference("Experiment"),
                parameter("experimentCreationParams", "body"),
                parameter("X-Neptune-CliVersion", "header"),
            ),
        },
        "/api/leaderboard/v1/ping": {
            "post": operation("ping", {"type": "object"}, parameter("experimentId", "query"))
        },
        "/api/leaderboard/v1/operations": {
            "post": operation(
                "executeOperations",
                {"type": "array", "items": reference("Problem")},
                parameter("experimentId", "query"),
                OPERATIONS,
            )
        },
        "/api/leaderboard/v1/attributes": {
            "get": operation(
                "getExperimentAttributes",
                reference("Attributes"),
                parameter("experimentId", "query"),
            )
        },
    },
}
UPLOADS = (
    "fileSetFileMultipartUploadStart",
    "fileSetFileMultipartUploadFinish",
    "fileSetFileMultipartUploadPart",
    "fileSetFileUpload",
    "uploadFileSetAttributeTar",
)
PATHS["leaderboard"] |= {
    f"/api/leaderboard/v1/upload/{name}": {"post": operation(name, {"type": "object"})}
    for name in UPLOADS
}
SIZES = {
    "enabled": True,
    "minChunkSize": 5242880,
    "maxChunkSize": 1073741824,
    "maxChunkCount": 1000,
    "maxSinglePartSize": 5242880,
}
DEFINITIONS = {
    "Upload": model(
        **{name: {"type": "boolean" if name == "enabled" else "integer"} for name in SIZES}
    ),
    "Versions": model(
        minRecommendedVersion=TEXT, minCompatibleVersion=TEXT, maxCompatibleVersion=TEXT
    ),
    "Config": model(
        apiUrl=TEXT,
        applicationUrl=TEXT,
        pyLibVersions=reference("Versions"),
        multiPartUpload=reference("Upload"),
    ),
    "Tokens": model(accessToken=TEXT, refreshToken=TEXT),
    "Project": model(
        id=TEXT, name=TEXT, organizationName=TEXT, projectKey=TEXT, version={"type": "integer"}
    ),
    "Experiment": model(
        id=TEXT,
        type=TEXT,
        shortId=TEXT,
        organizationName=TEXT,
        projectName=TEXT,
        trashed={"type": "boolean"},
    ),
    "Problem": model(errorDescription=TEXT),
    "Attributes": model(attributes={"type": "array", "items": {"type": "object"}}),
}


def values(address: str) -> dict[str, Any]:
    """By the last word of the path."""
    claims = {"exp": time.time() + 3600, "azp": "client", "iss": f"{address}/auth"}
    coded = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "HS256", "typ": "JWT"}, claims)
    ]
    access = ".".join([*coded, "c2ln"])
    run = {
        "id": "11111111-1111-1111-1111-111111111111",
        "type": "run",
        "shortId": "DIG-1",
        "organizationName": "team",
        "projectName": "digits",
    }
    return {
        "config": {
            "apiUrl": address,
            "applicationUrl": address,
            "pyLibVersions": {},
            "multiPartUpload": SIZES,
        },
        "oauth-token": {"accessToken": access, "refreshToken": access},
        "token": {
            "access_token": access,
            "refresh_token": access,
            "expires_in": 3600,
            "token_type": "Bearer",
        },
        "get": {
            "id": "22222222-2222-2222-2222-222222222222",
            "name": "digits",
            "organizationName": "team",
            "projectKey": "DIG",
            "version": 2,
        },
        "experiments": {**run, "trashed": False},
        "ping": {},
        "operations": [],
        "attributes": {"attributes": []},
    }


def description(address: str, paths: dict[str, Any]) -> dict[str, Any]:
    return {
        "swagger": "2.0",
        "info": {"title": "recorded", "version": "1"},
        "host": address.removeprefix("http://"),
        "schemes": ["http"],
        "consumes": ["application/json"],
        "produces": ["application/json"],
        "paths": paths,
        "definitions": DEFINITIONS,
    }


def answer(path: str, body: Any, address: str) -> Any:
    if path.endswith("swagger.json"):
        return description(address, PATHS[path.split("/")[2]])
    return {"errors": []} if "/upload/" in path else values(address).get(path.rsplit("/", 1)[-1])
