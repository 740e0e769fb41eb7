"""What a loop is made of and where it stands: its objects, variables, generators, passes and steps.

Reads frames and listens to events. Writes no file.
"""
