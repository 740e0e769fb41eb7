"""What a loop consists of, and where it is: its objects, variables, generators and steps.

The modules here read frames and listen to events. They write no file.
"""
