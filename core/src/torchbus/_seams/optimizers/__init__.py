"""The seams on optimizers, learning-rate schedulers and gradient clipping.

They send events and apply the answers. What an answer means is up to the plugin that gives it.
"""
