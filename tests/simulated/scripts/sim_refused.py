"""What the session says of devices, backends and forks before anything starts."""

import torch
from torchbus import session
from torchbus.errors import TorchbusError

import torchbus_simulator as accelerator
from torchbus_device.devices import find_usable_devices

accelerator.load(devices=3)


def refused(**options):
    try:
        with session(**({"launch": "fork", "strategy": "ddp"} | options)):
            print("no error")
    except TorchbusError as error:
        print(str(error).replace("\n", " "))


def plan(devices, accelerator="auto"):
    with session(devices=devices, accelerator=accelerator, strategy=None) as s:
        print(s.device, end=" ")


refused(accelerator="tpu")
refused(accelerator="smi")
refused(accelerator="xpu")
refused(devices=[0, 3])
refused(devices=4)
refused(devices=2, backend="nccl")
refused(devices=2, backend="gloo")
refused(prefetch=2)
torch.ones(3, requires_grad=True).sum().backward()
refused(devices=2)
for devices, kind in ((1, "auto"), ([2], accelerator.NAME), ("1,", "gpu"), (1, "cpu"), (0, "auto")):
    plan(devices, kind)
print()
print(find_usable_devices())
x = torch.ones(3).to("sim")
refused(devices=2)
