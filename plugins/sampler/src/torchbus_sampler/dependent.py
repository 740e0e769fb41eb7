"""Finds values that a training loop computes from this rank's share and that change its losses.

Examples are tensors that a list has collected, a statistic that scales the batch, and the order of
detached losses. The graph of a loss does not show them, but the source of the loop does.
"""

from __future__ import annotations

import ast
from itertools import chain
from types import FrameType

from torch import Tensor
from torch.nn import Module
from torchbus.compat import python
from torchbus.runtime.user_code import is_users_module

from torchbus_sampler import loop_source as source
from torchbus_sampler.loop_program import Function, LoopFacts, plain
from torchbus_strategy.user_code import parsed


class ShareDependence:
    """Finds what the losses of a loop depend on, besides each sample itself."""

    def __init__(self, facts: LoopFacts) -> None:
        self._facts = facts
        self._program = facts.program
        values = [
            pair
            for node in facts.nodes
            if not isinstance(node, ast.For | ast.comprehension)  # their targets are one sample
            for pair in facts.program.given(node)
        ]
        self._data = source.closed(
            facts.batch, [(one, name) for name, value in values for one in source.data_in(value)]
        )
        second = [one for one in map(source.second_of_two, facts.nodes) if one is not None]
        self._used = facts.roots + [one for name, one in values + second if name in facts.in_loss]
        self._by_name: dict[str, list[ast.expr]] = {}
        for name, value in values:
            self._by_name.setdefault(name, []).append(value)
        self._added: dict[str, list[ast.expr]] = {}
        for name, value, _ in chain.from_iterable(map(source.grows, facts.nodes)):
            self._added.setdefault(name, []).append(value)

    def held(self) -> list[str]:
        """Return variables that the loop fills from its batches, and that enter its losses.

        Three kinds do not count: a hidden state that the model returns, since it belongs to this
        rank's samples; a variable that is written before it is used, since it belongs to the same
        batch; and attributes of ``self``, which may be buffers of a module.
        """
        facts = self._facts
        losses = [one for node in facts.nodes for one in source.losses(node)]
        roots = set().union(*map(source.names, losses))
        values = [pair for node in facts.nodes for pair in source.unpacked(node)]
        filled = {
            name for name, value in values if name in source.names(value) and source.fills(value)
        }
        filled -= {name for name, value in values if name not in source.names(value)}
        in_loss = source.reached(source.names, losses, values)
        of_batch = source.made_of(facts.batch, values, roots)
        used = {
            name: value.lineno
            for one, value in reversed(values)
            if one in in_loss
            for name in source.names(value)
        }
        rows = [row for row in map(source.written, facts.nodes) if row and row[0] not in facts.made]
        filled |= {name for name, value in rows if value.lineno > used.get(name, value.lineno)}
        emptied = facts.made.union(*map(source.emptied, facts.nodes))
        calls = (node for node in facts.nodes if isinstance(node, ast.Call))
        lists = [one[:2] for node in calls for one in source.grows(node) if one[0] not in emptied]
        filled |= {name for name, _ in lists}
        of_all = self._after_backward()
        of_samples = {
            name
            for name, value in (*values, *rows, *lists)
            if name in filled
            and (
                source.names(value)
                - {name}
                - roots
                - (facts.added_up if id(value) in of_all else set())
            )
            & of_batch
        }
        found = of_samples & in_loss - roots - facts.batch
        return sorted(plain(one) for one in found if not one.startswith("self."))

    def _after_backward(self) -> set[int]:
        """Return the values assigned after the last backward, when parts of the loss are means."""
        nodes = self._facts.nodes
        backwards = [index for index, node in enumerate(nodes) if source.losses(node)]
        last = max(backwards, default=len(nodes))
        return {id(value) for node in nodes[last:] for _, value in source.unpacked(node)}

    def collecting(self, frames: list[FrameType]) -> list[str]:
        """Return objects in the frames that store a part of a batch and return a value for the
        losses: ``old = pool.query(fake)``, ``loss = criterion(index, out)``.
        """
        known = self._facts.of_batch | self._facts.batch
        return [
            plain(owner)
            for name, value in self._facts.values
            for node in (ast.walk(value) if name in self._facts.in_loss else ())
            if isinstance(node, ast.Call) and set().union(*map(source.names, node.args)) & known
            for owner, method in [source.owner_and_method(node)]
            if owner and owner not in known and _records(plain(owner), method, frames)
        ]

    def recording(self, frames: list[FrameType]) -> list[str]:
        """Return objects in the frames that add a measure of a batch to themselves:
        ``log(losses, right)``, ``confusion.add(out.argmax(1), y)``.
        """
        calls = [
            node.value
            for node in self._facts.nodes
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        ]
        measures = self._facts.apart - self._facts.batch
        return [
            plain(owner)
            for call in calls
            if set().union(*map(source.names, call.args)) & measures
            for owner, method in [source.owner_and_method(call)]
            if owner and _records(plain(owner), method, frames)
        ]

    def statistics(self) -> list[str]:
        """Return values that scale or select the samples of a batch and are computed from all of
        them: ``x.mean()`` in ``x - x.mean()`` and ``x > x.mean()``, or an order of detached losses.
        """
        values = list(self._used)
        for value in values:
            returned = map(self._program.returned, ast.walk(value))
            values += [one for each in returned for one in each if one not in values]
        found = [
            part
            for value in values
            for node in ast.walk(value)
            for part in (*self._scales(node), *self._compares(node), *self._orders(node))
        ]
        return sorted({plain(ast.unparse(part)) for part in found})

    def scales(self) -> list[str]:
        """Return numbers of samples that scale gradients or a loss where its graph can't show it:
        ``p.grad /= len(x)``, ``losses.sum().backward(1 / len(x))``, ``loss * (len(x) / size)``.
        """
        found = [source.gradient_divisor(node) for node in self._facts.nodes]
        for node in self._facts.nodes:
            for given in source.gradients_given(node):
                found += [source.division(part)[1] for part in ast.walk(given)]
        for value in self._used:
            for node in ast.walk(value):
                found += self._factors(node)
        return sorted({plain(ast.unparse(one)) for one in found if self._counts_rows(one)})

    def _factors(self, node: ast.AST) -> list[ast.expr]:
        """Return ``len(x)`` in ``loss * (len(x) / size)``, for a size that is not of the batch."""
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
            return []
        known = self._facts.batch | self._facts.of_batch
        sides = [one for side in (node.left, node.right) for one in self._program.meanings(side)]
        return [one for one, by in map(source.division, sides) if not source.names(by) & known]

    def _counts_rows(self, value: ast.expr) -> bool:
        """Whether a value is the number of a batch's samples, or a variable that adds these up."""
        added = self._added.get(source.variable(value), ())
        known = self._facts.batch | self._facts.of_batch
        return any(
            source.is_rows(one) and source.names(one) & known
            for part in (value, *added)
            for one in self._program.meanings(part)
        )

    def _scales(self, node: ast.AST) -> list[ast.AST]:
        """Return the statistics in ``x - x.mean()`` and ``x / x.std()``."""
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub | ast.Div):
            return []
        if source.is_reduced(node.left) or not source.data_in(node.left) & self._data:
            return []
        parts = filter(source.is_over_samples, self._meant(node.right))
        return [one for one in parts if source.data_in(one) & self._data]

    def _compares(self, node: ast.AST) -> list[ast.AST]:
        """Return the statistics in ``losses.detach() < losses.detach().mean()``."""
        parts = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        meant = [one for part in parts for one in self._meant(part)]
        known = self._facts.of_batch | self._facts.batch
        return [one for one in filter(source.is_over_samples, meant) if source.names(one) & known]

    def _orders(self, node: ast.AST) -> list[ast.AST]:
        """Return calls that order the losses of samples: ``np.argsort(losses.data)``,
        ``losses.topk(k).indices``. The graph shows ``losses.topk(k).values``.
        """
        call = source.indices_of(node) or node
        is_seen = call is node and not source.is_detached(call)
        if not source.orders_samples(call, is_seen):
            return []
        return [call] if any(map(self._is_of_each, self._meant(call))) else []

    def _is_of_each(self, value: ast.AST) -> bool:
        """Whether a loss has an element per sample: ``cross_entropy(x, y, reduction="none")``."""
        function = [value.func] if isinstance(value, ast.Call) else []
        made = [value, *(one for part in function for one in self._program.meanings(part))]
        return any(map(source.is_unreduced, made))

    def _meant(self, value: ast.AST) -> list[ast.AST]:
        """Return the parts of an expression, and the values that the loop assigns to its names."""
        found = list(ast.walk(value))
        for one in found:
            given = [*self._by_name.get(source.variable(one), ()), *self._program.returned(one)]
            found += [new for new in given if new not in found]
        return found


def _records(name: str, method: str, frames: list[FrameType]) -> bool:
    """Whether a method adds to its object, and is not the one that runs the backward."""
    running = {frame.f_code.co_name for frame in frames}
    return method not in running and adds(name, method, frames)


def adds(name: str, method: str, frames: list[FrameType]) -> bool:
    """Whether a method of the object named ``name`` in the frames adds to that object."""
    first, *attributes = name.split(".")
    spaces = [space for frame in frames for space in (python.read(frame), frame.f_globals)]
    owner = next((space[first] for space in spaces if first in space), None)
    for one in attributes:
        owner = getattr(owner, one, None)
    return _adds_to_itself(owner, method)


def _adds_to_itself(owner: object, method: str) -> bool:
    """Whether a method of a user's object adds to it. In a module, only plain tensors count."""
    is_module = isinstance(owner, Module)
    if is_module:
        method = method.replace("__call__", "forward")
    code = getattr(getattr(type(owner), method, None), "__code__", None)
    if code is None or not is_users_module(type(owner).__module__):
        return False
    names = {
        name.removeprefix("self.")
        for function in ast.walk(parsed(code.co_filename))
        if isinstance(function, Function) and function.name == method
        if code.co_firstlineno in (function.lineno, *(d.lineno for d in function.decorator_list))
        for node in ast.walk(function)
        for name in source.filled_in(node)
        if name.startswith("self.")
    }
    return (
        any(isinstance(vars(owner).get(one), Tensor) for one in names) if is_module else bool(names)
    )
