"""What a loss is a mean of, and so what the gradient of each rank and of each batch weighs.

Reads autograd graphs and multiplies gradients. How ranks tell each other is the strategy's business.
"""
