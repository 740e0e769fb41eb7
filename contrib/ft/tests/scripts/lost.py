"""Kills the lighthouse in mid-run. With ``--again`` another one starts at its address."""

import json
import os
import signal
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

from torchbus_ft.strategy import FT


def lighthouse(port: int) -> tuple[int, int]:
    """Start a lighthouse in a separate process, and return its pid and port."""
    out, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        from torchft.coordination import LighthouseServer

        server = LighthouseServer(bind=f"127.0.0.1:{port}", min_replicas=1, quorum_tick_ms=20)
        os.write(told, server.address().rsplit(":", 1)[1].encode())
        time.sleep(600)
    os.close(told)
    return pid, int(os.read(out, 10))


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


pid, port = lighthouse(0)
message, steps = "", 0
try:
    with session(FT(lighthouse=f"http://127.0.0.1:{port}", quorum_timeout_s=4.0), launch="fork"):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            for (inputs,) in DataLoader(TensorDataset(torch.randn(8, 4)), 2):
                if steps == 3:
                    end(pid)
                    pid = lighthouse(port)[0] if "--again" in sys.argv else 0
                optimizer.zero_grad()
                model(inputs).mean().backward()
                optimizer.step()
                steps += 1
                before = nn.utils.parameters_to_vector(model.parameters()).clone()
except Exception as error:
    message = f"{type(error).__name__}: {error}"
finally:
    if pid:
        end(pid)
same = torch.equal(before, nn.utils.parameters_to_vector(model.parameters()))
print(json.dumps({"message": message, "steps": steps, "same": same}))
