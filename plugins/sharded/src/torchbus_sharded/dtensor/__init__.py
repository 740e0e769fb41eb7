"""Sharded tensors that the script reads, writes, draws and copies as whole ones.

Installs functions on tensors for the length of the session, and knows no model.
"""
