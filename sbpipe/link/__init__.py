"""The wire between trainer and selectors: messages, frames, sockets, keys; README.md has the protocol.

This room knows records, settings and errors. It must not know models, selection, trainer or selector.
"""
