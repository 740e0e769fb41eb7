"""The choice of layers, and the errors before the first gradient."""

from __future__ import annotations

import importlib.metadata
import warnings

import pytest
import torch
from torch import nn
from torchbus import session
from torchbus.bus.base import hookimpl
from torchbus.errors import Unsupported, UsageError

from torchbus_quantize import checks, libraries
from torchbus_quantize.plugin import Quantize

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("torchao")


def frozen(*sizes):
    return nn.Linear(*sizes).requires_grad_(False)


class Odd(nn.Module):
    """Has every kind of layer that is left alone."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 16).requires_grad_(False)
        self.tied = frozen(16, 32)
        self.tied.weight = self.embedding.weight
        self.encoder = nn.TransformerEncoderLayer(16, 2, 16).requires_grad_(False)
        self.small = frozen(3, 5)
        self.whole = nn.Sequential(frozen(16, 16), frozen(16, 16))
        self.bytes = frozen(16, 16)
        self.bytes.weight.data = self.bytes.weight.data.to(torch.int8)
        self.head = nn.Linear(16, 2)
        self.adapter_layer_names = ("lora_A",)  # as peft's layers say
        self.lora_A = nn.ModuleDict({"off": frozen(16, 16)})


def test_layers_that_others_need_as_they_are():
    found = checks.choose(Odd(), "nf4", ("*.1",), libraries.load("torchao"))
    assert list(found.layers) == ["whole.0"]
    assert found.left == {
        "tied": "another module has the same weight",
        "encoder.linear1": "TransformerEncoderLayer reads its weight",
        "encoder.linear2": "TransformerEncoderLayer reads its weight",
        "small": "torchao's nf4 needs a multiple of 64 numbers, and it has 15",
        "whole.1": "quantize_skip",
        "bytes": "its weight is torch.int8",
        "head": "trained",
    }


def once(model, optimizer=None, **options):
    """One step, in a session."""
    with session(quantize=options.pop("quantize", "nf4"), **options) as s:
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        model(torch.randn(4, 16, dtype=model[-1].weight.dtype)).sum().backward()
        optimizer.step()
        return s.explain()


def refusal(model, **options):
    with pytest.raises(UsageError) as refused:
        once(model, **options)
    assert all(one.grad is None for one in model.parameters())
    return str(refused.value)


def test_explain_says_what_is_left():
    model = nn.Sequential(frozen(16, 16), frozen(16, 16), nn.Linear(16, 2))
    told = " ".join(once(model, quantize_skip=["1"]).split())
    assert (
        "quantised Sequential: weights of 1 frozen layer in nf4 by torchao: 1.02 kB are now 256"
        " bytes; left as they are: 1 (quantize_skip)"
    ) in told


def test_a_model_that_no_optimizer_has_is_left_alone():
    teacher = nn.Sequential(frozen(16, 16))
    model = nn.Sequential(frozen(16, 16), nn.Linear(16, 2))
    once(model)
    assert model[0].weight.dtype == torch.uint8
    assert teacher[0].weight.dtype == torch.float32


def test_nothing_is_frozen():
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 2))
    assert refusal(model) == (
        "quantize='nf4' finds no frozen nn.Linear in a model that an optimizer trains (Sequential:"
        " 0, 1 trained). Trained weights are never quantised: freeze them with"
        " requires_grad_(False) before the optimizer is made, for example by peft, or leave"
        " quantize out"
    )
    assert type(model[0]) is nn.Linear and model[0].weight.dtype == torch.float32


def test_nothing_is_left_to_quantise():
    model = nn.Sequential(frozen(16, 3), nn.Linear(3, 2))
    assert "(Sequential: 1 trained; 0 (torchao's nf4 needs a multiple of 64" in refusal(model)


def test_a_pattern_that_names_nothing():
    model = nn.Sequential(frozen(16, 16), nn.Linear(16, 2))
    assert refusal(model, quantize_skip=["2"]).startswith("quantize_skip: '2' names no layer.")


def test_a_weight_that_has_no_values():
    with torch.device("meta"):
        model = nn.Sequential(frozen(16, 16), nn.Linear(16, 2))
    assert refusal(model) == (
        "quantize='nf4': 0.weight is on the meta device, so it has no values yet. Make the model"
        " with its values, or name the layer in quantize_skip"
    )


def test_a_weight_that_is_not_finite():
    model = nn.Sequential(frozen(16, 16), nn.Linear(16, 2))
    model[0].weight[0, 0] = float("nan")
    assert refusal(model) == (
        "quantize='nf4': 0.weight has numbers that are not finite, so no scale fits it. Look at how"
        " it was loaded"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantize": "nf5"}, "quantize='nf5' is unknown: did you mean 'nf4'? Known are 'nf4', 'i"),
        ({"quantize": 8}, "quantize=8 is unknown: did you mean 'int8'? Known are"),
        (
            {"quantize": "nf4", "quantize_library": "bitsandbyte"},
            "quantize_library='bitsandbyte' is unknown: did you mean 'bitsandbytes'? Known are",
        ),
        (
            {"quantize": "nf4", "quantize_skip": "head"},
            "quantize_skip='head' is a str: it must be names of layers, as ('lm_head',)",
        ),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(UsageError) as refused:
        Quantize(**options)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("there", "library", "message"),
    [
        (
            {},
            "auto",
            "quantize='nf4' needs torchao or bitsandbytes, and neither is installed: pip install"
            " 'torchao>=0.18'",
        ),
        (
            {"torchao": "0.18.0"},
            "bitsandbytes",
            "quantize_library='bitsandbytes' needs bitsandbytes, which is not installed: pip"
            " install 'bitsandbytes>=0.46'",
        ),
        (
            {"torchao": "0.9.1"},
            "auto",
            "quantize='nf4' needs torchao 0.18 or later, and 0.9.1 is installed: pip install"
            " 'torchao>=0.18'",
        ),
    ],
)
def test_the_library_is_missing(there, library, message, monkeypatch):
    def version(name):
        if name not in there:
            raise importlib.metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(libraries, "version", version)
    with pytest.raises(UsageError) as refused:
        Quantize("nf4", quantize_library=library)
    assert str(refused.value) == message


def test_an_old_library_gives_way_to_another_one(monkeypatch):
    monkeypatch.setattr(libraries, "version", {"torchao": "0.9", "bitsandbytes": "0.50"}.get)
    assert libraries.choose("auto", "nf4") == "bitsandbytes"


class Engine:
    """A strategy that computes with weights itself."""

    takes_bytes = False

    @hookimpl
    def explain_lines(self):
        return None


def test_a_strategy_that_computes_with_the_weights():
    with pytest.raises(Unsupported) as refused, session(Engine(), quantize="nf4", strategy=None):
        raise AssertionError("the loop must not run")
    assert str(refused.value).startswith("quantize='nf4' with strategy=")
    assert str(refused.value).endswith(
        ": its engine computes with the weights themselves, and quantised ones are bytes. Use"
        " strategy='ddp' or 'fsdp'"
    )


def test_the_libraries_take_no_doubles():
    model = nn.Sequential(frozen(16, 16), nn.Linear(16, 2)).double()
    assert "0 (torchao's int8 takes no float64)" in refusal(model, quantize="int8")
    pytest.importorskip("bitsandbytes")
    for name in ("nf4", "int8"):
        told = refusal(model, quantize=name, quantize_library="bitsandbytes")
        assert "0 (bitsandbytes takes no float64)" in told


def test_by_its_name_only_it_does_nothing():
    model = nn.Sequential(frozen(16, 16), nn.Linear(16, 2))
    assert "quantised" not in once(model, quantize=None)
    assert type(model[0]) is nn.Linear
