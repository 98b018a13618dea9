"""A study: many runs by one plan, one after another, resumable. It starts runs as processes and reads what
they left; knows no torch.
"""
