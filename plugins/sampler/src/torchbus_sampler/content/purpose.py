"""Find out whether a script asks for its rank. Such a script may divide the data on purpose."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path

from torchbus.plugin import Context

FUNCTIONS = frozenset({"get_rank", "get_local_rank", "get_node_local_rank"})
VARIABLES = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "NODE_RANK",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "PMI_RANK",
        "HOROVOD_RANK",
        "HOROVOD_LOCAL_RANK",
    }
)
STARTED_HERE = ("session", "fork", "spawn")  # these ranks see no launcher's variables


def asks_for_rank(session: Context, dataset: object) -> bool:
    """Whether the script has read ``s.rank``, or its code names a source of the rank.

    Its code is the main file and the file of the data set's class. Sources of the rank are
    functions such as ``get_rank`` of torch.distributed, and the variables of a launcher.
    """
    sources = FUNCTIONS if session.world.launched_by in STARTED_HERE else FUNCTIONS | VARIABLES
    files = {
        getattr(module, "__file__", None)
        for module in (sys.modules["__main__"], inspect.getmodule(type(dataset)))
    }
    return session.rank_asked or any(
        _names(Path(file)) & sources for file in files if file and not _is_library(file)
    )


def _is_library(file: str) -> bool:
    return "site-packages" in file or "dist-packages" in file


def _names(file: Path) -> set[str]:
    """Return the names and strings in the code of a file, or none if it can't be read."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    except (OSError, SyntaxError, ValueError):
        return set()
    texts = {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return (
        texts
        | {node.id for node in nodes if isinstance(node, ast.Name)}
        | {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    )
