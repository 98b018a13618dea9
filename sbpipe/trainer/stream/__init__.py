"""From the epoch order to the next train batch: ledger, credit, assembler, versions, scores, fallback."""
