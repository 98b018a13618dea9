"""Selective-Backprop on two devices at once."""

__version__ = "0.1.0"
