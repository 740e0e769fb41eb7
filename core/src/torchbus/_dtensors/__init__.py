"""DTensors: what strategies share that divide parameters over ranks.

The loop sees whole tensors and whole states; optimizers step on this rank's parts. Only
``torchbus.plugin.dtensors`` imports this folder.
"""
