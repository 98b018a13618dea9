"""`sbpipe bench accelerator`: what only hardware can tell, measured and left in one file to send.

check.py    a fact, a check, how large it is measured
checks.py   the list of all checks
child.py    one check as a process of its own: a device that fails takes nothing else with it
report.py   all checks, the file, the page; nothing that tells who measured or where
stage.py    what the checks measure with: a model that was trained a little on the device, its data, a clock

The rest has one file per check. No check knows another, and none knows the file.
"""
