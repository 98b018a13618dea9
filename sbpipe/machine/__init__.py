"""The machine underneath: cores, devices, how numbers lie in memory, and the doctor that looks at all of it.
Knows no run.
"""
