"""What must be the same on all ranks and would be silently wrong otherwise.

Compares and reports. Changes nothing.
"""
