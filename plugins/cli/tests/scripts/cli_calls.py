import contextlib
import io
import json
import sys

from torchbus_cli.main import main

said = []
for argv in json.load(sys.stdin):
    with (
        contextlib.redirect_stdout(io.StringIO()) as output,
        contextlib.redirect_stderr(io.StringIO()) as errors,
    ):
        try:
            status = main(argv)
        except SystemExit as end:
            status = end.code
    said.append([status, output.getvalue(), errors.getvalue()])
print(json.dumps(said))
