"""The seams on optimizers, learning-rate schedulers and gradient clipping.

They fire events and apply the answers. What an answer means is the business of the plugin that gives it.
"""
