"""From the trainer's parameters to the selector's replica: layout, slots, transfer. Knows no socket."""
