"""The trainer's side of the wire: who is there, what they are granted, what is prepared. Knows no model."""
