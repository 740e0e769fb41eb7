"""The seams on ``torch.nn.Module``: its calls, its mode, and the forward of chosen models.

Each is removed as soon as nothing needs it.
"""
