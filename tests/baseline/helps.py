"""Prints what each command of the command line says of itself."""

import contextlib
import sys

from torchbus_cli.main import main

for command in sys.argv[1:]:
    print(f"# {command}", flush=True)
    with contextlib.suppress(SystemExit):
        main([command, "--help"])
    print()
