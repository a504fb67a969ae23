"""The command line of generators of random trials: numbered cases, what went wrong, and how many there were."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    """A case, in what it went wrong, and what is known about it."""

    case: Any
    wrong: list[str]
    story: str


def table(outcomes: Sequence[Outcome], kind: str, kinds: Sequence[str]) -> str:
    """The number of cases by outcome, in a row for each kind that occurs; `kind` is an attribute of the cases."""
    columns = ["ok", *sorted({word for one in outcomes for word in one.wrong})]
    counts = Counter((getattr(one.case, kind), word) for one in outcomes for word in one.wrong or ["ok"])
    lines = [f"{kind:<24}" + "".join(f"{column:>24}" for column in columns)]
    for name in [name for name in kinds if any(name == found for found, _ in counts)]:
        lines.append(f"{name:<24}" + "".join(f"{counts[name, column]:>24}" for column in columns))
    return "\n".join(lines)


def main(
    arguments: Sequence[str] | None,
    name: str,
    draw: Callable[[int], Any],
    run: Callable[[Any], tuple[list[str], str]],
    kinds: Sequence[str],
    kind: str = "way",
    at_once: int = 1,
    more: Callable[[Sequence[Outcome]], str] = lambda outcomes: "",
) -> int:
    """Runs cases until all of them are done, the time is over, or Ctrl-C comes.

    Args:
        arguments: of the command line. name: of the module that it starts.
        draw: makes the case of a number. run: runs it; returns what was wrong, and what is known about it.
        kind, kinds: as in `table`. at_once: cases that run at the same time.
        more: what to add to the last line, which says how many cases there were.

    Returns:
        The exit code, the number of cases that went wrong (up to 99).
    """
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description="Runs random cases, which have numbers.")
    parser.add_argument("--count", type=int, default=200, help="number of cases")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no case begins later")
    parser.add_argument("--verbose", action="store_true", help="print what every case said")
    options = parser.parse_args(arguments)
    begin, outcomes = time.monotonic(), list[Outcome]()
    end, seeds = begin + options.seconds, iter(range(options.seed, options.seed + options.count))

    def work() -> None:
        for seed in seeds:
            if time.monotonic() > end:
                return
            case = draw(seed)
            try:
                wrong, story = run(case)
            except Exception as error:
                wrong, story = [type(error).__name__], str(error)
            outcomes.append(Outcome(case, wrong, story))
            if wrong or options.verbose:
                print(f"{case}\n    {', '.join(wrong) or 'ok'}: {story}\n", flush=True)

    with contextlib.suppress(KeyboardInterrupt):
        if at_once == 1:
            work()  # in the main thread, which alone gets signals
        else:
            with ThreadPoolExecutor(at_once) as pool:
                for worker in [pool.submit(work) for _ in range(at_once)]:
                    worker.result()
    failed = sum(bool(outcome.wrong) for outcome in outcomes)
    print(table(outcomes, kind, kinds))
    print(f"{len(outcomes)} cases in {time.monotonic() - begin:.0f} s, {failed} of them wrong{more(outcomes)}")
    return min(failed, 99)
