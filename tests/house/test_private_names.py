"""Private names of torch and CPython: they stand in ``_compat`` only, this torch has each of them,
and one that is gone is an error by name."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from private_names import SOURCES, compat_files, foreign, in_compat, names_in, parsed
from private_owners import (
    ALL,
    IN_EITHER,
    LEFT_BY_ENGINE,
    NO_NAMES,
    OF_NEW_RELEASES,
    SLOW,
    Saved,
)
from torch.amp import GradScaler
from torch.nn import Module
from torchbus.compat import loaders, required, torch_names
from torchbus.compat.torch_names import compiler
from torchbus.errors import UsageError

import torchbus_accumulate._compat as accumulate
import torchbus_amp._compat as amp
import torchbus_checkpoint._compat as checkpoint
import torchbus_ddp._compat as ddp
import torchbus_sampler._compat as sampler
from torchbus_strategy import compat


@pytest.mark.parametrize(("owner", "name"), ALL)
def test_this_torch_has(owner: Any, name: str) -> None:
    places = [loss.grad_fn for _, loss, _ in compat._examples()] if owner is Saved else [owner]
    assert any(hasattr(one, name) or required._is_in_methods(one, name) for one in places)


@pytest.mark.parametrize("name", SLOW)
def test_this_torch_has_late(name: str) -> None:
    place = pytest.importorskip(SLOW[name])
    classes = [thing for thing in vars(place).values() if isinstance(thing, type)]
    found = [hasattr(one, name) or required._is_in_methods(one, name) for one in (place, *classes)]
    assert any(found) or name == place.__name__.split(".")[-1]


def test_a_unit_has_one_group_of_parameters_or_several() -> None:
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

    assert any(required._is_in_methods(FSDPState, name) for name in IN_EITHER)


def test_a_compiled_model_is_as_it_was_seen() -> None:
    callbacks, compiled = compiler()
    assert isinstance(callbacks, list) and issubclass(compiled, Module)


def test_this_torchs_graphs_are_as_they_were_seen() -> None:
    compat.check.__wrapped__()


def test_every_private_name_is_looked_for_above() -> None:
    looked_for = {param.values[1] for param in ALL} | {*SLOW} | NO_NAMES
    looked_for |= IN_EITHER | LEFT_BY_ENGINE
    late = set() if torch.__version__ >= "2.13" else OF_NEW_RELEASES
    used = {name for package in SOURCES for path, _, name in foreign(package) if in_compat(path)}
    assert used - looked_for - late == set()


def test_no_private_name_is_used_elsewhere() -> None:
    elsewhere = [
        f"{path.name}:{line}: {name}"
        for package in SOURCES
        for path, line, name in foreign(package)
        if not in_compat(path)
    ]
    assert elsewhere == [], "private names of torch belong into the package's compat"


@pytest.mark.parametrize("path", compat_files(), ids=lambda path: "/".join(path.parts[-2:]))
def test_each_says_where_it_was_seen_and_what_fails_without_it(path: Path) -> None:
    tree = parsed(path)
    own = ast.get_docstring(tree) or ""
    missing = []
    for number, statement in enumerate(tree.body):
        nodes = [node for node in ast.walk(statement) if names_in(node)]
        if not nodes or isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        words = own + "".join(_words(tree.body[number : number + 4]))
        if not ("een in" in words and ("ithout" in words or "Raise UsageError" in words)):
            missing.append(f"{path.name}:{statement.lineno}")
    assert missing == []


def _words(statements: list[ast.stmt]) -> Iterator[str]:
    """The docstring of the first, or the next one that stands by itself."""
    first = statements[0]
    if isinstance(first, ast.FunctionDef | ast.ClassDef):
        yield ast.get_docstring(first) or ""
        return
    for statement in statements[1:]:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            yield str(statement.value.value)
            return


class Empty:
    """Stands for a class of a later torch that has lost its private names."""


def _gone(place: Any, attribute: str, check: Callable[[], Any], name: str) -> Any:
    return pytest.param(place, attribute, check, name, id=name)


def _scaler_has_seen() -> None:
    accumulate.has_seen(GradScaler("cpu", enabled=False), object())


@pytest.mark.parametrize(
    ("place", "attribute", "check", "name"),
    [
        _gone(loaders, "DataLoader", loaders.check.__wrapped__, "_get_iterator"),
        _gone(loaders, "SINGLE_PROCESS", loaders.check.__wrapped__, "_num_yielded"),
        _gone(loaders, "OF_WORKERS", loaders.check.__wrapped__, "_workers"),
        _gone(torch_names, "LRScheduler", torch_names.require_step_count, "_step_count"),
        _gone(torch_names, "Unhooked", lambda: torch_names.require_hooked(Unhooked), "hooked"),
        _gone(accumulate, "GradScaler", _scaler_has_seen, "_per_optimizer_states"),
        _gone(accumulate, "LRScheduler", accumulate.require_step_count, "_step_count"),
        _gone(amp, "GradScaler", amp.check.__wrapped__, "_scale"),
        _gone(checkpoint, "SequentialLR", lambda: checkpoint.parts_of(None), "_schedulers"),
        _gone(
            ddp,
            "DistributedDataParallel",
            lambda: ddp.ReducerOnly(None),
            "_build_params_for_reducer",
        ),
        _gone(compat.dist, "distributed_c10d", compat.require_abort, "_abort_process_group"),
        _gone(
            sampler.dataloader,
            "_MultiProcessingDataLoaderIter",
            sampler.check.__wrapped__,
            "_send_idx",
        ),
    ],
)
def test_what_would_be_missed_quietly_is_an_error_by_name(
    place: Any, attribute: str, check: Callable[[], Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, attribute, Empty, raising=False)
    with pytest.raises(
        UsageError, match=rf"^torch {re.escape(torch.__version__)} has no .*{name}, which"
    ):
        check()


class Unhooked(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """No optimizer of this class was made, so it has no hooks."""


def test_a_kind_of_node_that_has_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = torch.ones(1, requires_grad=True).mean()
    for examples, name in (
        ([("MeanBackward9", loss, ())], "MeanBackward9"),
        ([("MeanBackward0", loss, ("_saved_sizes",))], "_saved_sizes"),
    ):
        monkeypatch.setattr(compat, "_examples", lambda examples=examples: iter(examples))
        with pytest.raises(UsageError, match=f"has no .*{name}, which shows what a loss is a mean"):
            compat.check.__wrapped__()


def test_a_function_that_is_gone_raises_when_it_is_used() -> None:
    gone = required.private(torch, "_gone", "multiplies all gradients at once")
    with pytest.raises(
        UsageError, match="has no torch._gone, which multiplies all gradients at on"
    ):
        gone([], 1.0)


def test_loops_that_are_not_read_as_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "loops_in", lambda code: [])
    with pytest.raises(
        UsageError, match=rf"^Python {sys.version.split()[0]} writes loops in a byte"
    ):
        checkpoint.check_bytecode.__wrapped__()


def test_caches_of_dtensor_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed import tensor

    from torchbus_sharded import _compat
    from torchbus_strategy import compat

    monkeypatch.setattr(compat, "SEEN_BY", "2.0")
    monkeypatch.setattr(_compat, "SEEN_BY", "2.0")
    monkeypatch.setattr(tensor, "_redistribute", Empty)
    with pytest.raises(UsageError, match="has no .*_gen_transform_infos, which forgets the ranks"):
        compat.forget_meshes()
    with pytest.raises(UsageError, match="has no .*_set_unshard_async_op, which lets a unit"):
        _compat.gather_ahead(Empty())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "line",
    [
        "torch._C.new_name()",
        "from torch._new import thing",
        "import torch._new as new",
        "getattr(loader, '_new_name', None)",
        "model._parameters",
        "place = 'torch._new.module'",
    ],
)
def test_what_the_walk_finds(line: str, tmp_path: Path) -> None:
    package = tmp_path / "torchbus_example"
    package.mkdir()
    (package / "module.py").write_text(f"import torch\n{line}\n")
    assert [number for _, number, _ in foreign(package)][:1] == [2]
