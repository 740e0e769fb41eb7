"""Materialises models on the meta device, one module at a time.

So no rank ever has more than one whole module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import Module
from torchbus.compat.torch_names import version as version_of
from torchbus.plugin import Unsupported, UsageError

from torchbus_sharded._compat import (
    RESET_METHODS,
    parameters,
    share_backward_hooks,
    temporary_buffers,
)
from torchbus_strategy.compat import buffers, post_accumulate_hooks, tensor_hooks

ParamInit = Callable[[Module], object]
REMEDY = "give it reset_parameters(), or pass param_init_fn=..., a function that gets each module"


class MetaModules:
    """The modules of a model that own tensors on the meta device, in their order in the model.

    Raises UsageError, naming the module, if nothing gives these tensors values.
    """

    def __init__(self, model: Module, param_init_fn: ParamInit | None) -> None:
        self._name = type(model).__name__
        self._param_init_fn = param_init_fn
        self._waiting = [
            (path, module, found)
            for path, module in model.named_modules()
            if (found := _on_meta(module))
        ]
        self._made: dict[int, nn.Parameter] = {}
        self._old: list[Tensor] = []  # held so that their ids stay in use
        for path, module, found in self._waiting:
            if param_init_fn is None and not any(hasattr(module, name) for name in RESET_METHODS):
                raise UsageError(
                    f"{self._describe(path, module, found)} on the meta device and has no"
                    f" reset_parameters(): {REMEDY}"
                )

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def fill(
        self, device: torch.device, parts_on: torch.device, share: Callable[[Tensor], object]
    ) -> None:
        """Allocate and initialise all tensors. All ranks call it.

        ``share`` gives a tensor rank 0's values.
        """
        every = [
            {name: parameters(module)[name] for name in names if name in parameters(module)}
            for _, module, names in self._waiting
        ]
        for (_, module, _), held in zip(self._waiting, every, strict=True):
            _put(module, {name: _without_memory(tensor) for name, tensor in held.items()})
        for (path, module, names), held in zip(self._waiting, every, strict=True):
            blank = {name: _blank(getattr(module, name), device) for name in names}
            _put(module, blank)
            self._initialise(path, module, blank)
            for name in names:
                share(getattr(module, name).data)
            parts = [(name, part, getattr(module, name)) for name, part in held.items()]
            _put(module, {name: self._part(part, one, parts_on) for name, part, one in parts})

    def _initialise(self, path: str, module: Module, blank: dict[str, Tensor]) -> None:
        versions = {name: version_of(tensor) for name, tensor in blank.items()}
        with torch.no_grad():
            if self._param_init_fn is not None:
                self._param_init_fn(module)
            else:
                next(getattr(module, name) for name in RESET_METHODS if hasattr(module, name))()
        by = "param_init_fn" if self._param_init_fn is not None else "its reset_parameters()"
        missed = [
            name
            for name in self._to_be_set(module, blank)
            if _is_blank(getattr(module, name), blank[name], versions[name])
        ]
        if missed:
            raise UsageError(
                f"{self._describe(path, module, missed)} on the meta device, and {by} gives it no"
                f" values: {REMEDY} and sets it"
            )

    def _to_be_set(self, module: Module, names: Iterable[str]) -> list[str]:
        """Return the tensors to initialise now.

        ``param_init_fn`` may leave those of a state_dict to ``load_state_dict``.
        """
        return [
            name
            for name in names
            if self._param_init_fn is None or name in temporary_buffers(module)
        ]

    def _part(self, held: Tensor, whole: Tensor, device: torch.device) -> nn.Parameter:
        """Return this rank's part of a parameter. A parameter that modules share stays shared."""
        values = whole.detach()
        if isinstance(held, DTensor):
            values = distribute_tensor(
                values, held.device_mesh, held.placements, src_data_rank=None
            )
        if id(held) not in self._made:
            self._old.append(held)
            self._made[id(held)] = nn.Parameter(
                torch.empty_like(held, device=device), requires_grad=held.requires_grad
            )
        made = self._made[id(held)]
        made.data.copy_(values)
        return made

    def _describe(self, path: str, module: Module, names: list[str]) -> str:
        where = f"{self._name}.{path}" if path else self._name
        return f"{where} ({type(module).__name__}) has {', '.join(names)}"


def _on_meta(module: Module) -> list[str]:
    return [
        name
        for kind in (parameters(module), buffers(module))
        for name, tensor in kind.items()
        if tensor is not None and tensor.is_meta
    ]


def _put(module: Module, tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        (parameters(module) if name in parameters(module) else buffers(module))[name] = tensor


def _without_memory(tensor: Tensor) -> nn.Parameter:
    """Return a parameter that ignores initialisation, since modules may initialise their children.

    Initialising a divided tensor would draw random numbers.
    """
    return nn.Parameter(
        torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"),
        requires_grad=tensor.requires_grad,
    )


def _blank(tensor: Tensor, device: torch.device) -> Tensor:
    """Allocate memory filled with NaN or the smallest integer, to find what is not initialised."""
    made = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    made.fill_(_mark(made))
    return (
        nn.Parameter(made, requires_grad=tensor.requires_grad)
        if isinstance(tensor, nn.Parameter)
        else made
    )


def _mark(tensor: Tensor) -> float | int | bool:
    if tensor.is_floating_point() or tensor.is_complex():
        return float("nan")
    return False if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).min


def _is_blank(now: Tensor, made: Tensor, version: int) -> bool:
    if now is not made or not made.numel():
        return False
    if made.is_floating_point() or made.is_complex():
        return bool(made.isnan().any())
    return version_of(made) == version and bool((made == _mark(made)).all())


def named(model: Module) -> dict[str, nn.Parameter]:
    """Return the parameters by name. A shared one has several names."""
    return dict(model.named_parameters(remove_duplicate=False))


def move(before: Mapping[str, nn.Parameter], after: Mapping[str, nn.Parameter]) -> None:
    """Move hooks to the tensors that have replaced others. ``handle.remove()`` still works.

    Raises Unsupported for hooks that need an accumulated gradient.
    """
    for name, old in before.items():
        if post_accumulate_hooks(old):
            refuse_accumulated(old)
        share_backward_hooks(old, after[name])


def forward_to(part: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a hook for the tensor in the graph, which calls the hooks of the loop's shard.

    The loop may add and remove hooks of the shard later.
    """

    def call(gradient: Tensor) -> Tensor:
        for hook in list((tensor_hooks(part) or {}).values()):
            changed = hook(gradient)
            gradient = gradient if changed is None else changed
        return gradient

    return call


@contextmanager
def zeros_instead(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Replace the gradients of tensors in the graph by zeros, in backwards inside the block.

    A weight of 0 would leave NaN as it is.
    """
    handles = [one.register_hook(torch.zeros_like) for one in tensors if one.requires_grad]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def refuse_accumulated(tensor: Tensor, *_: object) -> NoReturn:
    raise Unsupported(
        "register_post_accumulate_grad_hook of a parameter under strategy='fsdp': it would be"
        " called before ranks have averaged its gradient, and with the whole of it, which no rank"
        " keeps. Do after backward() what the hook does, or use strategy='ddp'"
    )
