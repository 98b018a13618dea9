"""Whatever is lost, doubled, late, killed or resumed: every candidate once, no example twice, sizes exact."""

from collections import Counter

import pytest
from support.schedules import Schedule, check, check_repeats

BLOCK = 40


@pytest.mark.parametrize("block", range(6))
def test_invariants_hold_in_random_schedules(block: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        done = Schedule(seed).run()
        check(done)
        check_repeats(done)
        happened += done.happened
    # A driver under which nothing goes wrong would prove nothing.
    assert min(happened[name] for name in ("refused", "trainer killed", "selector killed", "checkpoint")) > 5
