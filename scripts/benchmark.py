"""Measure the loader against what people use now, in one run on this machine.

    python scripts/benchmark.py [--json] [--only NAME ...] [--data-dir D]
        [--rounds N] [--smoke] [--chart FILE]

Ratios to peers that do the same work on the same files, with their spread; no absolute time is
promised. Above 1 is better than the peer. The report goes to stdout, progress to stderr; the
user's caches aren't touched. Peers that aren't installed are listed as not measured.

How it is timed: in every round each contestant does the whole work once, after a garbage
collection; warm-up rounds aren't counted. Contestants take turns, those that decode clips at every
clip, and the order rotates. Each round gives one ratio, so what slows the machine for a while slows
both sides of it. What depends on imports or
caches (first, growth, http, export) runs in processes of its own with fresh caches.

What is compared:
- decode: `for row in ds: row["audio"]["array"]`, integrity checks on, against a bare loop that
  reads each file, calls `soundfile.read(io.BytesIO(content), dtype="float32")` and, at 16 kHz,
  `soxr.resample`; and against other readers of the same files. Clips of 4 s and more, encoded by
  libsndfile; with --data-dir the clips of that folder, as they are. Datasets are loaded, and
  lhotse's recordings made, before the clock starts.
- stream: the same streamed; and a torch DataLoader with 2 workers, started before the clock,
  against one without.
- first: from `import datasets` to the first decoded example, with and without further imports.
- growth: loads of synthetic metadata that names a few files again and again. The memory is how
  far a load raises the process's peak.
- http: a stand-in for the Hub counts requests and bytes; then it takes 50 ms for each answer.
- export: the command, whole, against processes that load and call `Dataset.to_parquet`.

Exit status: 0 if all of ours ran, 1 if some failed, 2 for bad arguments, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import importlib
import importlib.metadata
import importlib.util
import io
import itertools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import datasets
import numpy as np
import pyarrow.parquet as pq
import soundfile
import soxr
from tqdm import tqdm

import s2s_arena

Seconds = float
Row = dict[str, Any]
_Result = TypeVar("_Result")

OURS, BARE, AUDIOFOLDER, STOCK = "s2s_arena", "soundfile", "audiofolder", "stock Audio"
KINDS = ("wav", "mp3", "flac")
RATES: dict[str, int | None] = {"native rate": None, "16 kHz": 16_000}
MIN_CLIP: Seconds = 4.0
LATENCY: Seconds = 0.05
PREFETCH = 16
NUM_WORKERS = 2
PROCESS_TIMEOUT: Seconds = 900.0
MORE_IS_BETTER = ("examples/s", "MB/s")

# Decoders differ in how much of an MP3's padding they keep: up to 2 % of a clip of 4 s.
MAX_LENGTH_DIFFERENCE = 0.05

# What a peer may raise when it can't do the work here; anything else is a fault of this script.
PEER_ERRORS = (ImportError, OSError, RuntimeError, datasets.exceptions.DatasetsError)


class ProcessError(RuntimeError):
    """A process failed; the message is the first line of its error."""


# --- Results: no files, no clocks ----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Spread:
    """Median, lowest and highest of the rounds."""

    median: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Aim:
    """What we want to reach: a bound of the ratio's median, or of our own value's."""

    value: float
    of: Literal["ratio", "ours"] = "ratio"
    is_upper: bool = False

    def __str__(self) -> str:
        bound = "at most" if self.is_upper else "at least"
        return f"{'' if self.of == 'ratio' else 'ours '}{bound} {self.value:g}"


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One line of the report.

    Attributes:
        section: Key of SECTIONS.
        what: Which work.
        unit: Of `ours` and `theirs`; less is better unless it is in MORE_IS_BETTER.
        ours: Of the loader.
        peer: What it is compared with; None if it stands alone.
        theirs: Of the peer.
        ratio: How many times better than the peer we are, by each round's own ratio; None without
            a peer, or where a value is 0.
        num_examples: That each contestant went through in a round.
        rounds: That were counted.
        aim: None where none was set.
    """

    section: str
    what: str
    unit: str
    ours: Spread
    peer: str | None
    theirs: Spread | None
    ratio: Spread | None
    num_examples: int
    rounds: int
    aim: Aim | None

    @property
    def is_met(self) -> bool | None:
        """Whether the aim is reached; None if that can't be said."""
        spread = self.ratio if self.aim and self.aim.of == "ratio" else self.ours
        if self.aim is None or spread is None:
            return None
        if self.aim.is_upper:
            return spread.median <= self.aim.value
        return spread.median >= self.aim.value


@dataclasses.dataclass(frozen=True)
class NotMeasured:
    """What the report has to leave out: which work, whose, and the first line of the reason."""

    section: str
    what: str
    who: str
    reason: str


Finding = Measurement | NotMeasured
Place = tuple[str, str]
"""Section and work."""


def to_spread(values: Sequence[float]) -> Spread:
    """Return median, lowest and highest."""
    return Spread(statistics.median(values), min(values), max(values))


def to_ratios(ours: Sequence[float], theirs: Sequence[float], unit: str) -> list[float]:
    """Return how many times better we were in each round; [] where a value is 0."""
    pairs = list(zip(ours, theirs, strict=True))
    if any(value <= 0 for pair in pairs for value in pair):
        return []
    return [our / their if unit in MORE_IS_BETTER else their / our for our, their in pairs]


def compare(
    place: Place,
    unit: str,
    num_examples: int,
    values: Mapping[str, Sequence[float]],
    aim: Aim | None = None,
) -> Iterator[Measurement]:
    """Compare our values, one a round, with those of each peer, or let them stand alone."""
    ours = values[OURS]
    peers: list[str | None] = [name for name in values if name != OURS]
    for peer in peers or [None]:
        theirs = values[peer] if peer else ()
        ratios = to_ratios(ours, theirs, unit) if peer else []
        yield Measurement(
            *place,
            unit=unit,
            ours=to_spread(ours),
            peer=peer,
            theirs=to_spread(theirs) if peer else None,
            ratio=to_spread(ratios) if ratios else None,
            num_examples=num_examples,
            rounds=len(ours),
            aim=aim,
        )


def explain(error: BaseException) -> str:
    """Return kind and first line of an error."""
    line = str(error).strip().partition("\n")[0]
    return line if isinstance(error, ProcessError) else f"{type(error).__name__}: {line}"


# --- Report --------------------------------------------------------------------------------------


def to_json(machine: Mapping[str, str], findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the report as one object."""
    missing = [finding for finding in findings if isinstance(finding, NotMeasured)]
    return {
        "machine": dict(machine),
        "measurements": [
            {**dataclasses.asdict(found), "is_met": found.is_met}
            for found in select_measurements(findings)
        ],
        "not_measured": [dataclasses.asdict(finding) for finding in missing],
    }


def select_measurements(findings: Iterable[Finding]) -> list[Measurement]:
    """Return the measurements, in order."""
    return [finding for finding in findings if isinstance(finding, Measurement)]


def to_lines(machine: Mapping[str, str], findings: Sequence[Finding]) -> Iterator[str]:
    """Return the report as text: the machine, a table for each section, what is missing."""
    yield from (f"{name}: {value}" for name, value in machine.items())
    yield "ratio: how many times better than the peer, median (lowest-highest) of the rounds"
    header = ("what", "peer", "unit", "ours", "peer's", "ratio", "rounds", "aim")
    for section, group in itertools.groupby(select_measurements(findings), lambda m: m.section):
        yield from ("", f"{section}: {SECTIONS[section].title}")
        yield from to_table([header, *map(to_cells, group)])
    yield ""
    yield from describe_missing(findings)


def to_cells(found: Measurement) -> tuple[str, ...]:
    """Return the texts of a line of the table."""
    ratio, aim = "-", "-"
    if found.ratio:
        median, low, high = map(format_number, dataclasses.astuple(found.ratio))
        ratio = f"{median} ({low}-{high})"
    if found.aim:
        answers = {True: "met", False: "missed", None: "not known"}
        aim = f"{found.aim}: {answers[found.is_met]}"
    theirs = format_number(found.theirs.median) if found.theirs else "-"
    ours = format_number(found.ours.median)
    return found.what, found.peer or "-", found.unit, ours, theirs, ratio, str(found.rounds), aim


def format_number(value: float) -> str:
    """Write three digits, or all that stand before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.{1 if value >= 10 else 2}f}"


def to_table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lay out rows in columns, the two of numbers (the fourth and fifth) to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if number in (3, 4) else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield f"  {'  '.join(cells)}".rstrip()


def describe_missing(findings: Iterable[Finding]) -> Iterator[str]:
    """List what is missing, works with the same reason in one line."""
    works: dict[tuple[str, str, str], list[str]] = {}
    for finding in findings:
        if isinstance(finding, NotMeasured):
            key = (finding.section, finding.who, finding.reason)
            works.setdefault(key, []).append(finding.what)
    yield "Not measured:" if works else "Everything was measured."
    for (section, who, reason), names in works.items():
        yield f"- {section}, {who} ({'; '.join(names)}): {reason}"


# --- The machine ---------------------------------------------------------------------------------

PACKAGES = (
    *("s2s_arena", "datasets", "numpy", "pyarrow", "soundfile", "soxr"),
    *("librosa", "torch", "torchcodec", "lhotse"),
)


def describe_machine() -> dict[str, str]:
    """Return what a reader must know to judge the numbers."""
    versions = {name: find_version(name) for name in PACKAGES}
    versions["soundfile"] += f" (libsndfile {soundfile.__libsndfile_version__})"
    return {
        "CPU": f"{find_cpu()}, {count_cores()} of {os.cpu_count()} cores",
        "Load at the start": f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "?",
        "System": platform.platform(),
        "Python": platform.python_version(),
        "Packages": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def find_version(package: str) -> str:
    """Return an installed version; ours is that of the module, which may be a checkout."""
    if package == OURS:
        return s2s_arena.__version__
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def find_cpu() -> str:
    """Return the processor's name."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    # model name      : AMD EPYC 7763 64-Core Processor
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def count_cores() -> int:
    """Return how many cores this process may use, where the system says."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# --- Running -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much work a run does.

    Attributes:
        clips: In each kind's folder.
        loader_examples: That go through a DataLoader.
        entries: Of synthetic metadata.
        rows: Of the embedded edition that are streamed and exported.
        copies: Of them that are exported.
        warm_ups: Rounds of processes that aren't counted.
    """

    clips: int
    loader_examples: int
    entries: tuple[int, ...]
    rows: int
    copies: int
    warm_ups: int


FULL = Sizes(48, 480, (154, 1_540, 15_400, 154_000), rows=154, copies=10, warm_ups=1)
SMOKE = Sizes(3, 16, (154,), rows=6, copies=1, warm_ups=0)


@dataclasses.dataclass(frozen=True)
class Run:
    """What the sections are given.

    Attributes:
        work_dir: For files and caches; gone afterwards.
        data_dir: The user's clips for decode and stream.
        rounds: That are counted.
        sizes: How much work.
    """

    work_dir: Path
    data_dir: Path | None
    rounds: int
    sizes: Sizes

    def make_dir(self, prefix: str) -> Path:
        """Return a new folder."""
        return Path(tempfile.mkdtemp(prefix=f"{prefix}-", dir=self.work_dir))


def race(
    place: Place,
    contestants: Mapping[str, Callable[[], _Result]],
    rounds: int,
    warm_ups: int = 1,
) -> tuple[dict[str, list[_Result]], list[NotMeasured]]:
    """Let every contestant work once in every round; a peer that fails is out.

    Returns:
        Results of the counted rounds by contestant, and who failed why.
    """
    names = list(contestants)
    results: dict[str, list[_Result]] = {name: [] for name in names}
    missing: list[NotMeasured] = []
    for number in range(-warm_ups, rounds):
        if number == 0:
            # What the contestants imported, librosa and torch above all, is out of the collector's
            # sight: looking through it would cost whoever is at work a fifth of a second.
            gc.collect()
            gc.freeze()
        first = number % len(names)
        for name in names[first:] + names[:first]:
            if name not in results:
                continue
            if number >= 0:
                gc.collect()
            try:
                result = contestants[name]()
            except PEER_ERRORS as error:
                if name == OURS:
                    raise
                missing.append(NotMeasured(*place, name, explain(error)))
                del results[name]
                continue
            if number >= 0:
                results[name].append(result)
    gc.unfreeze()
    return results, missing


# Does one job in a process of its own, so that imports and caches are as fresh as a user's. The
# peak is the kernel's for this program: ru_maxrss would begin with that of the process before it.
_JOB = r"""
import importlib, itertools, json, sys, time

def print_error(kind, error, trace):
    error = error.__cause__ or error  # datasets wraps what went wrong
    line = str(error).strip().partition("\n")[0]
    print(json.dumps({"error": f"{type(error).__name__}: {line}"}))

def read_peak():
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line[:6] == "VmHWM:")
    except (OSError, StopIteration):
        return 0

sys.excepthook = print_error
job = json.loads(sys.argv[1])
import datasets

datasets.disable_progress_bars()
times, dataset = [time.perf_counter()], []
for name in job["imports"]:
    importlib.import_module(name)
times.append(time.perf_counter())
peak = read_peak()
if job["load"]:
    dataset = datasets.load_dataset(**job["load"])
times.append(time.perf_counter())
num_frames = [len(row["audio"]["array"]) for row in itertools.islice(dataset, job["limit"])]
times.append(time.perf_counter())
peak = read_peak() - peak
num_examples = len(dataset) if job["limit"] == 0 else len(num_frames)
if job["embed"]:
    embed = datasets.table.embed_table_storage
    dataset = dataset.with_format("arrow").map(embed, batched=True, batch_size=100)
if job["parquet"]:
    dataset.to_parquet(job["parquet"])
imports, load, rows = (after - before for before, after in zip(times, times[1:]))
report = dict(imports=imports, load=load, rows=rows, peak=peak, num_examples=num_examples)
print(json.dumps(report))
"""


def run_job(
    home_dir: Path,
    imports: Sequence[str],
    load: Mapping[str, Any] | None = None,
    *,
    limit: int | None = 0,
    embed: bool = False,
    parquet: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """Import, load, decode and write in a process of its own.

    Args:
        home_dir: For the caches.
        imports: Modules.
        load: Arguments of load_dataset; None loads nothing.
        limit: Rows to decode; None is all.
        embed: Whether to put the recordings into the rows before they are written.
        parquet: File to write.
        environment: As for run_process.

    Returns:
        Seconds of `imports`, `load` and `rows`; `peak`, by how many bytes load and rows raised the
        memory's peak, 0 where the system doesn't say; `num_examples`, decoded or else loaded.
    """
    job = {
        "imports": imports,
        "load": load,
        "limit": limit,
        "embed": embed,
        "parquet": parquet and str(parquet),
    }
    out = run_process([sys.executable, "-c", _JOB, json.dumps(job)], home_dir, environment)
    report: dict[str, float] = json.loads(out.splitlines()[-1])
    return report


def run_process(
    command: Sequence[str], home_dir: Path, environment: Mapping[str, str] | None = None
) -> str:
    """Run a command with caches in `home_dir` and return what it printed.

    Args:
        command: With its arguments.
        home_dir: A folder of Run.make_dir.
        environment: Instead of ours with the caches changed.

    Raises:
        ProcessError: If it fails or takes too long.
    """
    variables = dict(environment or to_environment(home_dir))
    # The same module as here, wherever it was found.
    paths = (variables.get("PYTHONPATH"), str(Path(s2s_arena.__file__).parent))
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if sys.dont_write_bytecode:  # else every process would compile all that it imports
        variables["PYTHONPYCACHEPREFIX"] = str(home_dir.parent / "bytecode")
        variables["PYTHONDONTWRITEBYTECODE"] = ""
    text: dict[str, Any] = {"text": True, "encoding": "utf-8", "errors": "replace"}
    try:
        done = subprocess.run(
            command,
            cwd=home_dir,
            env=variables,
            capture_output=True,
            timeout=PROCESS_TIMEOUT,
            check=False,
            **text,
        )
    except subprocess.TimeoutExpired:
        raise ProcessError(f"took more than {PROCESS_TIMEOUT:g} s") from None
    if done.returncode == 0:
        return str(done.stdout)
    lines = [f"status {done.returncode}", *done.stderr.splitlines(), *done.stdout.splitlines()]
    last = [line for line in lines if line.strip()][-1]
    raise ProcessError(json.loads(last)["error"] if last.startswith('{"error"') else last)


def to_environment(home_dir: Path) -> dict[str, str]:
    """Return the variables of a process whose caches are its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return {**kept, "HF_HOME": str(home_dir / "hf_home"), "HF_UPDATE_DOWNLOAD_COUNTS": "0"}


# --- Data ----------------------------------------------------------------------------------------

COLUMNS = (
    *("id", "input_path", "text", "task", "task_description", "text_cn"),
    *("language", "category", "level", "noise"),
)


def read_rows(data_dir: str | Path) -> list[Row]:
    """Return the columns of all entries, and where each recording lies as `path`."""
    with tempfile.TemporaryDirectory() as cache_dir:  # a builder locks it
        builder = s2s_arena.S2SArena(cache_dir=cache_dir, data_dir=str(data_dir))
        stream = builder.as_streaming_dataset(s2s_arena.SPLIT)
        stream = stream.cast_column("audio", s2s_arena.Waveform(decode=False))
        return [{**row, "path": Path(row["audio"]["path"])} for row in stream]


def write_metadata(data_dir: Path, rows: Iterable[Row]) -> None:
    """Write the same entries for us (metadata.json) and for audiofolder (metadata.jsonl)."""
    with (
        open(data_dir / "metadata.json", "w", encoding="utf-8") as ours,
        open(data_dir / "metadata.jsonl", "w", encoding="utf-8") as theirs,
    ):
        for number, row in enumerate(rows):
            entry = {column: row[column] for column in COLUMNS if row[column] is not None}
            ours.write(f"{',' if number else '['}\n{json.dumps(entry)}")
            theirs.write(json.dumps({"file_name": row["input_path"], **entry}) + "\n")
        ours.write("\n]\n")


def write_edition(data_dir: Path, rows: Sequence[Row], copies: int = 1) -> int:
    """Copy recordings with their metadata, categories together; return the recordings' bytes."""
    copied = []
    num_bytes = 0
    for copy, row in itertools.product(range(copies), rows):
        input_path = f"copy_{copy}/{row['input_path']}"
        (data_dir / input_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(row["path"], data_dir / input_path)
        num_bytes += row["path"].stat().st_size
        copied.append({**row, "id": f"{row['id']}_{copy}", "input_path": input_path})
    write_metadata(data_dir, sorted(copied, key=lambda row: str(row["category"])))
    return num_bytes


def write_synthetic(data_dir: Path, rows: Sequence[Row], num_entries: int) -> None:
    """Write metadata of any length over 8 files of a tenth of a second."""
    names = [f"clip_{number}.wav" for number in range(8)]
    for name in names:
        soundfile.write(data_dir / name, np.zeros(2_400), 24_000, subtype="PCM_16")
    cycle = zip(range(num_entries), itertools.cycle(rows), itertools.cycle(names), strict=False)
    write_metadata(
        data_dir, ({**row, "id": f"id_{n}", "input_path": name} for n, row, name in cycle)
    )


@dataclasses.dataclass(frozen=True)
class Clips:
    """A folder of clips of one kind, with metadata for us and for audiofolder.

    Attributes:
        data_dir: The folder.
        paths: The clips in the metadata's order.
        shapes: Number of frames and sampling rate of each.
    """

    data_dir: Path
    paths: tuple[Path, ...]
    shapes: tuple[tuple[int, int], ...]

    def count_frames(self, sampling_rate: int | None) -> int:
        """Return how many frames all clips have at a rate; None is their own."""
        return round(sum(frames * (sampling_rate or own) / own for frames, own in self.shapes))


@functools.cache
def make_clips(run: Run, kind: str, copies: int = 1) -> Clips | None:
    """Write a folder of clips, each named by `copies` entries; None if the user has none."""
    rows = read_rows(run.data_dir or s2s_arena.embedded_dir())
    if run.data_dir:
        rows = [row for row in rows if row["path"].suffix.lower() == f".{kind}"]
    rows = [row for row in rows if soundfile.info(row["path"]).duration >= MIN_CLIP]
    rows = rows[:: max(1, len(rows) // run.sizes.clips)][: run.sizes.clips]
    if not rows:
        return None
    data_dir = run.make_dir(kind)
    paths = tuple(data_dir / f"clip_{number:03}.{kind}" for number in range(len(rows)))
    for row, path in zip(rows, paths, strict=True):
        if run.data_dir:
            shutil.copyfile(row["path"], path)
        else:
            encode(row["path"], path)
    clips = itertools.product(range(copies), zip(rows, paths, strict=True))
    write_metadata(
        data_dir,
        ({**row, "id": f"{path.stem}_{n}", "input_path": path.name} for n, (row, path) in clips),
    )
    decoded = (soundfile.read(path) for path in paths)
    return Clips(data_dir, paths, tuple((len(samples), rate) for samples, rate in decoded))


def encode(source: Path, path: Path) -> None:
    """Write a recording as the kind that the path names: 16 bits, or MP3 at a constant rate."""
    samples, sampling_rate = soundfile.read(source)
    if path.suffix == ".mp3":
        # 64 kbit/s at 24 kHz, from where on libsndfile writes the header with the clip's length
        options: dict[str, Any] = {"compression_level": 0.6, "bitrate_mode": "CONSTANT"}
    else:
        options = {"subtype": "PCM_16"}
    soundfile.write(path, samples, sampling_rate, **options)


# --- Who decodes ---------------------------------------------------------------------------------

Read = Callable[[], Iterable[Any]]
"""Starts anew and gives the waveform of every clip; the last axis is that of the frames."""

# From version 4 on the stock `Audio`, and so audiofolder, needs torchcodec.
STOCK_IMPORTS = (
    ("torchcodec.decoders",)
    if int(datasets.__version__.partition(".")[0]) >= 4
    else ("soundfile", "librosa.core.audio")
)
IMPORTS = {OURS: ("s2s_arena", "soundfile"), AUDIOFOLDER: STOCK_IMPORTS}
# datasets imports torch, where it is installed, when any stream starts.
STREAM_IMPORTS = ("torch.utils.data",) if importlib.util.find_spec("torch") else ()

# Arguments of load_dataset, and the feature to decode with.
DATASETS: dict[str, tuple[dict[str, str], type[Any]]] = {
    OURS: ({"path": "s2s_arena", "split": s2s_arena.SPLIT}, s2s_arena.Waveform),
    AUDIOFOLDER: ({"path": "audiofolder", "split": "train"}, datasets.Audio),
    STOCK: ({"path": "s2s_arena", "split": s2s_arena.SPLIT}, datasets.Audio),
}


def load_clips(run: Run, who: str, clips: Clips, sampling_rate: int | None, streaming: bool) -> Any:
    """Load a folder as one of DATASETS does, with a fresh cache."""
    arguments, feature = DATASETS[who]
    for module in STOCK_IMPORTS if who != OURS else ():
        importlib.import_module(module)
    dataset = datasets.load_dataset(
        **arguments,
        data_dir=str(clips.data_dir),
        cache_dir=str(run.make_dir("cache")),
        streaming=streaming,
    )
    return dataset.cast_column("audio", feature(sampling_rate=sampling_rate))


def to_read(load_dataset: Callable[[], Any]) -> Read:
    """Go through a dataset as users do; it is loaded at the first call, in the warm-up round."""
    load_once = functools.cache(load_dataset)
    return lambda: (row["audio"]["array"] for row in load_once())


def read_soundfile(paths: Iterable[Path], sampling_rate: int | None) -> Iterator[Any]:
    """Read the bytes, decode, resample, and nothing else."""
    for path in paths:
        with open(path, "rb") as file:
            content = file.read()
        samples, own_rate = soundfile.read(io.BytesIO(content), dtype="float32")
        if sampling_rate is not None:
            samples = soxr.resample(samples, own_rate, sampling_rate, quality="HQ")
        yield samples.T


def read_torchcodec(paths: Iterable[Path], sampling_rate: int | None) -> Iterator[Any]:
    """Read with a bare AudioDecoder."""
    decoders = importlib.import_module("torchcodec.decoders")
    for path in paths:
        yield decoders.AudioDecoder(path, sample_rate=sampling_rate).get_all_samples().data


def read_librosa(paths: Iterable[Path], sampling_rate: int | None) -> Iterator[Any]:
    """Read with librosa.load."""
    librosa = importlib.import_module("librosa")
    for path in paths:
        yield librosa.load(path, sr=sampling_rate)[0]


def read_lhotse(paths: Iterable[Path], sampling_rate: int | None) -> Iterator[Any]:
    """Read lhotse's recordings, which know their clips from before, as from a manifest."""
    lhotse = importlib.import_module("lhotse")
    try:
        for recording in make_recordings(tuple(paths), sampling_rate):
            yield recording.load_audio()
    except lhotse.audio.AudioLoadingError as error:  # an Exception and nothing more
        raise RuntimeError(str(error)) from error


@functools.cache
def make_recordings(paths: Sequence[Path], sampling_rate: int | None) -> list[Any]:
    """Return what lhotse notes of each clip."""
    lhotse = importlib.import_module("lhotse")
    recordings = [lhotse.Recording.from_file(path) for path in paths]
    if sampling_rate is None:
        return recordings
    return [recording.resample(sampling_rate) for recording in recordings]


READERS: dict[str, Callable[[Iterable[Path], int | None], Iterator[Any]]] = {
    BARE: read_soundfile,
    "torchcodec": read_torchcodec,
    "librosa": read_librosa,
    "lhotse": read_lhotse,
}
DECODE_AIMS = {
    (BARE, "wav"): Aim(0.8),
    (BARE, "mp3"): Aim(0.9),
    (BARE, "flac"): Aim(0.9),
    ("torchcodec", "wav"): Aim(10),
    ("torchcodec", "mp3"): Aim(1.3),
    ("torchcodec", "flac"): Aim(1.3),
}


def race_reads(
    place: Place, reads: Mapping[str, Read], num_clips: int, num_frames: int, rounds: int
) -> tuple[dict[str, list[Seconds]], list[NotMeasured]]:
    """Let all read the clips side by side, each clip in turn; a peer that fails is out.

    A machine that others use changes its speed within a second: so contestants take turns at every
    clip, in an order that rotates, and not only at every round.

    Returns:
        Seconds of each counted round by contestant, and who failed why.
    """
    times: dict[str, list[Seconds]] = {name: [] for name in reads}
    missing: list[NotMeasured] = []
    for number in range(-1, rounds):
        gc.collect()
        gc.freeze()  # what librosa, torch and others imported need not be looked through again
        readings = {name: Reading(reads[name]) for name in times}
        for clip in range(num_clips):
            names = list(readings)
            first = (clip + number) % len(names)
            for name in names[first:] + names[:first]:
                try:
                    readings[name].read_next()
                except PEER_ERRORS as error:
                    if name == OURS:
                        raise
                    missing.append(NotMeasured(*place, name, explain(error)))
                    del readings[name], times[name]
        gc.unfreeze()
        for name, reading in readings.items():
            reading.check(num_clips, num_frames)
            if number >= 0:
                times[name].append(reading.seconds)
    return times, missing


class Reading:
    """One contestant's way through the clips.

    Attributes:
        seconds: That it took so far.
    """

    def __init__(self, read: Read) -> None:
        self.seconds: Seconds = 0.0
        self._read = read
        self._waveforms: Iterator[Any] | None = None
        self._lengths: list[int] = []

    def read_next(self) -> None:
        """Read one clip; starting is part of the first.

        Raises:
            RuntimeError: If there is none.
        """
        start = time.perf_counter()
        self._waveforms = self._waveforms or iter(self._read())
        waveform = next(self._waveforms, None)
        self.seconds += time.perf_counter() - start
        if waveform is None:
            raise RuntimeError(f"gave {len(self._lengths)} examples and no more")
        self._lengths.append(waveform.shape[-1])

    def check(self, num_clips: int, num_frames: int) -> None:
        """Raise RuntimeError if what came out isn't all that should."""
        if self._waveforms and next(self._waveforms, None) is not None:
            raise RuntimeError(f"gave more than {num_clips} examples")
        if abs(sum(self._lengths) - num_frames) > MAX_LENGTH_DIFFERENCE * num_frames:
            raise RuntimeError(f"gave {sum(self._lengths)} frames, expected about {num_frames}")


# --- Sections ------------------------------------------------------------------------------------


def measure_decode(run: Run) -> Iterator[Finding]:
    """Decode loaded splits, and files."""
    yield from measure_reading(run, "decode", (*DATASETS, *READERS), streaming=False)


def measure_stream(run: Run) -> Iterator[Finding]:
    """Decode streams, then through a DataLoader."""
    yield from measure_reading(run, "stream", (OURS, AUDIOFOLDER, BARE), streaming=True)
    yield from measure_loaders(run)


def measure_reading(
    run: Run, section: str, names: Sequence[str], streaming: bool
) -> Iterator[Finding]:
    """Compare who decodes each kind of file, at each rate."""
    for kind, (rate_name, sampling_rate) in itertools.product(KINDS, RATES.items()):
        place = (section, f"{kind}, {rate_name}")
        clips = make_clips(run, kind)
        if clips is None:
            reason = f"no .{kind} clips of {MIN_CLIP:g} s and more in {run.data_dir}"
            yield NotMeasured(*place, OURS, reason)
            continue
        num_clips, num_frames = len(clips.paths), clips.count_frames(sampling_rate)
        reads: dict[str, Read] = {
            name: functools.partial(READERS[name], clips.paths, sampling_rate)
            if name in READERS
            else to_read(functools.partial(load_clips, run, name, clips, sampling_rate, streaming))
            for name in names
        }
        times, missing = race_reads(place, reads, num_clips, num_frames, run.rounds)
        yield from missing
        speeds = {name: [num_clips / seconds for seconds in found] for name, found in times.items()}
        for peer in [name for name in speeds if name != OURS]:
            pair = {name: speeds[name] for name in (OURS, peer)}
            # At 16 kHz resampling decides, which torchcodec does more coarsely than librosa.
            is_aimed_at = not streaming and (peer == BARE or sampling_rate is None)
            aim = DECODE_AIMS.get((peer, kind)) if is_aimed_at else None
            yield from compare(place, "examples/s", num_clips, pair, aim)


def measure_loaders(run: Run) -> Iterator[Finding]:
    """Compare a DataLoader that has workers with one that has none."""
    torch_data = None
    if importlib.util.find_spec("torch"):
        torch_data = importlib.import_module("torch.utils.data")
    options = {OURS: NUM_WORKERS, "one process": 0}
    for kind, streaming in itertools.product(KINDS, (False, True)):
        place = ("stream", f"{kind}, DataLoader, {'streamed' if streaming else 'loaded'}")
        if torch_data is None or count_cores() < NUM_WORKERS:
            reason = "needs 2 cores" if torch_data else "torch isn't installed"
            yield NotMeasured(*place, OURS, reason)
            continue
        clips = make_clips(run, kind, -(-run.sizes.loader_examples // run.sizes.clips))
        if clips is None:
            continue  # measure_reading has said so
        dataset = load_clips(run, OURS, clips, None, streaming)
        loaders = {
            name: torch_data.DataLoader(
                dataset,
                batch_size=8,
                collate_fn=to_tensors,
                num_workers=num_workers,
                persistent_workers=num_workers > 0,
            )
            for name, num_workers in options.items()
        }
        contestants = {name: functools.partial(count, loader) for name, loader in loaders.items()}
        results, _ = race(place, contestants, run.rounds)
        counts = {number for found in results.values() for number, _ in found}
        if len(counts) != 1:
            raise RuntimeError(f"{place[1]}: rounds gave {sorted(counts)} examples")
        speeds = {name: [number / seconds for number, seconds in results[name]] for name in results}
        # A WAV costs less to decode than to pass from one process to another.
        aim = None if kind == "wav" else Aim(1.7)
        yield from compare(place, "examples/s", counts.pop(), speeds, aim)


def to_tensors(rows: Sequence[Row]) -> list[Any]:
    """Make tensors of a batch's waveforms, which pass between processes in shared memory."""
    torch = importlib.import_module("torch")
    return [torch.from_numpy(row["audio"]["array"]) for row in rows]


def count(loader: Iterable[Sequence[Any]]) -> tuple[int, Seconds]:
    """Go through all batches; return how many examples came, and the time."""
    start = time.perf_counter()
    return sum(len(batch) for batch in loader), time.perf_counter() - start


def measure_first(run: Run) -> Iterator[Finding]:
    """Wait for the first example of 154; import the module."""
    data_dir = run.make_dir("edition")
    write_edition(data_dir, read_rows(s2s_arena.embedded_dir()))
    steps = {"cold load": False, "warm load": False, "stream": True}

    def take_steps(who: str) -> dict[str, dict[str, float]]:
        home_dir = run.make_dir("home")
        arguments = {**DATASETS[who][0], "data_dir": str(data_dir)}
        return {
            step: run_job(
                home_dir,
                (*IMPORTS[who], *(STREAM_IMPORTS if streaming else ())),
                {**arguments, "streaming": streaming},
                limit=1,
            )
            for step, streaming in steps.items()
        }

    contestants = {who: functools.partial(take_steps, who) for who in (OURS, AUDIOFOLDER)}
    place = ("first", "; ".join(steps))
    reports, missing = race(place, contestants, run.rounds, run.sizes.warm_ups)
    yield from missing
    for step, (suffix, parts, aim) in itertools.product(steps, FIRST_TIMES):
        values = {
            name: [1e3 * sum(report[step][part] for part in parts) for report in found]
            for name, found in reports.items()
        }
        yield from compare(("first", f"{step}{suffix}"), "ms", 1, values, aim)
    place = ("first", "import s2s_arena")
    imports = {OURS: lambda: run_job(run.make_dir("home"), ["s2s_arena"])["imports"] * 1e3}
    milliseconds, _ = race(place, imports, run.rounds, run.sizes.warm_ups)
    yield from compare(place, "ms", 0, milliseconds, Aim(20, of="ours", is_upper=True))


# The imports are part of what a user waits for, but torch's, which audiofolder needs, would hide
# the rest: so the aim is for the time without them.
FIRST_TIMES = (
    ("", ("load", "rows"), Aim(1)),
    (" with imports", ("imports", "load", "rows"), None),
)


def measure_growth(run: Run) -> Iterator[Finding]:
    """Load more and more entries."""
    rows = read_rows(s2s_arena.embedded_dir())
    costs: dict[int, list[float]] = {}
    for num_entries in run.sizes.entries:
        data_dir = run.make_dir("growth")
        write_synthetic(data_dir, rows, num_entries)
        place = ("growth", f"load of {num_entries:,}")
        contestants = {
            who: functools.partial(load_all, run, who, data_dir, num_entries)
            for who in (OURS, AUDIOFOLDER)
        }
        rounds = min(run.rounds, 3)  # the largest takes long
        reports, missing = race(place, contestants, rounds, run.sizes.warm_ups)
        yield from missing
        loads = {
            name: [report["load"] / num_entries * 1e6 for report in found]
            for name, found in reports.items()
        }
        yield from compare(place, "us/entry", num_entries, loads, Aim(1))
        costs[num_entries] = [statistics.median(loads[OURS])]
        place = ("growth", f"memory of {num_entries:,}")
        peaks = {name: [report["peak"] / 1e6 for report in reports[name]] for name in reports}
        if any(peaks[OURS]):
            yield from compare(place, "MB", num_entries, peaks)
        else:
            yield NotMeasured(*place, OURS, "the system has no /proc/self/status")
    for before, after in itertools.pairwise(costs):
        place = ("growth", f"linear to {after:,}")
        values = {OURS: costs[after], f"itself at {before:,}": costs[before]}
        yield from compare(place, "us/entry", after, values, Aim(0.9))


def load_all(run: Run, who: str, data_dir: Path, num_entries: int) -> dict[str, float]:
    """Load once with a fresh cache."""
    report = run_job(
        run.make_dir("home"), IMPORTS[who], {**DATASETS[who][0], "data_dir": str(data_dir)}
    )
    return check_count(report, num_entries)


def check_count(report: dict[str, float], num_examples: int) -> dict[str, float]:
    """Refuse a report of another number of examples."""
    if report["num_examples"] != num_examples:
        raise RuntimeError(f"gave {report['num_examples']} examples, expected {num_examples}")
    return report


def measure_http(run: Run) -> Iterator[Finding]:
    """Stream from the stand-in Hub: count, then compare prefetching with none."""
    tests_dir = Path(__file__).resolve().parents[1] / "tests"
    if not (tests_dir / "stand_in_hub.py").exists():
        reason = "needs a checkout: the stand-in Hub is tests/stand_in_hub.py"
        yield NotMeasured("http", "all", OURS, reason)
        return
    sys.path.insert(0, str(tests_dir))
    try:
        stand_in = importlib.import_module("stand_in_hub")
    finally:
        sys.path.remove(str(tests_dir))
    data_dir = run.make_dir("hub")
    write_edition(data_dir, read_rows(s2s_arena.embedded_dir())[: run.sizes.rows])
    paths = [path for path in data_dir.rglob("*") if path.is_file()]
    files = {path.relative_to(data_dir).as_posix(): path.read_bytes() for path in paths}
    with stand_in.StandInHub() as hub:
        hub.add_dataset(REPO_ID, files)

        def stream(who: str, **options: Any) -> dict[str, float]:
            home_dir = run.make_dir("home")
            arguments = {**DATASETS[who][0], **HUB_PLACES[who], "streaming": True, **options}
            environment = stand_in.client_environment(hub, home_dir)
            imports = (*IMPORTS[who], *STREAM_IMPORTS)
            report = run_job(home_dir, imports, arguments, limit=None, environment=environment)
            return check_count(report, run.sizes.rows)

        yield from measure_traffic(hub, stream, files)
        hub.reset()
        hub.inject(stand_in.Delay(LATENCY), kind="any", times=None)
        yield from measure_prefetch(run, stream)


REPO_ID = "benchmark/arena"
# datasets sees by itself that the repository is an audiofolder
HUB_PLACES = {OURS: {"data_dir": f"hf://datasets/{REPO_ID}"}, AUDIOFOLDER: {"path": REPO_ID}}
Stream = Callable[..., dict[str, float]]


def measure_traffic(hub: Any, stream: Stream, files: Mapping[str, bytes]) -> Iterator[Finding]:
    """Count requests and bytes; they are the same each time, so that one round does."""
    sizes = {path: len(content) for path, content in files.items() if "metadata." not in path}

    def count_traffic(who: str) -> tuple[float, float, float]:
        hub.reset()
        stream(who)
        audio = [request for request in hub.requests if request.path in sizes]
        num_bytes = sum(request.bytes_sent for request in audio)
        others = len(hub.requests) - len(audio)
        return len(audio) / len(sizes), num_bytes / sum(sizes.values()), others

    contestants = {who: functools.partial(count_traffic, who) for who in HUB_PLACES}
    traffic, missing = race(("http", "recordings"), contestants, rounds=1, warm_ups=0)
    yield from missing
    for number, (what, unit, aim) in enumerate(
        (
            ("recordings", "requests/example", Aim(2, of="ours", is_upper=True)),
            ("recordings", "bytes/file bytes", Aim(1.05, of="ours", is_upper=True)),
            ("listing, metadata", "requests", None),
        )
    ):
        values = {name: [found[0][number]] for name, found in traffic.items()}
        yield from compare(("http", what), unit, len(sizes), values, aim)


def measure_prefetch(run: Run, stream: Stream) -> Iterator[Finding]:
    """Compare a window of recordings fetched ahead with one after the other."""
    place = ("http", f"{run.sizes.rows} rows, {LATENCY * 1e3:g} ms an answer")
    if "prefetch" not in {field.name for field in dataclasses.fields(s2s_arena.S2SArenaConfig)}:
        yield NotMeasured(*place, f"prefetch={PREFETCH}", "the loader has no such option")
        return
    contestants = {
        name: functools.partial(stream, OURS, prefetch=prefetch)
        for name, prefetch in ((OURS, PREFETCH), ("prefetch=0", 0))
    }
    reports, missing = race(place, contestants, min(run.rounds, 3), warm_ups=0)
    yield from missing
    speeds = {
        name: [report["num_examples"] / report["rows"] for report in found]
        for name, found in reports.items()
    }
    yield from compare(place, "examples/s", run.sizes.rows, speeds, Aim(4))


def measure_export(run: Run) -> Iterator[Finding]:
    """Write Parquet with the recordings in it."""
    data_dir = run.make_dir("edition")
    rows = read_rows(s2s_arena.embedded_dir())[: run.sizes.rows]
    num_bytes = write_edition(data_dir, rows, run.sizes.copies)
    num_rows = len(rows) * run.sizes.copies
    script = str(Path(__file__).resolve().with_name("export_parquet.py"))

    def export(out: Path) -> None:
        options = ["--out", str(out / "export"), "--data-dir", str(data_dir)]
        run_process([sys.executable, script, *options], out)

    def write(who: str, embed: bool, out: Path) -> None:
        arguments = {**DATASETS[who][0], "data_dir": str(data_dir)}
        run_job(out, IMPORTS[who], arguments, embed=embed, parquet=out / "all.parquet")

    commands: dict[str, Callable[[Path], None]] = {
        OURS: export,
        "audiofolder, embedding, to_parquet": functools.partial(write, AUDIOFOLDER, True),
        "s2s_arena, to_parquet": functools.partial(write, OURS, False),
    }
    contestants = {
        name: functools.partial(time_export, run, command, num_rows, num_bytes)
        for name, command in commands.items()
    }
    place = ("export", f"{num_rows:,} recordings, {num_bytes / 1e6:.0f} MB")
    times, missing = race(place, contestants, min(run.rounds, 3), run.sizes.warm_ups)
    yield from missing
    speeds = {name: [num_bytes / 1e6 / t for t in found] for name, found in times.items()}
    yield from compare(place, "MB/s", num_rows, speeds)


def time_export(
    run: Run, command: Callable[[Path], None], num_rows: int, num_bytes: int
) -> Seconds:
    """Return how long a whole process took.

    Raises:
        RuntimeError: If the rows or the recordings aren't all in the files.
    """
    out = run.make_dir("out")
    start = time.perf_counter()
    command(out)
    seconds = time.perf_counter() - start
    paths = list(out.rglob("*.parquet"))
    written = sum(pq.ParquetFile(path).metadata.num_rows for path in paths)
    size = sum(path.stat().st_size for path in paths)
    shutil.rmtree(out)
    if written != num_rows or size < 0.9 * num_bytes:  # recordings hardly shrink
        raise RuntimeError(
            f"wrote {written} rows, {size} bytes; expected {num_rows} rows of {num_bytes} bytes"
        )
    return seconds


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the benchmark."""

    title: str
    measure: Callable[[Run], Iterator[Finding]]


SECTIONS = {
    "decode": Section("decoded examples per second, loaded split", measure_decode),
    "stream": Section("the same streamed, and through a torch DataLoader", measure_stream),
    "first": Section("time to the first example of 154, in a new process", measure_first),
    "growth": Section("loads without a cache, by number of entries", measure_growth),
    "http": Section("streaming from a stand-in for the Hub", measure_http),
    "export": Section("whole processes that write Parquet", measure_export),
}


def measure(run: Run, names: Sequence[str]) -> tuple[list[Finding], bool]:
    """Run sections; return what was found, and whether all of ours ran."""
    findings: list[Finding] = []
    is_complete = True
    with tqdm(names, unit="section", disable=None) as progress:  # a pipe or a file gets no bar
        for name in progress:
            progress.set_description(name)
            try:
                for finding in SECTIONS[name].measure(run):
                    findings.append(finding)
                    progress.set_postfix_str(finding.what)
            except (*PEER_ERRORS, s2s_arena.MetadataError, s2s_arena.AudioError) as error:
                # The minutes of the other sections aren't lost.
                findings.append(NotMeasured(name, "the rest of the section", OURS, explain(error)))
                is_complete = False
    return findings, is_complete


# --- Chart ---------------------------------------------------------------------------------------

# Told apart by people who don't see red and green.
COLORS = {"wav": "#0072b2", "mp3": "#d55e00", "flac": "#009e73"}
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "svg.hashsalt": "s2s_arena",
}


def write_chart(path: Path, machine: Mapping[str, str], findings: Sequence[Finding]) -> None:
    """Draw ratios of decoding and the cost of growth; the same numbers give the same file."""
    matplotlib = importlib.import_module("matplotlib")
    measurements = select_measurements(findings)
    with matplotlib.rc_context(STYLE):
        figure = importlib.import_module("matplotlib.figure").Figure(
            figsize=(11, 4), layout="constrained", facecolor="white"
        )
        axes = figure.subplots(1, 3, width_ratios=(3, 3, 2))
        axes[1].sharex(axes[0])
        for axis, rate_name in zip(axes, RATES, strict=False):
            draw_decode(axis, rate_name, measurements)
        axes[1].set_yticklabels([])
        if axes[0].patches:
            axes[0].legend(frameon=False)
        draw_growth(axes[2], measurements)
        packages = [name for name in machine["Packages"].split(", ") if "not installed" not in name]
        caption = f"{machine['CPU']}; Python {machine['Python']}; {', '.join(packages)}"
        figure.supxlabel(caption, fontsize=6, color="#555555")
        # matplotlib would write the date, or its version.
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(path, metadata=metadata, dpi=150)


def draw_decode(axis: Any, rate_name: str, measurements: Iterable[Measurement]) -> None:
    """Draw how many times as fast as each peer we decode, from a line at 1."""
    peers = [name for name in (*DATASETS, *READERS) if name not in (OURS, BARE)]
    peers = [*reversed(peers), BARE]
    found = {
        (m.what.partition(",")[0], m.peer): m.ratio
        for m in measurements
        if m.section == "decode" and m.what.endswith(f", {rate_name}") and m.ratio
    }
    for (number, kind), (row, peer) in itertools.product(enumerate(KINDS), enumerate(peers)):
        if ratio := found.get((kind, peer)):
            axis.barh(
                row + 0.26 * (1 - number),
                ratio.median - 1,
                left=1,
                height=0.24,
                color=COLORS[kind],
                xerr=[[ratio.median - ratio.low], [ratio.high - ratio.median]],
                error_kw={"elinewidth": 0.8, "ecolor": "#333333"},
                label=kind.upper() if peer == BARE else None,
            )
    axis.set_xscale("log")
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_yticks(range(len(peers)), peers)
    number_ticks(axis.xaxis)
    axis.grid(axis="x")
    axis.set_title(
        f"Decoding, {rate_name}: s2s_arena's speed\nas a multiple of the peer's", fontsize=9
    )


def draw_growth(axis: Any, measurements: Iterable[Measurement]) -> None:
    """Draw what an entry costs as the metadata grows."""
    loads = [m for m in measurements if m.section == "growth" and m.what.startswith("load of ")]
    ours = [(m.num_examples, m.ours.median) for m in loads]
    theirs = [(m.num_examples, m.theirs.median) for m in loads if m.theirs]
    for points, style, color, label in (
        (ours, "o-", "#0072b2", OURS),
        (theirs, "s--", "#777777", AUDIOFOLDER),
    ):
        if points:
            axis.plot(*zip(*points, strict=True), style, color=color, label=label)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks([x for x, _ in ours], [f"{x:,}" for x, _ in ours])
    axis.minorticks_off()
    number_ticks(axis.yaxis)
    axis.grid()
    axis.set_xlabel("entries")
    axis.set_title("Load without a cache,\nmicroseconds per entry", fontsize=9)
    if loads:
        axis.legend(frameon=False)


def number_ticks(axis: Any) -> None:
    """Write 0.5, 1, 2, 5, 10 on a logarithmic axis."""
    ticker = importlib.import_module("matplotlib.ticker")
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:,g}")
    axis.set_minor_locator(ticker.NullLocator())


# --- Command line --------------------------------------------------------------------------------


def to_rounds(text: str) -> int:
    """Read --rounds."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number of at least 1")
    return int(text)


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Read the command line; what can't be right ends with status 2."""
    parser = argparse.ArgumentParser(
        prog="benchmark.py",
        description=(__doc__ or "").partition("\n")[0],
        epilog="Exit status: 0 if all of ours ran, 1 if some failed, 2 for bad arguments.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--only",
        nargs="+",
        action="extend",
        choices=list(SECTIONS),
        metavar="NAME",
        help=f"sections to run; default: all. One or more of {', '.join(SECTIONS)}",
    )
    parser.add_argument(
        "--data-dir",
        type=lambda text: Path(text).expanduser(),
        metavar="D",
        help="data folder whose clips decode and stream take; default: the embedded edition's, "
        "encoded as WAV, MP3 and FLAC",
    )
    parser.add_argument("--rounds", type=to_rounds, default=5, metavar="N", help="default: 5")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: only shows that it runs")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="draw it too, .svg or .png")
    options = parser.parse_args(argv)
    if options.data_dir and not options.data_dir.is_dir():
        parser.error(f"--data-dir {options.data_dir}: no such folder")
    if options.chart and options.chart.suffix not in (".svg", ".png"):
        parser.error(f"--chart {options.chart}: expected a name that ends in .svg or .png")
    if options.chart and importlib.util.find_spec("matplotlib") is None:
        parser.error("--chart needs matplotlib: pip install matplotlib")
    return options


def main(argv: list[str]) -> int:
    """Run the command; return the exit status."""
    options = parse_arguments(argv)
    names = [name for name in SECTIONS if not options.only or name in options.only]
    machine = describe_machine()
    if options.smoke:
        machine["Sizes"] = "tiny (--smoke): the numbers say nothing"
    datasets.disable_progress_bars()
    try:
        with tempfile.TemporaryDirectory(prefix="s2s_arena_benchmark_") as work_dir:
            sizes = SMOKE if options.smoke else FULL
            run = Run(Path(work_dir), options.data_dir, options.rounds, sizes)
            findings, is_complete = measure(run, names)
        if options.chart:
            write_chart(options.chart, machine, findings)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"benchmark.py: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(to_json(machine, findings), indent=1))
    else:
        print("\n".join(to_lines(machine, findings)))
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
