"""Selection inside a loop that is not ours: what `sbpipe.select` gives back, and the run behind it.

The user's loop draws batches, weighs losses and steps its optimizer; this room pairs the losses with their
batches, tells the engine, and keeps the selectors running beside it. It must not know any framework.
"""
