"""``precision="fp8"``: what is refused, and what it leaves behind."""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchbus import session
from torchbus.errors import Unsupported, UsageError

from torchbus_amp import float8
from torchbus_amp.plugin import Precision
from torchbus_testing.state import assert_torch_unchanged, torch_state

AO = pytest.importorskip("torchao", reason="torchao is not installed")
H100 = "Use precision='bf16-mixed'"


def emulated() -> Any:
    from torchao.float8 import Float8LinearConfig

    return Float8LinearConfig(emulate=True)


def test_a_cpu_is_refused_before_any_rank_starts() -> None:
    with (
        pytest.raises(UsageError) as refused,
        session(precision="fp8", devices=2, strategy="ddp", accelerator="cpu"),
    ):
        raise AssertionError("the loop must not run")
    assert str(refused.value) == (
        "precision='fp8' on cpu: it multiplies no float8. It needs a GPU of compute capability 8.9"
        f" or later, such as an H100. {H100}"
    )


@pytest.mark.parametrize(
    ("capability", "words"), [((8, 0), "8.0"), ({"version": "1"}, "another kind"), ((8, 9), "")]
)
def test_an_old_gpu_is_refused(
    capability: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = SimpleNamespace(get_device_capability=lambda device: capability)
    monkeypatch.setattr(float8.accelerators, "module", lambda kind: gpu)
    config, device = float8.read("tensorwise"), torch.device("cuda:1")
    float8.refuse_device_type("cuda", config)
    if not words:
        float8.refuse_device(device, config)
        return
    with pytest.raises(UsageError) as refused:
        float8.refuse_device(device, config)
    assert str(refused.value) == (
        f"precision='fp8' on cuda:1: its compute capability is {words}, and float8 needs 8.9 or"
        f" later, as an H100 has. {H100}"
    )


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ("", "torchao, which is not installed: pip install 'torchao>=0.18'"),
        ("0.9.0", "torchao 0.18 or later, and 0.9.0 is installed: pip install 'torchao>=0.18'"),
    ],
)
def test_torchao_is_missing(found: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if not found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(float8, "version", version)
    with pytest.raises(UsageError) as refused:
        Precision("fp8")
    assert str(refused.value) == f"precision='fp8' needs {words}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"precision": "fp8", "fp8_config": "rowise"},
            "fp8_config='rowise' is unknown: did you mean 'rowwise'? Use 'tensorwise', 'rowwise', ",
        ),
        (
            {"precision": "bf16-mixed", "fp8_skip": ("head",)},
            "fp8_config and fp8_skip with precision='bf16-mixed': they would do nothing. Pass",
        ),
        ({"precision": "fp8", "fp8_skip": "head"}, "fp8_skip='head' is a str: it must be names"),
        ({"fp8_skip": ("head",)}, "fp8_config and fp8_skip with precision='32-true': they would"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        Precision(**options)
    assert str(refused.value).startswith(message)


def test_weights_of_torchaos_own_type_are_refused() -> None:
    from torchao.float8 import Float8LinearConfig

    with pytest.raises(UsageError) as refused:
        Precision("fp8", fp8_config=Float8LinearConfig(enable_fsdp_float8_all_gather=True))
    assert str(refused.value) == (
        "fp8_config with enable_fsdp_float8_all_gather=True: weights would become tensors of"
        " torchao's own, which the optimizer doesn't have. Leave it out"
    )


def test_layers_that_ranks_share_are_refused() -> None:
    context: Any = SimpleNamespace(options={"strategy": "fsdp", "tp": 2})
    with pytest.raises(Unsupported) as refused:
        float8.refuse_tp(context)
    assert str(refused.value) == (
        f"precision='fp8' with tp: each rank would choose a different scale for its part of a layer. {H100}"
    )


def test_a_recipe_pads_partial_batches() -> None:
    assert float8.read("rowwise_with_gw_hp").pad_inner_dim
    assert float8.read("tensorwise").emulate is False


def test_torch_the_model_and_its_copies_are_as_before() -> None:
    before = torch_state()
    from torch._inductor.codegen.triton import TritonOverrides

    own = dict(vars(TritonOverrides))
    model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 16))
    names = list(model.state_dict())
    x = torch.randn(4, 16)
    plain = model(x)
    with session(precision="fp8", fp8_config=emulated()):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        assert not torch.equal(model(x), plain)
        model(input=x).sum().backward()
        optimizer.step()
        assert [type(one) for one in model] == [nn.Linear, nn.Linear]
        assert list(model.state_dict()) == names
    assert torch.equal(model(x), plain)
    assert dict(vars(TritonOverrides)) == own
    assert_torch_unchanged(before)


def test_a_compiled_model_is_one_graph() -> None:
    def trained(compiles: bool) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        with session(precision="fp8", fp8_config=emulated()):
            run = torch.compile(model, backend="aot_eager", fullgraph=True) if compiles else model
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                run(torch.randn(32, 16)).square().mean().backward()
                optimizer.step()
        return torch.cat([one.detach().flatten() for one in model.parameters()])

    assert torch.equal(trained(True), trained(False))
