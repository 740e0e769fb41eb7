import runpy

import torch

saved = {}


def pack(tensor):
    storage = tensor.untyped_storage()
    saved[storage.data_ptr()] = (storage.nbytes(), tensor)
    return tensor


def stop(loss):
    own = {one.untyped_storage().data_ptr() for one in torch.optim.kept}
    print(sum(count for key, (count, _) in saved.items() if key not in own))
    raise SystemExit


make = torch.optim.Optimizer.add_param_group
torch.optim.kept = []


def add_param_group(self, group):
    make(self, group)
    torch.optim.kept += self.param_groups[-1]["params"]


torch.optim.Optimizer.add_param_group = add_param_group
torch.Tensor.backward = stop
with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
    runpy.run_path("train.py", run_name="__main__")
