"""The machine underneath: cores, devices, memory layout, and the doctor that looks at them. Knows no run."""
