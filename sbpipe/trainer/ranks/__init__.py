"""Several ranks that train one model on one stream of batches, each on its share; torchrun starts them.

Rank 0 owns the run: ledger, sockets, steering, files. It runs the ordinary loop and tells the others what to
do next (`word.py`). The others own nothing that must survive, and know no leases, selection or run
directories.
"""
