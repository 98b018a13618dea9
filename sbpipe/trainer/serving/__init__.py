"""The trainer's side of the wire: the roster, leases, and prepared batches. Knows no model."""
