"""One file per policy: the rule from scores to keep probabilities."""
