"""From ``s.log`` to one number per name: kept on the device, reduced over steps and ranks.

One collective per log point. Writes no file.
"""
