import dataclasses
import json
from collections import namedtuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

torch.set_default_dtype(torch.float64)
found = {}


def dp(**options):
    return session(
        **{"strategy": "dp", "devices": 2, "accelerator": "cpu", "launch": "fork", **options}
    )
