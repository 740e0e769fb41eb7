"""Checkpoints whose checksums are right and whose content nobody has written: refused by name, or
gone on from.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session
from torchbus.errors import TorchbusError

from torchbus_checkpoint.disk import folder
from torchbus_checkpoint.errors import CheckpointError
from torchbus_checkpoint.loop import variables
from torchbus_checkpoint.state import checks
from torchbus_strategy import random_streams
from torchbus_strategy.random_streams import RandomStreams

ODD = [
    None,
    True,
    -1,
    7,
    0.5,
    "x",
    [],
    [1],
    (1, 2),
    {},
    {"a": 1},
    torch.ones(2),
    {"torchbus ndarray": 1, "torchbus dtype": 2},
]
GONE = object()
FILES = ("training", "rank-0", "model")


class Cut(Exception):
    pass


def train(folder: Path, cut_at: int = -1) -> None:
    with session("accumulate", checkpoint=folder, every_n_steps=5) as s:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(2, 2), torch.nn.Dropout(), torch.nn.BatchNorm1d(2)
        )
        optimizer = torch.optim.Adam(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        s.register("again", torch.nn.Linear(1, 1))
        loader = DataLoader(
            TensorDataset(torch.randn(8, 2)),
            batch_size=2,
            shuffle=True,
            generator=torch.Generator().manual_seed(3),
        )
        step = 0
        for _ in range(3):
            torch.rand(1)
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                step += 1
                if step == cut_at:
                    raise Cut
            scheduler.step()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forged") / "written"
    with pytest.raises(Cut):
        train(folder, cut_at=7)
    return folder


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of everything in it, but for what is the loop's own: its variables, and what optimizers and
    schedulers hold.
    """
    yield at
    if not (
        at[-1:] == ("state",)
        or at[-2:] == ("position", "variables")
        or at[:1] in (("registered",), ("plugins",))
    ):
        items = (
            value.items()
            if isinstance(value, dict)
            else enumerate(value[:3])
            if isinstance(value, list | tuple)
            else ()
        )
        for key, item in items:
            yield from places(item, (*at, key))


def changed(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return None if new is GONE else new
    if isinstance(value, tuple):
        return tuple(changed(list(value), at, new))
    if len(at) == 1 and new is GONE:
        del value[at[0]]
    else:
        value[at[0]] = changed(value[at[0]], at[1:], new)
    return value


def forge(checkpoint: Path, name: str, content: Any) -> None:
    """With a right checksum."""
    name += folder.SUFFIX
    (checkpoint / name).unlink()
    folder.write_file(checkpoint, name, content)
    data, manifest = (
        (checkpoint / name).read_bytes(),
        json.loads((checkpoint / "manifest.json").read_text()),
    )
    manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    del manifest["sha256"]
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (checkpoint / "manifest.json").write_text(json.dumps({**manifest, "sha256": digest}))


def resumed(written: Path, name: str, at: tuple[Any, ...], new: Any) -> str:
    """What is said of a checkpoint in which one thing is another; "" where the run goes on."""
    place = written.with_name("forged")
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(written, place)
    content = folder.read_file(place / "step-00000005", name)
    forge(place / "step-00000005", name, changed(copy.deepcopy(content), at, new))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            train(place)
        except TorchbusError as error:
            return f"{type(error).__name__}: {error}"
    return ""


def every_place(written: Path) -> list[tuple[str, tuple[Any, ...]]]:
    return [
        (name, at)
        for name in FILES
        for at in places(folder.read_file(written / "step-00000005", name))
    ]


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_whatever_a_file_holds(written: Path, data: st.DataObject) -> None:
    """No error but torchbus's own, which is no plugin's failure."""
    name, at = data.draw(st.sampled_from(every_place(written)), "place")
    said = resumed(written, name, at, data.draw(st.sampled_from([*ODD, GONE]), "in its place"))
    assert not said.startswith("PluginError"), said


@pytest.mark.parametrize(
    ("name", "at", "new", "words"),
    [
        ("training", (), [1], "it is a list, not a dict"),
        ("training", ("trained",), GONE, "it has no 'trained'"),
        (
            "training",
            ("optimizers", 0, "gradients"),
            3,
            r"\['optimizers'\]\[0\]\['gradients'\] is an int, not a list",
        ),
        ("rank-0", (), GONE, "it is a NoneType, not a dict"),
        ("rank-0", ("steps",), True, r"\['steps'\] is a bool, not an int"),
        (
            "rank-0",
            ("position", "random", "streams", "order", "torch"),
            torch.ones(2),
            r"\['position'\]\['random'\]: ",
        ),
        (
            "rank-0",
            ("position", "random", "streams", "order", "numpy", 2),
            1 << 30,  # NumPy would read memory there
            r"\['position'\]\['random'\]: ValueError: a generator at the place \[1073741824\]",
        ),
        ("model", (), {1: 2}, "a key in it is an int, not a str"),
    ],
)
def test_it_is_refused_by_name(
    written: Path, name: str, at: tuple[Any, ...], new: Any, words: str
) -> None:
    said = resumed(written, name, at, new)
    assert re.search(
        f"CheckpointError: checkpoint .*step-00000005: torchbus did not write this {name} file: {words}",
        said,
    ), said


def test_a_weight_of_a_dtype_that_torch_can_not_copy(written: Path) -> None:
    content = folder.read_file(folder.found(written)[-1], "model")
    key, weight = next((key, one) for key, one in content.items() if one.dtype == torch.float32)
    odd = torch.zeros(weight.shape, dtype=torch.uint8).view(torch.uint1)
    said = resumed(written, "model", (key,), odd)
    assert f"torch can't copy {key}, which has the dtype torch.uint1, to " in said, said


def test_an_optimizer_that_does_not_take_its_state(written: Path) -> None:
    groups = ("optimizers", 0, "state", "param_groups")
    said = resumed(written, "training", groups, [{"params": [0, 1, 2, 3]}, {"params": []}])
    assert re.search(
        "CheckpointError: checkpoint .*step-00000005: optimizer .Adam. rejects its state in the"
        " checkpoint .ValueError: ",
        said,
    ), said


@pytest.mark.parametrize(
    ("at", "new", "words"),
    [
        ((), {}, "torchbus did not write this training file: KeyError: 'param_groups'"),
        (
            ("state", 0, "exp_avg"),
            torch.ones(2),
            "optimizer .Adam. has 'exp_avg' of parameter 0 in another form",
        ),
        (("state", 1, "exp_avg_sq"), "x", ".* has 'exp_avg_sq' of parameter 1 in another form"),
        (("state", 1, "exp_avg"), torch.zeros(2).to_sparse(), ".* has 'exp_avg' of parameter 1 in"),
    ],
)
def test_a_state_that_no_step_has_left(
    written: Path, at: tuple[Any, ...], new: Any, words: str
) -> None:
    """It is refused before anything is loaded, and not by a later step."""
    said = resumed(written, "training", ("optimizers", 0, "state", *at), new)
    assert re.search(f"CheckpointError: checkpoint .*step-00000005: {words}", said), said


SHAPES = ((2, 3), (3,), ())
OF_TORCH = [
    ("Adadelta", {}),
    ("Adagrad", {}),
    ("Adam", {"amsgrad": True}),
    ("Adamax", {}),
    ("ASGD", {}),
    ("LBFGS", {}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("Rprop", {}),
    ("SGD", {"momentum": 0.9}),
    ("SGD", {}),
]


def saved_by(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    held = [one for group in optimizer.param_groups for one in group["params"]]
    for one in held:
        one.grad = torch.ones_like(one)
    optimizer.step(lambda: torch.zeros(()))
    shapes = [[list(one.shape) for one in held]]
    state = optimizer.state_dict()
    return {"name": "optimizer", "class": "", "state": state, "shapes": shapes}


@pytest.mark.parametrize(("cls", "options"), OF_TORCH)
def test_what_the_classes_of_torch_keep_is_taken(cls: str, options: dict[str, Any]) -> None:
    held = [torch.zeros(shape, requires_grad=True) for shape in SHAPES]
    checks._check_states(saved_by(vars(torch.optim)[cls](held, **options)), "it")


def test_what_a_script_has_given_another_form_is_not_judged() -> None:
    optimizer = torch.optim.Adam([torch.zeros(2, requires_grad=True)])
    assert checks._is_of_torch(optimizer)
    optimizer.register_load_state_dict_pre_hook(lambda *_: None)
    assert not checks._is_of_torch(optimizer)


def test_a_generator_that_does_not_take_its_state(written: Path) -> None:
    at = ("position", "loaders", 0, 1, "loader.generator")
    said = resumed(written, "rank-0", at, "x")
    assert "CheckpointError: a Generator rejects its state in the checkpoint (TypeError: " in said


def test_an_evaluation_that_ends_behind_the_last_number() -> None:
    """NumPy would read memory there, once the loop trains again."""
    streams, drawn = RandomStreams(), random_streams.read()
    drawn["numpy"] = (*numpy.random.get_state()[:2], 1 << 30, 0, 0.0)
    streams.load(streams.state() | {"evaluated": {"from": random_streams.read(), "to": drawn}})
    assert streams.state()["evaluated"] == {}


def test_names_that_are_not_the_users_stay(written: Path) -> None:
    """A module's ``__path__`` says from where its parts are imported."""
    new = {f"module {__name__}": {"__path__": ["elsewhere"], "marked": 3}}
    assert resumed(written, "rank-0", ("position", "variables"), new) == ""
    assert globals().pop("marked") == 3 and "__path__" not in globals()


PARTS = ["of the module", Cut]
WEIGHT = torch.nn.Parameter(torch.ones(2))
LIMIT = 3
NAMES = ["train", "torch", "Cut", "GONE", "PARTS", "WEIGHT", "LIMIT"]


def only_the_number_is_another(before: list[Any], number: object) -> None:
    assert globals()["LIMIT"] == number and len(PARTS) == 2
    globals()["LIMIT"] = 3
    assert all(globals()[name] is one for name, one in zip(NAMES, before, strict=True))


def test_only_data_gets_other_values(written: Path) -> None:
    """Modules, functions, classes, objects, lists with some, and parameters stay."""
    before = [globals()[name] for name in NAMES]
    new = {f"module {__name__}": {key: [5] for key in NAMES}}
    assert resumed(written, "rank-0", ("position", "variables"), new) == ""
    only_the_number_is_another(before, [5])


def test_only_data_gets_other_numbers() -> None:
    before = [globals()[name] for name in NAMES]
    variables.count([sys._getframe()], {f"module {__name__}": dict.fromkeys(NAMES, 5)})
    only_the_number_is_another(before, 5)


def test_as_it_was_written_it_is_gone_on_from(written: Path) -> None:
    assert (
        resumed(written, "rank-0", ("epochs",), 1) == ""
        and CheckpointError.__mro__[1] is not Exception
    )
