"""One check as a process: `python -m sbpipe.bench.accelerator.child NAME whole|quick`; its answer is JSON.

A process for each, because an error on a device can leave it unusable for the process that met it, and a
check that hangs can be ended.
"""

import json
import sys
import time
import warnings
from typing import Any

from sbpipe.bench.accelerator.check import QUICK, WHOLE, NotHere, Size, reason_of
from sbpipe.bench.accelerator.checks import measure_of

MEASURED, NOT_HERE, FAILED = "measured", "not here", "failed"
"""The outcomes of a check."""


def answer(name: str, size: Size) -> dict[str, Any]:
    """The facts of a check, or why there are none."""
    begin = time.perf_counter()
    outcome, reason, facts = MEASURED, "", []
    try:
        facts = [fact.to_dict() for fact in measure_of(name)(size)]
    except NotHere as error:
        outcome, reason = NOT_HERE, str(error)
    except Exception as error:  # noqa: BLE001 - the top of a process: whatever it was, it is the answer
        outcome, reason = FAILED, reason_of(error)
    return {
        "outcome": outcome,
        "reason": reason,
        "seconds": round(time.perf_counter() - begin, 3),
        "facts": facts,
    }


def main() -> None:
    """Measure and tell; whatever else prints goes to the other stream."""
    out, sys.stdout = sys.stdout, sys.stderr
    warnings.simplefilter("ignore")
    name, how = sys.argv[1:]
    out.write(json.dumps(answer(name, QUICK if how == "quick" else WHOLE)) + "\n")


if __name__ == "__main__":
    main()
