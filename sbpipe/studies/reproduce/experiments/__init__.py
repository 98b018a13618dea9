"""The experiments, one file per family: which runs or measurements each needs, and a pure function from those
to findings. Nothing here knows how runs are made.
"""
