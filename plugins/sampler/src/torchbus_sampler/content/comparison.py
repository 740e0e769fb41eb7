"""Whether one index means one sample on all ranks: asked once of each data set that is to be divided."""

from __future__ import annotations

import weakref
from typing import Any

from torch.utils.data import DataLoader
from torchbus.plugin import Context, RanksDiverged, hookimpl, inventory, users_frame, warn

from torchbus_sampler.content.asking import CanNotBeAsked, ask
from torchbus_sampler.content.items import Field
from torchbus_sampler.content.purpose import asks_for_rank
from torchbus_sampler.order import chosen

CAUSES = {
    "session": (
        "the script is run again for each rank, so what numpy and random draw before the block without a seed (train_test_split, a "
        "permutation) is each rank's own. Seed it, import torchbus before it, or use launch='fork', which runs the block alone on each rank"
    ),
    "fork": (
        "something inside the block drew it for this rank alone: a generator without a seed (numpy.random.default_rng()), random numbers drawn "
        "while a model trains, the clock, the order of a set. Seed it, or make the data set before the block"
    ),
}
OTHERWISE = (
    "each rank has run the whole script, so what is drawn without a seed (numpy, random, a split) is each rank's own. Seed it, or make the data "
    "set inside the block"
)
ON_PURPOSE = (
    "If each rank is to have data of its own, say replace_sampler=False (a script that asks for its rank, by s.rank, torch.distributed or "
    "torchrun's variables, is taken to mean it)"
)
OWN = "not divided, its data set holds other samples on each rank, and the script asks for its rank"


class Contents:
    """Ranks compare what a few indices of each data set hold: one collective for a data set that nobody has compared yet."""

    def __init__(self, session: Context) -> None:
        self._session = session
        self._compared: dict[int, weakref.ref[Any]] = {}
        self._own: set[int] = set()
        self._loaders: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()
        self.notes: list[str] = []
        session.bus.register(self, "sampler.contents")

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        return {"notes": self.notes} if self.notes else {}

    def are_own(self, loader: DataLoader[Any]) -> bool:
        """Whether the ranks have data of their own on purpose."""
        return self._is_known(loader) and id(loader.dataset) in self._own

    def compare(self, loader: DataLoader[Any]) -> None:
        """All ranks call it alike. Raises RanksDiverged, on all ranks, where the data sets differ and nothing says that they should."""
        if self._is_known(loader):
            return
        self._remember(loader)
        mine, why = self._ask(loader)
        told = self._session.all_gather_object((f"a data set of class {type(loader.dataset).__name__}", mine))
        refuse_elsewhere(told)
        if not all(fields for _, fields in told):
            self._note(loader, f"is not compared over the ranks: {why or 'another rank can not read it'}")
        elif found := unlike([fields for _, fields in told]):
            self._judge(loader, mine, found)

    def _ask(self, loader: DataLoader[Any]) -> tuple[dict[str, Field], str]:
        """What is compared, or nothing and why."""
        dataset: Any = loader.dataset
        try:
            fields = ask(dataset, keeps_open=not loader.num_workers)
        except CanNotBeAsked as error:
            return {}, str(error)
        part = chosen(dataset)
        return {"length": _whole(len(dataset)), **fields, "the samples that it is made of": Field("", 0.0, str(part), f"part {part:08x}")}, ""

    def _judge(self, loader: DataLoader[Any], mine: dict[str, Field], found: list[str]) -> None:
        """Asked again, a data set that draws by itself answers otherwise: that says nothing."""
        again, _ = self._ask(loader)
        lasting = {path for path in found if path in mine and path in again and again[path].like(mine[path])}
        missing = {path for path in found if path not in mine}
        told = self._session.all_gather_object((sorted(lasting | missing), mine, asks_for_rank(self._session, loader.dataset)))
        certain = [path for path in found if all(path in paths for paths, _, _ in told)]
        if not certain:
            return self._note(loader, "answers otherwise each time it is asked, so that ranks can't compare it")
        facts = f"{_name(loader)}: {_by_rank(certain[0], [fields for _, fields, _ in told])}"
        if not any(asks for _, _, asks in told):
            cause = CAUSES.get(self._session.world.launched_by, OTHERWISE)
            raise RanksDiverged(f"the ranks' data sets do not hold the same samples: {facts}. Here {cause}. {ON_PURPOSE}")
        self._own.add(id(loader.dataset))
        self._note(loader, "holds other samples on each rank, and the script asks for its rank: each keeps its own")
        if self._session.is_main:
            warn(
                f"the ranks' data sets do not hold the same samples, and the script asks for its rank, so each rank keeps its own: {facts}. "
                "Where that is meant, replace_sampler=False says so; where it is not, seed what draws it")

    def _note(self, loader: DataLoader[Any], what: str) -> None:
        text = f"{type(loader.dataset).__name__} {what}"
        if text not in self.notes:
            self.notes.append(text)

    # Known, by identity: a data set may have an equality of its own ---------------------------------------------

    def _is_known(self, loader: DataLoader[Any]) -> bool:
        reference = self._compared.get(id(loader.dataset))
        return loader in self._loaders if reference is None else reference() is loader.dataset

    def _remember(self, loader: DataLoader[Any]) -> None:
        self._own.discard(id(loader.dataset))
        try:
            self._compared[id(loader.dataset)] = weakref.ref(loader.dataset)
        except TypeError:  # a list
            self._loaders.add(loader)


def refuse_elsewhere(told: list[tuple[str, Any]]) -> None:
    """Raises RanksDiverged where another rank has come with something else: it does not iterate this loader."""
    for rank, (what, fields) in enumerate(told):
        if not isinstance(fields, dict):
            raise RanksDiverged(
                f"rank {rank} comes with {what} where others begin to iterate a loader in training: let every rank iterate it, or iterate it "
                "under torch.no_grad()"
            )


def unlike(told: list[dict[str, Field]]) -> list[str]:
    """Paths whose fields are not the same on all ranks, in their order."""
    paths = list(dict.fromkeys(path for fields in told for path in fields))
    return [path for path in paths if not _agree([fields.get(path) for fields in told])]


def _agree(fields: list[Field | None]) -> bool:
    first = fields[0]
    return first is not None and all(field is not None and first.like(field) for field in fields)


def _by_rank(path: str, told: list[dict[str, Field]]) -> str:
    shown = [fields[path].shown if path in fields else "nothing" for fields in told]
    values = "other values" if len(set(shown)) == 1 else ", ".join(f"{text} on rank {rank}" for rank, text in enumerate(shown))
    return f"{path}: {values}"


def _whole(number: int) -> Field:
    return Field("int", float(number), "", str(number))


def _name(loader: DataLoader[Any]) -> str:
    """The data set's class, and what the loop calls it or its loader."""
    frame = users_frame()[0]
    dataset, kind = inventory.name_of(loader.dataset, frame), type(loader.dataset).__name__
    named = dataset or inventory.name_of(loader, frame)
    return f"{named} ({kind})" if dataset else f"{kind} of the loader {named}" if named else kind
