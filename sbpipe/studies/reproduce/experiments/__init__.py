"""The experiments, one file per family: what each needs, and how results are judged. Must not make runs."""
