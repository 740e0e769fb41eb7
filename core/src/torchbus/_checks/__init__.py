"""What must be the same on all ranks and would be silently wrong otherwise: hyperparameters and constants of losses.

Compares and names. How ranks tell each other is the strategy's business.
"""
