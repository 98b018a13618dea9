"""The paper's and the posters' experiments: what each claims, how it is measured here, and whether it held.

There is one file per family of experiments, and one line each in `registry`. A claim is a pure function from
results to findings; it must not know how the results were made. A run imports nothing from here.
"""
