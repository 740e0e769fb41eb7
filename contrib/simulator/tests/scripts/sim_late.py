"""Late streams give wrong numbers if a wait is missing, and the CPU's numbers otherwise."""

import sys

import torch

import torchbus_simulator as accelerator

accelerator.load(devices=1, late=True)
waits_for_copy, waits_for_work, waits_for_read = (word == "yes" for word in sys.argv[1:])
copies = torch.sim.Stream()
source = torch.ones(4).pin_memory()
with torch.sim.stream(copies):
    there = source.to("sim", non_blocking=True)
if waits_for_copy:
    torch.sim.current_stream().wait_stream(copies)
double = there * 2
if not waits_for_copy:
    print(double.tolist())
    sys.exit()
if waits_for_work:
    copies.wait_stream(torch.sim.current_stream())
with torch.sim.stream(copies):
    back = double.to("cpu", non_blocking=True)
    done = torch.sim.Event()
    done.record()
if waits_for_read:
    done.synchronize()
print(back.tolist())
