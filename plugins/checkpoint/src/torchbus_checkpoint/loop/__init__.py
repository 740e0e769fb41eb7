"""The state of a loop: its objects, variables, random generators and position.

The modules here read frames and listen to events. They write no file.
"""
