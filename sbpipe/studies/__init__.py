"""A study: many runs by one plan, resumable. It starts runs as processes and reads what they left."""
