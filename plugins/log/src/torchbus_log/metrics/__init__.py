"""From ``s.log`` to one number per name: kept on the device, reduced over steps and ranks.

There is one collective per log point. The modules here write no file.
"""
