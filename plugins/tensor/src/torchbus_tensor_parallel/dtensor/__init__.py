"""DTensors between divided layers in the script's code.

This folder replaces functions of tensors until the session ends. It knows no model.
"""
