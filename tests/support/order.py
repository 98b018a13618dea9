"""The order of a suite that several workers share: everybody's slow tests come first.

In the order of files one worker would get most of them, and the others would idle while it comes to its end.
"""

from collections.abc import Sequence
from itertools import islice


def slow_first(files: Sequence[str], is_slow: Sequence[bool], num_workers: int) -> list[int]:
    """Positions of tests in the order in which to run them, given the file of each and whether it is slow.

    `--dist worksteal` deals contiguous parts of equal numbers, and who is done takes over what others have at
    their ends. So each part begins with slow tests and ends with quick ones. The slow tests of a file stay
    together: they may share what is expensive to make.
    """
    slow = dict[str, list[int]]()
    for position, file in enumerate(files):
        if is_slow[position]:
            slow.setdefault(file, []).append(position)
    shares = [list[int]() for _ in range(num_workers)]
    for positions in sorted(slow.values(), key=len, reverse=True):
        min(shares, key=len).extend(positions)
    quick = iter([position for position in range(len(files)) if not is_slow[position]])
    order = list[int]()
    for number, share in enumerate(shares):
        size = (len(files) - len(order)) // (num_workers - number)
        order += share
        order += list(islice(quick, max(0, size - len(share))))
    return order + list(quick)
