"""DTensors that the script's own code meets between divided layers.

This folder replaces functions of tensors until the session ends. It knows no model.
"""
