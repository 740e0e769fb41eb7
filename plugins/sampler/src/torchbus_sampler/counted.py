"""Finds numbers that a training loop counts from its batches, which are one rank's share.

How the loop uses them (``correct / total``) can't be observed, so the loop is left as it is. Its
source is searched for such counts once per loop.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import FrameType

from torch import Tensor
from torchbus.compat import python
from torchbus.plugin import BackwardCall, Context, hookimpl, warn

from torchbus_sampler import loop_source as source
from torchbus_sampler.dependent import ShareDependence
from torchbus_sampler.loop_program import Loop, LoopFacts, facts_of, plain
from torchbus_strategy.user_code import Place, place_of, users_frames

COUNTED = (
    "the loop in line {} of {} computes {} from this rank's share of the batches, so what it prints"
    " or decides from it covers one rank only. For all ranks, use {} (s is the session:"
    " torchbus.current())"
)
TRAINING = " in passes that train, not in those that evaluate"
HELD = (
    "the loop in line {} of {} fills {} from this rank's share of the batches, and uses it in the"
    " losses of later batches, so it differs between ranks. Fill it from the samples of all ranks,"
    " as in `queue = torch.cat([queue, *s.all_gather(keys)])` or `mean = 0.9 * mean + 0.1 *"
    " s.reduce(x.mean(0))` (s is the session: torchbus.current())"
)
OF_SHARE = (
    "the loop in line {} of {} scales or selects samples by {}, computed from this rank's share of"
    " the samples, so its losses differ from those of one process. Compute them from the data set,"
    " or from torch.cat(s.all_gather(x)) in place of x (s is the session: torchbus.current()), or"
    " use strategy='dp'"
)
SCALED = (
    "the loop in line {} of {} scales its loss or gradients by {}, a number of this rank's samples,"
    " but the gradients are those of all ranks. Use {} (s is the session: torchbus.current())"
)
SHOWING = {*source.PRINTING, "append", "update"}
SUMMARISING = {*source.JOINING, "stack", "tensor", "sum", "mean", "average"} - {"append"}


class CountedMetrics:
    """Warns at the first backward of a loop of numbers that cover one rank only."""

    def __init__(self, session: Context) -> None:
        self._session = session
        self._seen: set[tuple[Place | bool, ...]] = set()
        self._begun: Place | None = None

    def begins(self, place: Place) -> None:
        """Record that a pass over divided data begins in this line."""
        if self._session.is_main:
            self._begun = place

    @hookimpl
    def after_backward(self, call: BackwardCall) -> None:
        if self._begun is None:
            return
        begun, self._begun = self._begun, None
        if (begun, call.sync) in self._seen:
            return
        frames = users_frames(self._session.frame)
        places = (*map(place_of, frames), begun)
        seen: tuple[Place | bool, ...] = (*places, call.sync)
        if seen in self._seen:
            return
        self._seen.add(seen)
        with suppress(RecursionError):  # a file of deeply nested expressions
            self._look(places, frames, call)

    def _look(self, places: tuple[Place, ...], frames: list[FrameType], call: BackwardCall) -> None:
        facts = facts_of(*places)
        if facts is None or (facts.place, call.sync) in self._seen:
            return
        self._seen.add((facts.place, call.sync))
        file, line = facts.place
        finder, dependence = (
            CountFinder(facts, names_of(call.parts, frames)),
            ShareDependence(facts),
        )
        counted = finder.found(call.sync)
        held = [*dependence.held(), *dependence.collecting(frames)]
        recorders = {name: _gathered(name) for name in dependence.recording(frames)}
        found = {k: remedy for k, remedy in (recorders | counted).items() if k not in held}
        if found:
            remedies = ", ".join(found.values()) + (TRAINING * facts.also_evaluates)
            warn(COUNTED.format(line, file, _quoted(found), remedies))
        if held:
            warn(HELD.format(line, file, _quoted(held)))
        if statistics := dependence.statistics():
            warn(OF_SHARE.format(line, file, _quoted(statistics)))
        if scales := dependence.scales():
            remedies = ", ".join(f"s.reduce({one}, 'sum')" for one in scales)
            warn(SCALED.format(line, file, _quoted(scales), remedies))


def names_of(parts: Sequence[Tensor], frames: list[FrameType]) -> set[str]:
    """Return the variables of the frames that hold only these tensors, also in a list or dict."""
    known = set(map(id, parts))
    return {
        name
        for frame in frames
        for name, value in (python.read(frame).items() if known else ())
        if (held := {id(one) for one in _tensors_in(value)}) and held <= known
    }


def _tensors_in(value: object) -> list[Tensor]:
    inside = value.values() if isinstance(value, dict) else value
    each = inside if isinstance(value, dict | list | tuple) else [value]
    return [one for one in each if isinstance(one, Tensor)]  # type: ignore[attr-defined]


def _quoted(names: Iterable[str]) -> str:
    return " and ".join(f"{name!r}" for name in names)


def _shows(node: ast.AST) -> bool:
    """Whether a node adds up, prints or compares what is in it."""
    if isinstance(node, ast.Compare):
        return not any(map(source.is_trivial, node.comparators))
    return source.called(node) in SHOWING or any(source.grows(node))


class CountFinder:
    """Finds numbers that a loop counts from its batches, and how to get those of all ranks.

    ``meter.update(...)`` counts as averaging, unless the program imports torchmetrics, whose
    metrics cover all ranks. ``parts`` are variables whose tensors the backward gave their mean over
    ranks, such as those that a model returns beside its loss.
    """

    def __init__(self, facts: LoopFacts, parts: Collection[str] = ()) -> None:
        self._facts = facts
        self._parts = {name for name, _ in facts.values if plain(name) in parts}
        self._in_loss = facts.in_loss | self._parts
        self._averages = not facts.program.imports("torchmetrics")
        after = [inner for one in facts.program.after(facts.loop) for inner in ast.walk(one)]
        showing = filter(_shows, [*facts.nodes, *after])
        self._shown = {name for node in showing for name in source.names(node)}

    def found(self, is_synced: bool = True) -> dict[str, str]:
        """Return names of numbers, and expressions that compute them over all ranks.

        ``is_synced`` is True if the loop's backward replaces the loss by its mean over ranks. In a
        window of several backwards, it does not.
        """
        counted = self._counted(is_synced)
        found = self._read_of_batch(set(counted)) | self._per_sample() | counted
        return {
            plain(name): plain(remedy)
            for name, remedy in found.items()
            if _base(name) not in self._facts.program.gathered
        }

    def _counted(self, is_synced: bool) -> dict[str, str]:
        sums: dict[str, str] = {}
        besides: dict[str, str] = {}
        grown = {_base(name) for node in self._facts.nodes for name, *_ in source.grows(node)}
        for node in self._facts.nodes:
            for name, value, joins in source.grows(node):
                if not source.names(value) & self._facts.of_batch:
                    continue
                total = {name: f"s.reduce({name}, 'sum')"}
                if source.collects(value, self._facts.apart) or self._summarises(name, node):
                    sums[name] = _gathered(name)
                elif self._any(source.is_count, value) or (
                    self._is_weighted(value) and self._is_over_more(name, grown)
                ):
                    sums |= total
                elif self._measures(name, value):
                    sums[name] = f"s.reduce({name})"
                elif (
                    self._any(source.is_size, value)
                    and not source.names(value) & self._facts.added_up
                ):
                    besides |= total
                elif joins and source.names(value) & self._facts.batch:
                    besides[name] = _gathered(name)
            sums |= self._of_samples(node) | self._by_index(node) | self._averaged(node)
        sums |= self._read_early(is_synced)
        return {
            name: remedy
            for name, remedy in (sums | besides).items()
            if sums or self._is_used_alone(name, grown)
        }

    def _is_used_alone(self, name: str, grown: set[str]) -> bool:
        """Whether a number of samples decides or scales something: ``if seen >= 5000``,
        ``0.1 * (1 - seen / 5000)``, ``total_loss / seen``. A sum of ``loss.item() * len(x)``,
        divided by ``seen``, does not count: it is right, because ranks have the same loss.
        """
        weighted = {
            _base(one)
            for node in self._facts.nodes
            for one, value, _ in source.grows(node)
            if self._is_weighted(value)
        }
        for node in self._facts.program.nodes:
            operands: list[ast.expr] = []
            if isinstance(node, ast.Compare):
                operands = [node.left, *node.comparators]
                operands = [] if any(map(source.is_trivial, operands)) else operands
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                is_right = not weighted.isdisjoint(self._named_in(node.left))
                operands = [] if is_right else [node.left, node.right]
            if name in map(source.variable, operands):
                return True
        return False

    def _any(self, is_so: Callable[[ast.expr], bool], value: ast.expr) -> bool:
        """Whether ``is_so`` holds for an expression, or for what it names or calls."""
        return any(is_so(one) for one in self._facts.program.meanings(value))

    def _is_weighted(self, value: ast.expr) -> bool:
        """Whether a value is multiplied by a size, as in ``loss.item() * len(x)``."""
        return (
            isinstance(value, ast.BinOp)
            and isinstance(value.op, ast.Mult)
            and any(self._any(self._is_size, one) for one in (value.left, value.right))
        )

    def _is_size(self, value: ast.expr) -> bool:
        """Whether it is a number of samples. ``len(loader) % 4`` is a number of batches."""
        known = self._facts.batch | self._facts.of_batch
        return source.is_size(value) and (
            not any(source.called(node) == "len" for node in ast.walk(value))
            or bool(source.names(value) & known)
        )

    def _is_over_more(self, name: str, grown: set[str]) -> bool:
        """Whether the program divides the variable by a number that the loop does not count, such
        as the size of the data set, which covers all ranks.
        """
        return any(
            _base(name) in self._named_in(divided) and grown.isdisjoint(self._named_in(by))
            for divided, by in map(source.division, self._facts.program.nodes)
        )

    def _named_in(self, value: ast.AST) -> set[str]:
        """Return the variables in an expression, with other names of these."""
        return {_base(source.variable(one)) for one in self._facts.program.meant(value)}

    def _measures(self, name: str, value: ast.expr) -> bool:
        """Whether a measure is added up that is not a loss: ``total += (out == y).mean()``."""
        is_read = source.number_of(value) is not None
        return (
            not is_read
            and _base(name) not in self._in_loss
            and not source.names(value) <= self._facts.added_up
            and source.is_measure(value, self._facts.apart)
        )

    def _summarises(self, name: str, append: ast.AST) -> bool:
        """Whether a list of anything but losses is later joined, as by ``torch.stack(name)``."""
        return (
            isinstance(append, ast.Call)
            and any(source.names(one) & self._facts.apart for one in append.args)
            and _base(name) not in self._in_loss
            and any(
                source.called(node) in SUMMARISING and _base(name) in self._named_in(node)
                for node in self._facts.program.nodes
            )
        )

    def _of_samples(self, node: ast.AST) -> dict[str, str]:
        """Return what an inner loop over the batch's items counts: ``for t, p in zip(y, out)``."""
        if not isinstance(node, ast.For) or not source.is_of_items(node.iter, self._facts.batch):
            return {}
        inside = [inner for one in node.body for inner in ast.walk(one)]
        names = {_base(name) for inner in inside for name, _, _ in source.grows(inner)}
        found = {name: _gathered(name) for name in sorted(names - self._facts.made)}
        for one in inside:
            found |= self._by_index(one, source.names(node.target))
        return found

    def _by_index(self, node: ast.AST, of_item: Collection[str] = ()) -> dict[str, str]:
        """Return variables that are written at the batch's indices: ``seen[index] = ...``.

        ``of_item`` are the names of one sample's parts.
        """
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AugAssign):
            targets = [node.target]
        return {
            source.variable(one.value): _gathered(source.variable(one.value))
            for one in targets
            if isinstance(one, ast.Subscript)
            and source.variable(one.value)
            and source.variable(one.value) not in self._facts.made | self._facts.batch
            and source.names(one.slice) & self._facts.batch.union(of_item)
        }

    def _averaged(self, node: ast.AST) -> dict[str, str]:
        """Return the meter in ``meter.update(accuracy, len(x))``, for anything but a loss."""
        if not (
            self._averages
            and isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "update"
            and len(given := [*node.args, *(one.value for one in node.keywords)]) == 2
            and source.is_size(given[1])
            and "loss" not in ast.unparse(given[0]).lower()
        ):
            return {}
        name = ast.unparse(node.func.value)
        return {name: f"s.reduce({name}.avg)"}

    def _read_early(self, is_synced: bool) -> dict[str, str]:
        """Return losses that are added up or shown before their backward. A backward that
        synchronises replaces them by the mean over ranks.
        """
        place = {id(node): index for index, node in enumerate(self._facts.nodes)}
        made = {
            name: at
            for at, node in reversed(list(enumerate(self._facts.nodes)))
            for name, _ in self._facts.program.given(node)
        }
        backwards = self._backwards()

        def read(nodes: Iterable[ast.AST]) -> set[str]:
            return {
                name
                for node in nodes
                for name in source.read_as_number(node) & set(backwards)
                if made.get(name, -1) < place[id(node)]
                and (not is_synced or place[id(node)] < backwards[name][0])
            }

        shown = {
            name: name
            for node in self._facts.nodes
            if any(to not in backwards for to, *_ in source.grows(node))
            or source.called(node) in SHOWING
            for name in read(ast.walk(node))
        }
        given = [
            (place[id(node)], to, value)
            for node in self._facts.nodes
            if isinstance(node, ast.Assign)
            for to, value in self._facts.program.given(node)
            if to not in backwards and to not in source.names(value) and self._is_shown(to)
        ]
        held = {to: name for _, to, value in given for name in read(ast.walk(value))}
        computed = self._computed_early(given, backwards) if is_synced else {}
        return computed | {
            of: f"{name}.item() after {backwards[name][1]}.backward()"
            if is_synced
            else f"s.reduce({name})"
            for of, name in (shown | held).items()
        }

    def _backwards(self) -> dict[str, tuple[int, str]]:
        """Return the losses, each with the place of its backward and the expression there."""
        found: dict[str, tuple[int, str]] = {}
        for index, node in enumerate(self._facts.nodes):
            for one in source.losses(node):
                root = source.variable(one) or f"({ast.unparse(one)})"
                for name in source.reached(source.parts, [one], self._facts.values) | self._parts:
                    found.setdefault(name, (index, root))
        return found

    def _computed_early(
        self,
        given: Iterable[tuple[int, str, ast.expr]],
        backwards: Mapping[str, tuple[int, str]],
    ) -> dict[str, str]:
        """Return variables that are computed from losses alone before their backward.

        ``given`` has a place, a variable and its value: ``psnr = mse2psnr(loss)``.
        """
        others = (self._facts.of_batch | self._facts.batch) - set(backwards)
        return {
            to: f"{ast.unparse(value)} after {backwards[name][1]}.backward()"
            for place, to, value in given
            if others.isdisjoint(source.names(value))
            for name in source.computed_from(value) & set(backwards)
            if place < backwards[name][0]
        }

    def _is_shown(self, name: str) -> bool:
        """Whether the loop adds up, shows or compares a variable, or a value made from it."""
        made = source.made_of({name}, self._facts.values, set())
        return not made.isdisjoint(self._shown)

    def _read_of_batch(self, counted: set[str]) -> dict[str, str]:
        """Return numbers of one batch that are read or shown, and are not part of the loss.

        Examples are ``accuracy.item()`` and ``print(top1(out, y))``, also after the loop for its
        last batch. Inner loops are left out, because they evaluate or compute something else.
        """
        if not self._averages or not any(map(source.losses, self._facts.nodes)):
            return {}
        statements = [*self._facts.loop.body, *self._of_last_batch()]
        nodes = list(self._facts.program.evaluated(statements, lambda one: isinstance(one, Loop)))
        reduced = self._reduced()
        nodes = [node for node in nodes if id(node) not in reduced]
        read = [
            (name, value)
            for name, value in self._numbers_in(nodes, counted)
            if source.base_name(value) not in self._in_loss
            and source.names(value) & self._facts.apart
        ]
        divided = {
            part
            for node in nodes
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
            for part in map(ast.unparse, ast.walk(node.left))
        }
        return {
            name: f"s.reduce({name}, 'sum')"
            if isinstance(value, ast.Call)
            and (source.is_count(value) or source.called(value) == "sum")
            and divided.isdisjoint((name, ast.unparse(value)))
            else f"s.reduce({name})"
            for name, value in [*read, *self._shown_in(nodes)]
        }

    def _shown_in(self, nodes: list[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
        """Yield measures that are shown as tensors: ``print(acc)``, ``print(hits / len(y))``."""
        measures = {
            name: value
            for node in nodes
            for name, value in source.assignments(node)
            if name not in self._facts.batch | self._in_loss and self._is_other_measure(value)
        }
        for one in [value for node in nodes for value in source.shown(node)]:
            part = one.left if isinstance(one, ast.BinOp) else one
            name = source.base_name(part)
            if part is one and name in measures and not source.is_size(one):
                yield name, measures[name]
            elif (part is not one and name in measures) or self._is_other_measure(part):
                yield ast.unparse(one), one

    def _is_other_measure(self, value: ast.expr) -> bool:
        is_apart = bool(source.names(value) & self._facts.apart)
        is_read = source.number_of(value) is not None and source.called(value) == "item"
        return is_apart and not is_read and source.is_measure(value, self._facts.apart)

    def _of_last_batch(self) -> list[ast.stmt]:
        """Return the statements after the loop that use variables of its last batch."""
        found = []
        grown = {_base(name) for node in self._facts.nodes for name, *_ in source.grows(node)}
        left = self._facts.of_batch | self._facts.batch | self._facts.made
        for one in self._facts.program.after(self._facts.loop):
            stored = {
                node.id
                for node in ast.walk(one)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
            if grown.isdisjoint(source.names(one)) and (
                stored.isdisjoint(left) or isinstance(one, ast.Assign)
            ):
                found.append(one)
            if not stored.isdisjoint(left):
                break
        return found

    def _reduced(self) -> set[int]:
        """Return the ids of nodes in values that the program combines over ranks."""
        gathered = self._facts.program.gathered
        made = [value for name, value in self._facts.program.values if name in gathered]
        updated = [
            node
            for node in self._facts.nodes
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and source.base_name(node.func.value) in gathered
        ]
        return {id(inner) for one in (*made, *updated) for inner in ast.walk(one)}

    def _numbers_in(
        self, nodes: list[ast.AST], counted: set[str]
    ) -> Iterator[tuple[str, ast.expr]]:
        """Yield what is read as a number, with its name: ``acc.item()``, ``acc = float(...)``."""
        names = {
            id(node.value): source.assigned(node) for node in nodes if isinstance(node, ast.Assign)
        }
        counts = {
            id(inner)
            for node in self._facts.nodes
            for name, value, _ in source.grows(node)
            if name in counted
            for one in self._facts.program.meant(value)
            for inner in ast.walk(one)
        }
        in_loss = {
            id(inner)
            for name, value in self._facts.values
            if name in self._in_loss
            for inner in ast.walk(value)
        }
        for node in nodes:
            is_known = id(node) in counts or id(node) in in_loss
            value = None if is_known else source.number_of(node)
            if value is not None and not source.is_size(value) and source.called(value) != "item":
                target = names.get(id(node))
                yield target[0] if target else ast.unparse(value), value

    def _per_sample(self) -> dict[str, str]:
        """Return ``len(x)`` of ``loss.item() / len(x)``: a loss of all ranks, one rank's size."""
        divisors = [
            node.right
            for node in self._facts.nodes
            if isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Div)
            and self._any(source.reads_any(self._facts.added_up), node.left)
            and source.names(node.right) & self._facts.of_batch
            and any(
                source.ROWS.search(ast.unparse(one))
                for one in self._facts.program.meant(node.right)
            )
        ]
        return {ast.unparse(one): f"s.reduce({ast.unparse(one)}, 'sum')" for one in divisors}


def _gathered(name: str) -> str:
    return f"s.all_gather_object({name})"


def _base(name: str) -> str:
    """Return the variable in ``matrix[t, p]``, ``meters.seen`` or ``self.seen[t]``."""
    found = re.match(r"(self\.)?[\w@]+", name)
    return found[0] if found else name
