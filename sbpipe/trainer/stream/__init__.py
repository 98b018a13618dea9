"""From the epoch order to the next train batch: ledger, leases, answers. No thread, no socket, no model."""
