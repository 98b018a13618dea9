"""The trainer's side: an engine that selects, a loop that trains, what a run records. Knows no selector."""
