"""`sbpipe doctor`: what this machine has, what `run` would choose, and what to change. Changes nothing.

facts.py     the facts, as plain records
survey.py    finds it out: from the system (host.py, cgroups.py), from torch and our own rooms (choice.py)
advice.py    from facts to advice, pure
printout.py  facts and advice as a page or as JSON, pure
"""

import sys

from sbpipe.machine.doctor.advice import advise
from sbpipe.machine.doctor.printout import to_json, to_page
from sbpipe.machine.doctor.survey import look


def main(as_json: bool) -> int:
    """Print the page; 0 when `sbpipe run` would work here, 1 when something would stop it."""
    facts = look()
    advice = advise(facts)
    sys.stdout.write(to_json(facts, advice) if as_json else to_page(facts, advice))
    return 1 if any(item.is_stop for item in advice) else 0
