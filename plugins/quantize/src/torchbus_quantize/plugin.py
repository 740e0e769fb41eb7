"""Quantises the frozen linear layers of models, as the options choose."""

from __future__ import annotations

import difflib
from collections.abc import Generator, Sequence
from typing import Literal, get_args
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torchbus import objects
from torchbus.plugin import Context, UsageError, expect, hookimpl, needs

from torchbus_quantize import checks, libraries
from torchbus_quantize.checks import QuantizedLayers, choose
from torchbus_quantize.layers import quantize_layer

Name = Literal["nf4", "int8"]
LibraryName = Literal["auto", "torchao", "bitsandbytes"]


@needs("quantize", "quantize_library", "quantize_skip")
class Quantize:
    """Quantises the weights of frozen linear layers to 4 or 8 bits.

    Args:
        quantize: "nf4" for 4 bits, "int8" for 8 bits with one scale per row; None: no weight.
        quantize_library: "torchao", "bitsandbytes", or "auto" for the first that is installed.
        quantize_skip: names of layers, or patterns such as "*.gate", that are not quantised.

    A layer computes with the dequantised weight. Trained layers, such as LoRA's, keep their dtype.

    Raises:
        UsageError: an option has another type or value, or no supported library is installed.

    Source: Dettmers et al., QLoRA: Efficient Finetuning of Quantized LLMs, NeurIPS 2023,
    https://arxiv.org/abs/2305.14314
    """

    owns = ("quantised weights",)

    def __init__(
        self,
        quantize: Name | None = None,
        *,
        quantize_library: LibraryName = "auto",
        quantize_skip: Sequence[str] = (),
    ) -> None:
        if quantize is not None:
            _check("quantize", quantize, get_args(Name))
        _check("quantize_library", quantize_library, get_args(LibraryName))
        expect("quantize_skip", quantize_skip, (list, tuple), "names of layers, as ('lm_head',)")
        self._name = quantize
        if quantize is not None:
            self._library_name = libraries.choose(quantize_library, quantize)
            self._library = libraries.load(self._library_name)
        self._skip = tuple(quantize_skip)
        self._done: WeakKeyDictionary[Module, QuantizedLayers] = WeakKeyDictionary()

    @hookimpl(tryfirst=True)
    def launch(self, session: Context) -> None:
        """Refuse strategies and options that need float weights, before any rank starts."""
        if self._name is not None:
            checks.refuse_companions(session, self._name)

    @hookimpl
    def session_start(self, session: Context) -> None:
        self._session = session
        if self._name is None:
            return
        first = checks.EffectCheck(session, self._name, self._skip, self._done)
        session.bus.register(first, "quantize.first_backward")

    @hookimpl(wrapper=True, trylast=True)
    def parameters_added(
        self, optimizer: Optimizer | None, parameters: list[Tensor]
    ) -> Generator[None, object, object]:
        """Quantise after a change of precision, and before a strategy changes the model."""
        name = self._name
        if name is not None and optimizer is not None and self._session.captures(optimizer):
            for model in objects.models_of(parameters):
                self._quantize(model, name)
        return (yield)

    def _quantize(self, model: Module, name: Name) -> None:
        choice = choose(model, name, self._skip, self._library)
        done = self._done.setdefault(model, QuantizedLayers())
        done.left = choice.left
        for path, layer in choice.layers.items():
            before = layer.weight.nbytes
            checks.refuse_not_finite(layer.weight, path, name)
            quantize_layer(layer, name, self._library_name)
            done.add(path, before, layer.weight.nbytes)

    @hookimpl
    def explain_lines(self) -> dict[str, list[str]]:
        name = self._name
        if name is None:
            return {}
        return {
            "quantised": [
                f"{type(model).__name__}: {done.describe(name, self._library_name)}"
                for model, done in self._done.items()
            ]
            or ["no model yet"]
        }


def _check(option: str, value: object, known: tuple[str, ...]) -> None:
    if value in known:
        return
    near = difflib.get_close_matches(str(value).lower(), known, 1, 0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(
        f"{option}={value!r} is unknown: {hint}Known are {', '.join(map(repr, known))}"
    )
