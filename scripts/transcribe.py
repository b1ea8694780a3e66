"""Transcribe the recordings with a speech recognition model, one line of JSON per row.

    python scripts/transcribe.py --model M --out FILE.jsonl [--config NAME] [--data-dir D]
        [--batch-size N] [--engine ray [--num-actors N]]

M is a Whisper or CTC model: a folder, or an id on the Hub. A line has `id`, `input_path`, `text`
(what was to be said), `transcript` and `model`, and lines keep the order of the rows. Decoding is
greedy; a recording longer than what the model hears at once is heard to its end.

Stopped in whatever way, the same command goes on after the last whole batch. It opens no recording
of the batches before, and ends with the file that an unbroken run writes.

With --engine ray, actors of one thread each share the batches, and the file is the same (as far as
processors of different kinds compute the same):
    pip install "s2s-arena[ray]"     # on every machine; M must be found on each, the data on this
    ray start --head                 # here; it prints the command for the other machines
    python scripts/transcribe.py --engine ray --num-actors 16 ...
RAY_ADDRESS names a cluster that wasn't started here; with no cluster at all, this machine is one.

Exit status: 0 if FILE is complete, 1 if the data, the model or FILE is in the way, 2 for arguments
that can't be right, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from tqdm import tqdm

import s2s_arena

ROW_COLUMNS = ("id", "input_path", "text")

# Engine to the extra that brings what it needs, and the modules that tell whether it is there.
NEEDS = {
    "local": ("trainer", ("torch", "transformers")),
    "ray": ("ray", ("torch", "transformers", "ray")),
}

Row = Mapping[str, Any]
Transcribed = Iterator[list[tuple[Row, str]]]  # batch by batch


class TranscribeError(Exception):
    """The job can't be done, or can't go on; the message says why."""


@dataclass(frozen=True)
class Job:
    """What the command line asks for; see its help."""

    model: str
    out: Path
    config: str
    data_dir: str | None
    batch_size: int
    engine: str
    num_actors: int


# --- The file ------------------------------------------------------------------------------------


def to_line(row: Row, transcript: str, model: str) -> str:
    """Write a row and its transcript as JSON."""
    fields = {name: row[name] for name in ROW_COLUMNS}
    return json.dumps({**fields, "transcript": transcript, "model": model}, ensure_ascii=False)


def parse_line(line: bytes) -> dict[str, Any]:
    """Read a line; one that isn't ours has no fields."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def find_difference(lines: Sequence[bytes], rows: Sequence[Row], model: str) -> str | None:
    """Say where lines aren't those of the first rows.

    Args:
        lines: A file split at its line ends, so the last is empty, or was cut off anywhere.
        rows: Those of the dataset.
        model: What each line should name.
    """
    *complete, rest = lines
    if len(complete) + bool(rest) > len(rows):
        return f"has {len(complete) + bool(rest)} lines, the data has {len(rows)} rows"
    for number, (line, row) in enumerate(zip(complete, rows, strict=False), start=1):
        found = parse_line(line)
        for name, expected in {**row, "model": model}.items():
            if found.get(name) != expected:
                return f"line {number}: {name} is {found.get(name)!r}, expected {expected!r}"
    if rest:
        # {"id": "humor_humor1", "input_pa
        row = rows[len(complete)]
        start = to_line(row, "", model).encode().partition(b'"transcript"')[0]
        if not (rest.startswith(start) or start.startswith(rest)):
            return f"line {len(lines)}, which isn't whole, isn't that of {row['id']!r}"
    return None


def read_done(job: Job, rows: Sequence[Row]) -> list[bytes]:
    """Read the lines of an earlier run that need not be made again.

    Raises:
        TranscribeError: If the file isn't the beginning of this job.
    """
    lines = job.out.read_bytes().split(b"\n")
    if difference := find_difference(lines, rows, job.model):
        raise TranscribeError(
            f"{job.out}: {difference}; nothing was changed. Give the --model, --config and "
            "--data-dir that it was begun with, or another --out."
        )
    num_done = len(lines) - 1
    if num_done < len(rows):
        # Part of a batch is made again: what a recording shares a batch with can change the last
        # bit of a number, and so, rarely, a word.
        num_done -= num_done % job.batch_size
    return lines[:num_done]


def write_lines(job: Job, batches: Iterable[list[tuple[Row, str]]], progress: Any) -> None:
    """Append line by line, out to the disk's cache batch by batch."""
    with job.out.open("a", encoding="utf-8", newline="\n") as file:
        for batch in batches:
            file.writelines(f"{to_line(row, text, job.model)}\n" for row, text in batch)
            file.flush()
            progress.update(len(batch))


# --- The model -----------------------------------------------------------------------------------


def read_sampling_rate(model: str) -> int:
    """Return the rate in Hz that the model hears.

    Raises:
        TranscribeError: If it isn't of a kind that is known to hear a long recording to its end.
    """
    import transformers

    config = transformers.AutoConfig.from_pretrained(model)
    kind = (config.architectures or [config.model_type])[0]
    if config.model_type != "whisper" and not kind.endswith("ForCTC"):
        raise TranscribeError(f"{model}: is a {kind}; expected a Whisper or CTC model")
    return int(transformers.AutoFeatureExtractor.from_pretrained(model).sampling_rate)


class Recogniser:
    """A speech recognition model in memory, on the first GPU if there is one."""

    def __init__(self, model: str) -> None:
        import transformers

        config = transformers.AutoConfig.from_pretrained(model)
        extractor = transformers.AutoFeatureExtractor.from_pretrained(model)
        if config.model_type == "whisper":
            loaded = transformers.AutoModelForSpeechSeq2Seq.from_pretrained(model)
            self._max_frames = extractor.n_samples
            # Else the pipeline takes five beams, and ends at 256 tokens where the model names no
            # number: too early for 30 s in some languages.
            max_length = config.max_target_positions
            self._options = {"num_beams": 1, "do_sample": False, "max_length": max_length}
        else:
            loaded = transformers.AutoModelForCTC.from_pretrained(model)
            self._max_frames, self._options = 0, {}
        self._pipeline = transformers.pipeline(
            "automatic-speech-recognition",
            model=loaded,
            tokenizer=model,
            feature_extractor=extractor,
        )

    def transcribe(self, arrays: Sequence[Any]) -> list[str]:
        """Return what is said in each array: float32, shape (num_frames,), at the model's rate."""
        # Whisper fills recordings up to 30 s, so those that fit go together. The pipeline can't
        # batch longer ones, and filling up changes what a CTC model hears: these go one by one.
        do_fit = all(len(array) <= self._max_frames for array in arrays)
        answers = self._pipeline(
            list(arrays),
            batch_size=len(arrays) if do_fit else 1,
            generate_kwargs=self._options,
        )
        return [answer["text"] for answer in answers]


# --- Engines: transcribe the rows from number `start` on ------------------------------------------


def load_split(job: Job, sampling_rate: int, streaming: bool) -> Any:
    """Load the rows; reads no audio."""
    return datasets.load_dataset(
        "s2s_arena",
        job.config,
        split=s2s_arena.SPLIT,
        data_dir=job.data_dir,
        sampling_rate=sampling_rate,
        streaming=streaming,
    )


def transcribe_here(job: Job, sampling_rate: int, start: int) -> Transcribed:
    """Run over the stream in this process."""
    recogniser = Recogniser(job.model)
    rows = iter(load_split(job, sampling_rate, streaming=True).skip(start))
    # `stream.iter(batch_size)` would guess types batch by batch in datasets 3.
    while batch := list(itertools.islice(rows, job.batch_size)):
        texts = recogniser.transcribe([row["audio"]["array"] for row in batch])
        yield list(zip(batch, texts, strict=True))


def read_tables(job: Job, sampling_rate: int, start: int) -> Iterator[pa.Table]:
    """Read the recordings as they are stored, a table per batch."""
    split = load_split(job, sampling_rate, streaming=False)
    split = split.cast_column("audio", s2s_arena.Waveform(decode=False))
    for first in range(start, len(split), job.batch_size):
        batch = split[first : first + job.batch_size]
        columns = {name: batch[name] for name in ROW_COLUMNS}
        paths = [audio["path"] for audio in batch["audio"]]
        contents = [Path(path).read_bytes() for path in paths]
        yield pa.table({**columns, "path": paths, "bytes": contents})


class RayActor:
    """Transcribes tables in a process of the cluster."""

    def __init__(self, model: str, sampling_rate: int) -> None:
        self._model = model
        self._recogniser: Recogniser | None = None
        self._waveform = s2s_arena.Waveform(sampling_rate=sampling_rate)

    def __call__(self, table: pa.Table) -> dict[str, list[Any]]:
        """Return the rows with `transcript`, or with what went wrong as `error`.

        Raised here, an error would end the job before earlier batches are written.
        """
        columns = table.select(ROW_COLUMNS).to_pydict()
        audio = table.select(["path", "bytes"]).to_pylist()
        texts, error = [""] * len(audio), ""
        try:
            self._recogniser = self._recogniser or Recogniser(self._model)
            arrays = [self._waveform.decode_example(value)["array"] for value in audio]
            texts = self._recogniser.transcribe(arrays)
        except (OSError, ValueError) as caught:
            error = str(caught) or repr(caught)
        return {**columns, "transcript": texts, "error": [error] * len(audio)}


def transcribe_on_ray(job: Job, sampling_rate: int, start: int) -> Transcribed:
    """Run on the cluster of RAY_ADDRESS, else that of `ray start`, else one made for the job."""
    import ray
    import ray.data

    ray.init(log_to_driver=False, logging_level="error")
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    # The recordings travel in the rows, so that no other machine needs the files. Ray's store
    # takes them one batch after the other, and moves to disk what its memory can't hold.
    tables = [ray.put(table) for table in read_tables(job, sampling_rate, start)]
    try:
        results = ray.data.from_arrow_refs(tables).map_batches(
            RayActor,
            fn_constructor_args=(job.model, sampling_rate),
            batch_size=job.batch_size,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=job.num_actors),
            # Actors that take every CPU leave none for Ray's own tasks, and all hangs.
            num_cpus=0.5,
        )
        for table in results.iter_batches(batch_size=None, batch_format="pyarrow"):
            rows = table.to_pylist()
            if error := rows[0]["error"]:
                raise TranscribeError(error)
            yield [(row, row["transcript"]) for row in rows]
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[-1]  # what comes before is a traceback of Ray's
        raise TranscribeError(
            f"Ray gave up ({reason}); see that every machine has the package and its extra `ray`"
        ) from error


ENGINES = {"local": transcribe_here, "ray": transcribe_on_ray}


# --- Command line --------------------------------------------------------------------------------


def run(job: Job) -> str:
    """Do what is left of the job; return what to say at the end."""
    sampling_rate = read_sampling_rate(job.model)
    stream = load_split(job, sampling_rate, streaming=True)
    rows = list(stream.select_columns(list(ROW_COLUMNS)))  # opens no recording
    job.out.parent.mkdir(parents=True, exist_ok=True)
    job.out.open("ab").close()  # a file that can't be written is better known before the work
    done = read_done(job, rows)
    start = len(done)
    if start == len(rows):
        return f"Nothing to do: {job.out} has all {start} utterances"
    os.truncate(job.out, sum(len(line) + 1 for line in done))
    options = {"unit": "clip", "desc": "Transcribing", "disable": None}  # a pipe gets no bar
    with tqdm(initial=start, total=len(rows), **options) as progress:
        write_lines(job, ENGINES[job.engine](job, sampling_rate, start), progress)
    earlier = f" ({start} were there before)" if start else ""
    return f"Transcribed {len(rows) - start} utterances{earlier} into {job.out}"


def find_missing(engine: str) -> str | None:
    """Say what has to be installed first."""
    extra, modules = NEEDS[engine]
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    return f'--engine {engine} needs {" and ".join(missing)}: pip install "s2s-arena[{extra}]"'


def to_count(text: str) -> int:
    """Read a positive number."""
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def parse_arguments(argv: list[str]) -> Job:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", required=True, metavar="M", help="folder or Hub id of a Whisper or CTC model")
    add("--out", required=True, type=Path, metavar="FILE", help="continued if it exists")
    configs = ("all", *s2s_arena.CATEGORIES)
    add("--config", default="all", choices=configs, metavar="NAME", help=", ".join(configs))
    add("--data-dir", metavar="D", help="data folder; default: the embedded edition")
    add("--batch-size", type=to_count, default=8, metavar="N", help="recordings; default: 8")
    add("--engine", choices=tuple(ENGINES), default="local", help="default: local")
    add("--num-actors", type=to_count, default=2, metavar="N", help="for Ray; default: 2")
    return Job(**vars(parser.parse_args(argv)))


def main(argv: list[str]) -> int:
    """Run the command; return the exit status."""
    job = parse_arguments(argv)
    try:
        if missing := find_missing(job.engine):
            raise TranscribeError(missing)
        print(run(job))
    except (TranscribeError, OSError, ValueError) as error:  # ours are ValueErrors
        print(f"transcribe.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted; the same command goes on.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
