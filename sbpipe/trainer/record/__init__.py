"""What a run writes down about itself. Reads; never steers."""
