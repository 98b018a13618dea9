"""`sbpipe bench faults`: a real training under each fault, one row each.

    trial.py     one training in processes of its own, watched from outside
    subject.py   what is trained, with switches that make a process misbehave
    proxy.py     a link that can be cut, slowed and damaged
    fault.py     what a fault is
    processes.py, surroundings.py, links.py   how each is done
    cases.py     the list of them
    rows.py      from what was seen to a table with bars
    soak.py      `sbpipe bench soak`: one long training, killed and stopped at random
    lockstep.py  `sbpipe bench lockstep`: a kill changes no bit of the weights
    vitals.py    memory and descriptors of processes, compared at the same age

Faults come by signals, limits, files and proxies: nothing in the product knows of them.
"""
