"""Options of fsdp, and states that are saved and loaded, each on ranks of its own against one
process.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.torch_version import TorchVersion
from torchbus import session
from torchbus.plugin import UsageError

from torchbus_testing.forking import fork_script
from torchbus_testing.scripts import Result, start

SCRIPTS = Path(__file__).parent / "scripts"

HEAD = (SCRIPTS / "options_head.py").read_text()
STATES = SCRIPTS / "options_states.py"


@pytest.fixture(scope="module")
def states() -> dict[str, Any]:
    return dict(fork_script(STATES, timeout_s=110).json())


def test_an_optimizers_state_dict_is_whole_and_may_be_loaded(states):
    assert states["whole"] and states["goes on"] < 1e-12 and states["loaded in parts"] == 0.5


def test_mixed_precision_computes_in_16_bits_and_keeps_parameters_whole(states):
    difference, computed_in, kept = states["bf16"]
    assert (
        1e-9 < difference < 5e-2
        and (computed_in, kept) == ("torch.bfloat16", "torch.float64")
        and states["alike"]
    )


def test_sums_are_added_over_ranks(states):
    assert states["sum"] < 1e-9 < states["the sum of means over two ranks is twice the mean"]


def test_the_loss_is_the_mean_of_all_ranks_in_its_own_precision(states):
    dtype, difference = states["loss"]
    assert dtype == "torch.float64" and abs(difference) < 1e-15


def test_a_model_made_with_its_optimizer_before_the_block_is_divided_wherever_it_is_kept(states):
    assert states["made before"] == "DTensor"


HYBRID = SCRIPTS / "options_hybrid.py"


SLOW = SCRIPTS / "options_slow_node.py"


def on_two_nodes(script: Path) -> list[Result]:
    """Two ranks on each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with contextlib.ExitStack() as stack:
        running = []
        for rank in range(4):
            place = {
                "RANK": rank,
                "WORLD_SIZE": 4,
                "LOCAL_RANK": rank % 2,
                "LOCAL_WORLD_SIZE": 2,
                "GROUP_RANK": rank // 2,
            }
            env = {
                **{name: str(value) for name, value in place.items()},
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "OMP_NUM_THREADS": "1",
            }
            running.append(stack.enter_context(start([sys.executable, str(script)], env=env)))
        results = [one.wait(110) for one in running]
    assert all(result.ok() for result in results)
    return results


@pytest.mark.slow
def test_a_node_that_gathers_late_is_waited_for():
    """The other has come to its end, and has no part in what this one gathers."""
    assert not any(result.json() for result in on_two_nodes(SLOW))


@pytest.mark.slow
def test_hybrid_divides_in_a_node_and_replicates_over_nodes():
    results = on_two_nodes(HYBRID)
    difference, alike, kept, placements = results[0].json()
    assert difference < 1e-9 and alike and kept == 0.5 and placements == ["Replicate", "Shard"]


REFUSED = {
    "cpu_offload": (
        "made()",
        ", cpu_offload=True",
        "cpu_offload=True needs GPUs: on CPU the parts are in host memory anyway",
    ),
    "functional_call": (
        "m, o = made(); torch.func.functional_call(m, {n: p.detach().full_tensor() for n, p in m.named_parameters()}, torch.ones(2, 6))",
        "",
        "functional_call of Net with other weights under strategy='fsdp'",
    ),
    "old dict": (
        "net = Net(); table = {p: 1 for p in net.parameters()}; torch.optim.SGD(net.parameters(), lr=0.1); [table[p] for p in net.parameters()]",
        "",
        "a dict has no entry for a parameter of a model that strategy='fsdp' has divided",
    ),
    "old list": (
        "m = Net(); old = list(m.parameters()); o = torch.optim.SGD(old, 0.1); nn.utils.clip_grad_norm_(old, 1.0)",
        "",
        "a list of parameters that was made before its model was divided",
    ),
    "one rank evaluates": (
        "m, o = made(); m(torch.ones(2, 6)) if s.rank else m.state_dict()",
        "",
        "rank 0 at the state_dict of Net, after 0 optimizer steps; rank 1 at the forward of Net, model 1 (training), after 0 optimizer steps",
    ),
    "other parts": (
        "m, o = made(); m.blocks[s.rank](torch.ones(2, 6))",
        "",
        "rank 0 at part blocks.0 of the forward of Net, model 1 (training), after 0 optimizer steps; rank 1 at part blocks.1",
    ),
    "weights outside forward": (
        "m, o = made(); m.out.weight.square().sum() + torch.ones(2)",
        "",
        "torch.ones(2)) mixes parts of parameters or gradients",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    body, options, words = REFUSED[case]
    result = fork_script(
        HEAD + f"with opened({options.removeprefix(', ')}) as s:\n    {body}\n", timeout_s=60
    )
    assert result.ok(1) and words in result.stderr


@pytest.mark.slow
def test_a_count_of_all_tensors_passes_over_what_is_empty():
    """The usual report of memory, which asks the garbage collector for every tensor."""
    body = """
        m = Net(); old = list(m.parameters()); o = torch.optim.SGD(m.parameters(), 0.1)
        print(sum(one.untyped_storage().nbytes() for one in old))
    """
    result = fork_script(HEAD + f"with opened() as s:{body}", timeout_s=60)
    assert result.ok() and result.stdout == "0\n"


@pytest.mark.parametrize(
    "options", [{"strategy": "fsdp"}, {"strategy": "ddp_sharded", "shard_gradients": True}]
)
def test_a_torch_whose_engine_is_not_exact_is_refused_on_several_ranks(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.10.1"))
    words = "strategy='fsdp' needs torch 2.11 or later on several ranks, and this is 2.10.1"
    with pytest.raises(UsageError, match=words), session(**options, devices=2):
        pass
