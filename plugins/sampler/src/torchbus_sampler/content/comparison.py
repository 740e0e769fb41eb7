"""Compares the data sets of all ranks, once for each data set that is to be divided."""

from __future__ import annotations

import ast
import inspect
import sys
import weakref
from collections.abc import Sized
from pathlib import Path

from torch.utils.data import DataLoader, Dataset
from torchbus import objects
from torchbus.plugin import Context, RanksDiverged, hookimpl, users_frame, warn

from torchbus_sampler.content.items import ItemLeaf
from torchbus_sampler.content.probe import CanNotBeAsked, ask
from torchbus_sampler.order import chosen

CAUSES = {
    "session": (
        "each rank runs the script again, so numpy and random draw other numbers on each rank"
        " before the block if they have no seed (train_test_split, a permutation). Seed them,"
        " import torchbus before it, or use launch='fork', with which ranks run only the block"
    ),
    "fork": (
        "something inside the block differs between ranks: what the loop has computed from its"
        " share of the batches, a generator without a seed (numpy.random.default_rng()), random"
        " numbers drawn while a model trains, the clock, the order of a set. Gather it"
        " (s.all_gather_object), seed it, or create the data set before the block"
    ),
}
OTHERWISE = (
    "each rank runs the whole script, so draws without a seed (numpy, random, a split) differ"
    " between ranks. Seed them, or create the data set inside the block"
)
ON_PURPOSE = (
    "If each rank should have different data, pass replace_sampler=False (torchbus assumes so if"
    " the script asks for its rank, by s.rank, torch.distributed or torchrun's variables)"
)
LOCAL_DATA = (
    "not divided, its data set holds other samples on each rank, and the script asks for its rank"
)


class ContentComparison:
    """Compares a few items of each data set, with one collective for each new data set."""

    def __init__(self, session: Context) -> None:
        self._session = session
        self._compared: dict[int, weakref.ref[Dataset[object]]] = {}
        self._local: set[int] = set()
        self._loaders: weakref.WeakSet[DataLoader[object]] = weakref.WeakSet()
        self.notes: list[str] = []
        session.bus.register(self, "sampler.contents")

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        return {"notes": self.notes} if self.notes else {}

    def are_local(self, loader: DataLoader[object]) -> bool:
        """Whether each rank has different data on purpose."""
        return self._is_known(loader) and id(loader.dataset) in self._local

    def compare(self, loader: DataLoader[object]) -> None:
        """Compare one data set. All ranks must call it.

        Raises RanksDiverged on all ranks if the data sets differ, unless the script asks for its
        rank.
        """
        if self._is_known(loader):
            return
        self._remember(loader)
        mine, why = self._ask(loader)
        answers = self._session.all_gather_object(
            (f"a data set of class {type(loader.dataset).__name__}", mine)
        )
        refuse_elsewhere(answers)
        if not all(fields for _, fields in answers):
            self._note(
                loader, f"is not compared over the ranks: {why or 'another rank cannot read it'}"
            )
        elif found := unlike([fields for _, fields in answers]):
            self._judge(loader, mine, found)

    def _ask(self, loader: DataLoader[object]) -> tuple[dict[str, ItemLeaf], str]:
        """Return what to compare, or nothing and the reason."""
        dataset = loader.dataset
        try:
            fields = ask(dataset, keeps_open=not loader.num_workers)
        except CanNotBeAsked as error:
            return {}, str(error)
        part = chosen(dataset)
        assert isinstance(dataset, Sized)  # ``ask`` has checked that
        return {
            "length": _whole(len(dataset)),
            **fields,
            "the samples that it is made of": ItemLeaf("", 0.0, str(part), f"part {part:08x}"),
        }, ""

    def _judge(
        self, loader: DataLoader[object], mine: dict[str, ItemLeaf], found: list[str]
    ) -> None:
        """Ask again. A difference counts only if every rank gives the same answer a second time."""
        again, _ = self._ask(loader)
        lasting = {
            path
            for path in found
            if path in mine and path in again and again[path].like(mine[path])
        }
        missing = {path for path in found if path not in mine}
        answers = self._session.all_gather_object(
            (sorted(lasting | missing), mine, asks_for_rank(self._session, loader.dataset))
        )
        certain = [path for path in found if all(path in paths for paths, _, _ in answers)]
        if not certain:
            return self._note(
                loader, "gives another answer each time, so that ranks can't compare it"
            )
        facts = f"{_name(loader)}: {_by_rank(certain[0], [fields for _, fields, _ in answers])}"
        if not any(asks for _, _, asks in answers):
            cause = CAUSES.get(self._session.world.launched_by, OTHERWISE)
            raise RanksDiverged(
                f"the ranks' data sets do not hold the same samples: {facts}. Here {cause}."
                f" {ON_PURPOSE}"
            )
        self._keep_local(loader, facts)

    def _keep_local(self, loader: DataLoader[object], facts: str) -> None:
        """Leave the data undivided, because it differs between ranks on purpose, and warn."""
        self._local.add(id(loader.dataset))
        self._note(
            loader,
            "holds other samples on each rank, and the script asks for its rank: each keeps"
            " its own",
        )
        if self._session.is_main:
            warn(
                "the ranks' data sets do not hold the same samples, and the script asks for its"
                f" rank, so each rank keeps its own: {facts}. If you mean that, pass"
                " replace_sampler=False; if not, seed what draws the samples"
            )

    def _note(self, loader: DataLoader[object], what: str) -> None:
        text = f"{type(loader.dataset).__name__} {what}"
        if text not in self.notes:
            self.notes.append(text)

    # Data sets are compared by identity, because a class may define __eq__ -----------------------

    def _is_known(self, loader: DataLoader[object]) -> bool:
        reference = self._compared.get(id(loader.dataset))
        return loader in self._loaders if reference is None else reference() is loader.dataset

    def _remember(self, loader: DataLoader[object]) -> None:
        self._local.discard(id(loader.dataset))
        try:
            self._compared[id(loader.dataset)] = weakref.ref(loader.dataset)
        except TypeError:  # a list
            self._loaders.add(loader)


def refuse_elsewhere(answers: list[tuple[str, object]]) -> None:
    """Raise RanksDiverged if a rank sends something else, because it is not iterating a loader."""
    for rank, (what, fields) in enumerate(answers):
        if not isinstance(fields, dict):
            raise RanksDiverged(
                f"rank {rank} sends {what} while other ranks begin to iterate a loader in training:"
                " let every rank iterate it, or iterate it under torch.no_grad()"
            )


def unlike(answers: list[dict[str, ItemLeaf]]) -> list[str]:
    """Return the paths whose fields differ between ranks, in their order."""
    paths = list(dict.fromkeys(path for fields in answers for path in fields))
    return [path for path in paths if not _agree([fields.get(path) for fields in answers])]


def _agree(fields: list[ItemLeaf | None]) -> bool:
    first = fields[0]
    return first is not None and all(field is not None and first.like(field) for field in fields)


def _by_rank(path: str, answers: list[dict[str, ItemLeaf]]) -> str:
    shown = [fields[path].shown if path in fields else "nothing" for fields in answers]
    values = (
        "other values"
        if len(set(shown)) == 1
        else ", ".join(f"{text} on rank {rank}" for rank, text in enumerate(shown))
    )
    return f"{path}: {values}"


def _whole(number: int) -> ItemLeaf:
    return ItemLeaf("int", float(number), "", str(number))


def _name(loader: DataLoader[object]) -> str:
    """Return the data set's class, and the variable that names it or its loader."""
    frame = users_frame()[0]
    dataset, kind = objects.name_of(loader.dataset, frame), type(loader.dataset).__name__
    named = dataset or objects.name_of(loader, frame)
    return f"{named} ({kind})" if dataset else f"{kind} of the loader {named}" if named else kind


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

    The main file and the file of the data set's class are searched. Sources of the rank are
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
