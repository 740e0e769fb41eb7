"""The state of a loop: its objects, variables, random generators and position; and the replay that
leads a later run's loop there.

The modules here read frames and listen to events. They write no file of a checkpoint.
"""
