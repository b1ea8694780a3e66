"""Export an edition as a Parquet repository that loads anywhere, without code of ours.

    python scripts/export_parquet.py --out DIR [--data-dir D] [--config NAME ...]
        [--push-to-hub OWNER/NAME [--private]]

DIR becomes a complete dataset repository: one folder of Parquet files per category, the recordings
inside as they were recorded, a dataset card and dataset_infos.json. The same data gives the same
bytes. DIR is built under another name and renamed when it is complete; one that isn't empty is
never changed. The Hub gets the same in one commit, its card's snippets with the repository's id;
the token is that of `hf auth login`, or HF_TOKEN.

Exit status: 0 if DIR holds the export (and the Hub has it), 1 if the data, the disk or the Hub is
in the way, 2 for arguments that can't be right, 130 after Ctrl-C.
"""

import argparse
import collections
import contextlib
import filecmp
import functools
import glob
import hashlib
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from huggingface_hub import errors
from huggingface_hub.utils import validate_repo_id
from tqdm import tqdm

import s2s_arena

Seconds = float

MAX_RUNS = 500
"""Files that `all` may be made of. An edition that changes category more often stores it twice."""

MAX_FILE_BYTES = 500_000_000
"""Recordings in one Parquet file: the size of datasets' own shards, which loads in parallel."""

ROW_GROUP_BYTES = 4_000_000
"""Recordings in one row group: what a stream or the viewer reads for its first row."""

CLIPS_PER_PROCESS = 256
"""Below this number another process takes longer to start than its share of decoding."""

MAX_LISTED_ERRORS = 20
MAX_LISTED_TASKS = 100

STORED_TWICE = (
    f"The rows change category more than {MAX_RUNS} times, so `all/` holds every recording a "
    "second time, in the order of the rows."
)

# Names without spaces or capitals, which every file system, shell and URL takes as they are.
FOLDERS = {name: name.lower().replace(" ", "_") for name in ("all", *s2s_arena.CATEGORIES)}
OUR_FILE = re.compile(rf"(?:{'|'.join(FOLDERS.values())})/test-\d{{5}}-of-\d{{5}}\.parquet")

# Columns that repeat few values. A dictionary of recordings would hold each a second time.
DICTIONARY_COLUMNS = (
    "emotion",
    "task",
    "task_description",
    "language",
    "category",
    "level",
    "noise",
)
AUDIO_BYTES = "audio.bytes"  # the leaf column's name in Parquet

# ISO 639 codes, which the card must use, of the languages that metadata is likely to name.
LANGUAGE_CODES = {
    "Arabic": "ar",
    "Cantonese": "yue",
    "Chinese": "zh",
    "Dutch": "nl",
    "English": "en",
    "French": "fr",
    "German": "de",
    "Hindi": "hi",
    "Indonesian": "id",
    "Italian": "it",
    "Japanese": "ja",
    "Korean": "ko",
    "Mandarin": "zh",
    "Polish": "pl",
    "Portuguese": "pt",
    "Russian": "ru",
    "Spanish": "es",
    "Swedish": "sv",
    "Thai": "th",
    "Turkish": "tr",
    "Vietnamese": "vi",
}

SIZE_CATEGORIES = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
)

COLUMNS = {
    "id": "key of the row, unique",
    "audio": "the recording as it was stored: `bytes`, and its `path`, which equals `input_path`",
    "input_path": "names the recording; outputs of a model may mirror it",
    "text": "transcript, with marks such as `[emotion: sad]` or `(emphasized)`",
    "emotion": "read from a leading `[emotion: x]` mark, else null",
    "task": "what is asked of the model, in short",
    "task_description": "what is evaluated",
    "text_cn": "Chinese translation; may be null",
    "language": "of the instruction",
    "category": "one of the four domains",
    "level": "where the instruction (L1), the answer (L2) or both (L3) are paralinguistic, "
    "or neither (L0)",
    "noise": "kind of noise that was added; may be null",
}


class ExportError(Exception):
    """The export can't be made, or can't be put where it should go; the message says why."""


# --- Editions: what may be claimed of the data ---------------------------------------------------


@dataclass(frozen=True)
class Edition:
    """What the card may say about the origin of the data.

    Attributes:
        name: For messages.
        title: Headline and `pretty_name` of the card.
        about: A paragraph: what this is and what it isn't.
        license: Identifier on the Hub; None if it isn't known.
        credit: How to name the makers; None if the citation does.
        homepage: None if it isn't known.
        tags: For the Hub's search.
        citation: BibTeX; None if there is nothing that must be cited.
    """

    name: str
    title: str
    about: str
    license: str | None
    credit: str | None
    homepage: str | None
    tags: tuple[str, ...]
    citation: str | None


COMMON_TAGS = ("audio", "speech", "speech-to-speech", "instruction-following")

OWN = Edition(
    name="own data",
    title="Spoken instructions in the format of S2S-Arena",
    about="Spoken instructions for speech-to-speech models, with the columns, categories and "
    "levels of [S2S-Arena](https://arxiv.org/abs/2503.05085). The data is its publisher's own: "
    "nothing here says that it is the benchmark, or that scores on it are S2S-Arena scores.",
    license=None,
    credit=None,
    homepage=None,
    tags=COMMON_TAGS,
    citation=None,
)

EMBEDDED = Edition(
    name=f"embedded edition {s2s_arena.VERSION}",
    title=f"S2S-Arena, embedded edition {s2s_arena.VERSION}",
    about="Spoken instructions over the categories, tasks and levels of "
    "[S2S-Arena](https://arxiv.org/abs/2503.05085), to build and test pipelines with: "
    "**synthetic speech and texts of our own, none of the official recordings. "
    "Scores on it are not S2S-Arena scores.** The official recordings are at "
    f"[{s2s_arena.OFFICIAL_REPO_ID}]({s2s_arena.HOMEPAGE}).",
    license=s2s_arena.LICENSE,
    credit="The embedded edition of S2S-Arena, by the s2s_arena authors, CC BY-NC-SA 4.0",
    homepage=s2s_arena.HOMEPAGE,
    tags=(*COMMON_TAGS, "s2s-arena", "synthetic"),
    citation=s2s_arena.CITATION,
)


def to_official_edition(commit: str) -> Edition:
    """Return what may be said of unaltered recordings from a commit of the official repository."""
    return Edition(
        name=f"official recordings at commit {commit}",
        title="S2S-Arena with its metadata",
        about="S2S-Arena evaluates speech-to-speech models on following instructions that are "
        "spoken, paralinguistic information included. The recordings are those of "
        f"[{s2s_arena.OFFICIAL_REPO_ID}]({s2s_arena.HOMEPAGE}) at commit `{commit}`, unaltered, "
        "each joined with its transcript, task, category and level.",
        license=s2s_arena.LICENSE,
        credit=None,
        homepage=s2s_arena.HOMEPAGE,
        tags=(*COMMON_TAGS, "s2s-arena", "benchmark"),
        citation=s2s_arena.CITATION,
    )


# --- Rows: what the loader makes of the data -----------------------------------------------------


@dataclass(frozen=True)
class Recordings:
    """All rows of an edition, and what is known of their recordings.

    Attributes:
        table: The loader's columns, in its order; `audio` holds the path of the file.
        features: The loader's, with our mark on the audio column.
        sizes: Bytes of each recording.
    """

    table: pa.Table
    features: Any
    sizes: tuple[int, ...]


def read_recordings(data_dir: Path) -> Recordings:
    """Read all rows through the loader, which checks the metadata; no audio is read."""
    builder = s2s_arena.S2SArena(data_dir=data_dir)
    stream = builder.as_streaming_dataset(s2s_arena.SPLIT)
    rows = iter(stream.cast_column("audio", s2s_arena.Waveform(decode=False)))
    schema = builder.info.features.arrow_schema
    batches = [schema.empty_table()]
    while batch := list(itertools.islice(rows, 1000)):  # Arrow is smaller than Python's objects
        batches.append(pa.Table.from_pylist(batch, schema=schema))
    table = pa.concat_tables(batches).combine_chunks()
    paths = to_audio_paths(table)
    return Recordings(table, builder.info.features, tuple(map(os.path.getsize, paths)))


def to_audio_paths(table: pa.Table) -> list[str]:
    """Return the recordings' files on this machine."""
    return [audio["path"] for audio in table["audio"].to_pylist()]


def find_edition(data_dir: Path, recordings: Recordings) -> Edition:
    """Tell which edition a folder holds; what isn't proven is the user's own.

    The official one is proven by the provenance.json of fetch_official.py, if every recording has
    the digest that it had when it was fetched.
    """
    if os.path.realpath(data_dir) == os.path.realpath(s2s_arena.embedded_dir()):
        return EMBEDDED
    try:
        commit, digests = parse_provenance((data_dir / "provenance.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return OWN
    if altered := find_altered(recordings, digests):
        print(
            f"{data_dir}: {altered} isn't what provenance.json says was fetched, so the card "
            "calls the data your own",
            file=sys.stderr,
        )
        return OWN
    return to_official_edition(commit)


def parse_provenance(content: bytes) -> tuple[str, dict[str, str]]:
    """Return the commit of the official repository and the sha256 of each file from there.

    Raises:
        ValueError: If this is no provenance.json of the official repository.
    """
    # {"repository": "datasets/owner/name", "commit": "5f...", "files": {"a.wav": {"sha256": ...}}}
    provenance = json.loads(content)
    try:
        digests = {path: str(file["sha256"]) for path, file in provenance["files"].items()}
        commit, repository = str(provenance["commit"]), provenance["repository"]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("not written by fetch_official.py") from error
    if repository != f"datasets/{s2s_arena.OFFICIAL_REPO_ID}":
        raise ValueError(f"fetched from {repository}")
    return commit, digests


def find_altered(recordings: Recordings, digests: Mapping[str, str]) -> str | None:
    """Return the first recording that hasn't the digest it should have."""
    input_paths = recordings.table["input_path"].to_pylist()
    for input_path, path in zip(input_paths, to_audio_paths(recordings.table), strict=True):
        if hashlib.sha256(Path(path).read_bytes()).hexdigest() != digests.get(input_path):
            return str(input_path)
    return None


@dataclass(frozen=True)
class Clip:
    """Length and rate of one recording."""

    num_frames: int
    sampling_rate: int

    @property
    def seconds(self) -> Seconds:
        """Length in time."""
        return self.num_frames / self.sampling_rate


def check_recordings(data_dir: Path, num_clips: int) -> dict[str, Clip]:
    """Decode every recording.

    Returns:
        What is known of each, by its input_path.

    Raises:
        ExportError: If the folder has an error in the sense of `find_problems`; lists them.
    """
    clips: dict[str, Clip] = {}
    # A pipe or a file gets no bar.
    with tqdm(total=num_clips, unit="clip", desc="Checking", disable=None) as progress:

        def on_file(input_path: str, num_frames: int, sampling_rate: int) -> None:
            clips[input_path] = Clip(num_frames, sampling_rate)
            progress.update()

        num_proc = min(count_cores(), 1 + num_clips // CLIPS_PER_PROCESS)
        problems = s2s_arena.find_problems(data_dir, num_proc=num_proc, on_file=on_file)
    found = [problem for problem in problems if problem.severity == "error"]
    advice = f"`python scripts/validate.py {data_dir}` lists all"
    if found:
        lines = "\n".join(f"- {problem}" for problem in found[:MAX_LISTED_ERRORS])
        raise ExportError(
            f"{data_dir}: nothing was exported, errors: {len(found)}; {advice}\n{lines}"
        )
    if problems:
        print(f"{data_dir}: warnings: {len(problems)}; {advice}", file=sys.stderr)
    return clips


def count_cores() -> int:
    """Return how many cores this process may use, where the system says."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# --- Plan: which rows go into which file ---------------------------------------------------------


@dataclass(frozen=True)
class ParquetFile:
    """A file of the repository.

    Attributes:
        path: Such as "social_companionship/test-00000-of-00002.parquet".
        rows: Which rows of the edition it holds.
    """

    path: str
    rows: tuple[int, ...]


Configs = Mapping[str, tuple[ParquetFile, ...]]


def plan_configs(
    categories: Sequence[str], sizes: Sequence[int], selected: Sequence[str]
) -> Configs:
    """Divide the rows over files.

    A category gets one file per run of consecutive rows, split further by size, so that `all` can
    list these files in the order of its rows. With too many runs `all` gets files of its own.

    Args:
        categories: Of each row.
        sizes: Bytes of each row's recording.
        selected: The categories that are wanted; `all` needs every one.

    Returns:
        The files of each config, in the order of their rows, `all` first. An empty category has
        one file without rows.
    """
    runs: dict[str, list[list[int]]] = {category: [] for category in selected}
    for category, group in itertools.groupby(range(len(categories)), categories.__getitem__):
        if category in runs:
            runs[category].append(list(group))
    is_complete = set(selected) == set(s2s_arena.CATEGORIES)
    is_stored_twice = is_complete and sum(map(len, runs.values())) > MAX_RUNS
    if is_stored_twice or not is_complete:
        runs = {category: [list(itertools.chain(*parts))] for category, parts in runs.items()}
    configs = {category: to_files(category, parts, sizes) for category, parts in runs.items()}
    if not is_complete:
        return configs
    if is_stored_twice:
        return {"all": to_files("all", [list(range(len(categories)))], sizes), **configs}
    filled = [file for files in configs.values() for file in files if file.rows]
    return {"all": tuple(sorted(filled, key=lambda file: file.rows)), **configs}


def to_files(
    config: str, runs: Iterable[Sequence[int]], sizes: Sequence[int]
) -> tuple[ParquetFile, ...]:
    """Name the files for these runs of rows."""
    parts = [part for run in runs for part in split_by_size(run, sizes, MAX_FILE_BYTES)] or [()]
    return tuple(
        ParquetFile(f"{FOLDERS[config]}/test-{number:05}-of-{len(parts):05}.parquet", part)
        for number, part in enumerate(parts)
    )


def split_by_size(
    rows: Iterable[int], sizes: Sequence[int], limit: int
) -> Iterator[tuple[int, ...]]:
    """Cut rows into parts of at most `limit` bytes, or of one row that is larger."""
    part: list[int] = []
    total = 0
    for row in rows:
        if part and total + sizes[row] > limit:
            yield tuple(part)
            part, total = [], 0
        part.append(row)
        total += sizes[row]
    if part:
        yield tuple(part)


def select_files(configs: Configs) -> tuple[ParquetFile, ...]:
    """Return every file once."""
    files = {file.path: file for parts in configs.values() for file in parts}
    return tuple(files.values())


# --- Parquet -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileSize:
    """What a file measures.

    Attributes:
        num_bytes: Of its rows in memory.
        download_size: Of the file.
    """

    num_bytes: int
    download_size: int


def write_parquet(path: Path, recordings: Recordings, rows: Sequence[int], progress: Any) -> int:
    """Write rows with their recordings; return their bytes in memory.

    Nothing that is written depends on the time, the machine or the number of processes.
    """
    num_bytes = 0
    with open_writer(path, recordings.features.arrow_schema) as writer:
        for group in split_by_size(rows, recordings.sizes, ROW_GROUP_BYTES):
            table = embed_audio(recordings.table.take(pa.array(group)))
            writer.write_table(table, row_group_size=len(group))
            num_bytes += table.nbytes
            progress.update(sum(recordings.sizes[row] for row in group))
    return num_bytes


def open_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Open a file with a page index, texts compressed, recordings as they are."""
    text_columns = ["audio.path", *(name for name in schema.names if name != "audio")]
    return pq.ParquetWriter(
        path,
        schema,
        compression={AUDIO_BYTES: "none", **dict.fromkeys(text_columns, "snappy")},
        use_dictionary=list(DICTIONARY_COLUMNS),
        write_statistics=text_columns,
        write_page_index=True,
        write_batch_size=8,  # values between looks at the page's size: some recordings make a page
    )


def embed_audio(table: pa.Table) -> pa.Table:
    """Put the files' bytes into the audio column; its paths become those below the data root."""
    contents = [Path(path).read_bytes() for path in to_audio_paths(table)]
    input_paths = table["input_path"].to_pylist()
    audio = [
        {"bytes": content, "path": path}
        for content, path in zip(contents, input_paths, strict=True)
    ]
    field = table.schema.field("audio")
    position = table.schema.get_field_index("audio")
    return table.set_column(position, field, pa.array(audio, type=field.type))


# --- Card ----------------------------------------------------------------------------------------

# How an export is known; also the first line of the card's body.
SIGNATURE = "<!-- Written by export_parquet.py of s2s_arena"


@dataclass(frozen=True)
class Export:
    """Everything that the card and dataset_infos.json tell.

    Attributes:
        edition: Where the data comes from.
        recordings: All rows of the edition, also those that aren't exported.
        configs: The files of each config.
        sizes: What each file measures, by its path.
        clips: Length and rate of each recording, by its input_path.
    """

    edition: Edition
    recordings: Recordings
    configs: Configs
    sizes: Mapping[str, FileSize]
    clips: Mapping[str, Clip]

    @functools.cached_property
    def rows(self) -> tuple[int, ...]:
        """The rows that are exported, in order."""
        files = (files for config, files in self.configs.items() if config != "all")
        return tuple(sorted(row for file in itertools.chain(*files) for row in file.rows))

    @property
    def is_stored_twice(self) -> bool:
        """Whether `all` has files of its own."""
        return any(file.path.startswith("all/") for file in self.configs.get("all", ()))

    def to_head(self, config: str) -> tuple[str, str]:
        """Name a config and the folder of its files; `all` has one only if it is stored twice."""
        has_folder = config != "all" or self.is_stored_twice
        return config, f"`{FOLDERS[config]}/`" if has_folder else ""

    def column(self, name: str) -> list[Any]:
        """Return a column of strings of the rows that are exported."""
        values = self.recordings.table[name].to_pylist()
        return [values[row] for row in self.rows]


def count_rows(files: Iterable[ParquetFile]) -> int:
    """Return the number of rows in these files."""
    return sum(len(file.rows) for file in files)


def to_yaml_features(features: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Write features as a card has them: `dtype: string`, or `dtype: {audio: {...}}`."""
    found = []
    for name, feature in features.items():
        fields = {key: value for key, value in feature.items() if key != "_type"}
        kind = feature["_type"]
        dtype = fields["dtype"] if kind == "Value" else {kind.lower(): fields}
        found.append({"name": name, "dtype": dtype})
    return found


def to_dataset_info(export: Export, config: str, features: Any) -> dict[str, Any]:
    """Describe a config; `features` in the form of the card or of dataset_infos.json."""
    files = export.configs[config]
    num_bytes = sum(export.sizes[file.path].num_bytes for file in files)
    split = {"name": s2s_arena.SPLIT, "num_bytes": num_bytes, "num_examples": count_rows(files)}
    return {
        "config_name": config,
        "features": features,
        "splits": [split],
        "download_size": sum(export.sizes[file.path].download_size for file in files),
        "dataset_size": num_bytes,
    }


def to_dataset_infos(export: Export) -> str:
    """Write what old clients read instead of the card."""
    features = export.recordings.features.to_dict()
    infos = {}
    for config in export.configs:
        info = to_dataset_info(export, config, features)
        infos[config] = {
            "description": to_plain(export.edition.about),
            "citation": export.edition.citation or "",
            "homepage": export.edition.homepage or "",
            "license": export.edition.license or "",
            **info,
            "splits": {split["name"]: split for split in info["splits"]},
        }
    return json.dumps(infos, ensure_ascii=False, indent=2) + "\n"


def to_plain(markdown: str) -> str:
    """Take links and emphasis out of a paragraph."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown).replace("**", "").replace("`", "")


def to_header(export: Export) -> dict[str, Any]:
    """Return the card's YAML; what isn't known is left out."""
    edition, features = export.edition, export.recordings.features.to_dict()
    codes = {LANGUAGE_CODES.get(language) for language in export.column("language")}
    header = {
        "pretty_name": edition.title,
        "license": edition.license,
        "language": sorted(code for code in codes if code),
        "size_categories": [to_size_category(len(export.rows))],
        "task_categories": ["audio-to-audio"],
        "tags": list(edition.tags),
        "configs": [to_config(config, files) for config, files in export.configs.items()],
        # A list of its own for each: YAML writes what it has met before as a reference.
        "dataset_info": [
            to_dataset_info(export, config, to_yaml_features(features)) for config in export.configs
        ],
    }
    return {key: value for key, value in header.items() if value}


def to_config(config: str, files: Iterable[ParquetFile]) -> dict[str, Any]:
    """Map a config to its files, one by one: their order is that of the rows."""
    data_files = [{"split": s2s_arena.SPLIT, "path": [file.path for file in files]}]
    is_default = {"default": True} if config == "all" else {}
    return {"config_name": config, **is_default, "data_files": data_files}


def to_size_category(num_examples: int) -> str:
    """Return the Hub's name for a dataset of this size."""
    names = (name for limit, name in SIZE_CATEGORIES if num_examples < limit)
    return next(names, "n>10M")


def to_card(export: Export, repo_id: str | None = None) -> str:
    """Write README.md: for the Hub's machines, then for people.

    Args:
        export: What the card is about.
        repo_id: Where its snippets load the data from; None for the folder that holds the card.
    """
    header = yaml.safe_dump(to_header(export), sort_keys=False, allow_unicode=True, width=100)
    sections = [
        f"{SIGNATURE} {s2s_arena.__version__}. -->",
        f"# {export.edition.title}",
        export.edition.about,
        *describe_selection(export),
        *describe_use(export, repo_id),
        "## Columns",
        to_markdown_table(
            ("column", "what"), ((f"`{name}`", what) for name, what in COLUMNS.items())
        ),
        *describe_contents(export),
        *describe_terms(export.edition),
    ]
    return f"---\n{header}---\n" + "\n\n".join(sections) + "\n"


def describe_selection(export: Export) -> Iterator[str]:
    """Say what was left out."""
    if "all" not in export.configs:
        left_out = [name for name in s2s_arena.CATEGORIES if name not in export.configs]
        yield f"A part: {', '.join(export.configs)}. Left out: {', '.join(left_out)}."


def describe_use(export: Export, repo_id: str | None) -> Iterator[str]:
    """Write snippets that run as they stand, in the folder or anywhere."""
    config = max(export.configs, key=lambda config: count_rows(export.configs[config]))
    if not export.rows:
        return
    pattern = "all/*.parquet" if export.is_stored_twice else "*/*.parquet"
    yield "## Use"
    yield "With any `datasets` from 2.14 on; of codecs it needs `soundfile` alone:"
    if repo_id is None:
        yield SNIPPET.format(imports="import io\nimport os", repo="os.getcwd()", config=config)
    else:
        yield SNIPPET.format(imports="import io", repo=f'"{repo_id}"', config=config)
        pattern = f"hf://datasets/{repo_id}/{pattern}"
    yield (
        "`streaming=True` works too. Where the `s2s_arena` package is imported before loading, "
        '`ds[0]["audio"]["array"]` is a waveform: float32, mono, at 24 kHz, without torch; '
        '`ds.cast_column("audio", s2s_arena.Waveform(sampling_rate=16_000))` gives another rate. '
        "With DuckDB:"
    )
    yield f"```sql\nSELECT level, count(*) FROM '{pattern}' GROUP BY level ORDER BY level;\n```"


SNIPPET = """\
```python
{imports}

import soundfile
from datasets import Audio, load_dataset

ds = load_dataset({repo}, "{config}", split="test")
ds = ds.cast_column("audio", Audio(decode=False))  # the recording's bytes, without torch
audio = ds[0]["audio"]
waveform, sampling_rate = soundfile.read(io.BytesIO(audio["bytes"]))
print(audio["path"], waveform.shape, sampling_rate)
```"""


def describe_contents(export: Export) -> Iterator[str]:
    """Count the rows by category, level and task, the recordings by time and rate."""
    clips = [export.clips[input_path] for input_path in export.column("input_path")]
    minutes = sum(clip.seconds for clip in clips) / 60
    rates = sorted({clip.sampling_rate for clip in clips})
    yield "## Contents"
    yield (
        f"{len(clips)} utterances in the split `{s2s_arena.SPLIT}`, {minutes:.1f} minutes, "
        f"stored at {', '.join(map(str, rates)) or 'no'} Hz. Rows keep the order of the metadata."
    )
    if export.is_stored_twice:
        yield f"{STORED_TWICE} To count over everything, read `all/` alone."
    yield to_category_table(export)
    if empty := [config for config, files in export.configs.items() if not count_rows(files)]:
        yield (
            f"No rows: {', '.join(empty)}. `datasets` streams an empty config, but otherwise says "
            'that `Instruction "test" corresponds to no data`.'
        )
    yield from describe_tasks(export)
    yield f"Languages: {to_counts(export.column('language'))}."


def to_category_table(export: Export) -> str:
    """Count each config's rows by level."""
    categories, levels = export.column("category"), export.column("level")
    values = [*categories, *["all"] * len(levels)]
    counts = count_levels(map(export.to_head, export.configs), values, [*levels, *levels])
    return to_markdown_table(("category", "folder", *s2s_arena.LEVELS, "all"), counts)


def describe_tasks(export: Export) -> Iterator[str]:
    """Count each task's rows by level: the benchmark's tasks in its order, then others."""
    tasks = export.column("task")
    common = [task for task, _ in collections.Counter(tasks).most_common(MAX_LISTED_TASKS)]
    order = [*s2s_arena.TASKS, *common]
    heads = [(task,) for task in sorted(common, key=order.index)]
    counts = count_levels(heads, tasks, export.column("level"))
    yield to_markdown_table(("task", *s2s_arena.LEVELS, "all"), counts)
    if rest := len(set(tasks)) - len(heads):
        yield f"And {rest} more tasks."


def count_levels(
    heads: Iterable[tuple[str, ...]], values: Sequence[str], levels: Sequence[str]
) -> Iterator[tuple[object, ...]]:
    """Count how often each value, the first of a head, meets each level, and in all."""
    counts = collections.Counter(zip(values, levels, strict=True))
    for head in heads:
        row = [counts[head[0], level] for level in s2s_arena.LEVELS]
        yield (*head, *row, sum(row))


def to_counts(values: Iterable[str]) -> str:
    """Write `English 125, Chinese 23`, the most frequent first."""
    counts = collections.Counter(values)
    return ", ".join(f"{to_cell(value)} {count}" for value, count in counts.most_common())


def describe_terms(edition: Edition) -> Iterator[str]:
    """Name licence and citation; say so where they aren't known."""
    yield "## Licence"
    if edition.license is None:
        yield (
            "Not known to the export. Whoever publishes this should name it here and as "
            "`license:` in the header, and credit those who speak."
        )
        return
    credit = f' Give credit as "{edition.credit}".' if edition.credit else ""
    yield f"`{edition.license}`, for the texts and the recordings.{credit}"
    if edition.citation:
        yield "## Citation"
        yield f"```bibtex\n{edition.citation.rstrip()}\n```"


def to_markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Lay out a table; cells are kept on one line."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(to_cell, line))} |" for line in lines)


def to_cell(value: object) -> str:
    """Escape what would end a table's cell."""
    return " ".join(str(value).split()).replace("|", "\\|")


# --- The folder ----------------------------------------------------------------------------------


@contextlib.contextmanager
def building(out: Path) -> Iterator[Path]:
    """Give an empty folder beside `out`, which is gone afterwards, whatever happens."""
    out.parent.mkdir(parents=True, exist_ok=True)
    for left in out.parent.glob(f".{glob.escape(out.name)}.*.partial"):
        print(
            f"{left}: left by a run that was killed, unless one is at work; remove it",
            file=sys.stderr,
        )
    holder = tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent)
    try:
        folder = Path(holder, out.name)  # mkdtemp's own folder can't be read by others
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(holder, ignore_errors=True)


def write_export(
    folder: Path,
    edition: Edition,
    recordings: Recordings,
    configs: Configs,
    clips: Mapping[str, Clip],
) -> Export:
    """Write the whole repository into an empty folder."""
    files = select_files(configs)
    sizes = {}
    total = sum(recordings.sizes[row] for file in files for row in file.rows)
    options = {"unit": "B", "unit_scale": True, "desc": "Writing", "disable": None}
    with tqdm(total=total, **options) as progress:
        for file in files:
            path = folder / file.path
            path.parent.mkdir(exist_ok=True)
            num_bytes = write_parquet(path, recordings, file.rows, progress)
            sizes[file.path] = FileSize(num_bytes, path.stat().st_size)
    export = Export(edition, recordings, configs, sizes, clips)
    write_text(folder / "dataset_infos.json", to_dataset_infos(export))
    write_text(folder / "README.md", to_card(export))
    return export


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 with the same line ends on every system."""
    path.write_bytes(text.encode("utf-8"))


def list_files(folder: Path) -> list[str]:
    """Return the files below a folder, POSIX, sorted."""
    paths = (path for path in folder.rglob("*") if not path.is_dir())
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def check_out(out: Path) -> None:
    """Refuse a folder that holds something else, before any work.

    Raises:
        ExportError: If it isn't empty and has no card of ours.
    """
    if not out.is_dir() or not any(out.iterdir()):
        return
    card = out / "README.md"
    if not card.is_file() or SIGNATURE.encode() not in card.read_bytes():
        names = ", ".join(sorted(path.name for path in out.iterdir())[:3])
        raise ExportError(
            f"--out {out}: not empty, and no export ({names}, ...); nothing was changed. "
            "Name a folder that doesn't exist yet."
        )


def install(folder: Path, out: Path) -> bool:
    """Rename what was built to its final name.

    Returns:
        False if `out` held the same already.

    Raises:
        ExportError: If `out` holds something else, which is left as it is.
    """
    if out.is_dir() and any(out.iterdir()):
        if difference := find_difference(folder, out):
            raise ExportError(
                f"--out {out}: holds an export that differs ({difference}); nothing was changed. "
                "Remove it, or name another folder."
            )
        return False
    if out.is_dir():
        out.rmdir()  # Windows doesn't rename onto a folder, not even an empty one
    os.replace(folder, out)
    return True


def find_difference(folder: Path, out: Path) -> str | None:
    """Return the first file that isn't the same in both."""
    paths = list_files(folder)
    if differing := sorted(set(paths) ^ set(list_files(out))):
        return differing[0]
    _, unequal, unread = filecmp.cmpfiles(folder, out, paths, shallow=False)
    return next(iter([*unequal, *unread]), None)


# --- The Hub -------------------------------------------------------------------------------------

# What huggingface_hub lets through: an answer that says no, a broken connection. Its HTTPError is
# that of the client library it uses, which differs between its versions.
HUB_ERRORS = (errors.HTTPError, OSError)


def check_login(repo_id: str) -> None:
    """Find out before the work whether the Hub knows us."""
    try:
        huggingface_hub.HfApi().whoami()
    except HUB_ERRORS as error:
        raise ExportError(f"{explain(error, repo_id)} Nothing was exported.") from error


def push(out: Path, card: str, repo_id: str, is_private: bool) -> tuple[str, str]:
    """Put the folder on the Hub in one commit.

    Args:
        out: The complete export.
        card: README.md for the Hub.
        repo_id: `owner/name`; created where it doesn't exist.
        is_private: Whether nobody else may see it.

    Returns:
        The addresses of the repository and of the commit.

    Raises:
        ExportError: If it can't be done; the same command tries again.
    """
    api = huggingface_hub.HfApi()
    try:
        url = api.create_repo(
            repo_id, repo_type="dataset", private=is_private or None, exist_ok=True
        )
        info = api.dataset_info(repo_id)
        present = [sibling.rfilename for sibling in info.siblings or ()]
        check_repo(repo_id, present, is_private and not info.private)
        commit = api.create_commit(
            repo_id,
            to_operations(out, card, present),
            commit_message=f"Export with s2s_arena {s2s_arena.__version__}",
            repo_type="dataset",
            parent_commit=info.sha,
        )
    except HUB_ERRORS as error:
        raise ExportError(
            f"{explain(error, repo_id)} {out} is complete; the same command tries again."
        ) from error
    return str(url), str(commit.commit_url)


def check_repo(repo_id: str, present: Sequence[str], is_public_by_mistake: bool) -> None:
    """Refuse a repository that the export must not go to.

    Raises:
        ExportError: If others would see it, or nobody could load it.
    """
    script = f"{repo_id.partition('/')[2]}.py"
    if is_public_by_mistake:
        raise ExportError(
            f"{repo_id}: exists and is public, --private doesn't change that; nothing was pushed. "
            "Make it private in its settings, or choose another name."
        )
    if script in present:
        raise ExportError(
            f"{repo_id}: holds {script}, a loading script, with which datasets 4 and 5 refuse the "
            "repository; nothing was pushed. Delete it there, or choose another name."
        )


def to_operations(out: Path, card: str, present: Iterable[str]) -> list[Any]:
    """Add every file; delete those of an earlier export that this one doesn't have."""
    paths = list_files(out)
    added = [
        huggingface_hub.CommitOperationAdd(
            path, card.encode() if path == "README.md" else out / path
        )
        for path in paths
    ]
    stale = [path for path in present if OUR_FILE.fullmatch(path) and path not in paths]
    return [*added, *map(huggingface_hub.CommitOperationDelete, stale)]


def explain(error: Exception, repo_id: str) -> str:
    """Say what the Hub answered and what to do; the token is never in it."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401 or isinstance(error, errors.LocalTokenNotFoundError):
        return f"{repo_id}: the Hub doesn't know you (401); `hf auth login`, or set HF_TOKEN."
    if status == 403:
        return (
            f"{repo_id}: you have no right to write there (403); check the owner, and that the "
            "token of `hf auth login` or HF_TOKEN may write."
        )
    if status:
        message = getattr(error, "server_message", None)
        return f"{repo_id}: the Hub answered {status}{f' ({message})' if message else ''}."
    return f"{repo_id}: the Hub can't be reached ({type(error).__name__}: {error})."


# --- Command line --------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def to_path(text: str) -> Path:
    """Read a path of the command line."""
    return Path(text).expanduser()


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Read the command line; what can't be right ends with status 2 and one line."""
    parser = _Parser(
        prog="export_parquet.py",
        description="Export an edition as a Parquet dataset repository that loads anywhere.",
    )
    parser.add_argument(
        "--out", required=True, type=to_path, metavar="DIR", help="folder to make; not there yet"
    )
    parser.add_argument(
        "--data-dir", metavar="D", help="data folder; default: the embedded edition"
    )
    parser.add_argument(
        "--config",
        nargs="+",
        default=["all"],
        choices=list(FOLDERS),
        metavar="NAME",
        help=f"categories to export; default: all. One or more of {', '.join(FOLDERS)}",
    )
    parser.add_argument(
        "--push-to-hub",
        metavar="OWNER/NAME",
        help="then commit it to this dataset repository, which is created if need be",
    )
    parser.add_argument("--private", action="store_true", help="create the repository as private")
    options = parser.parse_args(argv)
    if problem := find_argument_problem(options):
        parser.error(problem)
    return options


def find_argument_problem(options: argparse.Namespace) -> str | None:
    """Return what is wrong with arguments that argparse accepts."""
    out, data_dir, repo_id = options.out, options.data_dir, options.push_to_hub
    if out.exists() and not out.is_dir():
        return f"--out {out}: is a file; name a folder that doesn't exist yet"
    if out.exists() and out.samefile(Path.cwd()):
        return f"--out {out}: is the working directory, which can't be replaced; name another"
    if data_dir is not None and "://" in data_dir:
        return (
            f"--data-dir {data_dir}: expected a folder; fetch the data first with "
            "`python scripts/fetch_official.py --out D`"
        )
    if data_dir is not None and not to_path(data_dir).is_dir():
        return f"--data-dir {data_dir}: no such folder"
    if repo_id is not None and not is_repo_id(repo_id):
        return f"--push-to-hub {repo_id}: expected OWNER/NAME"
    if options.private and repo_id is None:
        return "--private: needs --push-to-hub OWNER/NAME"
    return None


def is_repo_id(text: str) -> bool:
    """Tell whether the Hub takes this as `owner/name`."""
    try:
        validate_repo_id(text)
    except errors.HFValidationError:
        return False
    return "/" in text


def select_categories(names: Sequence[str]) -> tuple[str, ...]:
    """Return the categories that --config stands for, in the order of the benchmark."""
    return tuple(name for name in s2s_arena.CATEGORIES if "all" in names or name in names)


def run(options: argparse.Namespace) -> None:
    """Do what the command line asks for."""
    out, data_dir = options.out, to_path(options.data_dir or s2s_arena.embedded_dir())
    check_out(out)
    if options.push_to_hub:
        check_login(options.push_to_hub)
    recordings = read_recordings(data_dir)
    clips = check_recordings(data_dir, len(recordings.sizes))
    edition = find_edition(data_dir, recordings)
    categories = recordings.table["category"].to_pylist()
    configs = plan_configs(categories, recordings.sizes, select_categories(options.config))
    with building(out) as folder:
        export = write_export(folder, edition, recordings, configs, clips)
        is_new = install(folder, out)
    print(describe_export(export, out, is_new))
    if options.push_to_hub:
        card = to_card(export, options.push_to_hub)
        address, commit = push(out, card, options.push_to_hub, options.private)
        print(f"Pushed to {address}\n({commit})")


def describe_export(export: Export, out: Path, is_new: bool) -> str:
    """Say what was exported."""
    num_bytes = sum(size.download_size for size in export.sizes.values())
    lines = [
        f"{'Exported' if is_new else 'Already there, unchanged:'} {len(export.rows)} utterances "
        f"({export.edition.name}), {len(export.sizes)} Parquet files, "
        f"{num_bytes / 1e6:.1f} MB, in {out}",
        *(f"  {config}: {count_rows(files)}" for config, files in export.configs.items()),
    ]
    if export.is_stored_twice:
        lines.append(STORED_TWICE)
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Run the command line; return the exit status."""
    options = parse_arguments(argv)
    try:
        run(options)
    except (ExportError, s2s_arena.MetadataError, OSError) as error:
        print(f"export_parquet.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
