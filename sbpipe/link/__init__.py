"""The wire between trainer and selectors: messages, frames, sockets, keys, and the port of one process.
README.md has the protocol.

This room knows records, settings and errors. It must not know a model, a tensor, the trainer, the selector or
how one selects.
"""
