"""What would hang, or would be silently wrong, under sharding: found and named.

Compares, refuses and reports. Changes no value.
"""
