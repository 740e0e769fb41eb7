"""No wait without an end: what waits for another rank has a deadline or asks who is missing.

That is ``job.wait_until``, or a collective, which torch ends after ``timeout_s``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WAITS = {"wait", "join", "acquire"}
BOUNDED = re.compile(r"deadline|seconds|within|timeout|math\.inf")
COLLECTIVE = "a collective, which torch ends after timeout_s"
GUARDED = "the guard ends it after timeout_s, and names who is missing"
THREAD = "this process's own thread, whose waits for other ranks end"
ENDLESS = {
    "advise/trial.py::run_run": "a process that it has just killed",
    "checkpoint/automatic.py::_leave": THREAD,
    "checkpoint/disk/writer.py::wait": THREAD,
    "checkpoint/disk/writer.py::write": THREAD,
    "checkpoint/plugin.py::session_end": THREAD,
    "checkpoint/remote/mirror.py::_run": "a thread that waits for work",
    "checkpoint/state/snapshot.py::wait": THREAD,
    "checkpoint/state/snapshot.py::write_value": THREAD,
    "compress/averaging.py::exchange": COLLECTIVE,
    "compress/averaging.py::finish": COLLECTIVE,
    "compress/averaging.py::state": COLLECTIVE,
    "ft/_compat.py::sum": COLLECTIVE,
    "ft/transport.py::shutdown": THREAD,
    "horovod/_compat.py::rendezvous": THREAD,
    "horovod/reductions.py::_finish": COLLECTIVE,
    "launch/broadcast_log.py::_run": "a thread that waits for news, until the store has gone",
    "launch/broadcast_log.py::stop": THREAD,
    "launch/guard.py::stop_looking": THREAD,
    "launch/job.py::_wait_for_all_ends": GUARDED,
    "log/files.py::__init__": "a lock that it has just made",
    "pipeline/passes.py::finish": COLLECTIVE,
    "sampler/orders/shared.py::_wait": "a lock that ends with its process, which the guards watch",
    "sharded/_compat.py::let_go_of_early": COLLECTIVE,
    "sharded/backward.py::means": COLLECTIVE,
    "strategy/connections.py::_all_proven": GUARDED,
    "strategy/groups.py::_wait_for_all": GUARDED,
    "strategy/main_first.py::_wait": GUARDED,
    "throughput/meter.py::finish": "an event of the device",
    "verify/runs/run.py::_wait": "a process of the user's script, however long that runs",
}


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def waits_without_end(function: ast.FunctionDef) -> bool:
    for node in ast.walk(function):
        sleeps = isinstance(node, ast.While) and "time.sleep(" in ast.unparse(node)
        if sleeps and not BOUNDED.search(ast.unparse(function)):
            return True
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr in WAITS and not node.args and not node.keywords:
            return True
        if node.func.attr == "wait_until" and "math.inf" in map(ast.unparse, node.args):
            return True
    return False


def name(path: Path, function: ast.FunctionDef) -> str:
    package, _, inside = path.as_posix().partition("/src/")
    return f"{package.rpartition('/')[2]}/{inside.partition('/')[2]}::{function.name}"


def test_every_wait_ends() -> None:
    found = {
        name(path, function)
        for root in ("core", "plugins", "contrib")
        for path in (ROOT / root).rglob("src/**/*.py")
        if "testing" not in path.parts
        for function in functions(ast.parse(path.read_text("utf-8")))
        if waits_without_end(function)
    }
    assert found == set(ENDLESS)
