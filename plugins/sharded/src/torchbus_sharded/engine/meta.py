"""Models on the meta device get memory and values, one module after the other: no rank has more than one module whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import Module
from torchbus.plugin import UsageError

ParamInit = Callable[[Module], object]
METHODS = ("reset_parameters", "_reset_parameters")
REMEDY = "give it reset_parameters(), or say param_init_fn=..., a function that gets each module"


class MetaModules:
    """The modules of a model that own tensors on the meta device, in the order of ``model.modules()``.

    Raises UsageError, naming the module, where nobody knows their values.
    """

    def __init__(self, model: Module, param_init_fn: ParamInit | None) -> None:
        self._name = type(model).__name__
        self._param_init_fn = param_init_fn
        self._waiting = [(path, module, found) for path, module in model.named_modules() if (found := _on_meta(module))]
        self._made: dict[int, nn.Parameter] = {}
        self._old: list[Tensor] = []  # so that no new tensor gets one of their ids
        for path, module, found in self._waiting:
            if param_init_fn is None and not any(hasattr(module, name) for name in METHODS):
                raise UsageError(f"{self._words(path, module, found)} on the meta device and has no reset_parameters(): {REMEDY}")

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def fill(self, device: torch.device, parts_on: torch.device, share: Callable[[Tensor], object]) -> None:
        """All ranks call it alike. ``share`` gives a tensor rank 0's values."""
        parameters = [{name: module._parameters[name] for name in names if name in module._parameters} for _, module, names in self._waiting]
        for (_, module, _), held in zip(self._waiting, parameters, strict=True):
            _put(module, {name: _without_memory(tensor) for name, tensor in held.items()})
        for (path, module, names), held in zip(self._waiting, parameters, strict=True):
            blank = {name: _blank(getattr(module, name), device) for name in names}
            _put(module, blank)
            self._initialise(path, module, blank)
            for name in names:
                share(getattr(module, name).data)
            _put(module, {name: self._part(part, getattr(module, name), parts_on) for name, part in held.items()})

    def _initialise(self, path: str, module: Module, blank: dict[str, Tensor]) -> None:
        versions = {name: tensor._version for name, tensor in blank.items()}
        with torch.no_grad():
            if self._param_init_fn is not None:
                self._param_init_fn(module)
            else:
                next(getattr(module, name) for name in METHODS if hasattr(module, name))()
        by = "param_init_fn" if self._param_init_fn is not None else "its reset_parameters()"
        missed = [name for name in self._to_be_set(module, blank) if _is_blank(getattr(module, name), blank[name], versions[name])]
        if missed:
            raise UsageError(f"{self._words(path, module, missed)} on the meta device, and {by} gives it no values: {REMEDY} and sets it")

    def _to_be_set(self, module: Module, names: Any) -> list[str]:
        """What is in a state_dict may be left for ``load_state_dict`` by the script's own function."""
        return [name for name in names if self._param_init_fn is None or name in module._non_persistent_buffers_set]

    def _part(self, held: Any, whole: Any, device: torch.device) -> nn.Parameter:
        """A shared parameter stays one."""
        values = whole.detach()
        if isinstance(held, DTensor):
            values = distribute_tensor(values, held.device_mesh, held.placements, src_data_rank=None)
        if id(held) not in self._made:
            self._old.append(held)
            self._made[id(held)] = nn.Parameter(torch.empty_like(held, device=device), requires_grad=held.requires_grad)
        made = self._made[id(held)]
        made.data.copy_(values)
        return made

    def _words(self, path: str, module: Module, names: list[str]) -> str:
        where = f"{self._name}.{path}" if path else self._name
        return f"{where} ({type(module).__name__}) has {', '.join(names)}"


def _on_meta(module: Module) -> list[str]:
    return [name for kind in (module._parameters, module._buffers) for name, tensor in kind.items() if tensor is not None and tensor.is_meta]


def _put(module: Module, tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        (module._parameters if name in module._parameters else module._buffers)[name] = tensor  # type: ignore[assignment]


def _without_memory(tensor: Any) -> nn.Parameter:
    """For a module that initialises its parts, too: nothing is drawn for these, which a divided tensor would do."""
    return nn.Parameter(torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"), requires_grad=tensor.requires_grad)


def _blank(tensor: Tensor, device: torch.device) -> Tensor:
    """Memory in which it is seen what nobody has set: NaN, or the least number."""
    made = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    made.fill_(_mark(made))
    return nn.Parameter(made, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made


def _mark(tensor: Tensor) -> Any:
    if tensor.is_floating_point() or tensor.is_complex():
        return float("nan")
    return False if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).min


def _is_blank(now: Tensor, made: Tensor, version: int) -> bool:
    if now is not made or not made.numel():
        return False
    if made.is_floating_point() or made.is_complex():
        return bool(made.isnan().any())
    return made._version == version and bool((made == _mark(made)).all())
