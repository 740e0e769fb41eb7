"""``torchbus checkpoint``: inspects checkpoints without the script that wrote them.

``show`` is in its module. ``export`` writes plain state dicts, which need no torchbus.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor
from torchbus.plugin import TorchbusError, UsageError

from torchbus_checkpoint.disk import choice
from torchbus_checkpoint.loop.contents import LoopContents
from torchbus_checkpoint.show import amount, check, checkpoints, reading, show, verify
from torchbus_checkpoint.state.plain import State, decode
from torchbus_cli.parser import Parser, complain
from torchbus_redaction.redactor import one_line

DESCRIPTION = """Look into checkpoints without the script that wrote them. No code is run from them.

  show     print the contents of one, or a table of all in a folder
  verify   read every file, and compare it with what was written
  export   write the state_dict of each model to a file that torch.load, or safetensors, reads

PATH is a checkpoint, or the folder given to session(checkpoint=...). Given a folder, export takes
the newest whole checkpoint in it.
"""
EXAMPLES = """  torchbus checkpoint show checkpoints
  torchbus checkpoint show checkpoints/step-00000120 --json
  torchbus checkpoint verify checkpoints
  torchbus checkpoint export checkpoints -o weights --format safetensors
"""


def main(argv: list[str]) -> int:
    """Show, verify and export checkpoints, without the script."""
    given = _parser().parse(argv)
    try:
        if given.action == "show":
            return show(given.path, given.json)
        if given.action == "verify":
            return verify(given.path)
        return export(given.path, given.output, given.format, given.optimizers)
    except TorchbusError as error:
        return complain("torchbus checkpoint", error)


def _parser() -> Parser:
    parser = Parser("checkpoint", DESCRIPTION, EXAMPLES)
    parser.add_argument("action", choices=["show", "verify", "export"])
    parser.add_argument("path", type=Path, metavar="PATH", help="a checkpoint, or a folder of them")
    parser.add_argument(
        "--json", action="store_true", help="show: print a JSON list of objects instead of a table"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("exported"),
        help="export: the folder to write to (default: exported)",
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default=FORMATS[0],
        help="export: the format of the weights (default: pt)",
    )
    parser.add_argument(
        "--optimizers",
        action="store_true",
        help="export: the state_dict of each optimizer as well, by torch.save",
    )
    return parser


FORMATS = ("pt", "safetensors")
NO_LOOP = LoopContents([], [], [], [], [], lambda parameter: parameter.shape)


def export(path: Path, output: Path, format: str, optimizers: bool) -> int:
    """Write a file for each model, and print the files' names and sizes."""
    checkpoint = _chosen(path)
    check(checkpoint)
    with reading(checkpoint):
        files = _files(checkpoint, format, optimizers)
    for name, content in files.items():
        num_bytes = _write(output, name, content)
        print(
            f"{one_line(str(output / name))}: {amount(num_bytes)}, from {one_line(str(checkpoint))}"
        )
    return 0


def _chosen(path: Path) -> Path:
    """Return the checkpoint at the path, or the newest whole checkpoint in the folder."""
    found = checkpoints(path)
    if found == [path]:
        return path
    with reading(path):
        latest = choice.latest(path)
    if latest is None:
        names = ", ".join(one_line(one.name) for one in found)
        raise UsageError(
            f"the script named the checkpoints in {path} itself: pass the path of one of {names}"
        )
    return latest


def _files(checkpoint: Path, format: str, optimizers: bool) -> dict[str, State]:
    """Return the content of each file to write, by its name, with sharded tensors assembled."""
    saved, states, read_parts = choice.loaded(checkpoint, NO_LOOP)
    read_parts()
    names = choice.names(saved) if "weights" in saved else saved["groups"][: len(states)]
    models = {_plain(name): decode(one) for name, one in zip(names, states, strict=True)}
    files = {f"{name}.{format}": one for name, one in models.items()}
    wanted = saved["optimizers"] if optimizers else []
    return files | {_of_optimizer(entry["name"]): decode(entry["state"]) for entry in wanted}


def _of_optimizer(name: str) -> str:
    return "optimizer.pt" if name == "optimizer" else f"optimizer-{_plain(name)}.pt"


def _plain(name: str) -> str:
    """Convert a name, which may look like a path, to a file name."""
    return re.sub(r"[^0-9A-Za-z_.#-]+", "_", name).strip("_.")


def _write(output: Path, name: str, content: State) -> int:
    """Write a new file, and return its size in bytes. Raises UsageError if it can't."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        with os.fdopen(os.open(output / name, flags, 0o666), "wb") as file:
            if name.endswith(".pt"):
                torch.save(content, file)
            else:
                file.write(save(_tensors(content), {"format": "pt"}))
            return file.tell()
    except FileExistsError as error:
        raise UsageError(
            f"{error.filename} exists already: remove it, or name another folder with --output"
        ) from None
    except OSError as error:
        raise UsageError(f"{output / name} can't be written: {error.strerror}") from None


def _tensors(state: State) -> dict[str, Tensor]:
    """Return only the tensors, as contiguous copies on the CPU.

    A tensor with two names is copied twice, as readers of safetensors expect.
    """
    return {
        key: value.detach().to("cpu", copy=True).contiguous()
        for key, value in state.items()
        if isinstance(value, Tensor)
    }
