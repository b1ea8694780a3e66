"""Say everything that is wrong with a data folder, in one run.

    python scripts/validate.py DATA_DIR [--json]

Errors are what the loader refuses, found by the same code; warnings stop nothing. The report goes
to stdout, progress to stderr. Exit status: 0 without errors, 1 with errors, 2 for bad arguments.
With --json the report is one object, {"problems": [...], "summary": {...}}.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

import s2s_arena

GROUPS = ("category", "task", "level", "language")
KNOWN_ORDER = (*s2s_arena.CATEGORIES, *s2s_arena.TASKS, *s2s_arena.LEVELS)
Seconds = float


@dataclasses.dataclass
class Share:
    """What one value of a column has: entries that passed their checks, and the time they last."""

    entries: int = 0
    seconds: Seconds = 0.0

    @property
    def hours(self) -> float:
        """The time in hours, to the third of a second."""
        return round(self.seconds / 3600, 4)


class Summary:
    """Counts entries, and adds up the clips as they are decoded.

    Attributes:
        total: Of all entries.
        shares: (column, value) to what the value has.
    """

    def __init__(self, utterances: Iterable[s2s_arena.Utterance]) -> None:
        self.total = Share()
        self.shares: dict[tuple[str, str], Share] = collections.defaultdict(Share)
        # Few sets of values against many paths, so that 100,000 entries stay small.
        self._keys_by_path: dict[str, tuple[tuple[str, str], ...]] = {}
        known: dict[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]] = {}
        for utterance in utterances:
            keys = tuple((column, getattr(utterance, column)) for column in GROUPS)
            self._keys_by_path[utterance.input_path] = known.setdefault(keys, keys)
            for share in (self.total, *(self.shares[key] for key in keys)):
                share.entries += 1

    def add_clip(self, input_path: str, num_frames: int, sampling_rate: int) -> None:
        """Add the duration of a clip; sampling_rate is 0 Hz if it couldn't be decoded."""
        seconds = num_frames / sampling_rate if sampling_rate else 0.0
        keys = self._keys_by_path.get(input_path, ())
        for share in (self.total, *(self.shares[key] for key in keys)):
            share.seconds += seconds

    def select(self, column: str) -> Iterator[tuple[str, Share]]:
        """Return the values of a column in the benchmark's order, others after them by name."""
        rank = {value: number for number, value in enumerate(KNOWN_ORDER)}
        found = [(value, share) for (name, value), share in self.shares.items() if name == column]
        yield from sorted(found, key=lambda item: (rank.get(item[0], len(rank)), item[0]))


def to_json(problems: list[s2s_arena.Problem], summary: Summary) -> dict[str, Any]:
    """Return the report as one object."""
    counts = collections.Counter(problem.severity for problem in problems)
    return {
        "problems": [dataclasses.asdict(problem) for problem in problems],
        "summary": {
            "errors": counts["error"],
            "warnings": counts["warning"],
            "entries": summary.total.entries,
            "hours": summary.total.hours,
            **{
                column: {
                    value: {"entries": share.entries, "hours": share.hours}
                    for value, share in summary.select(column)
                }
                for column in GROUPS
            },
        },
    }


def to_lines(problems: list[s2s_arena.Problem], summary: Summary) -> Iterator[str]:
    """Return the report as text: errors, warnings, then the table."""
    for severity in ("error", "warning"):
        found = [problem for problem in problems if problem.severity == severity]
        yield f"{len(found)} {severity}{'' if len(found) == 1 else 's'}{':' if found else ''}"
        yield from (f"- {problem}" for problem in found)
        yield ""
    yield f"{'':<40}{'entries':>8}{'hours':>10}"
    for column in GROUPS:
        yield column
        for value, share in summary.select(column):
            yield f"  {value:<38}{share.entries:>8}{share.hours:>10.4f}"
    yield f"{'all':<40}{summary.total.entries:>8}{summary.total.hours:>10.4f}"


def validate(data_dir: Path, as_json: bool) -> int:
    """Check a folder and print the report; return the exit status."""
    summary = Summary(s2s_arena.read_utterances(data_dir))
    # A pipe or a file gets no bar.
    with tqdm(total=summary.total.entries, unit="clip", desc="Decoding", disable=None) as progress:

        def on_file(input_path: str, num_frames: int, sampling_rate: int) -> None:
            summary.add_clip(input_path, num_frames, sampling_rate)
            progress.update()

        problems = s2s_arena.find_problems(data_dir, num_proc=count_cores(), on_file=on_file)
    if as_json:
        print(json.dumps(to_json(problems, summary), indent=1))
    else:
        for line in to_lines(problems, summary):
            # A file's name need not be text; the console need not know every character.
            encoding = sys.stdout.encoding or "utf-8"
            print(line.encode(encoding, "backslashreplace").decode(encoding))
    return 1 if any(problem.severity == "error" for problem in problems) else 0


def count_cores() -> int:
    """Return how many cores this process may use, where the system says."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def main(argv: list[str]) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog="Exit status: 0 without errors, 1 with errors, 2 for bad arguments.",
    )
    parser.add_argument("data_dir", type=Path, metavar="DATA_DIR", help="folder with the metadata")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    data_dir = options.data_dir.expanduser()
    if not data_dir.is_dir():
        what = "not a folder" if data_dir.exists() else "no such folder"
        print(f"{data_dir}: {what}; expected the folder that holds metadata.json", file=sys.stderr)
        return 2
    try:
        return validate(data_dir, options.json)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `| head` has seen enough; nothing is left to flush at the exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"{error.filename or data_dir}: {error.strerror or error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
