"""The seams on ``torch.nn.Module``: its calls, its mode, and the forward of chosen models.

Each of them is removed once nothing needs it any more.
"""
