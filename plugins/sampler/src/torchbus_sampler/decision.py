"""Decides whether a loader is divided, and why.

The decision depends on the models' modes and on backwards. ``order`` does the division itself."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torchbus import objects
from torchbus.plugin import BackwardCall, Context, Origin, Share, UsageError, users_frame, warn
from torchbus.tree import as_list

from torchbus_strategy.batches import TrackedBatch
from torchbus_strategy.evaluating import in_eval_mode, without_gradients
from torchbus_strategy.graph import nodes_below
from torchbus_strategy.user_code import Place, place_of

BYPASSED = (
    "{} defines its own __iter__, which makes batches without DataLoader's: they can't be divided,"
    " and every rank would train on all of them. Let it call super().__iter__(), divide the data in"
    " the script, or pass replace_sampler=False"
)


@dataclass(frozen=True)
class Decision:
    """Whether to divide, and the reason in words. ``evaluation``: whether the pass evaluates."""

    divide: bool
    why: str
    evaluation: bool = False


def is_distributed(loader: DataLoader[object]) -> bool:
    """Whether the script divides the loader itself, as by a DistributedSampler, or Accelerate."""
    candidates = (
        loader.sampler,
        loader.batch_sampler,
        getattr(loader.batch_sampler, "sampler", None),
    )
    return any(hasattr(one, "num_replicas") or hasattr(one, "process_index") for one in candidates)


def decide(
    loader: DataLoader[object], models: Iterable[Module], trains_here: bool, shard_eval: bool
) -> Decision:
    """Decide about one pass over a captured loader.

    ``trains_here`` is True if an earlier pass that began in the same line has fed a backward. So a
    loop that trains in eval mode continues to train, and ``accuracy(train_loader)`` evaluates.
    """
    if is_distributed(loader):
        return Decision(False, "not divided, its sampler is distributed already")
    evaluation = without_gradients() or ("" if trains_here else in_eval_mode(models))
    if evaluation and not shard_eval:
        return Decision(False, f"not divided, {evaluation}", evaluation=True)
    if evaluation:
        return Decision(
            True, f"divided without padding, {evaluation} and shard_eval=True", evaluation=True
        )
    return Decision(True, "divided")


UNFED = (
    "a loader over {} was divided over the ranks, but fed no backward: each rank computed with its"
    " own share of it. Begin to iterate it (iter(loader), too) under torch.no_grad(), or after"
    " model.eval() of the model that is trained"
)
SKIPPED = (
    ". If the loop skips batches whose size is not {}: a rank's share of a batch has {} samples"
)
SHARE = (
    "torchbus: this rank's share of the batch has {} samples, and batch_size={} in the script: take"
    " the size from the batch, as in x.shape[0] (see Data in docs/semantics.md)"
)
WHOLE = (
    "{} is {}, and so is not divided: every rank computes the same batches. But they feed"
    " backward: {}"
)
IN_EVAL_MODE = (
    "to train, call model.train() before the loop (from_pretrained leaves models in eval mode; to"
    " freeze some layers, call eval() on these only), or divide its batches with s.shard(...)"
)
WITHOUT_GRADIENTS = "to train, take its batches outside torch.no_grad() and inference_mode"


class TrainingLoaders:
    """The loaders that train: a divided pass over them has fed a backward.

    It rejects an optimizer step on the batches of a pass that counts as evaluation.
    """

    def __init__(self, session: Context) -> None:
        self._session = session
        # the lines in which passes began: by loader, those that fed a backward, and the latest
        self._trains: weakref.WeakKeyDictionary[DataLoader[object], set[Place]] = (
            weakref.WeakKeyDictionary()
        )
        self._places: set[Place] = set()
        self._begun: weakref.WeakKeyDictionary[DataLoader[object], Place] = (
            weakref.WeakKeyDictionary()
        )
        self._origin: Origin | None = None
        self._whole: Origin | None = None
        self._may_be_whole: tuple[TrackedBatch, int] | None = None
        self._warned: set[str] = set()
        self._waited_for: list[tuple[type, Origin]] = []
        self._backwards = self._steps = 0
        self._rows = self._size = self._largest = 0

    def __contains__(self, loader: DataLoader[object]) -> bool:
        return loader in self._trains

    def __bool__(self) -> bool:
        """Whether any loader trains."""
        return len(self._trains) > 0

    def take(self, loader: DataLoader[object], share: Share | None) -> None:
        """Record that the loop gets the first batch of a divided pass."""
        self._rows = len(share.indices) if share is not None else 0
        self._size = (self._rows and loader.batch_size) or self._rows
        self._largest = max(self._rows, self._largest)

    def begins(self, loader: DataLoader[object]) -> Place:
        """Record that a divided pass begins. Return the line that runs now."""
        self._begun[loader] = place_of(users_frame()[0])
        return self._begun[loader]

    def add(self, loader: DataLoader[object]) -> None:
        """Record that the loader has fed a backward."""
        place = self._begun.get(loader, ("", 0))
        self._trains.setdefault(loader, set()).add(place)
        self._places.add(place)

    @property
    def is_training_line(self) -> bool:
        """Whether a pass over any loader that began in the line that runs now has trained."""
        return place_of(users_frame()[0]) in self._places

    def trains_here(self, loader: DataLoader[object]) -> bool:
        """Whether a pass that began in the line that runs now has fed a backward."""
        places = self._trains.get(loader)
        return places is not None and place_of(users_frame()[0]) in places

    def backward(self, call: BackwardCall) -> None:
        """Record that the loop calls ``backward``."""
        self._backwards += 1
        current = self._session.batches.current
        if current and (len(current) > 1 or current[0].origin is not self._origin):
            self._look(call, current)

    def _look(self, call: BackwardCall, current: Sequence[TrackedBatch]) -> None:
        self._origin, self._whole = current[0].origin, None
        whole = [one for one in current if one.origin.evaluates]
        for one in current:
            loader = one.origin.loader() if one.origin.loader is not None else None
            if loader is not None and not one.origin.evaluates:
                self.add(loader)
        if any(one.origin.loader is None for one in current):
            whole = []
        if whole and len(whole) < len(current):
            self._may_be_whole = self._may_be_whole or (whole[0], whole[0].references)
        elif whole:
            self._whole = whole[-1].origin
        steps_by_hand = not self._steps  # otherwise ``step`` refuses to train on them
        if self._whole is not None and steps_by_hand and only_parameters(as_list(call.tensors)):
            self._warn(_message(self._whole))

    def step(self, optimizer: Optimizer) -> None:
        """Record that the loop calls ``optimizer.step``.

        Raises UsageError if the step trains a model on batches that every rank has.
        """
        self._steps += 1
        whole, maybe = self._whole, self._may_be_whole
        self._may_be_whole = None
        if maybe is not None and maybe[0].references < maybe[1]:
            whole = maybe[0].origin  # backward has freed a graph with the batch: the loss used it
        if whole is not None and objects.models_of(
            [parameter for group in optimizer.param_groups for parameter in group["params"]]
        ):
            raise UsageError(_message(whole))

    def explain(self, error: BaseException) -> None:
        """Add a note to an error whose message mentions the size of the undivided batch."""
        size, rows = self._size, self._rows
        add_note = getattr(error, "add_note", None)  # since Python 3.11
        if add_note is not None and rows != size and re.search(rf"\b{size}\b", str(error)):
            add_note(SHARE.format(rows, size))

    def wait_for(self, kind: type, origin: Origin) -> None:
        """Record that a pass over a data set of class ``kind`` is over, but its batches are held.

        They may feed a backward later, even after the loader has been deleted.
        """
        self._waited_for.append((kind, origin))

    def say_waited_for(self) -> None:
        """At the end, warn if batches of such a pass have fed no backward."""
        for kind, origin in self._waited_for:
            if not origin.used:
                self.say_unfed(kind)

    def say_unfed(self, kind: type) -> None:
        """Warn that a loader over a data set of class ``kind`` was divided for nothing.

        There is no warning if the loop has stepped without ever calling backward: then it is
        unknown which loaders train.
        """
        if self._steps and not self._backwards:
            return
        if self._session.is_main and not any(
            text.startswith("a loader over") for text in self._warned
        ):
            skips = self._largest < self._size and not self._backwards
            self._warn(
                UNFED.format(kind.__name__)
                + (SKIPPED.format(self._size, self._largest) if skips else "")
            )

    def _warn(self, text: str) -> None:
        kind = text[:20]
        if kind not in self._warned:
            self._warned.update((kind, text))
            warn(text)


def _message(origin: Origin) -> str:
    why = (
        origin.evaluates.removeprefix("not divided, ")
        .removeprefix("divided without padding, ")
        .removesuffix(" and shard_eval=True")
    )
    return WHOLE.format(origin.name, why, IN_EVAL_MODE if "eval mode" in why else WITHOUT_GRADIENTS)


def only_parameters(roots: Sequence[object]) -> bool:
    """Whether all leaves of a graph are parameters. A gradient of an input, say, trains nothing."""
    starts = [root.grad_fn for root in roots if isinstance(root, Tensor)]
    leaves = [node.variable for node in nodes_below(starts) if hasattr(node, "variable")]
    return bool(leaves) and all(isinstance(leaf, Parameter) for leaf in leaves)


def checked(divides: bool, **options: object) -> dict[str, object]:
    """Return the options. Raises UsageError if one is set although nothing is divided."""
    if not divides:
        _refuse(options, "replace_sampler=False")
    return options


def _refuse(options: dict[str, object], because: str) -> None:
    asked = [f"{name}={value!r}" for name, value in options.items() if value]
    if asked:
        raise UsageError(
            f"{', '.join(asked)} with {because}: no loader is divided, so it would do nothing."
            " Leave one of them out"
        )


def look(session: Context, options: dict[str, object], divides: bool) -> None:
    """Reject the options on several ranks that do not divide. Warn of no ledger on one rank."""
    if session.world_size > 1 and not divides:
        _refuse(options, f"strategy={session.options['strategy']!r}")
    if session.world_size == 1 and options["sample_ledger"] and not session.world.divides_anew:
        warn(
            "sample_ledger: one rank takes every sample, in the script's own order, so nothing is"
            " written. Pass devices=2 or more, or remove sample_ledger="
        )
