"""The experiments, one file per family: what each needs, and how it is judged. Must not start runs."""
