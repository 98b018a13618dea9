"""What the trainer's fresh losses decide: ramp, guard, fresh weights, swing. Knows no lease and no model."""
