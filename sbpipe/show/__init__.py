"""What people look at, all of it from a run's files: README.md beside this says which folder shows what.

Must not know the roles.
"""
