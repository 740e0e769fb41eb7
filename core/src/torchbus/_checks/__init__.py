"""What must be the same on all ranks, and would be silently wrong otherwise.

These are hyperparameters and constants of losses. This folder compares and names; how ranks
exchange them is the strategy's business.
"""
