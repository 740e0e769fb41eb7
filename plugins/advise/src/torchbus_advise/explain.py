"""``torchbus explain``: what a session does to a script, and the plain PyTorch that would do the
same."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from types import CodeType
from typing import Any, cast

from torchbus import Session
from torchbus.plugin import Context, TorchbusError, hookimpl

from torchbus_cli import programs as program
from torchbus_cli.parser import complain
from torchbus_cli.session_options import program_and_session, session_parser

USAGE = """torchbus explain [OPTION]... SCRIPT [ARG]...
       torchbus explain [OPTION]... -m MODULE [ARG]..."""
DESCRIPTION = """Say what a session does to a script, without training.

It runs up to its first backward. Options are those of `torchbus run`. A script that opens a session
is explained with that session.
Below s.explain() stands the plain PyTorch that would do the same: see docs/by-hand.md.
Exit status: 0; 1 if the script failed; 2 for a wrong call; 3 if it never calls backward.
"""
EXAMPLES = """  torchbus explain --devices 2 train.py --lr 0.1
  torchbus explain --strategy fsdp --devices 4 -o precision=bf16-mixed train.py
"""
NO_VERDICT = 3


def main(argv: list[str]) -> int:
    """Say what a session does to a script, and how to do it by hand."""
    explainer = Explainer()
    parser = session_parser("explain", DESCRIPTION, EXAMPLES, usage=USAGE)
    try:
        found, wanted = program_and_session(parser, argv, ranks_on_cpu=2)
        if has_local_session(found):
            wanted.close()
            say_unused(vars(parser.parse(argv)))
            run_in_its_local(found, explainer)
        else:
            wanted.add_plugin(explainer, NAME)
            found.run(found.start(wanted))
    except SyntaxError as error:
        sys.excepthook(SyntaxError, error.with_traceback(None), None)
        return 1
    except TorchbusError as error:
        return complain("torchbus explain", error)
    except SystemExit:
        if not explainer.has_explained:
            raise
    if explainer.has_explained:
        return 0
    print("torchbus explain: the script ended and never called backward", file=sys.stderr)
    return NO_VERDICT


def has_local_session(found: program.MainProgram) -> bool:
    """Whether the script imports ``session`` from torchbus."""
    return any({"torchbus", "session"} <= set(code.co_names) for code in _codes(found.code))


def say_unused(given: dict[str, Any]) -> None:
    """Say which options of the command have no effect, because the script has its own."""
    names = {*given, *dict(given.get("options", []))} - {"module", "options", "program"}
    if names:
        text = "the script opens a session itself, so these options of the command have no effect"
        print(f"torchbus explain: {text}: {', '.join(sorted(names))}", file=sys.stderr)


def run_in_its_local(found: program.MainProgram, explainer: Explainer) -> None:
    """Run a script that opens a session itself. Raises what the script raises."""

    class Explained(Session):
        def __init__(self, *plugins: object, **options: Any) -> None:
            super().__init__(*plugins, **options)
            self.add_plugin(explainer, NAME)

    class NoSession:
        def close(self, error: BaseException | None = None) -> None:
            """The script closes its session itself."""

    found.install()
    with program.sessions_replaced(Explained):
        found.run(NoSession())  # type: ignore[arg-type]


def _codes(code: CodeType) -> list[CodeType]:
    """Return the code of a script, and of all functions and classes in it."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return [code, *(found for one in inner for found in _codes(one))]


NAME = "advise.explainer"


class Explainer:
    """Explains on rank 0 at the first backward, and ends the script on every rank by SystemExit."""

    def __init__(self) -> None:
        self._session: Context | None = None
        self.has_explained = False

    @hookimpl
    def session_start(self, session: Context) -> None:
        self._session = session

    @hookimpl(tryfirst=True)
    def before_backward(self) -> None:
        assert self._session is not None
        if self._session.is_main:
            print(cast(Any, self._session.user).explain())
            names = [name for name, _ in self._session.bus.plugins()]
            print(parts(names, self._session.world_size))
        self.has_explained = True
        raise SystemExit


PAGE = "docs/by-hand.md"


@dataclass(frozen=True)
class PluginPart:
    """What a plugin does, how to do it by hand, and the section of the page about that."""

    plugin: str
    does: str
    by_hand: str
    anchor: str


PARTS = (
    PluginPart(
        "ddp",
        "starts ranks and averages gradients",
        "init_process_group, DistributedDataParallel",
        "processes-and-gradients",
    ),
    PluginPart(
        "ddp",
        "makes the loss that is printed the mean over ranks",
        "all_reduce of loss.detach()",
        "loss",
    ),
    PluginPart("sampler", "divides the data", "DistributedSampler, set_epoch", "data"),
    PluginPart("sampler", "keeps evaluation exact", "every rank sees all of it", "evaluation"),
    PluginPart("ddp", "prints and saves once", "if rank == 0, os.replace, barrier", "files"),
    PluginPart("accumulate", "accumulates gradients", "no_sync, loss / k", "accumulation"),
    PluginPart("amp", "computes in lower precision", "autocast, GradScaler", "precision"),
    PluginPart("clip", "clips gradients", "clip_grad_norm_", "clipping"),
    PluginPart(
        "activation",
        "computes activations again in backward",
        "torch.utils.checkpoint",
        "activation-checkpointing",
    ),
    PluginPart(
        "ddp_sharded", "shards optimizer states", "ZeroRedundancyOptimizer", "sharded-states"
    ),
    PluginPart("fsdp", "shards parameters, gradients and states", "fully_shard", "sharded-models"),
)
ALWAYS = ("processes-and-gradients", "loss", "files")
"""The anchors of what every strategy does for several ranks."""


def parts(plugins: Collection[str], ranks: int) -> str:
    """Return a table of the parts that the session replaces."""
    replaced = [one for one in PARTS if one.plugin in plugins]
    if ranks > 1:
        replaced = [one for one in PARTS if one in replaced or one.anchor in ALWAYS]
    else:
        replaced = [one for one in replaced if one.plugin not in ("ddp", "sampler")]
    if not replaced:
        return "by hand     nothing: on one rank this session does nothing to the loop"
    lines = [f"  {one.does}: {one.by_hand} (#{one.anchor})" for one in replaced]
    return "\n".join([f"by hand, in plain PyTorch ({PAGE}):", *lines])
