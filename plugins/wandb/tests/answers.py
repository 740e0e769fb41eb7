"""The answers of a wandb server that the client needs."""

from __future__ import annotations

from typing import Any

ENTITY, PROJECT = "team", "uncategorized"
VIEWER = {
    "id": "u1",
    "entity": ENTITY,
    "username": "tester",
    "email": "tester@example.org",
    "flags": "{}",
    "teams": {"edges": []},
}


def upserted(given: dict[str, Any]) -> dict[str, Any]:
    """A run that is there now, under the name that the client gave it."""
    entity = {"id": "e1", "name": given.get("entity") or ENTITY}
    project = {"id": "p1", "name": given.get("project") or PROJECT, "entity": entity}
    run = {
        "id": f"id-{given['name']}",
        "name": given["name"],
        "displayName": given.get("displayName") or given["name"],
        "historyLineCount": 0,
    }
    return {
        "upsertBucket": {"bucket": {**run, "config": "{}", "project": project}, "inserted": True}
    }


def places(given: dict[str, Any], address: str) -> dict[str, Any]:
    """The address to which the client uploads its files."""
    files = [
        {"name": name, "uploadUrl": f"{address}/storage/{given['run']}/{name}"}
        for name in given["files"]
    ]
    return {"createRunFiles": {"runID": f"id-{given['run']}", "uploadHeaders": [], "files": files}}


def earlier(given: dict[str, Any]) -> dict[str, Any]:
    """A run that exists, with 100 lines of history, if its name says so; otherwise none."""
    counts = {"logLineCount": 12, "historyLineCount": 100, "eventsLineCount": 1}
    tails = {"historyTail": '["{\\"_step\\": 99, \\"_runtime\\": 1}"]', "eventsTail": "[]"}
    texts = {"id": "id-1", "name": given["name"], "displayName": given["name"], "notes": ""}
    rest = {"summaryMetrics": "{}", "config": "{}", "tags": [], "wandbConfig": '{"t": 1}'}
    exists = given["name"].startswith("continued")
    model = {"id": "p1", "name": PROJECT, "entity": {"id": "e1", "name": ENTITY}}
    return {"model": {**model, "bucket": {**texts, **counts, **tails, **rest} if exists else None}}


def data(operation: str | None, given: dict[str, Any], address: str) -> dict[str, Any]:
    """Return the answer to a GraphQL operation. The client takes an empty one for an older server."""
    if operation == "UpsertBucket":
        return upserted(given)
    if operation == "CreateRunFiles":
        return places(given, address)
    if operation == "RunResumeStatus":
        return earlier(given)
    known: dict[str | None, dict[str, Any]] = {
        "Viewer": {"viewer": VIEWER},
        "ServerFeaturesQuery": {"serverInfo": {"features": []}},
    }
    return known.get(operation, {})


def answer(path: str, body: Any, address: str) -> Any:
    return (
        {"data": data(body.get("operationName"), body.get("variables") or {}, address)}
        if path == "/graphql"
        else {}
    )
