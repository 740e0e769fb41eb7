"""Models that are made on the meta device: values as in one process, whatever the number of ranks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from torchbus.testing import run_script

from .meta_script import HEAD

VALUES = HEAD + """
model = alone()
first, drawn_next = numbers(model), torch.rand(3)
trained = steps(model, torch.optim.Adam(model.parameters(), lr=0.1))
del model
for ranks in RANKS:
    with opened(ranks) as s:
        model, optimizer = made()
        model.eval()
        found[f"first {ranks}"] = [numbers(model).equal(first), torch.rand(3).equal(drawn_next)]
        held = {id(one) for group in optimizer.param_groups for one in group["params"]}
        found[f"held {ranks}"] = held == {id(one) for one in model.parameters()} and model.out.weight is model.embed.weight
        found[f"kept {ranks}"] = [one.to_local().untyped_storage().nbytes() / (one.numel() * 8) for one in model.parameters() if ranks > 1]
        trained_here = steps(model, optimizer, part(s))
        found[f"trained {ranks}"] = [apart(numbers, trained) for numbers in s.all_gather(trained_here)]
        with torch.device("meta"):
            pair = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        halves = [torch.optim.SGD(half, lr=0.1) for half in [list(one.parameters()) for one in pair]]
        held = [id(one) for half in halves for one in half.param_groups[0]["params"]]
        found[f"lists made before {ranks}"] = held == [id(one) for one in pair.parameters()]
"""


def facts(source: str, **replaced: Any) -> dict[str, Any]:
    head = "".join(f"{name} = {value!r}\n" for name, value in replaced.items())
    result = run_script(f"{head}{source}\nprint(json.dumps(found))\n", timeout_s=110)
    assert result.ok()
    return dict(json.loads(result.stdout.splitlines()[-1]))


@pytest.mark.parametrize("ranks", [[1, 2], pytest.param([3], marks=pytest.mark.slow)])
def test_the_values_are_those_of_one_process(ranks: list[int]):
    found = facts(VALUES, RANKS=ranks)
    for count in ranks:
        assert found[f"first {count}"] == [True, True] and found[f"held {count}"]
        assert found[f"lists made before {count}"]
        assert len(found[f"trained {count}"]) == count and max(found[f"trained {count}"]) < 1e-9
    if 2 in ranks:
        assert found["kept 2"] == pytest.approx([4 / 7, 3 / 5, 3 / 5, 3 / 5, 3 / 5, 1.0, 3 / 5, 3 / 5, 3 / 5, 3 / 5, 1.0, 3 / 5, 3 / 5])


NESTED = HEAD + """
class Nest(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.ones(3)), nn.Linear(3, 3)

    def reset_parameters(self):
        nn.init.uniform_(self.scale)
        self.inner.reset_parameters()

class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.nest, self.layer = Nest(), nn.TransformerEncoderLayer(6, 2, 8)

for ranks in (1, 2):
    with opened(ranks) as s:
        model, _ = made(Both)
        found[str(ranks)] = [*numbers(model).tolist(), float(torch.rand(1))]
"""


@pytest.mark.slow
def test_a_module_that_initialises_its_parts_too():
    """And torch's attention, whose method has another name: at any number of ranks alike, without a word from torch."""
    result = run_script(f"import warnings; warnings.simplefilter('error')\n{NESTED}\nprint(json.dumps(found))\n")
    assert result.ok()
    found = json.loads(result.stdout)
    assert found["1"] == found["2"] and not any(number != number for number in found["1"])


WAYS = HEAD + """
def one_module_at_a_time(module):
    whole = [name for name, one in model.named_parameters() if not (one.is_meta or isinstance(one, DTensor))]
    own = [name for name, one in module.named_parameters(recurse=False)]
    seen.append(len(whole) <= 1 + len(own) and len(own) > 0)
    for one in module.parameters(recurse=False):
        one.fill_(len(seen))

with opened(param_init_fn=one_module_at_a_time) as s:
    seen = []
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Sequential(nn.Linear(3, 3), nn.ReLU()) for _ in range(3)])
    torch.optim.SGD(model.parameters(), lr=0.1)
    found["at a time"] = s.all_gather_object([seen, [float(one[0]) for one in model.state_dict().values() if one.dim() == 1]])

model = alone()
expected, whole = numbers(model), {name: value.clone() for name, value in model.state_dict().items()}
trained = steps(model, torch.optim.Adam(model.parameters(), lr=0.1))
def leave_to_the_checkpoint(module):
    if isinstance(module, Rotary):
        module.reset_parameters()

for name, options in {"loaded": {}, "left and loaded": {"param_init_fn": leave_to_the_checkpoint}}.items():
    with opened(**options) as s:
        model, optimizer = made()
        model.eval()
        torch.manual_seed(5)
        found[f"{name} before"] = bool(model.state_dict()["embed.weight"].isnan().all())
        model.load_state_dict(whole)
        found[name] = [numbers(model).equal(expected), apart(steps(model, optimizer, part(s)), trained)]
model, optimizer = made()
model.eval()
with opened() as s:
    found["made before the block"] = [numbers(model).equal(expected), apart(steps(model, optimizer, part(s)), trained)]
found["after"] = [type(one) is nn.Parameter and not one.is_meta for one in model.parameters()]
"""


@pytest.fixture(scope="module")
def ways() -> dict[str, Any]:
    return facts(WAYS)


@pytest.mark.slow
def test_no_rank_has_more_than_one_module_whole(ways: dict[str, Any]):
    """By the function that is given: it gets each module that has something of its own, in order."""
    assert ways["at a time"] == [[[True] * 3, [1.0, 2.0, 3.0]]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("case", ["loaded", "left and loaded"])
def test_a_state_dict_may_be_loaded(ways: dict[str, Any], case: str):
    same, difference = ways[case]
    assert same and difference < 1e-9 and ways[f"{case} before"] is (case == "left and loaded")


@pytest.mark.slow
def test_an_optimizer_that_was_made_before_holds_the_parts(ways: dict[str, Any]):
    same, difference = ways["made before the block"]
    assert same and difference < 1e-9 and ways["after"] == [True] * len(ways["after"])
