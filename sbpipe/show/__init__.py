"""All that people look at, made from a run's files (README.md lists the folders). Must not know the roles."""
