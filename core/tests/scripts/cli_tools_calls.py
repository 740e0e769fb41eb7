import contextlib
import io
import json
import sys

from torchbus._cli import main

said = {}
for call in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        try:
            status = main(call.split())
        except SystemExit as end:
            status = end.code
    said[call] = [status, output.getvalue()]
print(json.dumps(said))
