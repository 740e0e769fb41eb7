"""``torchbus checkpoint``: look into checkpoints without the script that wrote them."""

from __future__ import annotations

from pathlib import Path

from torchbus.plugin import TorchbusError

from torchbus_checkpoint.command.export import FORMATS, export
from torchbus_checkpoint.command.show import show, verify
from torchbus_cli.parser import Parser, complain

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
