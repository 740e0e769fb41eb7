"""What a loss is a mean of, and so how much the gradient of each rank and batch weighs.

This folder reads autograd graphs and multiplies gradients. How ranks exchange numbers is the
strategy's business.
"""
