"""Sharded tensors that the script reads, writes, draws and copies as whole ones.

This folder replaces functions of tensors until the session ends. It knows no model.
"""
