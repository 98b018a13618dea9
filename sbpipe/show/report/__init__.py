"""Pages, pictures and traces of runs that are over or still going, made from their files. Never imports a
role or torch.
"""
