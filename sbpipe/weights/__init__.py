"""From the trainer's parameters to the selector's replica: layout, slots, publishing, transfer. Knows no
socket and no policy.
"""
