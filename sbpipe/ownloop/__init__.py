"""Selection inside a user's own loop: what `sbpipe.select` returns, and the run behind it.

The user's loop draws batches, weighs losses and steps its optimizer. This room pairs the losses with their
batches, tells the engine, and keeps the selectors running. It must not know any framework.
"""
