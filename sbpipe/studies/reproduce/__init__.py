"""The paper's and the posters' experiments: what each claims, how it is measured here, whether it held.

One file per family of experiments, one line each in `registry`. A claim is a pure function from results to
findings; it must not know how the results came about. Nothing here is imported by a run.
"""
