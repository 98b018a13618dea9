"""`sbpipe bench stranger`: another user of the host attacks a run, whose rate is measured meanwhile.

    target.py    what is tried: folders, files, sockets, processes, addresses
    attempts.py  what another user tries on one host
    flood.py     what one without a key tries over TCP
    attacker.py  the process that tries, under another user id, by turns the run and the control
    decoy.py     the control: the same work, against something that is no run
    measure.py   runs, windows, rates, and the rows with their bars

Nothing in the product knows of it. It needs root, to become another user.
"""
