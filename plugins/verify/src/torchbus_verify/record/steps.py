"""Records backwards and optimizer steps by patching torch.

The patches are installed after the session has begun, so they see what the loop sees: final
gradients and global losses."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torchbus import objects
from torchbus.plugin import BackwardCall, Context, hookimpl, users_frame
from torchbus.tree import as_list

from torchbus_verify._compat import current_graph_task_id
from torchbus_verify.record.writing import RecordWriter

AfterBackward = Callable[[int, dict[str, Tensor]], None]
BeforeBackward = Callable[[int, Tensor, dict[str, Tensor]], None]


class StepRecorder:
    """The recorder of a rank.

    ``before_backward`` and ``after_backward`` are called in each backward.
    """

    def __init__(self, writer: RecordWriter, stopping: Stopping) -> None:
        self._writer, self._stopping = writer, stopping
        self._names = TensorNames()
        self._steps: Counter[int] = Counter()
        self._backwards = 0
        self._terms = 1
        self._local_loss: float | None = None
        self._coarsest: torch.dtype | None = None
        self.before_backward: list[BeforeBackward] = []
        self.after_backward: list[AfterBackward] = []

    def install(self, session: Context | None) -> None:
        """Begin to record.

        A session reports backwards by its events. In a plain run, torch's function is replaced.
        """
        register_optimizer_step_post_hook(self._after_step)
        register_module_forward_pre_hook(self._called)
        if session is None:
            torch.autograd.backward = self._around(torch.autograd.backward)
        else:
            session.add_plugin(Backwards(self), "verify.backwards")

    def held(self) -> dict[str, Tensor]:
        """Return the trained parameters by name."""
        held: dict[str, Tensor] = {}
        for number, optimizer in self._stopping.optimizers.items():
            held |= self._names.parameters(optimizer, number)
        return held or self._names.trained()

    def finish(self) -> None:
        """Record the models at the end of the loop."""
        self._writer.write("state", tensors=self._writer.tensors(self._names.models()))

    def _around(self, original: Callable[..., None]) -> Callable[..., None]:
        def backward(tensors: object, *args: object, **kwargs: object) -> None:
            if current_graph_task_id() != -1:
                return original(tensors, *args, **kwargs)
            self.begin_backward(tensors)
            original(tensors, *args, **kwargs)
            self.end_backward(tensors)

        return backward

    def begin_backward(self, tensors: object) -> None:
        """Record the tensors that ``backward`` was called on."""
        self._stopping.backward_begins(self._backwards)
        loss = _only(tensors)
        self._local_loss = _number(loss)
        if loss is not None:
            for listener in self.before_backward:
                listener(self._backwards, loss, self.held())

    def end_backward(self, tensors: object) -> None:
        """Record a backward once gradients are final, and a single loss has its final value."""
        for listener in self.after_backward:
            listener(self._backwards, self.held())
        loss = _only(tensors)
        self._writer.write(
            "backward",
            number=self._backwards,
            loss=_number(loss),
            own=self._local_loss,
            terms=self._terms,
            dtype=None if loss is None else str(loss.dtype).removeprefix("torch."),
            coarsest=None if self._coarsest is None else str(self._coarsest).removeprefix("torch."),
        )
        if not self._stopping.optimizers:
            self._by_hand()
        self._backwards += 1

    def _by_hand(self) -> None:
        """Record the parameters of a loop without an optimizer: those after the previous step."""
        self._write_step(-1, self._backwards, [], self._names.trained())
        self._writer.count_step()

    def _write_step(
        self, optimizer: int, step: int, rates: list[float], parameters: dict[str, Tensor]
    ) -> None:
        gradients = {name: one.grad for name, one in parameters.items()}
        self._writer.write(
            "step",
            optimizer=optimizer,
            step=step,
            terms=self._terms,
            rates=rates,
            gradients=self._writer.tensors(gradients),
            parameters=self._writer.tensors(parameters),
            buffers=self._writer.tensors(self._names.buffers(parameters)),
        )

    def _after_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        number = self._stopping.number(optimizer)
        rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
        parameters = self._names.parameters(optimizer, number)
        self._write_step(number, self._steps[number], rates, parameters)
        before = self._fewest()
        self._steps[number] += 1
        if self._fewest() > before:
            self._writer.count_step()
        self._stopping.stepped(optimizer, self._steps[number])

    def _fewest(self) -> int:
        """Return the number of steps that every optimizer has made: a GAN's two count as one."""
        return min((self._steps[one] for one in self._stopping.optimizers), default=0)

    def _called(self, module: torch.nn.Module, inputs: tuple[object, ...]) -> None:
        tensors = [one for one in inputs if isinstance(one, Tensor)]
        self._terms = max([self._terms, *(one.numel() for one in tensors)])
        for kind in [one.dtype for one in tensors if one.is_floating_point()]:
            self._note_precision(kind)
        if tensors and torch.is_autocast_enabled(tensors[0].device.type):
            self._note_precision(torch.get_autocast_dtype(tensors[0].device.type))

    def _note_precision(self, kind: torch.dtype) -> None:
        if self._coarsest is None or torch.finfo(kind).eps > torch.finfo(self._coarsest).eps:
            self._coarsest = kind


class Backwards:
    """Forwards a session's backward events to ``StepRecorder``, after every other plugin."""

    def __init__(self, steps: StepRecorder) -> None:
        self._steps = steps

    @hookimpl(trylast=True)
    def before_backward(self, call: BackwardCall) -> None:
        self._steps.begin_backward(call.tensors)

    @hookimpl(trylast=True)
    def after_backward(self, call: BackwardCall) -> None:
        self._steps.end_backward(call.tensors)


def _only(tensors: object) -> Tensor | None:
    losses = as_list(tensors)
    return losses[0] if len(losses) == 1 and isinstance(losses[0], Tensor) else None


def _number(loss: Tensor | None) -> float | None:
    if loss is None or loss.numel() != 1 or loss.is_complex():
        return None
    value = float(loss.detach())
    return value if math.isfinite(value) else None


class TensorNames:
    """Names parameters and buffers by the same names in every run of a script."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[str, Tensor]] = {}  # the tensor too: an id may be reused
        self._roots: dict[int, tuple[str, Module]] = {}

    def parameters(self, optimizer: Optimizer, number: int) -> dict[str, Tensor]:
        """Name the parameters of an optimizer."""
        places = [
            (f"optimizer{number}.group{g}.{i}", parameter)
            for g, group in enumerate(optimizer.param_groups)
            for i, parameter in enumerate(group["params"])
        ]
        if any(not self._knows(parameter) for _, parameter in places):
            self._learn([parameter for _, parameter in places])
        for place, parameter in places:
            if not self._knows(parameter):
                self._of[id(parameter)] = (place, parameter)
        return {self._of[id(parameter)][0]: parameter for _, parameter in places}

    def buffers(self, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the buffers, by name, of the models that own these parameters."""
        mine = {id(parameter) for parameter in parameters.values()}
        found: dict[str, Tensor] = {}
        for name, root in self._roots.values():
            if any(id(parameter) in mine for parameter in root.parameters()):
                found |= {f"{name}.{key}": buffer for key, buffer in root.named_buffers()}
        return found

    def trained(self) -> dict[str, Tensor]:
        """Return the trainable parameters of all models, for a loop without an optimizer."""
        roots = objects.outermost(objects.alive(Module))
        owned = [
            one for root in roots if not objects.is_internal(root) for one in root.parameters()
        ]
        owned = [one for one in owned if one.requires_grad]
        if any(not self._knows(one) for one in owned):
            self._learn(owned)
        return {self._of[id(one)][0]: one for one in owned if self._knows(one)}

    def models(self) -> dict[str, Tensor]:
        """Return parameters and buffers of every model that the loop's variables name."""
        frame, _ = users_frame()
        found: dict[str, Tensor] = {}
        for root in objects.outermost(objects.alive(Module)):
            name = "" if objects.is_internal(root) else objects.name_of(root, frame)
            if name:
                found |= {f"{name}.{key}": one for key, one in root.named_parameters()}
                found |= {f"{name}.{key}": one for key, one in root.named_buffers()}
        return found

    def _knows(self, tensor: Tensor) -> bool:
        return id(tensor) in self._of and self._of[id(tensor)][1] is tensor

    def _learn(self, parameters: Sequence[Tensor]) -> None:
        frame, _ = users_frame()
        consumed = Counter(name for name, _ in self._roots.values())
        for root in objects.models_of(parameters):
            if id(root) in self._roots:
                name = self._roots[id(root)][0]
            else:
                name = objects.name_of(root, frame) or type(root).__name__
                consumed[name] += 1
                name = name if consumed[name] == 1 else f"{name}#{consumed[name]}"
                self._roots[id(root)] = (name, root)
            for key, parameter in root.named_parameters():
                if not self._knows(parameter):
                    self._of[id(parameter)] = (f"{name}.{key}", parameter)


AT_MOST = 10
"""The factor by which one optimizer may exceed the steps while the run waits for another one."""


class RecordedEnough(BaseException):
    """Ends the script at once; ``except Exception`` does not catch it, ``finally`` blocks run."""


class Stopping:
    """Ends each run after the same steps of the script's optimizers."""

    def __init__(self, steps: int | None) -> None:
        self._wanted = steps
        self._known: list[weakref.ref[Optimizer]] = []
        self._made: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        optimizers: Any = Optimizer
        original = optimizers.__init__

        def __init__(optimizer: Optimizer, *args: object, **kwargs: object) -> None:
            original(optimizer, *args, **kwargs)
            self.number(optimizer)

        optimizers.__init__ = __init__

    @property
    def optimizers(self) -> dict[int, Optimizer]:
        """Return the live optimizers by number, in the order of their creation."""
        alive = {number: known() for number, known in enumerate(self._known)}
        return {number: one for number, one in alive.items() if one is not None}

    def number(self, optimizer: Optimizer) -> int:
        """Return the number of an optimizer; a new optimizer gets the next number."""
        found = next((number for number, one in self.optimizers.items() if one is optimizer), None)
        if found is None:
            self._known.append(weakref.ref(optimizer))
        return len(self._known) - 1 if found is None else found

    def stepped(self, optimizer: Optimizer, steps: int) -> None:
        """Record the steps of an optimizer. Raises RecordedEnough after the last step."""
        self._made[optimizer] = steps
        if self._wanted is None:
            return
        fewest = min(self._made.get(one, 0) for one in self.optimizers.values())
        if fewest >= self._wanted or steps >= AT_MOST * self._wanted:
            raise RecordedEnough

    def backward_begins(self, number: int) -> None:
        """Count backwards as steps in a loop without optimizers. May raise RecordedEnough."""
        if self._wanted is not None and not self._known and number >= self._wanted:
            raise RecordedEnough
