"""What tensors are called: by the variable that holds their model, and their place in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import users_frame


class Names:
    """Names of parameters and buffers. The same script gives the same ones in every run."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[str, Tensor]] = {}  # the tensor too: an id may come again
        self._roots: dict[int, tuple[str, Module]] = {}

    def parameters(self, optimizer: Optimizer, number: int) -> dict[str, Tensor]:
        """Those that an optimizer holds."""
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
        """Those of the models that these parameters belong to."""
        own = {id(parameter) for parameter in parameters.values()}
        found: dict[str, Tensor] = {}
        for name, root in self._roots.values():
            if any(id(parameter) in own for parameter in root.parameters()):
                found |= {f"{name}.{key}": buffer for key, buffer in root.named_buffers()}
        return found

    def trained(self) -> dict[str, Tensor]:
        """Parameters of all models that may get gradients: of a loop without an optimizer."""
        roots = objects.outermost(objects.alive(Module))
        owned = [
            one for root in roots if not objects.is_internal(root) for one in root.parameters()
        ]
        owned = [one for one in owned if one.requires_grad]
        if any(not self._knows(one) for one in owned):
            self._learn(owned)
        return {self._of[id(one)][0]: one for one in owned if self._knows(one)}

    def models(self) -> dict[str, Tensor]:
        """Parameters and buffers of every model that the loop's variables name."""
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
        taken = Counter(name for name, _ in self._roots.values())
        for root in objects.models_of(parameters):
            if id(root) in self._roots:
                name = self._roots[id(root)][0]
            else:
                name = objects.name_of(root, frame) or type(root).__name__
                taken[name] += 1
                name = name if taken[name] == 1 else f"{name}#{taken[name]}"
                self._roots[id(root)] = (name, root)
            for key, parameter in root.named_parameters():
                if not self._knows(parameter):
                    self._of[id(parameter)] = (f"{name}.{key}", parameter)
