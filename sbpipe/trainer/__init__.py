"""The trainer's room: losses, optimizers and rates, the loop that steps, and what it keeps. It must not know
the selector's loop.
"""
