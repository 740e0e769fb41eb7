"""The private names in the sources, and where this torch has them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from torch.amp import GradScaler
from torch.nn import Linear
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    ROOT / "core/src/torchbus",
    *sorted(
        path for kind in ("plugins", "contrib") for path in ROOT.glob(f"{kind}/*/src/torchbus_*")
    ),
]
PRIVATE = re.compile(r"_[A-Za-z]\w*")
PATH = re.compile(r"torch(?:\.\w+)*\.(_[A-Za-z]\w*)[\w.]*")
DOCUMENTED = {"_available", "_exit", "_fields", "_make", "_replace"}
"""By Python, of ``os`` and of named tuples; and the end of ``is_nccl_available``."""
OF_OTHERS = {
    "torchbus_amp": {"_PATCHED", "_inductor_patch"},
    "torchbus_optuna": {
        "_cached_frozen_trial",
        "_fixed_params",
        "_stop_flag",
        "_storage",
        "_study_id",
        "_thread_local",
        "_trial_id",
    },
    "torchbus_checkpoint": {"_strip_protocol"},
    "torchbus_deepspeed": {"_grad_acc_hooks"},
    "torchbus_ft": {
        "_StreamingDiLoCoFragment",
        "_fragments",
        "_quorum_id",
        "_serialization",
        "_streaming_load",
        "_streaming_save",
        "_use_async_quorum",
    },
    "torchbus_sampler": {"_dataset", "_rank"},
}
"""Neither torch's nor Python's: optuna's, fsspec's, DeepSpeed's, torchft's, torchao's, and two attributes of the sampler's own classes that
loaders have too."""


def in_compat(path: Path) -> bool:
    return bool({"_compat", "compat", "accelerators"} & {*path.parts, path.stem})


def compat_files() -> list[Path]:
    return [path for source in SOURCES for path in sorted(source.rglob("*.py")) if in_compat(path)]


@cache
def foreign(package: Path) -> list[tuple[Path, int, str]]:
    """Private names of others in a package: file, line and name."""
    trees = {path: parsed(path) for path in sorted(package.rglob("*.py"))}
    own = set(DOCUMENTED | OF_OTHERS.get(package.name, set()))
    text = "".join(path.read_text(encoding="utf-8") for path in trees)
    used = [one for one in SOURCES[1:] if f"from {one.name}" in text]
    theirs = of_torch() - OWN_TOO
    own |= _defined_in(package).union(*map(_defined_in, [SOURCES[0], *used]))
    return [
        (path, node.lineno, name)  # type: ignore[attr-defined]
        for path, tree in trees.items()
        for node in ast.walk(tree)
        for name in names_in(node)
        if name not in own
        or (isinstance(node, ast.Attribute) and not _is_of_self(node) and name in theirs)
    ]


@cache
def _defined_in(package: Path) -> set[str]:
    """The private names that are a package's own: its modules, functions, classes, variables, and
    attributes of ``self``."""
    found = {part for path in package.rglob("*.py") for part in path.with_suffix("").parts}
    for path in package.rglob("*.py"):
        found.update(() if in_compat(path) else _defined(parsed(path)))
    return found


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def names_in(node: ast.AST) -> list[str]:
    """The private names that one node of the syntax spells out."""
    if isinstance(node, ast.Attribute):
        spelt = [node.attr]
    elif isinstance(node, ast.ImportFrom) and not _is_ours(node.module or "", node.level):
        spelt = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
    elif isinstance(node, ast.Import):
        spelt = [part for alias in node.names for part in alias.name.split(".")]
        spelt = [] if all(_is_ours(alias.name, 0) for alias in node.names) else spelt
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        path = PATH.fullmatch(node.value)
        spelt = [path[1]] if path else [node.value]
    else:
        return []
    return [name for name in spelt if PRIVATE.fullmatch(name)]


def _is_ours(module: str, level: int) -> bool:
    return level > 0 or module.split(".")[0].startswith("torchbus")


def _is_of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and _is_of_self(node)
        ):
            yield node.attr


OWN_TOO = {"_dataset", "_rank"}


@cache
def of_torch() -> set[str]:
    """What objects that a loop has keep to themselves; a class of ours may use such a name for an
    attribute of its own."""
    model, loader = Linear(1, 1), DataLoader([0])  # type: ignore[arg-type]
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler, scaler = StepLR(optimizer, 1), GradScaler("cpu")
    things = (model, model.weight, loader, iter(loader), optimizer, scheduler, scaler)
    return {name for thing in things for name in dir(thing) if PRIVATE.fullmatch(name)}
