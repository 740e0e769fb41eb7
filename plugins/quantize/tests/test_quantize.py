"""One rank, compared with the library's tensors in a plain loop."""

from __future__ import annotations

import copy
import importlib
import io
import pickle
import runpy
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torchbus import session
from torchbus.errors import UsageError

import torchbus_quantize
from torchbus_testing.state import assert_torch_unchanged, torch_state

LOOP = runpy.run_path(str(Path(__file__).parent / "scripts" / "adapted.py"))
make, train, values, bases = (LOOP[name] for name in ("make", "train", "values", "bases"))
by_hand, apart, trained = (LOOP[name] for name in ("by_hand", "apart", "trained"))
ROUNDING = 2e-6  # int8: the scale is multiplied before the sum here, and after it by torchao


@pytest.fixture(params=["torchao", pytest.param("bitsandbytes", marks=pytest.mark.slow)])
def library(request):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            importlib.import_module(request.param)
        except ImportError:
            pytest.skip(f"{request.param} is not installed")
    return request.param


def quantised(name="nf4", library="torchao", epochs=2, **options):
    with session(quantize=name, quantize_library=library, **options) as s:
        model, optimizer = make()
        train(model, optimizer, 6, epochs)
        return model, optimizer, " ".join(s.explain().split())


@pytest.mark.parametrize("name", ["nf4", "int8"])
def test_a_loop_ends_as_with_tensors_of_the_library(name, library):
    before = torch_state()
    model, _, told = quantised(name, library)
    assert_torch_unchanged(before)
    distance = apart(values(model), by_hand(name, library))
    assert distance == 0 if name == "nf4" and library == "torchao" else distance < ROUNDING
    assert f"Net: weights of 4 frozen layers in {name} by {library}: 6.14 kB are now" in told
    plain, optimizer = make()
    train(plain, optimizer, 6)
    assert apart(values(model), values(plain)) > 1e-3


@pytest.mark.parametrize("name", ["nf4", "int8"])
def test_weights_are_bytes_and_trained_ones_are_not(name, library):
    model, optimizer, _ = quantised(name, library)
    for path, parameter in model.named_parameters():
        is_base = path.endswith("base.weight")
        assert parameter.dtype == (torch.uint8 if is_base else torch.float32), path
        assert parameter.requires_grad == (".base." not in path)
    held = sum(layer.weight.nbytes for layer in bases(model).values())
    tables = 4 * 272 * 4 if (name, library) == ("nf4", "bitsandbytes") else 0  # of codes, in each
    assert held - tables < 4 * 16 * 24 * 4 / (4 if name == "nf4" else 2.5)
    assert all(one.is_floating_point() for one in optimizer.param_groups[0]["params"])


def test_backward_keeps_no_float_weight(library):
    kept = []
    model, _, _ = quantised("nf4", library, epochs=1)
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one) or one, id):
        model.blocks[0].up.base(torch.randn(2, 16, requires_grad=True))
    assert [one.dtype for one in kept] == [torch.uint8]


def test_a_layer_computes_with_the_values_that_dequantize_gives(library):
    model, _, _ = quantised("int8", library)
    x = torch.randn(5, 16)
    before = model(x)
    torchbus_quantize.layers.dequantize(model)
    assert torch.allclose(model(x), before, rtol=1e-6, atol=1e-6)
    layer = model.blocks[0].up.base
    assert type(layer) is nn.Linear and layer.weight.dtype == torch.float32
    assert not layer.weight.requires_grad and "quantized" not in vars(layer)
    original = make()[0].blocks[0].up.base.weight
    assert 0 < (layer.weight - original).abs().max() < original.abs().max() / 100


def test_copies_and_pickles_compute_alike(library):
    layer = quantised("nf4", library)[0].blocks[0].up.base
    x = torch.randn(5, 16)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), layer(x))
        assert other.weight is not layer.weight and repr(other) == repr(layer)


def test_a_state_dict_has_plain_tensors_and_restores_the_run(library):
    file = io.BytesIO()
    with session(quantize="nf4", quantize_library=library):
        model, optimizer = make()
        train(model, optimizer, 6, epochs=1)
        torch.save([model.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    saved, saved_optimizer = torch.load(file, weights_only=True)
    assert saved.keys() == make()[0].state_dict().keys()
    with session(quantize="nf4", quantize_library=library):
        model, optimizer = make()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        model.load_state_dict(saved)
        optimizer.load_state_dict(saved_optimizer)
        train(model, optimizer, 6, epochs=1)
    assert apart(values(model), values(quantised("nf4", library)[0])) == 0


def test_float_weights_that_are_loaded_later_are_quantised(library):
    start = make()[0].state_dict()
    with session(quantize="nf4", quantize_library=library):
        model, optimizer = make()
        with torch.no_grad():
            for layer in bases(model).values():
                layer.weight.zero_()
        model.load_state_dict(start)
        assert start["blocks.0.up.base.weight"].is_floating_point()
        train(model, optimizer, 6)
    assert apart(values(model), values(quantised("nf4", library)[0])) == 0


def test_bytes_of_another_form_are_refused(library):
    other, _, _ = quantised("int8", library, epochs=1)
    model, _, _ = quantised("nf4", library, epochs=1)
    with pytest.raises(UsageError) as refused:
        model.load_state_dict(other.state_dict())
    assert str(refused.value) == (
        "load_state_dict: blocks.0.up.base.weight was quantised differently from here, where it is"
        f" 'nf4' by {library}, of shape (24, 16) in float32: load it with the quantize= and"
        " quantize_library= with which it was saved"
    )


def test_autocast_and_float64(library):
    model, _, _ = quantised("nf4", library, epochs=1)
    layer, x = model.blocks[0].up.base, torch.randn(3, 16)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    assert layer(x.double()).dtype == torch.float64
    model.to(torch.bfloat16)
    assert layer(x.bfloat16()).dtype == torch.bfloat16 and layer.weight.dtype == torch.uint8


def test_gradients_go_through(library):
    model, _, _ = quantised("nf4", library, epochs=1)
    layer = model.blocks[0].up.base
    x = torch.randn(3, 16, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, x, fast_mode=True)
    assert torch.autograd.gradgradcheck(layer, x, fast_mode=True)
