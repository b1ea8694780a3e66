"""S2S-Arena as a Hugging Face dataset: spoken instructions for speech-to-speech models.

    import s2s_arena
    from datasets import load_dataset

    ds = load_dataset("s2s_arena", "Social Companionship", split="test")
    ds[0]["audio"]["array"]  # float32, shape (num_frames,), 24 kHz

The file has three layers, in this order: facts of the benchmark; pure functions from bytes to
records and waveforms; and the shell (feature, roots, builder, registration), the only code that
opens files. As a rule `datasets` replaces `open`, `os.path.join` and some more names in a builder's
module by versions that split names at `::`. `_patched_for_streaming` keeps it from that; where a
coming version doesn't know this name, files are safe too, since they are opened with `io.open`,
listed with `os.scandir`, and paths are joined with an f-string.
"""

import argparse
import collections
import concurrent.futures
import copy
import dataclasses
import difflib
import functools
import glob
import hashlib
import io
import json
import logging
import math
import multiprocessing
import operator
import os
import re
import shutil
import signal
import stat
import struct
import sys
import time
import unicodedata
import urllib.parse
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, NoReturn, Protocol, TypeGuard, TypeVar

import datasets
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

# ------------------------------------------------------------------------------------------------
# 1. Facts: the benchmark, each with its source
# ------------------------------------------------------------------------------------------------

__all__ = [
    "CATEGORIES",
    "LEVELS",
    "NOISES",
    "OFFICIAL_REPO_ID",
    "SAMPLING_RATE",
    "SPLIT",
    "TASKS",
    "VERSION",
    "AudioError",
    "MetadataError",
    "MetadataFile",
    "Problem",
    "S2SArena",
    "S2SArenaConfig",
    "Utterance",
    "Waveform",
    "ask_hub",
    "embedded_dir",
    "find_problems",
    "main",
    "parse_metadata",
    "read_utterances",
    "register",
]

__version__ = "0.1.0"

VERSION = datasets.Version("1.0.0")
"""Version of the embedded edition: goes up when one of its rows or samples changes."""

OFFICIAL_REPO_ID = "FreedomIntelligence/S2S-Arena"
HOMEPAGE = f"https://huggingface.co/datasets/{OFFICIAL_REPO_ID}"
LICENSE = "cc-by-nc-sa-4.0"
DESCRIPTION = (
    "S2S-Arena evaluates speech-to-speech models on following instructions that are spoken, "
    "paralinguistic information included: 4 domains, 21 tasks, 154 instructions, levels L0 to L3."
)
# As arXiv prints it for 2503.05085.
CITATION = """\
@article{jiang2025s2sarena,
  title={S2S-Arena, Evaluating Speech2Speech Protocols on Instruction Following with \
Paralinguistic Information},
  author={Jiang, Feng and Lin, Zhiyu and Bu, Fan and Du, Yuhao and Wang, Benyou and Li, Haizhou},
  journal={arXiv preprint arXiv:2503.05085},
  year={2025}
}
"""

SAMPLING_RATE = 24_000
"""Hz. The rate that the paper brings all recordings to, for fairness (section 4.2)."""

SPLIT = "test"

# Speech in -> speech out, "semantic" or "semantic and paralinguistic" (paper, section 3.2):
# L0 s -> s, L1 sp -> s, L2 s -> sp, L3 sp -> sp. The paper's second version counts from L1.
LEVELS = ("L0", "L1", "L2", "L3")

CATEGORIES = ("Education", "Social Companionship", "Entertainment", "Medical Consultation")


@dataclasses.dataclass(frozen=True)
class _Task:
    """One task of the paper's table 3, with what the published files call it.

    Attributes:
        name: The paper's name.
        category: One of CATEGORIES.
        folder: Folder of its recordings in the official repository.
        num_entries: Entries in version 1 of the benchmark (154 in all).
        description: The paper's evaluation target, also `task_description` in the public JSON.
        spellings: Other task strings in the public JSON; None where no entry has been seen, so
            that folder and category may name the task.
    """

    name: str
    category: str
    folder: str
    num_entries: int
    description: str
    spellings: tuple[str, ...] | None = ()


# fmt: off
_TASKS = (
    # name, category, folder, number of entries; description; other spellings
    _Task("Pronunciation correction", "Education", "pronounciation", 5,
          "Can the model correct inaccurate pronunciations?",
          ("Correcting pronunciation ability",)),
    _Task("Emphasis control", "Education", "stress", 5,
          "Can the model understand stress emphasis and emphasize specific content with the "
          "right stress?"),
    _Task("Rhythm control", "Education", "rhythm", 7,
          "Can the model adjust the output pace, speaking faster or slower as required?",
          ("Rhythm control capabilities",)),
    _Task("Polyphonic word comprehension", "Education", "polyphone", 6,
          "Can the model accurately understand polyphonic word?"),
    _Task("Pause and segmentation", "Education", "pause", 4,
          "Can the model accurately pause and segment in ambiguous cases?", None),
    _Task("Cross-lingual emotional translation", "Education", "translation", 14,
          "Can the model accurately convey emotions during translation?",
          ("Cross-language translation with emotion",)),
    _Task("Language consistency", "Education", "language", 6,
          "Does the model respond in the same language as the query when asked in different "
          "languages?", None),
    _Task("Implication understanding", "Social Companionship", "humor", 4,
          "Can the model respond humorously, understanding implied meanings?", None),
    _Task("Sarcasm detection", "Social Companionship", "irony", 3,
          "Can the model detect sarcasm in phrases like “You’re amazing!”?",
          ("Sarcasm detections",)),
    _Task("Identity-based response", "Social Companionship", "identity", 16,
          "Can the model adapt responses based on the user’s age (child, adult, elderly) and "
          "handle identity-based queries?", ("Identity coping ability",)),
    _Task("Emotion recognition and expression", "Social Companionship", "emotion", 24,
          "Can the model recognize emotions and provide appropriate responses based on "
          "different emotions?"),
    _Task("Singing capability", "Entertainment", "sing", 7,
          "Can the model sing a song upon request?", ("Singing ability",)),
    _Task("Natural sound simulation", "Entertainment", "nature", 5,
          "Can the model simulate certain natural sounds?"),
    _Task("Poetry recitation", "Entertainment", "poetry", 4,
          "Can the model recite poems?", None),
    _Task("Role-playing", "Entertainment", "role", 4,
          "Can the model simulate a character with specific age, gender, accent, and voice tone?"),
    _Task("Storytelling", "Entertainment", "story", 5,
          "Can the model narrate a story with emotional depth?", None),
    _Task("Tongue twisters", "Entertainment", "tongue_twister", 9,
          "Can the model correctly pronounce a given tongue twister?",
          ("Tongue twisters capabilities",)),
    _Task("Stand-up comedy/skit performance", "Entertainment", "crosstalk", 8,
          "Can the model perform a skit, playing both roles in a comedic dialogue?",
          ("Crosstalk ability",)),
    _Task("Querying symptoms", "Medical Consultation", "illness", 6,
          "Can the model answer questions related to symptoms?"),
    _Task("Health consultation", "Medical Consultation", "healthcare", 7,
          "Can the model provide general health advice?"),
    _Task("Psychological comfort", "Medical Consultation", "psychological", 5,
          "Can the model provide comforting psychological support?"),
)
# fmt: on

TASKS = tuple(task.name for task in _TASKS)

_REQUIRED_FIELDS = (
    "id",
    "input_path",
    "text",
    "task",
    "task_description",
    "language",
    "category",
    "level",
)
# Kinds of noise from the MS-SNSD set, in files named `<folder><k>_<kind>_<n>.wav`.
NOISES = (
    "Typing",
    "AirConditioner",
    "AirportAnnouncements",
    "VacuumCleaner",
    "CopyMachine",
    "Munching",
    "Neighbor",
    "ShuttingDoor",
)

_OPTIONAL_FIELDS = ("text_cn", "noise")  # text_cn is missing on the Chinese entries

# The embedded edition has as many entries as the benchmark, so these counts verify its load.
_NUM_ENTRIES = collections.Counter({"all": sum(task.num_entries for task in _TASKS)})
for _task in _TASKS:
    _NUM_ENTRIES[_task.category] += _task.num_entries

# ------------------------------------------------------------------------------------------------
# 2. Pure: metadata to records, bytes to waveforms; no files
# ------------------------------------------------------------------------------------------------


class MetadataError(ValueError):
    """What the metadata says can't be right; the message lists every problem with its place."""


class AudioError(ValueError):
    """A file can't be decoded to what it claims to be; the message names the file and why."""


def _printable(text: str) -> str:
    """Return the text with lone surrogates, as in names that are no UTF-8, written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with one data folder.

    Attributes:
        severity: "error" (the loader refuses it) or "warning" (it loads, but deserves a look).
        file: Metadata file, or the audio file that no entry names; relative to the data root.
        row: Position of the entry in its file, counted from 0; None if it concerns the file.
        id: The entry's id as far as it is known.
        what: What was found.
        expected: What should be there, or what to do.
    """

    severity: str
    file: str
    row: int | None
    id: str | None
    what: str
    expected: str

    def __str__(self) -> str:
        row = "" if self.row is None else f" row {self.row}"
        entry_id = "" if self.id is None else f" (id {self.id!r})"
        return _printable(f"{self.file}{row}{entry_id}: {self.what}; {self.expected}")


@dataclasses.dataclass(frozen=True, slots=True)
class Utterance:
    """One recorded instruction: the columns of its row, `audio` aside.

    Attributes:
        id: Key of the row, unique.
        input_path: Where the recording lies below the data root, POSIX, without `./` or `input/`.
        text: Transcript with its marks, such as `[emotion: sad]` or `(emphasized)`.
        emotion: Read from a leading `[emotion: x]` mark, else None.
        task: The paper's name where the entry is recognised, else the entry's own.
        task_description: The paper's evaluation target.
        text_cn: Chinese translation; None on the Chinese entries.
        language: Language of the instruction, such as "English".
        category: One of CATEGORIES.
        level: One of LEVELS.
        noise: Kind of noise that was added, if any.
    """

    id: str
    input_path: str
    text: str
    emotion: str | None
    task: str
    task_description: str
    text_cn: str | None
    language: str
    category: str
    level: str
    noise: str | None


_TEXT_COLUMNS = tuple(field.name for field in dataclasses.fields(Utterance))
_to_texts: Callable[[Utterance], tuple[str | None, ...]] = operator.attrgetter(*_TEXT_COLUMNS)


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of a metadata file, where it stood and what could be made of it.

    Attributes:
        file: The metadata file.
        row: Position in it, counted from 0.
        id: None if it has none that is a string.
        path: The recording's path below the root, with `input/` if it is written so; None if it
            must not be opened.
        utterance: None if the entry didn't pass its checks.
    """

    file: str
    row: int
    id: str | None
    path: str | None
    utterance: Utterance | None

    @property
    def place(self) -> str:
        return f"{self.file} row {self.row} (id {self.id!r})"

    def problem(self, what: str, expected: str, severity: str = "error") -> Problem:
        return Problem(severity, self.file, self.row, self.id, what, expected)


# --- Parsing one metadata file ------------------------------------------------------------------


class _NotJson(str):
    """NaN, Infinity or -Infinity: Python's json reads them, JSON has no such values."""

    __slots__ = ()


class _RepeatedKeys(dict[str, Any]):
    """A JSON object that gives a key more than once; `repeated` names them."""

    repeated: tuple[str, ...] = ()


def _to_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entry = dict(pairs)
    if len(entry) == len(pairs):
        return entry
    counts = collections.Counter(key for key, _ in pairs)
    marked = _RepeatedKeys(entry)
    marked.repeated = tuple(key for key, count in counts.items() if count > 1)
    return marked


def _parse_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_to_object, parse_constant=_NotJson)


def _parse_json_lines(text: str) -> list[Any]:
    """Read one value a line; a line that isn't JSON becomes a `_NotJson`, so its row reports it."""
    values: list[Any] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            values.append(_parse_json(line))
        except (ValueError, RecursionError) as error:
            values.append(_NotJson(f"line {number} ({error})"))
    return values


def _looks_like_entry(value: Any) -> bool:
    return isinstance(value, dict) and "id" in value and "input_path" in value


def _decode_text(content: bytes) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError("it is UTF-16")
    return content.decode("utf-8-sig")


_LFS_POINTER = b"version https://git-lfs"  # what a clone without LFS holds in place of a file


def _parse_rows(content: bytes, file: str) -> tuple[list[Any], list[Problem]]:
    """Read a metadata file, a JSON list or JSON Lines, as raw rows; and what is wrong with it."""

    def problem(what: str, expected: str) -> tuple[list[Any], list[Problem]]:
        return [], [Problem("error", file, None, None, what, expected)]

    try:
        text = _decode_text(content)
    except ValueError as error:
        return problem(f"not UTF-8 ({error})", "save it as UTF-8, with or without BOM")
    is_pointer = content.startswith(_LFS_POINTER)
    del content  # of 100,000 entries 50 MB, beside the text and the values
    if not text.strip():
        return problem("the file is empty", "expected a JSON list of entries; get a fresh copy")
    try:
        value = _parse_json(text)
    except RecursionError:
        return problem("nested too deeply", "expected a JSON list of flat objects")
    except ValueError as error:
        # One entry a line, the form of JSON Lines: {"id": "emotion_audio_0", ...}
        if text.lstrip().startswith("{") and str(error).startswith("Extra data"):
            return _parse_json_lines(text), []
        if is_pointer:
            return problem("a git-lfs pointer", "run `git lfs pull` in the data folder")
        return problem(f"not valid JSON ({error})", "if it was cut short, get a fresh copy")
    if _looks_like_entry(value):
        return [value], []
    if not isinstance(value, list):
        return problem(f"found {_describe(value)}", "expected a JSON list of entries")
    if not value:
        return problem("the list is empty", "expected a JSON list of entries")
    return value, []


def _describe(value: Any) -> str:
    """Say in a few words what a JSON value is: `an object with keys 'data', 'version'`."""
    if isinstance(value, dict):
        keys = ", ".join(repr(key) for key in list(value)[:8])
        return f"an object with keys {keys}" if keys else "an empty object"
    if isinstance(value, _NotJson):
        return f"{value:s}, which is not JSON"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return f"{_short(value)} ({type(value).__name__})"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# --- One entry ----------------------------------------------------------------------------------

_QUOTES = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'"})


def _fold_quotes(text: str) -> str:
    return text.translate(_QUOTES)


_TASK_BY_NAME = {
    _fold_quotes(spelling): task.name
    for task in _TASKS
    for spelling in (task.name, *(task.spellings or ()))
}
_TASK_BY_DESCRIPTION = {_fold_quotes(task.description): task.name for task in _TASKS}
_TASK_BY_FOLDER = {
    (task.folder, task.category): task.name for task in _TASKS if task.spellings is None
}
_EMOTION = re.compile(r"\[emotion:\s*([^\]]*?)\s*\]")


def _canonical_task(task: str, description: str, input_path: str, category: str) -> str:
    """Return the paper's name of the task, or `task` as it stands where it isn't recognised."""
    return (
        _TASK_BY_NAME.get(_fold_quotes(task))
        or _TASK_BY_DESCRIPTION.get(_fold_quotes(description))
        or _TASK_BY_FOLDER.get((input_path.partition("/")[0], category))
        or task
    )


def _emotion_of(text: str) -> str | None:
    """Return x of a leading mark: `[emotion: happy]Kids are talking by the door` -> happy."""
    mark = _EMOTION.match(text)
    return mark[1] or None if mark else None


class _UnsafePathError(ValueError):
    """A path in the metadata that must not be opened."""


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_DRIVE = re.compile(r"[A-Za-z]:")


@functools.lru_cache(maxsize=1)  # an entry's path is asked for twice: is it safe, and what is it
def _to_relative_path(written: str) -> str:
    """Return the path below the data root, POSIX, with `input/` if it is written so.

    Seen: `./emotion/audio_0.wav` (dataset card), `/input/emotion/audio_0.wav` (web arena),
    `input/emotion/audio_0.wav` (human results). Backslashes are separators.

    Raises:
        _UnsafePathError: If it is absolute, a URL, or leads out of the root.
    """
    path = written.replace("\\", "/")
    if "\0" in path:
        raise _UnsafePathError("holds a NUL character")
    if _URL.match(path):
        raise _UnsafePathError("is a URL")
    if _DRIVE.match(path):
        raise _UnsafePathError("starts with a drive letter")
    if path.startswith("/") and not path.startswith("/input/"):
        raise _UnsafePathError("is absolute")
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and not parts:
            raise _UnsafePathError("leaves the data folder")
        if part == "..":
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    if not parts:
        raise _UnsafePathError("names no file")
    return "/".join(parts)


def _to_input_path(path: str) -> str:
    return path.removeprefix("input/")


def _candidate_paths(path: str) -> tuple[str, str]:
    """Return where the file may lie: as written, then with `input/` taken away or put in front."""
    stripped = _to_input_path(path)
    return (path, f"input/{path}") if stripped == path else (path, stripped)


_SURROGATE = re.compile("[\ud800-\udfff]")


def _is_encodable(text: str) -> bool:
    """Tell whether Arrow can store the text, which a lone surrogate prevents."""
    return text.isascii() or not _SURROGATE.search(text)


_Found = tuple[str, str]  # what was found, what was expected


def _check_field(entry: dict[str, Any], field: str) -> _Found | None:
    """Return what is wrong with the type of one field, if anything is."""
    if field not in entry:
        return (f"{field} is missing", "expected a string") if field in _REQUIRED_FIELDS else None
    value = entry[field]
    if value is None and field in _OPTIONAL_FIELDS:
        return None
    if not isinstance(value, str) or isinstance(value, _NotJson):
        or_null = " or null" if field in _OPTIONAL_FIELDS else ""
        return f"{field} is {_describe(value)}", f"expected a string{or_null}"
    if not _is_encodable(value):
        return f"{field} is {_short(value)}, with a lone surrogate", "expected valid Unicode"
    if field in ("id", "input_path") and not value.strip():
        return f"{field} is {value!r}", "expected a name"
    return None


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    folded = {name.strip().casefold(): name for name in known}
    near = difflib.get_close_matches(word.strip().casefold(), folded, n=1, cutoff=0.7)
    return f" (did you mean {folded[near[0]]!r}?)" if near else ""


def _check_category(value: str) -> _Found | None:
    if value in CATEGORIES:
        return None
    known = ", ".join(map(repr, CATEGORIES))
    return f"unknown category {_short(value)}", f"expected one of {known}" + _did_you_mean(
        value, CATEGORIES
    )


def _check_level(value: str) -> _Found | None:
    if value in LEVELS:
        return None
    expected = f"expected one of {', '.join(map(repr, LEVELS))}"
    return f"unknown level {_short(value)}", (
        f"{expected}; the paper's second version numbers the same four L1 to L4"
    )


def _check_path(value: str) -> _Found | None:
    try:
        _to_relative_path(value)
    except _UnsafePathError as error:
        return f"input_path {_short(value)} {error}", (
            "expected a path below the data folder, such as './emotion/audio_0.wav'"
        )
    return None


_VALUE_CHECKS: dict[str, Callable[[str], _Found | None]] = {
    "input_path": _check_path,
    "category": _check_category,
    "level": _check_level,
}


def _check_entry(entry: Any) -> list[_Found]:
    """Return everything that is wrong with one raw row, in the order of the fields."""
    if not isinstance(entry, dict):
        return [(f"found {_describe(entry)}", "expected an object with the fields of an entry")]
    found = [(f"key {key!r} is repeated", "expected it once") for key in _repeated_keys(entry)]
    for field in (*_REQUIRED_FIELDS, *_OPTIONAL_FIELDS):
        problem = _check_field(entry, field)
        if problem is None and field in _VALUE_CHECKS:
            problem = _VALUE_CHECKS[field](entry[field])
        if problem is not None:
            found.append(problem)
    return found


def _repeated_keys(entry: dict[str, Any]) -> tuple[str, ...]:
    return entry.repeated if isinstance(entry, _RepeatedKeys) else ()


def _to_utterance(entry: dict[str, Any], path: str) -> Utterance:
    text, category, input_path = entry["text"], entry["category"], _to_input_path(path)
    return Utterance(
        id=entry["id"],
        input_path=input_path,
        text=text,
        emotion=_emotion_of(text),
        task=_canonical_task(entry["task"], entry["task_description"], input_path, category),
        # Json makes a string for every entry of what a few strings say.
        task_description=sys.intern(entry["task_description"]),
        text_cn=entry.get("text_cn"),
        language=sys.intern(entry["language"]),
        category=sys.intern(category),
        level=sys.intern(entry["level"]),
        noise=entry.get("noise"),
    )


def _string_in(row: Any, field: str) -> str | None:
    value = row.get(field) if isinstance(row, dict) else None
    return value if isinstance(value, str) and not isinstance(value, _NotJson) else None


def _safe_path(written: str | None) -> str | None:
    if not written or not written.strip() or not _is_encodable(written):
        return None
    try:
        return _to_relative_path(written)
    except _UnsafePathError:
        return None


def _parse_entries(rows: Iterable[Any], file: str) -> tuple[list[_Entry], list[Problem]]:
    """Turn the raw rows of one file into entries and what is wrong with them."""
    entries, problems = [], []
    for row, raw in enumerate(rows):
        found = _check_entry(raw)
        path = _safe_path(_string_in(raw, "input_path"))
        utterance = None if found or path is None else _to_utterance(raw, path)
        entry = _Entry(file, row, _string_in(raw, "id"), path, utterance)
        entries.append(entry)
        problems += [entry.problem(what, expected) for what, expected in found]
    return entries, problems


@dataclasses.dataclass(frozen=True, slots=True)
class MetadataFile:
    """One JSON file of a data folder, parsed.

    Attributes:
        entries: Each entry that passed its checks, as it is written and as it is understood.
        problems: What is wrong with the others, or with the file.
        passed_over: What the file is if it is one object and no entry, such as provenance.json,
            which the loader passes over; else None.
    """

    entries: list[tuple[dict[str, Any], Utterance]]
    problems: list[Problem]
    passed_over: str | None


def parse_metadata(content: bytes, file: str) -> MetadataFile:
    """Parse a metadata file, a JSON list of entries or JSON Lines, as the loader does.

    Args:
        content: The file's bytes.
        file: Named in problems.

    Returns:
        The entries in their order. Whether ids are unique and recordings exist is another matter.
    """
    passed_over = _describe_lone_object(content)
    if passed_over is not None:
        return MetadataFile([], [], passed_over)
    rows, problems = _parse_rows(content, file)
    parsed, row_problems = _parse_entries(rows, file)
    pairs = zip(rows, parsed, strict=True)
    entries = [(row, entry.utterance) for row, entry in pairs if entry.utterance]
    return MetadataFile(entries, problems + row_problems, None)


_UNIQUE_IDS = "expected unique ids: they key the rows and the model outputs"


def _repeated_id_problems(
    entries: Iterable[_Entry], expected: str = _UNIQUE_IDS
) -> Iterator[Problem]:
    first: dict[str, _Entry] = {}
    for entry in entries:
        earlier = entry if entry.id is None else first.setdefault(entry.id, entry)
        if earlier is not entry:
            yield entry.problem(f"the id is already that of {earlier.place}", expected)


_MAX_LISTED_PROBLEMS = 20


def _metadata_error(problems: list[Problem], location: str) -> MetadataError:
    """Write the problems as one error: the first 20 in full, the rest counted."""
    many = f"{len(problems)} problems" if len(problems) > 1 else "1 problem"
    lines = [_printable(f"{many} in the metadata of {location}:")]
    lines += [f"- {problem}" for problem in problems[:_MAX_LISTED_PROBLEMS]]
    if len(problems) > _MAX_LISTED_PROBLEMS:
        rest = len(problems) - _MAX_LISTED_PROBLEMS
        lines.append(f"- and {rest} more; s2s_arena.find_problems(data_dir) lists them all")
    return MetadataError("\n".join(lines))


# --- Audio: what a file's bytes say they are ------------------------------------------------------

# What the first bytes, after any ID3v2 tag, say: (offset, bytes, what it is).
_AUDIO_MAGIC = (
    (8, b"WAVE", "WAV"),  # RIFF, RIFX (big-endian), RF64 and BW64 (64-bit sizes)
    (0, b"fLaC", "FLAC"),
    (0, b"OggS", "Ogg"),
    (8, b"AIFF", "AIFF"),
    (8, b"AIFC", "AIFF"),
)
_CONVERT = "convert it, for example with `ffmpeg -i IN OUT.wav`"
_FETCH_AGAIN = "get a fresh copy"
_OTHER_MAGIC = (
    (0, _LFS_POINTER, "a git-lfs pointer", "run `git lfs pull` in the data folder"),
    (4, b"ftyp", "an MP4 or M4A file", _CONVERT),
    (0, b"\x1aE\xdf\xa3", "a Matroska or WebM file", _CONVERT),
    (0, b"ADIF", "AAC", _CONVERT),
    (0, b"#!AMR", "AMR", _CONVERT),
    (0, b".snd", "a Sun AU file", _CONVERT),
    (0, b"caff", "a CAF file", _CONVERT),
    (0, b"riff", "a Wave64 file", _CONVERT),
    (0, b"NIST_1A", "a NIST SPHERE file", _CONVERT),
    (0, b"0&\xb2u", "a WMA file", _CONVERT),
    (0, b"PK\x03\x04", "a zip archive", "unpack it"),
    (0, b"\x1f\x8b", "a gzip archive", "unpack it"),
)
_MARKUP_STARTS = (b"<!", b"<html", b"<head", b"<body", b"<?xml", b"<error")


def _id3v2_length(content: bytes) -> int:
    """Return the bytes that ID3v2 tags take at the start; their size counts 7 bits a byte."""
    end = 0
    while content[end : end + 3] == b"ID3" and len(content) >= end + 10:
        sizes = content[end + 6 : end + 10]
        size = functools.reduce(lambda value, byte: value << 7 | byte & 0x7F, sizes, 0)
        end += 10 + size + (10 if content[end + 5] & 0x10 else 0)  # bit 4: a footer follows
    return end


def _container(content: bytes, name: str) -> str:
    """Tell by content, never by file ending, which of the readable containers this is.

    Args:
        content: The file's bytes behind any ID3v2 tag.
        name: Named in errors.

    Raises:
        AudioError: If it is none of them; says what it is and the next step.
    """
    if not content:
        raise AudioError(f"{name}: the file is empty (0 bytes); {_FETCH_AGAIN}")
    for offset, magic, kind in _AUDIO_MAGIC:
        if content.startswith(magic, offset):
            return kind
    what, advice = _describe_other(content)
    if advice != _UNKNOWN_DATA or _find_mpeg_start(content) is None:
        raise AudioError(f"{name}: is {what}, not one of WAV, MP3, FLAC, Ogg, AIFF; {advice}")
    return "MP3"


_UNKNOWN_DATA = "find out what it is; convert it if it is audio"


def _describe_other(content: bytes) -> tuple[str, str]:
    """Say what content that is no readable audio seems to be, and what to do about it."""
    for offset, magic, what, advice in _OTHER_MAGIC:
        if content.startswith(magic, offset):
            return what, advice
    if len(content) > 1 and content[0] == 0xFF and content[1] & 0xF6 == 0xF0:
        return "AAC", _CONVERT
    head = content[:512].removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.lower().startswith(_MARKUP_STARTS):
        return "an HTML or XML page, as a failed download leaves it", _FETCH_AGAIN
    if not content.strip(b"\0"):
        return f"{len(content)} zero bytes", _FETCH_AGAIN
    words = " ".join(head[:200].decode("ascii", "replace").split())
    if words.isascii() and words.isprintable():
        return f"text that begins {_short(words)}", _FETCH_AGAIN
    return f"data that begins {content[:8].hex(' ')}", _UNKNOWN_DATA


# --- Audio: how many frames a file promises -------------------------------------------------------
#
# libsndfile returns what it can read and says nothing when that is less than the file promises.
# So each container has a function that returns the least number of frames that must come out
# (0 where it doesn't say) and raises AudioError where bytes are missing.


def _cut_short(name: str, promised: str, present: str) -> AudioError:
    return AudioError(f"{name}: cut short, promises {promised} but holds {present}; {_FETCH_AGAIN}")


def _uint(content: bytes, start: int, size: int, order: Literal["little", "big"]) -> int:
    return int.from_bytes(content[start : start + size], order)


# Programs that write to a pipe can't go back to fill in the size. ffmpeg leaves 0xFFFFFFFF, sox
# and espeak-ng 0x7FFFF000, others 0x7FFFFFFF or 0x80000000; a real clip of 2 GiB lasts 12 hours.
_UNKNOWN_SIZE = 0x7FFF0000


def _chunks(content: bytes, order: Literal["little", "big"]) -> dict[bytes, tuple[int, int]]:
    """Return (start of the body, size as written) of a RIFF or AIFF file's chunks, by their tag."""
    chunks: dict[bytes, tuple[int, int]] = {}
    position = 12
    while position + 8 <= len(content):
        tag, size = content[position : position + 4], _uint(content, position + 4, 4, order)
        chunks.setdefault(tag, (position + 8, size))
        position += 8 + size + size % 2  # a pad byte follows a chunk of odd size
    return chunks


def _wav_order(content: bytes) -> Literal["little", "big"]:
    return "big" if content.startswith(b"RIFX") else "little"


def _wav_num_frames(content: bytes, name: str) -> int:
    """Compare the size of the data chunk with what is there."""
    order = _wav_order(content)
    chunks = _chunks(content, order)
    if b"data" not in chunks or b"fmt " not in chunks:
        raise AudioError(f"{name}: a WAV file without samples (no data chunk); {_FETCH_AGAIN}")
    start, size = chunks[b"data"]
    present = len(content) - start
    if size == 0xFFFFFFFF and b"ds64" in chunks:  # RF64: the RIFF size, then that of `data`
        size = _uint(content, chunks[b"ds64"][0] + 8, 8, order)
    elif size >= _UNKNOWN_SIZE and size > present:
        size = present
    if size > present:
        raise _cut_short(name, f"{size} bytes of samples", f"{present}")
    riff_end = min(8 + _uint(content, 4, 4, order), len(content))
    if (size == 0 and present > 8) or _has_unread_samples(content[start + size : riff_end], order):
        raise AudioError(
            f"{name}: its header says {size} bytes of samples but {present} bytes follow, as when "
            f"a recording is interrupted; {_CONVERT}"
        )
    return _wav_frames_in(size, content, chunks)


_MAX_RIFF_JUNK = 1024  # bytes behind the samples that some writers leave


def _has_unread_samples(rest: bytes, order: Literal["little", "big"]) -> bool:
    """Tell whether what lies between the samples and the end of RIFF is much and no chunks."""
    position = 0
    while position + 8 <= len(rest) and re.fullmatch(rb"[ -~]{4}", rest[position : position + 4]):
        size = _uint(rest, position + 4, 4, order)
        position += 8 + size + size % 2
    return len(rest) - position > _MAX_RIFF_JUNK


def _wav_frames_in(size: int, content: bytes, chunks: Mapping[bytes, tuple[int, int]]) -> int:
    order, (start, fmt_size) = _wav_order(content), chunks[b"fmt "]
    tag = _uint(content, start, 2, order)
    if tag == 0xFFFE and fmt_size >= 26:  # extensible: the real tag opens the sub-format's GUID
        tag = _uint(content, start + 24, 2, order)
    if tag in (1, 3, 6, 7):  # PCM, float, A-law, mu-law: one block is one frame
        return size // max(1, _uint(content, start + 12, 2, order))
    # A compressed format counts its frames in `fact`; its last block may hold some more.
    return _uint(content, chunks[b"fact"][0], 4, order) if b"fact" in chunks else 0


def _flac_num_frames(content: bytes, name: str) -> int:
    """Read the 36-bit count in STREAMINFO; an encoder that writes to a pipe leaves 0."""
    if content.find(b"fLaC\0\0\0\x22", 4) > 0:
        raise _joined(name, "FLAC")
    if num_frames := _uint(content, 18, 8, "big") & 0xFFFFFFFFF:
        return num_frames
    raise AudioError(f"{name}: a FLAC file that doesn't say how long it is; {_CONVERT}")


def _joined(name: str, kind: str) -> AudioError:
    return AudioError(
        f"{name}: several {kind} recordings joined in one file, of which a decoder returns the "
        f"first; split it, or {_CONVERT}"
    )


_REFLECTED_BYTES = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def _ogg_checksum(page: bytes) -> int:
    """Return the checksum of a page whose own checksum is zeroed: CRC-32 with its bits reversed."""
    reflected = zlib.crc32(page.translate(_REFLECTED_BYTES), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{reflected:032b}"[::-1], 2)


def _ogg_page(content: bytes, position: int) -> bytes:
    """Return the page that begins here, or what is there of it."""
    lengths = position + 27
    body = lengths + _uint(content, position + 26, 1, "little")
    return content[position : body + sum(content[lengths:body])]


def _ogg_num_frames(content: bytes, name: str) -> int:
    """Check every page, and read the count of frames from the last where the codec counts so.

    A page: "OggS", version, flags (2: first, 4: last), a position of 8 bytes, a serial, a number
    and a checksum of 4 each, the number of segments, their lengths, their bytes (RFC 3533).
    """
    position, number, flags, num_frames = 0, 0, 0, 0
    while content.startswith(b"OggS", position):
        page = _ogg_page(content, position)
        flags, num_frames = _uint(page, 5, 1, "little"), _uint(page, 6, 8, "little")
        if flags & 2 and number:
            raise _joined(name, "Ogg")
        is_next = _uint(page, 18, 4, "little") == number
        zeroed = page[:22] + bytes(4) + page[26:]
        if not is_next or _ogg_checksum(zeroed) != _uint(page, 22, 4, "little"):
            raise AudioError(
                f"{name}: cut short or damaged, at or before Ogg page {number}; {_FETCH_AGAIN}"
            )
        position, number = position + len(page), number + 1
    if not flags & 4 or b"OggS" in content[position:]:
        raise _cut_short(name, "a page that ends the stream", f"{number} pages without it")
    return num_frames if content.startswith(b"\x01vorbis", 28) else 0


def _aiff_num_frames(content: bytes, name: str) -> int:
    """Compare the size of the samples with what is there and read the count in COMM."""
    chunks = _chunks(content, "big")
    start, size = chunks.get(b"SSND", (0, 0))
    if size > len(content) - start and size < _UNKNOWN_SIZE:
        raise _cut_short(name, f"{size} bytes of samples", f"{len(content) - start}")
    if b"COMM" not in chunks or size >= _UNKNOWN_SIZE:
        return 0
    return _uint(content, chunks[b"COMM"][0] + 2, 4, "big")


# --- Audio: MPEG frames ---------------------------------------------------------------------------

# kbit/s by (is MPEG-1, layer), for bit rate index 1 to 14 (ISO 11172-3 and 13818-3).
_MPEG_BIT_RATES = {
    (True, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_MPEG_RATES = (44_100, 48_000, 32_000)
_MPEG_RATE_DIVISORS = {3: 1, 2: 2, 0: 4}  # by the version bits: MPEG-1, MPEG-2, MPEG-2.5


@dataclasses.dataclass(frozen=True, slots=True)
class _MpegHeader:
    """What the four bytes before an MPEG frame say.

    Attributes:
        length: Bytes from this header to the next one.
        num_frames: Samples per channel that the MPEG frame decodes to.
        side_length: Bytes between the header and a Xing or Info mark (layer III).
        family: Bits that stay the same in one stream: version, layer, sampling rate.
    """

    length: int
    num_frames: int
    side_length: int
    family: int


@functools.lru_cache(maxsize=4096)
def _parse_mpeg_header(bits: int) -> _MpegHeader | None:
    """Read the 32 bits of a header; None if they are none, or say "free bit rate"."""
    version, layer = bits >> 19 & 3, 4 - (bits >> 17 & 3)
    bit_rate_index, rate_index = bits >> 12 & 15, bits >> 10 & 3
    is_sync = bits >> 21 == 0x7FF
    if not is_sync or version == 1 or layer == 4 or bit_rate_index in (0, 15) or rate_index == 3:
        return None
    is_v1, is_mono = version == 3, bits >> 6 & 3 == 3
    bit_rate = 1000 * _MPEG_BIT_RATES[is_v1, layer][bit_rate_index - 1]
    rate = _MPEG_RATES[rate_index] // _MPEG_RATE_DIVISORS[version]
    num_frames = 384 if layer == 1 else 576 if layer == 3 and not is_v1 else 1152
    slot = 4 if layer == 1 else 1  # bytes; padding adds one slot
    length = (num_frames // 8 // slot * bit_rate // rate + (bits >> 9 & 1)) * slot
    side_length = (17 if is_mono else 32) if is_v1 else (9 if is_mono else 17)
    return _MpegHeader(length, num_frames, side_length, bits & 0xFFFE0C00)


_UINT32 = struct.Struct(">I")


def _mpeg_header_at(content: bytes, position: int) -> _MpegHeader | None:
    if position + 4 > len(content):
        return None
    return _parse_mpeg_header(_UINT32.unpack_from(content, position)[0])


_MAX_MPEG_SEARCH = 65_536  # bytes; covers the padding that taggers leave


def _find_mpeg_start(content: bytes) -> tuple[int, _MpegHeader] | None:
    """Return where the first of two consecutive MPEG frames begins, and its header."""
    position = content.find(b"\xff")
    while 0 <= position <= _MAX_MPEG_SEARCH:
        if header := _mpeg_header_at(content, position):
            after = position + header.length
            following = _mpeg_header_at(content, after)
            is_lone = position == 0 and after >= len(content)
            if is_lone or (following and following.family == header.family):
                return position, header
        position = content.find(b"\xff", position + 1)
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class _MpegStream:
    """The MPEG frames of a file.

    Attributes:
        start: Where the first frame begins, that of a Xing or Info header included.
        audio_start: Where the first frame with sound begins.
        end: Behind the last frame.
        num_frames: Samples per channel that the frames with sound decode to.
        trimmed: How many of them a decoder takes away as the encoder's delay and padding.
    """

    start: int
    audio_start: int
    end: int
    num_frames: int
    trimmed: int


# Tags that may stand beside the MPEG frames.
_MPEG_TAGS = (b"TAG", b"APETAGEX", b"LYRICSBEGIN", b"3DI", b"ID3")
_MPEG_PADDING = b"\0\r\n "
# Bytes of zeros behind the last frame; more are what an interrupted download leaves.
_MAX_MPEG_PADDING = 4096
_DECODER_DELAY = 529  # frames that libmpg123 takes away once there is a Xing or Info header


def _parse_mpeg(content: bytes, name: str) -> _MpegStream:
    """Count the MPEG frames and compare with the Xing or Info header where there is one.

    Raises:
        AudioError: If a frame is cut short or missing, or something else lies beside the frames.
    """
    found = _find_mpeg_start(content)
    if found is None:
        raise AudioError(f"{name}: an MP3 file without MPEG frames; {_FETCH_AGAIN}")
    start, header = found
    promised, promised_bytes, trimmed = _parse_xing(content, start, header)
    audio_start = start if promised is None else start + header.length
    end, count = _walk_mpeg(content, audio_start, header.family)
    if end > len(content):
        raise _cut_short(name, f"{count} MPEG frames", f"{count - 1} and a part of the last")
    _check_beside_mpeg(content, start, end, name, is_vouched_for=promised == count)
    # Some encoders count the header's own frame; then at least the bytes agree.
    if (promised or 0) > count + (promised_bytes == end - start):
        raise _cut_short(name, f"{promised} MPEG frames", f"{count}")
    if count and _borrowed_bytes(content, audio_start):
        raise AudioError(
            f"{name}: its beginning is missing, the first MPEG frame needs bytes of one before it; "
            f"{_FETCH_AGAIN}"
        )
    return _MpegStream(start, audio_start, end, count * header.num_frames, trimmed)


def _check_beside_mpeg(
    content: bytes, start: int, end: int, name: str, is_vouched_for: bool
) -> None:
    """Refuse more frames, and anything but padding and tags where no header counts the frames."""
    before, after = content[:start], content[end:]
    if (is_vouched_for or _is_mpeg_tag(after)) and _find_mpeg_start(after):
        raise _joined(name, "MP3")
    if is_vouched_for:
        return
    for position, rest in ((0, before), (end, after)):
        if rest.strip(_MPEG_PADDING) and not _is_mpeg_tag(rest):
            raise AudioError(
                f"{name}: damaged, {len(rest)} bytes from byte {position} on are neither MPEG "
                f"frames nor a tag; {_FETCH_AGAIN}"
            )
    if len(after) - len(after.lstrip(b"\0")) > _MAX_MPEG_PADDING:
        raise _cut_short(name, "more than zeros behind its frames", f"{len(after)} bytes of them")


def _is_mpeg_tag(rest: bytes) -> bool:
    """Tell whether a tag lies here; APE tags may have their mark at the end alone."""
    return rest.lstrip(_MPEG_PADDING).startswith(_MPEG_TAGS) or b"APETAGEX" in rest[-160:]


def _borrowed_bytes(content: bytes, position: int) -> int:
    """Return how many bytes of earlier frames a layer III frame needs (ISO 11172-3, 2.4.1.7)."""
    bits = _uint(content, position, 4, "big")
    if bits >> 17 & 3 != 1:
        return 0
    side = position + (4 if bits >> 16 & 1 else 6)  # a checksum follows the header
    is_v1 = bits >> 19 & 3 == 3
    return _uint(content, side, 2, "big") >> (7 if is_v1 else 8)


def _walk_mpeg(content: bytes, position: int, family: int) -> tuple[int, int]:
    """Return where the run of MPEG frames from `position` on ends, and their number."""
    header = _mpeg_header_at(content, position)
    if header is None or header.family != family:
        return position, 0
    count = _count_equal_frames(content, position, header.length)
    position += count * header.length
    last, unpack = len(content) - 4, _UINT32.unpack_from
    while position <= last:  # _mpeg_header_at, without a call for each of thousands of frames
        header = _parse_mpeg_header(unpack(content, position)[0])
        if header is None or header.family != family:
            break
        position += header.length
        count += 1
    return position, count


def _count_equal_frames(content: bytes, position: int, length: int) -> int:
    """Return how many frames from here on have one header: of speech at a constant rate, all."""
    columns = [content[position + byte :: length] for byte in range(4)]
    return min(len(column) - len(column.lstrip(column[:1])) for column in columns)


def _parse_xing(content: bytes, start: int, header: _MpegHeader) -> tuple[int | None, int, int]:
    """Return (frames promised, bytes promised, samples to trim) of a header in the first frame.

    Frames are None where there is no header, and 0 where it doesn't count them. Layout of Xing and
    Info: mark, flags, then as these say frames, bytes, a table of 100 bytes, a quality; then LAME's
    extension of a name and 12 bytes, followed by the encoder's delay and padding, 12 bits each.
    VBRI: mark, 6 bytes, bytes, frames.
    """
    mark = start + 4 + header.side_length
    if content[start + 36 : start + 40] == b"VBRI":
        sizes = start + 46
        return _uint(content, sizes + 4, 4, "big"), _uint(content, sizes, 4, "big"), 0
    if content[mark : mark + 4] not in (b"Xing", b"Info"):
        return None, 0, 0
    flags, position = _uint(content, mark + 4, 4, "big"), mark + 8
    fields = []
    for bit, size in ((1, 4), (2, 4), (4, 100), (8, 4)):
        present = size if flags & bit else 0
        fields.append(_uint(content, position, present, "big"))
        position += present
    delays = _uint(content, position + 21, 3, "big")
    return fields[0], fields[1], max(_DECODER_DELAY, (delays >> 12) + (delays & 0xFFF))


def _with_xing(content: bytes, stream: _MpegStream) -> bytes:
    """Return the frames with sound behind a Xing frame of our own and a silent frame.

    Without a header libsndfile guesses the length from the first frame's bit rate: of a clip of
    variable rate it returns a part without a word. With a header it takes the decoder's delay
    away, which then comes out of the silent frame.
    """
    bits = _uint(content, stream.audio_start, 4, "big")
    for index in range(1, 15):  # the lowest bit rate whose frame has room for the header
        own_bits = bits & ~0xF200 | 0x10000 | index << 12  # no padding, no checksum
        own = _parse_mpeg_header(own_bits)
        if own and own.length >= own.side_length + 20:
            break
    else:
        return content[stream.start : stream.end]
    frame = own_bits.to_bytes(4, "big")
    body = frame.ljust(own.length, b"\0") + content[stream.audio_start : stream.end]
    count = stream.num_frames // own.num_frames + 1
    xing = struct.pack(">4sIII", b"Xing", 3, count, own.length + len(body))
    return (frame + bytes(own.side_length) + xing).ljust(own.length, b"\0") + body


# --- Audio: from bytes to a waveform --------------------------------------------------------------

_Samples = NDArray[np.float32]

_NUM_FRAMES: dict[str, Callable[[bytes, str], int]] = {
    "WAV": _wav_num_frames,
    "FLAC": _flac_num_frames,
    "Ogg": _ogg_num_frames,
    "AIFF": _aiff_num_frames,
}
# Hz. Speech is recorded at 8 to 192 kHz; a rate outside these comes from a damaged header.
_MIN_RATE, _MAX_RATE = 1_000, 768_000


@dataclasses.dataclass(frozen=True, slots=True)
class _Recording:
    """Decoded samples as stored: float32, shape (num_frames, num_channels), and their rate in Hz.

    `subtype` is libsndfile's name of the sample format, such as "PCM_16".
    """

    samples: _Samples
    sampling_rate: int
    subtype: str


def _decode(content: bytes, name: str) -> _Recording:
    """Decode an audio file whole.

    Args:
        content: The file's bytes: WAV, MP3, FLAC, Ogg or AIFF, told apart by content.
        name: Named in errors; the path where there is one.

    Raises:
        AudioError: If it is no such file, holds no samples or fewer than it promises, or NaN.
    """
    if content.startswith(b"ID3"):
        content = content[_id3v2_length(content) :]
        if not content:
            raise AudioError(f"{name}: an ID3 tag and no audio behind it; {_FETCH_AGAIN}")
    kind = _container(content, name)
    if kind == "MP3":
        recording = _decode_mpeg(content, name)
    else:
        promised = _NUM_FRAMES[kind](content, name)
        recording = _read_pcm16(content, promised) or _read_samples(content, kind, name)
        if len(recording.samples) < promised:
            raise _cut_short(name, f"{promised} frames", f"{len(recording.samples)} that decode")
    return _checked(recording, name)


def _decode_mpeg(content: bytes, name: str) -> _Recording:
    stream = _parse_mpeg(content, name)
    recording = _read_samples(content[stream.start : stream.end], "MP3", name)
    if len(recording.samples) >= stream.num_frames - stream.trimmed:
        return recording
    recording = _read_samples(_with_xing(content, stream), "MP3", name)
    surplus = len(recording.samples) - stream.num_frames  # what is left of the silent frame
    if surplus < 0:
        decoded = f"{len(recording.samples)} that decode"
        raise _cut_short(name, f"{stream.num_frames} frames", decoded)
    return dataclasses.replace(recording, samples=recording.samples[surplus:])


def _read_pcm16(content: bytes, num_frames: int) -> _Recording | None:
    """Read a plain 16-bit WAV, the commonest, in a tenth of libsndfile's time; else return None."""
    if not content.startswith(b"RIFF"):
        return None
    chunks = _chunks(content, "little")
    start, size = chunks[b"fmt "]
    if size < 16:
        return None
    tag, num_channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", content, start)
    if (tag, bits) != (1, 16) or not 0 < 2 * num_channels == block:
        return None
    stored = np.frombuffer(content, "<i2", num_frames * num_channels, chunks[b"data"][0])
    samples = np.multiply(stored, np.float32(2**-15), dtype=np.float32)
    return _Recording(samples.reshape(-1, num_channels), rate, "PCM_16")


def _read_samples(content: bytes, kind: str, name: str) -> _Recording:
    import soundfile

    if content.startswith(b"BW64"):  # RF64 by another name, which libsndfile doesn't know
        content = b"RF64" + content[4:]
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            frames = -1 if file.seekable() else file.frames  # GSM can't be sought in
            samples = file.read(frames, dtype="float32", always_2d=True)
            return _Recording(samples, file.samplerate, file.subtype)
    except soundfile.LibsndfileError as error:
        raise AudioError(f"{name}: {kind} that can't be decoded ({error}); {_CONVERT}") from error


# Integers can't hold NaN, and MPEG frames say no value above some 1e9: tens of thousands of clips
# with random bytes in their frames decoded to nothing else.
_ALWAYS_FINITE = ("PCM_", "MPEG_LAYER_")


def _checked(recording: _Recording, name: str) -> _Recording:
    samples, rate = recording.samples, recording.sampling_rate
    if len(samples) == 0:
        raise AudioError(f"{name}: no samples (0 frames); {_FETCH_AGAIN}")
    if not _MIN_RATE <= rate <= _MAX_RATE:
        raise AudioError(
            f"{name}: sampling rate {rate} Hz; expected {_MIN_RATE} to {_MAX_RATE}; {_FETCH_AGAIN}"
        )
    if not recording.subtype.startswith(_ALWAYS_FINITE):
        _check_finite(samples, name)
    return recording


def _check_finite(samples: _Samples, name: str) -> None:
    if not (finite := np.isfinite(samples)).all():
        count, first = np.size(finite) - np.count_nonzero(finite), int(np.argmin(finite))
        raise AudioError(
            f"{name}: {count} samples are NaN or infinite, the first at {first}; "
            "expected finite values; write the file again"
        )


def _to_waveform(recording: _Recording, sampling_rate: int | None) -> tuple[_Samples, int]:
    """Downmix to mono by the mean of the channels, then resample.

    Args:
        recording: What was decoded.
        sampling_rate: Hz wanted, or None for the recording's own.

    Returns:
        Float32, shape (num_frames,), values as stored; and its rate in Hz.
    """
    samples, rate = recording.samples, recording.sampling_rate
    mono = samples[:, 0] if samples.shape[1] == 1 else samples.mean(axis=1)
    if sampling_rate is None or sampling_rate == rate:
        return mono, rate
    return _resample(mono, rate, sampling_rate), sampling_rate


def _resample(waveform: _Samples, rate: int, new_rate: int) -> _Samples:
    """Return what `librosa.resample` does by default, without the seconds of importing librosa."""
    import soxr

    num_frames = math.ceil(len(waveform) * (new_rate / rate))
    resampled: _Samples = soxr.resample(waveform, rate, new_rate, quality="HQ")[:num_frames]
    if len(resampled) == num_frames:
        return resampled
    return np.pad(resampled, (0, num_frames - len(resampled)))


def _encode_wav(waveform: NDArray[Any], sampling_rate: int, name: str) -> bytes:
    """Encode a waveform as float WAV; libsndfile would write the time of day into it.

    Args:
        waveform: Floats, shape (num_frames,).
        sampling_rate: Hz.
        name: Named in errors.

    Raises:
        AudioError: If it is empty, not of this shape and type, or holds NaN.
    """
    if waveform.ndim != 1 or not np.issubdtype(waveform.dtype, np.floating):
        raise AudioError(
            f"{name}: found an array of shape {waveform.shape} and type {waveform.dtype}; "
            "expected floats of shape (num_frames,); take the mean of the channels, "
            "divide integers by their full scale"
        )
    samples = np.ascontiguousarray(waveform, dtype="<f4")
    _checked(_Recording(samples[:, np.newaxis], sampling_rate, "FLOAT"), name)
    fmt = struct.pack("<HHIIHHH", 3, 1, sampling_rate, 4 * sampling_rate, 4, 32, 0)
    body = b"".join(
        struct.pack("<4sI", tag, len(chunk)) + chunk
        for tag, chunk in (
            (b"fmt ", fmt),
            (b"fact", struct.pack("<I", len(samples))),
            (b"data", samples.tobytes()),
        )
    )
    return struct.pack("<4sI4s", b"RIFF", 4 + len(body), b"WAVE") + body


# ------------------------------------------------------------------------------------------------
# 3. Shell: where the data lies, the feature, the builder, the registration
# ------------------------------------------------------------------------------------------------

_LOGGER = logging.getLogger("s2s_arena")

# Tells datasets that this module's `open` and the like are replaced already. They aren't needed,
# and to replace them it imports scipy.io, which takes ten times as long as loading 154 rows.
_patched_for_streaming = True

_HERE = os.path.dirname(os.path.abspath(__file__))

# --- Roots: folders on disk, on the Hub, elsewhere ------------------------------------------------
#
# A root lists, reads and names files by their path below it. A listing maps a file's name to ""
# or to the reason why it must not be read; a reason under the name "" is that of every file.

_Listing = Mapping[str, str]
_IS_FOLDER = "is a folder"


class _Root(Protocol):
    @property
    def location(self) -> str:
        """What messages call it."""

    @property
    def identity(self) -> str:
        """What tells it apart from every other root and revision, in the cache's name."""

    @property
    def can_list(self) -> bool:
        """False if files must be taken to be there until they are read."""

    def list_files(self, folder: str) -> _Listing: ...

    def read(self, path: str) -> bytes: ...

    def audio_path(self, path: str) -> str:
        """Return what a streamed row stores, and `_read_audio` can read."""

    def fetch(self, paths: list[str], dl_manager: Any) -> list[str]:
        """Bring the files to this machine; return their local paths."""


@dataclasses.dataclass(frozen=True)
class _LocalRoot:
    """A folder on this machine. No symlink may lead out of it, those of a Hub cache aside.

    Attributes:
        location: Absolute path.
    """

    location: str
    can_list: ClassVar[bool] = True

    @property
    def identity(self) -> str:
        return os.path.realpath(self.location)

    @functools.cached_property
    def _allowed(self) -> tuple[str, ...]:
        """Real folders that links may lead to.

        What snapshot_download returns, `<repo>/snapshots/<commit>/`, links into `<repo>/blobs/`.
        """
        real = f"{self.identity}{os.sep}"
        snapshot = re.match(r"(.*)[/\\]snapshots[/\\][0-9a-f]{40}[/\\]", real)
        return (real, f"{snapshot[1]}{os.sep}blobs{os.sep}") if snapshot else (real,)

    def _is_inside(self, path: str) -> bool:
        return f"{os.path.realpath(path)}{os.sep}".startswith(self._allowed)

    def list_files(self, folder: str) -> _Listing:
        path = f"{self.location}/{folder}" if folder else self.location
        if not self._is_inside(path):
            return {"": "lies behind a link that leaves the data folder"}
        try:
            with os.scandir(path) as entries:
                return {entry.name: self._refusal(entry) for entry in entries}
        except (FileNotFoundError, NotADirectoryError):
            return {} if folder else {"": "no such folder"}
        except OSError as error:  # such as no permission, or a name that is too long
            return {"": f"can't be looked up ({error.strerror})"}

    def _refusal(self, entry: "os.DirEntry[str]") -> str:
        if entry.is_symlink() and not self._is_inside(entry.path):
            return "is a link that leaves the data folder"
        try:
            if entry.is_file():
                return ""
            return _IS_FOLDER if entry.is_dir() else "is a broken link or no regular file"
        except OSError as error:  # such as a link to itself
            return f"can't be looked up ({error.strerror})"

    def read(self, path: str) -> bytes:
        return _read_local(f"{self.location}/{path}")

    def audio_path(self, path: str) -> str:
        return f"{self.location}/{path}"

    def fetch(self, paths: list[str], dl_manager: Any) -> list[str]:  # noqa: ARG002
        return [self.audio_path(path) for path in paths]


_HUB_URL = re.compile(
    r"hf://datasets/(?P<repo_id>[^/@]+(?:/[^/@]+)?)"
    r"(?:@(?P<revision>refs/[^/]+/[^/]+|[^/]+))?(?:/(?P<path>.*))?"
)


@dataclasses.dataclass(frozen=True)
class _HubRoot:
    """A dataset repository on the Hub at one commit, read through huggingface_hub's cache.

    Attributes:
        repo_id: `owner/name`.
        commit: The 40 digits that the revision was resolved to, once.
        folder: Folder within the repository, with a trailing slash, or "".
        files: Every file of the repository; offline, those in the cache.
        is_offline: The Hub can't be reached: what isn't in the cache can't be read.
        token: As given to load_dataset; None for the login of this machine.
    """

    repo_id: str
    commit: str
    folder: str
    files: tuple[str, ...]
    is_offline: bool
    token: str | bool | None = dataclasses.field(repr=False)

    @property
    def location(self) -> str:
        return f"hf://datasets/{self.repo_id}@{self.commit}/{self.folder}".rstrip("/")

    @property
    def identity(self) -> str:
        return self.location

    @property
    def can_list(self) -> bool:
        return not self.is_offline

    def list_files(self, folder: str) -> _Listing:
        prefix = f"{self.folder}{folder}/" if folder else self.folder
        names = [file[len(prefix) :] for file in self.files if file.startswith(prefix)]
        return {name: "" for name in names if "/" not in name}

    def read(self, path: str) -> bytes:
        return _read_local(self._download(path))

    def audio_path(self, path: str) -> str:
        return f"{self.location}/{path}"

    def fetch(self, paths: list[str], dl_manager: Any) -> list[str]:  # noqa: ARG002
        from tqdm.contrib.concurrent import thread_map

        options = {"max_workers": 8, "desc": "Fetching audio", "tqdm_class": datasets.utils.tqdm}
        return list(thread_map(self._download, paths, **options))

    def _download(self, path: str) -> str:
        return _download_from_hub(self.repo_id, self.commit, f"{self.folder}{path}", self.token)


# What load_dataset was given, by repository: datasets 3 doesn't hand it to every row of a stream.
_TOKENS: dict[str, str | bool | None] = {}


def _open_hub(url: str, revision: str | None, token: str | bool | None) -> _HubRoot:
    """Resolve `hf://datasets/owner/name[@revision][/folder]` to one commit and list its files."""
    match = _HUB_URL.fullmatch(url)
    if match is None:
        raise ValueError(f"data_dir {url!r}: expected hf://datasets/owner/name[@revision][/folder]")
    repo_id, folder = match["repo_id"], (match["path"] or "").strip("/")
    in_url = urllib.parse.unquote(match["revision"]) if match["revision"] else None
    if in_url and revision and in_url != revision:
        raise ValueError(f"data_dir says revision {in_url!r}, revision= says {revision!r}")
    commit, files, is_offline = _resolve_on_hub(repo_id, in_url or revision or "main", token)
    _TOKENS[repo_id] = token
    return _HubRoot(repo_id, commit, f"{folder}/" if folder else "", files, is_offline, token)


def _resolve_on_hub(
    repo_id: str, revision: str, token: str | bool | None
) -> tuple[str, tuple[str, ...], bool]:
    """Return (commit, files, is offline); offline, what huggingface_hub's cache knows."""
    import huggingface_hub
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return _resolve_in_cache(repo_id, revision)
    api = huggingface_hub.HfApi(token=token)
    info = ask_hub(
        lambda: api.dataset_info(repo_id, revision=revision, timeout=10),
        f"{repo_id} at revision {revision!r}",
    )
    commit = str(info.sha)
    _remember_revision(repo_id, revision, commit)
    return commit, tuple(sibling.rfilename for sibling in info.siblings or ()), False


def _repo_cache(repo_id: str) -> str:
    from huggingface_hub import constants

    return f"{constants.HF_HUB_CACHE}/datasets--{repo_id.replace('/', '--')}"


def _remember_revision(repo_id: str, revision: str, commit: str) -> None:
    """Write which commit a branch or tag stood for, where huggingface_hub looks when offline.

    hf_hub_download does so itself, but only when it is asked for the branch, and then each file
    may come from another commit.
    """
    if revision == commit:
        return
    path = f"{_repo_cache(repo_id)}/refs/{revision}"
    os.makedirs(path.rpartition("/")[0], exist_ok=True)
    with io.open(path, "w", encoding="utf-8") as file:  # noqa: UP020
        file.write(commit)


def _resolve_in_cache(repo_id: str, revision: str) -> tuple[str, tuple[str, ...], bool]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        snapshot = snapshot_download(
            repo_id, repo_type="dataset", revision=revision, local_files_only=True
        )
    except LocalEntryNotFoundError as error:
        # huggingface_hub 2 refuses a snapshot that lacks files, which is what a stream leaves.
        snapshot = getattr(error, "snapshot_path", None)
        if snapshot is None:
            raise ConnectionError(
                f"{repo_id} at revision {revision!r} is not in the cache and HF_HUB_OFFLINE is "
                "set; load it once while online"
            ) from error
    files = [
        f"{folder}/{name}"[len(snapshot) + 1 :].replace(os.sep, "/")
        for folder, _, names in os.walk(snapshot)
        for name in names
    ]
    return os.path.realpath(snapshot).replace(os.sep, "/").rpartition("/")[2], tuple(files), True


_Answer = TypeVar("_Answer")


def ask_hub(ask: Callable[[], _Answer], what: str, *, patience: float = 20.0) -> _Answer:
    """Call a function of huggingface_hub, again after faults that may pass.

    The client itself tries some requests again (a HEAD that meets 5xx) and not others (a body that
    does, a connection that is reset). Waits 1, 2, 4, 8, then 16 s, or as `Retry-After` says.

    Args:
        ask: Makes the request.
        what: Named in errors.
        patience: Seconds after which no other attempt is begun.

    Raises:
        OSError: With a message that says what couldn't be had and the next step; a PermissionError
            without access, a FileNotFoundError where there is no such file or revision.
    """
    import huggingface_hub.errors

    # httpx's errors or requests', whichever huggingface_hub is built on, share this base class.
    bases = huggingface_hub.errors.HfHubHTTPError.__mro__
    client_errors = tuple(base for base in bases if base.__name__ == "HTTPError")
    end, pause = time.monotonic() + patience, 1.0
    while True:
        try:
            return ask()
        except (OSError, json.JSONDecodeError, *client_errors) as error:
            cause = _cause_of(error)
            wait = max(pause, _retry_after(cause))
            if time.monotonic() + wait > end or not _may_pass(cause):
                raise _hub_error(cause, what) from error
        time.sleep(wait)
        pause = min(2 * pause, 16.0)


def _cause_of(error: Exception) -> BaseException:
    """Look behind the client's "no local entry", which it says also when the Hub failed it."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    return (isinstance(error, LocalEntryNotFoundError) and error.__cause__) or error


def _status_of(error: BaseException | None) -> int | None:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def _retry_after(error: BaseException) -> float:
    """Return the seconds that the answer asks to wait, 0 if it doesn't or names a date."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    text = headers.get("Retry-After", "")
    return float(text) if text.isdecimal() else 0.0


def _is_local(error: BaseException) -> TypeGuard[OSError]:
    """Tell whether this machine said no, such as for want of disk space or permission."""
    is_local = isinstance(error, OSError) and error.errno is not None
    return is_local and not isinstance(error, (ConnectionError, TimeoutError))


def _may_pass(error: BaseException) -> bool:
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    status = _status_of(error)
    if status is not None:
        return status in (408, 429) or status >= 500
    # The client has tried for some time before it says that it has no local entry.
    tried = isinstance(error, (LocalEntryNotFoundError, OfflineModeIsEnabled))
    return not tried and not _is_local(error)


def _hub_error(error: BaseException, what: str) -> OSError:
    """Say what couldn't be had from the Hub and what to do; the token is never in the text."""
    from huggingface_hub import constants, errors

    if _is_local(error):
        return error
    status = _status_of(error)
    if isinstance(error, errors.RevisionNotFoundError):
        return FileNotFoundError(f"{what}: no such revision on the Hub")
    if isinstance(error, errors.EntryNotFoundError) and status == 404:
        return FileNotFoundError(f"{what}: no such file on the Hub")
    if isinstance(error, errors.GatedRepoError):
        return PermissionError(
            f"{what}: the repository is gated; ask for access on its page, then log in with "
            "`hf auth login` or set HF_TOKEN"
        )
    if status in (401, 403) or isinstance(error, errors.RepositoryNotFoundError):
        return PermissionError(
            f"{what}: no such repository, or no access to it; check the name, "
            "log in with `hf auth login` or set HF_TOKEN"
        )
    if constants.HF_HUB_OFFLINE:
        return ConnectionError(
            f"{what}: not in the cache, and HF_HUB_OFFLINE is set; load it once while online"
        )
    if status is None:
        reason = str(error) if isinstance(error, ConnectionError) else type(error).__name__
        return ConnectionError(f"{what}: the connection to the Hub failed ({reason}); try again")
    wait = _retry_after(error)
    later = f"in {wait:.0f} s, as it asks" if wait else "later"
    return ConnectionError(f"{what}: the Hub answered {status}; try again {later}")


def _download_from_hub(repo_id: str, commit: str, file: str, token: str | bool | None) -> str:
    """Return the local path of a file, downloaded unless the cache has it, its bytes verified.

    Raises:
        OSError: If it can't be had, or arrived damaged twice.
    """
    import huggingface_hub

    def download() -> str:
        return str(
            huggingface_hub.hf_hub_download(
                repo_id, file, repo_type="dataset", revision=commit, token=token
            )
        )

    what = f"{file} of {repo_id} at commit {commit}"
    for _ in range(2):
        path = ask_hub(download, what)
        if _is_intact(path):
            return path
        os.remove(os.path.realpath(path))
    raise ConnectionError(f"{what}: arrived twice with other bytes than the Hub lists; try again")


def _is_intact(path: str) -> bool:
    """Compare a cached file with the digest that names its blob: sha256 (LFS) or a git blob id.

    The client accepts a body of the right length whatever its bytes.
    """
    expected = os.path.realpath(path).replace(os.sep, "/").rpartition("/")[2]
    content = _read_local(path)
    if re.fullmatch("[0-9a-f]{64}", expected):
        return hashlib.sha256(content).hexdigest() == expected
    if re.fullmatch("[0-9a-f]{40}", expected):
        blob = b"blob %d\0" % len(content) + content
        return hashlib.sha1(blob, usedforsecurity=False).hexdigest() == expected
    return True  # without symlinks the cache holds no digest


@dataclasses.dataclass(frozen=True)
class _UrlRoot:
    """A folder behind any URL that fsspec can open, such as s3:// or https://.

    Attributes:
        location: The URL, without a trailing slash.
        storage_options: Given to the file system.
    """

    location: str
    storage_options: dict[str, Any]

    @property
    def identity(self) -> str:
        return self.location

    @functools.cached_property
    def _fs(self) -> Any:
        import fsspec

        return fsspec.core.url_to_fs(self.location, **self.storage_options)[0]

    @property
    def can_list(self) -> bool:
        return not self.location.startswith(("http://", "https://"))

    def list_files(self, folder: str) -> _Listing:
        if not self.can_list:
            is_there = folder == "" and self._fs.exists(f"{self.location}/metadata.json")
            return {"metadata.json": ""} if is_there else {}
        try:
            found = self._fs.ls(f"{self.location}/{folder}".rstrip("/"), detail=True)
        except FileNotFoundError:
            return {}
        return {
            info["name"].rstrip("/").rpartition("/")[2]: ""
            for info in found
            if info["type"] == "file"
        }

    def read(self, path: str) -> bytes:
        content: bytes = self._fs.cat_file(f"{self.location}/{path}")
        return content

    def audio_path(self, path: str) -> str:
        return f"{self.location}/{path}"

    def fetch(self, paths: list[str], dl_manager: Any) -> list[str]:
        local: list[str] = dl_manager.download([self.audio_path(path) for path in paths])
        return local


def _is_url(path: str) -> bool:
    return _URL.match(path) is not None


def _read_local(path: str) -> bytes:
    with io.open(path, "rb") as file:  # noqa: UP020
        return file.read()


def _read_audio(path: str, token_per_repo_id: Mapping[str, Any]) -> bytes:
    """Read what a row's path names: a local file, or a remote one that a stream reached.

    Raises:
        AudioError: If it can't be read; names the path.
    """
    hub = _HUB_URL.fullmatch(path)
    try:
        if hub and hub["revision"] and hub["path"]:
            token = {**_TOKENS, **token_per_repo_id}.get(hub["repo_id"])
            path_in_cache = _download_from_hub(hub["repo_id"], hub["revision"], hub["path"], token)
            return _read_local(path_in_cache)
        if _is_url(path):
            with datasets.utils.file_utils.xopen(path, "rb") as file:
                content: bytes = file.read()
                return content
        return _read_local(path)
    except FileNotFoundError as error:
        if _is_url(path):
            raise AudioError(f"{path}: {error}") from error
        raise AudioError(
            f"{path}: the file has gone since the dataset was loaded; put it back, or load again "
            'with download_mode="force_redownload"'
        ) from error
    except OSError as error:
        raise AudioError(f"{path}: can't be read ({error}); see that it can") from error


# --- The metadata of a root -----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Source:
    """A root and its metadata files, named by the user or found.

    Attributes:
        root: Where they and the recordings lie.
        metadata_files: Paths below the root, in the order of the rows.
        passed_over: What was seen and isn't metadata, for the message when there is none.
        problems: Files that must not be read.
    """

    root: _Root
    metadata_files: tuple[str, ...]
    passed_over: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def _find_metadata(root: _Root) -> _Source:
    """Look for metadata: metadata.json, else every *.json at the root, else those in data/.

    The first place that has a file which isn't a lone object (such as provenance.json) counts.
    """
    passed_over: list[str] = []
    for folder in ("", "data"):
        listing = root.list_files(folder)
        if "" in listing:
            expected = "expected the folder that holds metadata.json"
            where = f"{root.location}/{folder}".rstrip("/")
            return _Source(
                root, (), (), (Problem("error", where, None, None, listing[""], expected),)
            )
        others = sorted(name for name in listing if name.endswith((".jsonl", ".csv")))
        passed_over += [f"{name}: rename it, or give data_files=" for name in others[:3]]
        # macOS leaves `._x.json` beside x.json on other systems' disks.
        is_json = re.compile(r"[^.].*\.json", re.S).fullmatch
        names = sorted(name for name in listing if is_json(name))
        for place in (["metadata.json"], names) if "metadata.json" in names else (names,):
            files = {f"{folder}/{name}" if folder else name: listing[name] for name in place}
            source = _sift(root, files, passed_over)
            if source.metadata_files or source.problems:
                return source
    return _Source(root, (), tuple(passed_over))


def _sift(root: _Root, files: Mapping[str, str], passed_over: list[str]) -> _Source:
    """Take the metadata among the files of one place; what else is seen goes to `passed_over`."""
    found, problems = [], []
    for file, reason in files.items():
        what = reason or _describe_lone_object(root.read(file))
        if what is None:
            found.append(file)
        elif reason not in ("", _IS_FOLDER):
            expected = "expected a file of the data folder"
            problems.append(Problem("error", file, None, None, reason, expected))
        elif f"{file}: {what}" not in passed_over:
            passed_over.append(f"{file}: {what}")
    return _Source(root, tuple(found), tuple(passed_over), tuple(problems))


def _describe_lone_object(content: bytes) -> str | None:
    """Describe a JSON file whose top level is one object that is no entry; None for all others."""
    if not content.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
        return None
    try:
        value = _parse_json(_decode_text(content))
    except (ValueError, RecursionError):
        return None
    return None if _looks_like_entry(value) else _describe(value)


def _letting_go(values: list[Any]) -> Iterator[Any]:
    """Yield the values, and keep none that was yielded."""
    values.reverse()
    while values:
        yield values.pop()


def _read_entries(source: _Source) -> tuple[list[_Entry], list[Problem]]:
    """Parse all metadata files of a source."""
    entries: list[_Entry] = []
    problems = list(source.problems)
    for file in source.metadata_files:
        rows, file_problems = _parse_rows(source.root.read(file), file)
        file_entries, row_problems = _parse_entries(_letting_go(rows), file)
        entries += file_entries
        problems += file_problems + row_problems
    if not source.metadata_files and not source.problems:
        saw = f"; saw {'; '.join(source.passed_over)}" if source.passed_over else ""
        what = f"no list of entries{saw}"
        expected = "expected metadata.json, or *.json here or in data/, with a list of entries"
        problems.append(Problem("error", source.root.location, None, None, what, expected))
    expected = _UNIQUE_IDS
    if isinstance(source.root, _HubRoot):
        command = f"scripts/fetch_official.py --repo-id {source.root.repo_id} --out DIR"
        expected = f"{expected}; `python {command}` writes a copy that has them"
    problems += _repeated_id_problems(entries, expected)
    return entries, problems


class _Listings(dict[str, _Listing]):
    """The listings of a root's folders, each read once."""

    def __init__(self, root: _Root) -> None:
        super().__init__()
        self._root = root
        self._by_stem: dict[str, dict[str, str]] = {}

    def __missing__(self, folder: str) -> _Listing:
        self[folder] = self._root.list_files(folder)
        return self[folder]

    def state(self, path: str) -> str | None:
        """Return "" if the file can be read, the reason if it must not be, None if it isn't there.

        Where the root can't list, every file is taken to be there.
        """
        folder, _, name = path.rpartition("/")
        listing = self[folder]
        return listing.get(name, listing.get("", None if self._root.can_list else ""))

    def near_name(self, path: str) -> str | None:
        """Return the same name with another ending, letter case or Unicode form; never a guess."""
        folder, _, name = path.rpartition("/")
        if folder not in self._by_stem:
            names = [other for other, reason in self[folder].items() if not reason]
            self._by_stem[folder] = {_fold_stem(other): other for other in reversed(names)}
        return self._by_stem[folder].get(_fold_stem(name))


def _fold_stem(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold().rpartition(".")[0]


def _locate(entry: _Entry, root: _Root, listings: _Listings) -> tuple[str | None, Problem | None]:
    """Return where the recording of an entry lies below the root, or what is wrong with it."""
    if entry.path is None:
        return None, None  # reported with the entry's fields
    written, other = _candidate_paths(entry.path)
    states = {path: listings.state(path) for path in (written, other)}
    there = [path for path, state in states.items() if state is not None]
    if not there:
        near = listings.near_name(written)
        hint = f" (did you mean {near!r}?)" if near else ""
        what = f"no audio file at {root.location}/{written}{hint}"
        return None, entry.problem(what, "every entry needs its recording")
    path = there[0]
    if reason := states[path]:
        return None, entry.problem(f"{root.location}/{path} {reason}", "expected an audio file")
    if len(there) == 2 and root.can_list and root.read(written) != root.read(other):
        what = f"both {written!r} and {other!r} exist, with different content"
        return None, entry.problem(what, "keep one of them")
    return path, None


def _locate_all(entries: list[_Entry], root: _Root) -> tuple[list[str | None], list[Problem]]:
    listings = _Listings(root)
    found = [_locate(entry, root, listings) for entry in entries]
    return [path for path, _ in found], [problem for _, problem in found if problem]


def _by_place(problem: Problem) -> tuple[str, int, str]:
    row = -1 if problem.row is None else problem.row
    return problem.file, row, problem.severity


def _digest(source: _Source) -> str:
    """Return what tells apart the content of all metadata files and the root they belong to."""
    digest = hashlib.sha256(source.root.identity.encode("utf-8", "surrogateescape"))
    for file in source.metadata_files:
        content = source.root.read(file)
        digest.update(f"\0{file}\0{len(content)}\0".encode("utf-8", "surrogateescape"))
        digest.update(content)
    return digest.hexdigest()


# --- Every problem of a folder --------------------------------------------------------------------

# Below this peak (-60 dBFS) a clip counts as silent; above so many samples at full scale, clipped.
_SILENT_PEAK, _MIN_CLIPPED = 0.001, 10
_USUAL_RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
_MIN_SECONDS, _MAX_SECONDS = 0.3, 60.0
# A duration is far from its task's if the median of at least so many clips is so many times off.
_MIN_TASK_CLIPS, _FAR_FROM_MEDIAN = 5, 4.0

_AUDIO_ENDINGS = (".wav", ".mp3", ".flac", ".ogg", ".opus", ".aif", ".aiff", ".m4a", ".aac")
_WINDOWS_REFUSES = re.compile(
    r'[<>:"|?*\x00-\x1f]|[. ](?:/|$)|(?:^|/)(?:con|prn|aux|nul|com[1-9]|lpt[1-9])(?:[./]|$)', re.I
)
_NOISE_IN_PATH = re.compile(rf"_({'|'.join(NOISES)})_\d+\.")

# Scripts as Unicode names them that a text in the language is written in.
_SCRIPTS = {
    "Chinese": ("CJK",),
    "Japanese": ("HIRAGANA", "KATAKANA", "CJK"),
    "Korean": ("HANGUL",),
    "Russian": ("CYRILLIC",),
    "Thai": ("THAI",),
    "Arabic": ("ARABIC",),
    "Hindi": ("DEVANAGARI",),
    **dict.fromkeys(
        ("English", "French", "German", "Spanish", "Italian", "Portuguese"), ("LATIN",)
    ),
}


@dataclasses.dataclass(frozen=True, slots=True)
class _Clip:
    """What one recording turned out to be.

    Attributes:
        error: Why it can't be decoded, or None; then the rest holds nothing.
        num_frames: Length at its own rate.
        sampling_rate: Hz.
        num_channels: Before the downmix.
        peak: Largest absolute value of the mono mix.
        num_clipped: Samples at full scale, in integer formats.
        digest: Of the file's bytes.
    """

    error: str | None
    num_frames: int = 0
    sampling_rate: int = 1
    num_channels: int = 1
    peak: float = 1.0
    num_clipped: int = 0
    digest: bytes = b""

    @property
    def seconds(self) -> float:
        return self.num_frames / self.sampling_rate


def _inspect(path: str) -> _Clip:
    try:
        content = _read_audio(path, {})
        recording = _decode(content, path)
    except AudioError as error:
        return _Clip(str(error))
    mono, rate = _to_waveform(recording, None)
    num_frames, num_channels = recording.samples.shape
    digest = hashlib.sha256(content).digest()
    peak = float(np.abs(mono).max())
    return _Clip(None, num_frames, rate, num_channels, peak, _count_clipped(recording), digest)


def _count_clipped(recording: _Recording) -> int:
    """Count samples at full scale: -1, or 1 less the smallest step of the integer format."""
    bits = {"PCM_S8": 8, "PCM_U8": 8, "PCM_16": 16, "PCM_24": 24, "PCM_32": 32}
    if recording.subtype not in bits:
        return 0
    highest = 1 - 2.0 ** (1 - bits[recording.subtype])
    samples = recording.samples
    return int(np.count_nonzero((samples >= np.float32(highest)) | (samples <= -1)))


def _clip_warnings(clip: _Clip) -> Iterator[_Found]:
    if clip.peak < _SILENT_PEAK:
        yield f"silent (peak {clip.peak:.1g} of the mono mix)", "expected speech"
    if clip.num_clipped >= _MIN_CLIPPED:
        yield f"clipped ({clip.num_clipped} samples at full scale)", "expected headroom"
    if clip.sampling_rate not in _USUAL_RATES:
        yield f"sampling rate {clip.sampling_rate} Hz", f"expected one of {_USUAL_RATES}"
    if clip.num_channels > 1:
        yield f"{clip.num_channels} channels", "expected mono; the loader takes their mean"
    if not _MIN_SECONDS <= clip.seconds <= _MAX_SECONDS:
        expected = f"expected {_MIN_SECONDS} to {_MAX_SECONDS:.0f} s"
        yield f"lasts {clip.seconds:.2f} s", expected


def _utterance_warnings(utterance: Utterance) -> Iterator[_Found]:
    path = utterance.input_path
    if _WINDOWS_REFUSES.search(path):
        yield (
            f"{path!r} can't be a file's name on Windows",
            "rename it if others should use the data",
        )
    if not utterance.noise and (noise := _NOISE_IN_PATH.search(path)):
        yield f"{path!r} speaks of noise, noise is {utterance.noise!r}", f"expected {noise[1]!r}"
    mark = re.match(r"\s*\[\s*emotion", utterance.text, re.I)
    if mark and utterance.emotion is None:
        yield (
            f"the mark in text {_short(utterance.text)} isn't read",
            ("expected it as `[emotion: sad]`, at the very beginning"),
        )
    if utterance.task not in TASKS and (near := _did_you_mean(utterance.task, TASKS)):
        yield f"task {_short(utterance.task)} is none of the benchmark's", f"expected one{near}"
    scripts = _SCRIPTS.get(utterance.language)
    if scripts and not _is_written_in(_EMOTION.sub("", utterance.text), scripts):
        yield (
            f"language is {utterance.language!r}, text {_short(utterance.text)}",
            (f"expected mostly {' or '.join(scripts)} letters"),
        )


def _is_written_in(text: str, scripts: tuple[str, ...]) -> bool:
    """Tell whether at least half of the letters are of these scripts; no letters fit any."""
    letters = [unicodedata.name(char, "") for char in text if char.isalpha()]
    return 2 * sum(name.startswith(scripts) for name in letters) >= len(letters)


def _shared_warnings(located: list[tuple[_Entry, str]], clips: list[_Clip]) -> Iterator[Problem]:
    """Find one file, or one content, under two ids, and names that differ in letter case only."""
    by_path: dict[str, tuple[_Entry, str]] = {}
    by_digest: dict[bytes, _Entry] = {}
    for (entry, path), clip in zip(located, clips, strict=True):
        other, other_path = by_path.setdefault(path.casefold(), (entry, path))
        if other is not entry:
            is_same = path == other_path
            what = "the same file" if is_same else f"a name that differs from {path!r} in case only"
            yield entry.problem(f"{what} as {other.place}", "expected one each", "warning")
        elif clip.error is None and (twin := by_digest.setdefault(clip.digest, entry)) is not entry:
            yield entry.problem(f"the same bytes as {twin.place}", "expected one each", "warning")


def _duration_warnings(located: list[tuple[_Entry, str]], clips: list[_Clip]) -> Iterator[Problem]:
    """Find clips whose duration is far from the median of their task."""
    seconds: dict[str, list[float]] = collections.defaultdict(list)
    known = [
        (entry, entry.utterance.task, clip.seconds)
        for (entry, _), clip in zip(located, clips, strict=True)
        if entry.utterance and clip.error is None
    ]
    for _, task, duration in known:
        seconds[task].append(duration)
    medians = {
        task: float(np.median(durations))
        for task, durations in seconds.items()
        if len(durations) >= _MIN_TASK_CLIPS
    }
    for entry, task, duration in known:
        median = medians.get(task, duration)
        if not median / _FAR_FROM_MEDIAN <= duration <= median * _FAR_FROM_MEDIAN:
            what = f"lasts {duration:.2f} s, the median of {task!r} is {median:.2f} s"
            yield entry.problem(what, "expected a clip of that task's kind", "warning")


def _walk(root: _LocalRoot, folder: str = "") -> Iterator[str]:
    """Yield the path of every file below the root that may be read."""
    for name, reason in sorted(root.list_files(folder).items()):
        path = f"{folder}/{name}" if folder else name
        if not reason:
            yield path
        elif reason == _IS_FOLDER:
            yield from _walk(root, path)


def _unnamed_warnings(root: _LocalRoot, named: set[str]) -> Iterator[Problem]:
    """Find audio files that no entry names."""
    for path in _walk(root):
        if path not in named and path.lower().endswith(_AUDIO_ENDINGS):
            expected = "expected an entry for it; remove it if it is none of the data"
            yield Problem("warning", path, None, None, "no entry names this file", expected)


def _clip_problems(entry: _Entry, clip: _Clip) -> Iterator[Problem]:
    if clip.error is not None:
        what, _, advice = clip.error.rpartition("; ")
        yield entry.problem(what, advice)
        return
    for what, expected in _clip_warnings(clip):
        yield entry.problem(f"{entry.path}: {what}", expected, "warning")


def _inspect_all(paths: list[str], num_proc: int) -> Iterator[_Clip]:
    if num_proc == 1:
        yield from map(_inspect, paths)
        return
    # Ctrl-C is for the parent alone, which ends the workers.
    ignore = (signal.SIGINT, signal.SIG_IGN)
    with multiprocessing.Pool(num_proc, signal.signal, ignore) as pool:
        yield from pool.imap(_inspect, paths, chunksize=16)


def read_utterances(data_dir: str | os.PathLike[str]) -> list[Utterance]:
    """Read every entry of a data folder that passes its checks, in the metadata's order.

    Args:
        data_dir: A folder in any layout that `load_dataset(..., data_dir=)` takes.
    """
    root = _LocalRoot(os.path.abspath(os.path.expanduser(data_dir)))
    entries, _ = _read_entries(_find_metadata(root))
    return [entry.utterance for entry in entries if entry.utterance]


def find_problems(
    data_dir: str | os.PathLike[str],
    *,
    num_proc: int = 1,
    on_file: Callable[[str, int, int], None] | None = None,
) -> list[Problem]:
    """Find everything that is wrong with a data folder, metadata and audio, in one run.

    Errors are what the loader refuses, found by the same code. Warnings stop nothing.

    Args:
        data_dir: A folder in any layout that `load_dataset(..., data_dir=)` takes.
        num_proc: Processes that decode the audio.
        on_file: Called with (input_path, num_frames, sampling_rate in Hz) for each clip, in the
            order of the metadata; 0 frames at 0 Hz for one that can't be decoded.

    Returns:
        The problems, sorted by file and row; a row's errors before its warnings.
    """
    root = _LocalRoot(os.path.abspath(os.path.expanduser(data_dir)))
    entries, problems = _read_entries(_find_metadata(root))
    paths, missing = _locate_all(entries, root)
    problems += missing
    located = [(entry, path) for entry, path in zip(entries, paths, strict=True) if path]
    clips = []
    audio_paths = [root.audio_path(path) for _, path in located]
    for (entry, path), clip in zip(located, _inspect_all(audio_paths, num_proc), strict=True):
        clips.append(clip)
        problems += _clip_problems(entry, clip)
        if on_file:
            rate = clip.sampling_rate if clip.error is None else 0
            on_file(_to_input_path(path), clip.num_frames, rate)
    for entry in entries:
        if entry.utterance:
            found = _utterance_warnings(entry.utterance)
            problems += [entry.problem(what, expected, "warning") for what, expected in found]
    problems += _shared_warnings(located, clips)
    problems += _duration_warnings(located, clips)
    problems += _unnamed_warnings(root, {path for _, path in located})
    return sorted(problems, key=_by_place)


# --- Feature --------------------------------------------------------------------------------------

_MARK = "s2s_arena.Waveform"


@dataclasses.dataclass
class Waveform(datasets.Audio):
    """An `Audio` feature that decodes with libsndfile: no torch, nothing shortened in silence.

    Rows hold `{"path": str or None, "array": float32 of shape (num_frames,), "sampling_rate":
    int}`: mono by the mean of the channels, then resampled as `librosa.resample` does; values as
    stored, so a float file may exceed 1.0. On disk and on the Hub the column is a plain `Audio`,
    recognised by its `id`; whoever hasn't imported this package reads it as that.

    Args:
        sampling_rate: Hz to resample to, or None for each file's own.
        decode: False gives `{"path", "bytes"}` instead.

    Raises:
        ValueError: If `sampling_rate` is no positive int, or more than one channel is asked for.
        AudioError: On reading a row whose file isn't what it claims to be.
    """

    def __post_init__(self) -> None:
        if self.sampling_rate is not None and not _is_rate(self.sampling_rate):
            raise ValueError(
                f"sampling_rate is {self.sampling_rate!r}; expected a positive int (Hz) or None"
            )
        num_channels = getattr(self, "num_channels", None)  # datasets 4 and 5
        if num_channels not in (None, 1) or not getattr(self, "mono", True):  # datasets 3
            raise ValueError("Waveform is mono; use datasets.Audio to keep the channels")
        self.id = _MARK  # the field's default would not be written to the schema

    def encode_example(self, value: Any) -> dict[str, Any]:
        """Turn a path, bytes, or a dict of array or bytes or path into what Arrow stores.

        An array becomes a float WAV, which keeps every float32 as it is.
        """
        if isinstance(value, (str, os.PathLike)):
            return {"bytes": None, "path": os.fspath(value)}
        if isinstance(value, (bytes, bytearray)):
            return {"bytes": bytes(value), "path": None}
        if isinstance(value, dict) and value.get("array") is not None:
            path = value.get("path")
            array = np.asarray(value["array"])
            rate = value.get("sampling_rate")
            if not _is_rate(rate):
                raise ValueError(f"sampling_rate is {rate!r}; an array needs its rate in Hz")
            return {"bytes": _encode_wav(array, rate, path or "waveform"), "path": path}
        if isinstance(value, dict) and (value.get("bytes") or value.get("path")) is not None:
            return {"bytes": value.get("bytes"), "path": value.get("path")}
        raise ValueError(
            f"found {_short(value)}; expected a path, bytes, or a dict with 'array' and "
            "'sampling_rate', 'bytes' or 'path'"
        )

    def decode_example(
        self, value: dict[str, Any], token_per_repo_id: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Turn what Arrow stores into `{"path", "array", "sampling_rate"}`."""
        if not self.decode:
            raise RuntimeError("decoding is switched off; use Waveform(decode=True)")
        if "array" in value:  # decoded already
            return value
        path, content = value["path"], value["bytes"]
        if content is None:
            window = _WINDOWS.get(path)
            read = window.read if window else _read_audio
            content = read(path, token_per_repo_id or {})
        name = path or "audio bytes"
        recording = _decode(content, name)
        array, sampling_rate = _to_waveform(recording, self.sampling_rate)
        is_mixed = recording.samples.shape[1] > 1
        if is_mixed and not recording.subtype.startswith(_ALWAYS_FINITE):
            _check_finite(array, name)  # huge floats may overflow in the sum of the channels
        return {"path": path, "array": array, "sampling_rate": sampling_rate}

    def cast_storage(self, storage: pa.Array) -> pa.StructArray:
        """Bring an Arrow column into the stored form; `map` hands in structs with an array."""
        if pa.types.is_struct(storage.type) and storage.type.get_field_index("array") >= 0:
            encoded = [
                None if row is None else self.encode_example(_with_numpy_array(row))
                for row in storage.to_pylist()
            ]
            return pa.array(encoded, type=self.pa_type)
        return super().cast_storage(storage)

    def embed_storage(
        self,
        storage: pa.StructArray,
        token_per_repo_id: Mapping[str, Any] | None = None,
        local_files: bool = True,
        remote_files: bool = True,
    ) -> pa.StructArray:
        """Put the bytes of the files into the column, each checked; paths keep their base name.

        Raises:
            AudioError: If a file is damaged, so that it isn't passed on.
        """

        def embed(row: dict[str, Any] | None) -> dict[str, Any] | None:
            if row is None or row["path"] is None:
                return row
            is_wanted = remote_files if _is_url(row["path"]) else local_files
            if row["bytes"] is None and not is_wanted:
                return row
            content = row["bytes"]
            if content is None:
                content = _read_audio(row["path"], token_per_repo_id or {})
                _decode(content, row["path"])
            name = row["path"].replace(os.sep, "/").rpartition("/")[2]
            return {"bytes": content, "path": name}

        return pa.array([embed(row) for row in storage.to_pylist()], type=self.pa_type)


def _is_int(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_rate(value: Any) -> TypeGuard[int]:
    return _is_int(value) and value > 0


def _with_numpy_array(row: dict[str, Any]) -> dict[str, Any]:
    """Give back its type to an array that went through Arrow as a list; ints stay ints."""
    array = row["array"]
    if isinstance(array, list) and array and isinstance(array[0], float):
        return {**row, "array": np.array(array, dtype=np.float32)}
    return row


class _StoredAudio(datasets.Audio):
    """What `_type: "Audio"` is read back as: ours for marked columns, the stock class for others.

    datasets makes a feature from a schema or a dataset_info by calling what its feature-type
    table has under that name, with the fields that were written.
    """

    def __new__(cls, **fields: Any) -> datasets.Audio:
        if fields.get("id") == _MARK:
            return Waveform(**fields)
        return datasets.Audio(**fields)


def _install_read_back() -> None:
    types = datasets.features.features._FEATURE_TYPES
    if getattr(types["Audio"], "__name__", None) != _StoredAudio.__name__:
        types["Audio"] = _StoredAudio


# --- Stream ---------------------------------------------------------------------------------------


_MAX_THREADS = 16  # that read ahead; more requests at once make no server faster


class _Window:
    """Reads the recordings of coming rows in threads, once the recording of a row is asked for.

    Args:
        paths: Of the rows, in their order.
        size: How many rows ahead are read, and so kept at most.
    """

    def __init__(self, paths: list[str], size: int) -> None:
        self._paths = paths
        self._positions = {path: position for position, path in enumerate(paths)}
        self._size = size
        self._contents: dict[str, concurrent.futures.Future[bytes]] = {}
        self._threads = concurrent.futures.ThreadPoolExecutor(min(size, _MAX_THREADS) + 1)

    def read(self, path: str, token_per_repo_id: Mapping[str, Any]) -> bytes:
        """Return the recording of one row, or raise what reading it raised."""
        position = self._positions[path]
        wanted = self._paths[position : position + 1 + self._size]
        for passed in self._contents.keys() - set(wanted):
            self._contents.pop(passed).cancel()
        for each in wanted:
            if each not in self._contents:
                self._contents[each] = self._threads.submit(_read_audio, each, token_per_repo_id)
        return self._contents.pop(path).result()


# By the path of a row that was handed out, the window of the stream that is being read: a row may
# pass through Arrow before it is decoded, which leaves it nothing but its path.
_WINDOWS: "weakref.WeakValueDictionary[str, _Window]" = weakref.WeakValueDictionary()


class _AheadRows(datasets.iterable_dataset.ExamplesIterable):
    """Rows, each a shard, whose recordings are read ahead in whatever order the rows come."""

    size = 0

    def __iter__(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        window = _Window([audio_path for audio_path, *_ in self.kwargs["rows"]], self.size)
        for key, example in super().__iter__():
            _WINDOWS[example["audio"]] = window
            yield key, example

    def shuffle_data_sources(self, generator: np.random.Generator) -> "_AheadRows":
        rows = list(self.kwargs["rows"])
        copy.deepcopy(generator).shuffle(rows)
        return _read_ahead(type(self)(self.generate_examples_fn, {"rows": rows}), self.size)

    def shard_data_sources(self, *args: Any, **kwargs: Any) -> "_AheadRows":
        return _read_ahead(super().shard_data_sources(*args, **kwargs), self.size)


def _read_ahead(rows: Any, size: int) -> _AheadRows:
    rows.__class__, rows.size = _AheadRows, size
    return rows  # type: ignore[no-any-return]


class _Stream(datasets.IterableDataset):
    """A stream of our rows, which are still undecoded and each a shard of their own.

    Two methods differ from datasets' own; the rest of them only hands on this class.
    """

    def remove_columns(self, column_names: str | list[str]) -> datasets.IterableDataset:
        """Select the other columns, so that no recording is opened to be left out."""
        removed = [column_names] if isinstance(column_names, str) else list(column_names)
        if unknown := [name for name in removed if name not in self.column_names]:
            raise ValueError(f"no column {unknown}; expected some of {self.column_names}")
        return self.select_columns([name for name in self.column_names if name not in removed])

    def shuffle(self, *args: Any, **kwargs: Any) -> datasets.IterableDataset:
        """Shuffle all rows by shuffling the shards; a buffer is needed only after skip or take.

        A resumed stream of datasets lacks the rows that stood in the buffer, without a word.
        """
        shuffled = super().shuffle(*args, **kwargs)
        source = self._ex_iterable
        while isinstance(source, datasets.iterable_dataset.SelectColumnsIterable):
            source = source.ex_iterable
        if isinstance(source, datasets.iterable_dataset.ExamplesIterable):
            while type(shuffled._ex_iterable) is not type(self._ex_iterable):
                shuffled._ex_iterable = shuffled._ex_iterable.ex_iterable
        return _to_stream(shuffled)

    def cast_column(self, column: str, feature: Any) -> datasets.IterableDataset:
        return _to_stream(super().cast_column(column, feature))

    def select_columns(self, column_names: str | list[str]) -> datasets.IterableDataset:
        return _to_stream(super().select_columns(column_names))

    def shard(
        self, num_shards: int, index: int, contiguous: bool = True
    ) -> datasets.IterableDataset:
        return _to_stream(super().shard(num_shards, index, contiguous))

    def skip(self, n: int) -> datasets.IterableDataset:
        return _to_stream(super().skip(n))

    def take(self, n: int) -> datasets.IterableDataset:
        return _to_stream(super().take(n))

    def with_format(self, type: str | None = None) -> datasets.IterableDataset:
        return _to_stream(super().with_format(type))


def _to_stream(dataset: datasets.IterableDataset) -> datasets.IterableDataset:
    dataset.__class__ = _Stream
    return dataset


def _install_embedding() -> None:
    """Let `Dataset.to_parquet` write the bytes of our columns.

    datasets embeds files in push_to_hub but not here, where it writes the paths of this machine.
    """
    original = datasets.Dataset.to_parquet
    if getattr(original, "embeds_waveforms", False):
        return

    @functools.wraps(original)
    def to_parquet(
        dataset: datasets.Dataset, path_or_buf: Any, batch_size: int | None = None, **kwargs: Any
    ) -> int:
        if any(isinstance(feature, Waveform) for feature in dataset.features.values()):
            dataset = _with_bytes(dataset)
            if not dataset.num_rows:
                batch_size = batch_size or 1  # datasets would divide the size by the rows
        written: int = original(dataset, path_or_buf, batch_size=batch_size, **kwargs)
        return written

    to_parquet.embeds_waveforms = True  # type: ignore[attr-defined]
    datasets.Dataset.to_parquet = to_parquet


def _with_bytes(dataset: datasets.Dataset) -> datasets.Dataset:
    """Return the dataset with every file that it names read, checked and put into its rows."""
    return dataset.with_format("arrow").map(
        datasets.table.embed_table_storage, batched=True, batch_size=100, desc="Embedding audio"
    )


# --- Builder --------------------------------------------------------------------------------------


@dataclasses.dataclass
class S2SArenaConfig(datasets.BuilderConfig):
    """What a config of S2S-Arena differs in.

    Attributes:
        category: The category to select, or None for all.
        sampling_rate: Hz of the waveforms, or "native" for each file's own.
        prefetch: How many rows ahead a stream reads recordings, in threads; bounds what it keeps.
    """

    category: str | None = None
    sampling_rate: int | Literal["native"] = SAMPLING_RATE
    prefetch: int = 0


class S2SArena(datasets.GeneratorBasedBuilder):
    """Builds S2S-Arena from the embedded edition, a data folder or the Hub.

    Args:
        cache_dir: As for every builder.
        hash: As for every builder; the digest of the metadata and its place are mixed in.
        data_dir: A folder in any published layout, `hf://datasets/owner/name[@revision]`, or
            another fsspec URL. None means the embedded edition.
        data_files: One or more metadata files instead; recordings are looked up beside them.
        revision: Branch, tag or commit of an `hf://` data_dir.
        token: For an `hf://` data_dir.
        storage_options: For another URL.
        **kwargs: As for every builder.

    Raises:
        ValueError: If an option can't be right.
        MetadataError: If the metadata can't be right; when the split is built.
    """

    VERSION = VERSION
    BUILDER_CONFIG_CLASS = S2SArenaConfig
    BUILDER_CONFIGS = [  # noqa: RUF012 (datasets declares it so)
        S2SArenaConfig(name="all", version=VERSION, description=DESCRIPTION),
        *(
            S2SArenaConfig(name=category, version=VERSION, category=category)
            for category in CATEGORIES
        ),
    ]
    DEFAULT_CONFIG_NAME = "all"

    def __init__(
        self,
        cache_dir: str | None = None,
        *,
        hash: str | None = None,
        base_path: str | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        data_files: Any = None,
        revision: str | None = None,
        token: str | bool | None = None,
        storage_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if revision is not None and not str(data_dir).startswith("hf://"):
            raise ValueError(
                f"revision={revision!r} needs a data_dir on the Hub, such as "
                f"'hf://datasets/{OFFICIAL_REPO_ID}'; found {data_dir!r}"
            )
        self._is_embedded = data_dir is None and data_files is None
        if self._is_embedded:
            folder: str | None = _embedded_dir(base_path)
            _warn_that_embedded()
        else:
            folder = None if data_dir is None else _to_location(data_dir)
        self._source = _open_source(folder, data_files, revision, token, storage_options or {})
        self._digest = _digest(self._source)
        digest = hashlib.sha256(f"{hash}\0{__version__}\0{self._digest}".encode())
        super().__init__(
            cache_dir,
            hash=digest.hexdigest()[:32],
            base_path=base_path,
            data_dir=None if self._is_embedded else folder,
            token=token,
            storage_options=storage_options,
            **kwargs,
        )

    def get_exported_dataset_info(self) -> datasets.DatasetInfo:
        """Keep datasets 3 from applying the counts of dataset_infos.json to a user's data."""
        return datasets.DatasetInfo()

    def _info(self) -> datasets.DatasetInfo:
        self._check_config()
        rate = self.config.sampling_rate
        waveform = Waveform(sampling_rate=None if rate == "native" else rate)
        columns = {name: datasets.Value("string") for name in _TEXT_COLUMNS}
        features = datasets.Features({"id": columns.pop("id"), "audio": waveform, **columns})
        return datasets.DatasetInfo(
            description=DESCRIPTION,
            citation=CITATION,
            homepage=HOMEPAGE,
            license=LICENSE,
            features=features,
            splits=self._known_splits(),
        )

    def _check_config(self) -> None:
        rate, category, name = self.config.sampling_rate, self.config.category, self.config.name
        prefetch, problems = self.config.prefetch, []
        if not _is_int(prefetch) or prefetch < 0:
            problems.append(f"prefetch is {prefetch!r}; expected a number of rows, 0 or more")
        if rate != "native" and not _is_rate(rate):
            problems.append(f'sampling_rate is {rate!r}; expected a positive int (Hz) or "native"')
        if category != (None if name == "all" else name):
            problems.append(
                f"category is {category!r} in config {name!r}; choose a category by the config's "
                f'name: load_dataset("s2s_arena", {CATEGORIES[0]!r})'
            )
        if problems:
            raise ValueError("\n".join(problems))

    def _known_splits(self) -> datasets.SplitDict | None:
        """Return the counts that a load is verified against; nobody knows those of other data."""
        if not self._is_embedded:
            return None
        count = _NUM_ENTRIES[self.config.name]
        splits = datasets.SplitDict(dataset_name=self.dataset_name)
        splits.add(datasets.SplitInfo(SPLIT, num_examples=count, dataset_name=self.dataset_name))
        return splits

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        root, category = self._source.root, self.config.category
        if _digest(self._source) != self._digest:  # the cache's name would be that of other rows
            raise MetadataError(
                f"the metadata of {root.location} has changed since this builder was made; "
                "load again"
            )
        entries, problems = _read_entries(self._source)
        paths, missing = _locate_all(entries, root)
        if problems := sorted(problems + missing, key=_by_place):
            raise _metadata_error(problems, root.location)
        located = [
            (entry.utterance, path)
            for entry, path in zip(entries, paths, strict=True)
            if entry.utterance and path and category in (None, entry.utterance.category)
        ]
        if dl_manager.is_streaming:
            audio_paths = [root.audio_path(path) for _, path in located]
        else:
            audio_paths = root.fetch([path for _, path in located], dl_manager)
        # One list, so that num_proc, workers and resuming can split it row by row; of plain tuples
        # of strings, which the garbage collector need not look through again and again.
        rows = [
            (audio_path, *_to_texts(utterance))
            for (utterance, _), audio_path in zip(located, audio_paths, strict=True)
        ]
        return [datasets.SplitGenerator(name=SPLIT, gen_kwargs={"rows": rows})]

    def _generate_examples(
        self, rows: list[tuple[str | None, ...]]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        for row in rows:
            example: dict[str, Any] = dict(zip(("audio", *_TEXT_COLUMNS), row, strict=True))
            yield example["id"], example

    def _get_examples_iterable_for_split(self, split_generator: Any) -> Any:
        rows = super()._get_examples_iterable_for_split(split_generator)
        return _read_ahead(rows, self.config.prefetch) if self.config.prefetch else rows

    def _as_streaming_dataset_single(self, splits_generator: Any) -> datasets.IterableDataset:
        root = self._source.root
        return _Stream(
            self._get_examples_iterable_for_split(splits_generator),
            info=self.info,
            split=splits_generator.name,
            # datasets would pass the token on for a builder that is a Hub repository itself.
            token_per_repo_id={root.repo_id: root.token} if isinstance(root, _HubRoot) else {},
        )

    def _as_dataset(self, split: Any = SPLIT, in_memory: bool = False) -> datasets.Dataset:
        if self.info.splits[SPLIT].num_examples == 0 and str(split).partition("[")[0] == SPLIT:
            # datasets refuses to read a split without rows.
            table = datasets.table.InMemoryTable(self.info.features.arrow_schema.empty_table())
            return datasets.Dataset(table, info=self.info, split=datasets.NamedSplit(SPLIT))
        dataset = super()._as_dataset(split, in_memory)
        # Rows hold paths, so a changed file must change what cached results of `map` go by.
        state = _audio_state(dataset.data.column("audio"))
        dataset._fingerprint = datasets.fingerprint.Hasher.hash([dataset._fingerprint, state])
        return dataset


def _audio_state(column: pa.ChunkedArray) -> str:
    """Return a digest of the size and time of every file that an audio column names."""
    digest = hashlib.sha256()
    paths = (path for chunk in column.chunks for path in chunk.field("path").to_pylist())
    for path in dict.fromkeys(paths):
        try:
            found = os.stat(path)
            # The change time and the inode tell what a restored modification time hides.
            state = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
            digest.update(b"%d %d %d %d " % state)
        except OSError:
            digest.update(b"gone ")  # reading the row says so
    return digest.hexdigest()


def _embedded_dir(base_path: str | None) -> str:
    """Return the folder of the embedded edition: a checkout's, or that of an installed wheel.

    As a script of datasets 3 this file is copied away, so the data lies below the base path.
    """
    here = _HERE if __name__ == "s2s_arena" else base_path or _HERE
    if _is_url(here):
        return f"{here.rstrip('/')}/data"
    is_checkout = _is_file(f"{here}/pyproject.toml") and _is_file(f"{here}/data/metadata.json")
    return f"{here}/data" if is_checkout else f"{here}/s2s_arena_data/data"


def embedded_dir() -> str:
    """Return the folder of the embedded edition, for what takes a data folder."""
    return _embedded_dir(None)


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


@functools.cache
def _warn_that_embedded() -> None:
    """Say once a process, workers aside, that this is not the benchmark's own audio."""
    if multiprocessing.parent_process() is None:
        _LOGGER.warning(
            "This is the embedded edition %s of S2S-Arena: synthetic speech, for building and "
            "testing. Scores on it are not S2S-Arena scores. For the official recordings give "
            'data_dir="hf://datasets/%s", or a folder that holds them.',
            VERSION,
            OFFICIAL_REPO_ID,
        )


def _to_location(data_dir: str | os.PathLike[str]) -> str:
    """Return a URL as it is, a folder as an absolute path."""
    location = os.fspath(data_dir)
    if not isinstance(location, str) or not location or not _is_encodable(location):
        raise ValueError(f"data_dir is {data_dir!r}; expected a folder or URL, as valid Unicode")
    if location.startswith("file://"):
        location = urllib.parse.unquote(urllib.parse.urlsplit(location).path)
    elif _is_url(location):
        return location
    return os.path.abspath(os.path.expanduser(location))


def _open_source(
    folder: str | None,
    data_files: Any,
    revision: str | None,
    token: str | bool | None,
    storage_options: dict[str, Any],
) -> _Source:
    if data_files is not None:
        return _open_data_files(data_files, folder)
    if folder is None:
        raise ValueError("data_dir and data_files are both None; the embedded edition has a folder")
    if folder.startswith("hf://datasets/"):
        return _find_metadata(_open_hub(folder, revision, token))
    if _is_url(folder):
        return _find_metadata(_UrlRoot(folder.rstrip("/"), storage_options))
    return _find_metadata(_LocalRoot(folder))


def _open_data_files(data_files: Any, folder: str | None) -> _Source:
    """Open metadata files that the user names: one or more paths or patterns, or `{"test": ...}`.

    Their recordings lie below `folder` where it is given, else beside them; metadata in a folder
    named `data` may belong to recordings below its parent, as in the web arena's layout.
    """
    base = folder or os.getcwd()
    files = [file for pattern in _flatten(data_files) for file in _expand(pattern, base)]
    if folder is None:
        folder = os.path.commonpath([file.rpartition("/")[0] for file in files])
        parent, _, name = folder.rpartition("/")
        if name == "data" and not _has_a_recording(_LocalRoot(folder), files[0]):
            folder = parent
    # os.path.relpath, which datasets patches, loses what follows `::`.
    below = f"{folder}/".replace(os.sep, "/")
    names = [
        f.removeprefix(below) if f.startswith(below) else os.path.relpath(f, folder) for f in files
    ]
    return _Source(_LocalRoot(folder), tuple(names))


def _flatten(data_files: Any) -> list[str]:
    if isinstance(data_files, Mapping):
        if set(data_files) != {SPLIT}:
            raise ValueError(f"data_files has splits {list(data_files)}; expected {SPLIT!r} alone")
        return _flatten(data_files[SPLIT])
    if isinstance(data_files, (str, os.PathLike)):
        return [os.fspath(data_files)]
    return [os.fspath(path) for path in data_files]


def _expand(pattern: str, base: str) -> list[str]:
    """Return the absolute paths, with `/`, that a path or pattern below `base` stands for."""
    if _is_url(pattern):
        raise ValueError(f"data_files {pattern!r} is a URL; expected local files, or use data_dir")
    pattern = os.path.expanduser(pattern)
    path = os.path.abspath(pattern if os.path.isabs(pattern) else f"{base}/{pattern}")
    found = [path] if _is_file(path) else sorted(filter(_is_file, glob.glob(path, recursive=True)))
    if not found:
        raise MetadataError(f"data_files {pattern!r}: no such file at {path}")
    return [file.replace(os.sep, "/") for file in found]


def _has_a_recording(root: _LocalRoot, file: str) -> bool:
    entries, _ = _parse_entries(_parse_rows(_read_local(file), file)[0], file)
    paths, _ = _locate_all(entries, root)
    return any(paths)


# --- Registration ---------------------------------------------------------------------------------

_NAME = "s2s_arena"


def register() -> None:
    """Make `load_dataset("s2s_arena", ...)` resolve, and marked columns come back as Waveform.

    datasets has no plugin point, so its `dataset_module_factory` is wrapped, wherever it is bound,
    to answer for this one name. Harmless twice.

    Raises:
        ImportError: If this `datasets` has no such function.
    """
    _install_read_back()
    _install_embedding()
    for module in (datasets.load, datasets.inspect):
        factory = getattr(module, "dataset_module_factory", None)
        if factory is None:
            raise ImportError(
                f"s2s_arena {__version__} doesn't know datasets {datasets.__version__}: "
                f"{module.__name__} has no dataset_module_factory; install 'datasets>=3.6,<6'"
            )
        if not getattr(factory, "serves_s2s_arena", False):
            module.dataset_module_factory = _serving(factory)


def _serving(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def serve(path: str, revision: str | None = None, *args: Any, **kwargs: Any) -> Any:
        if path != _NAME:
            return factory(path, revision, *args, **kwargs)
        return datasets.load.DatasetModule(
            module_path=__name__, hash=__version__, builder_kwargs={"revision": revision}
        )

    serve.serves_s2s_arena = True  # type: ignore[attr-defined]
    return serve


# --- First look -----------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


_positive_int.__name__ = "positive number"  # argparse: "invalid positive number value: '0'"


def _build_parser() -> argparse.ArgumentParser:
    configs = [config.name for config in S2SArena.BUILDER_CONFIGS]
    parser = _Parser(
        prog="python -m s2s_arena",
        description="Show the first examples of S2S-Arena: its columns, then a table.",
        epilog="configs:\n" + "\n".join(f"  {name!r}" for name in configs),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "config",
        nargs="?",
        default="all",
        choices=configs,
        metavar="CONFIG",
        help="a category, or 'all' (default)",
    )
    parser.add_argument(
        "--data-dir",
        metavar="D",
        help="folder or hf://datasets/owner/name with the data; default: the embedded edition",
    )
    parser.add_argument(
        "--limit",
        type=_positive_int,
        default=10,
        metavar="N",
        help="number of examples in the table (default: 10)",
    )
    return parser


def main(argv: list[str]) -> int:
    """Run `python -m s2s_arena [CONFIG] [--data-dir D] [--limit N]`; return the exit status."""
    options = _build_parser().parse_args(argv)
    try:
        builder = S2SArena(config_name=options.config, data_dir=options.data_dir)
        stream = builder.as_streaming_dataset(SPLIT)
        examples = list(stream.take(options.limit))
    # ImportError: fsspec lacks the package that the URL's protocol needs.
    except (ValueError, OSError, ImportError) as error:
        print(_printable(str(error)), file=sys.stderr)
        return 1
    edition = f"data of {options.data_dir}" if options.data_dir else f"embedded edition {VERSION}"
    print(f"S2S-Arena, {edition}, config {options.config!r} (s2s_arena {__version__})\n")
    for name, feature in stream.features.items():
        print(f"  {name:<17}{_feature_name(feature)}")
    print()
    for line in _table_lines(examples, shutil.get_terminal_size((100, 24)).columns):
        encoding = sys.stdout.encoding or "utf-8"  # the console need not know every character
        print(line.encode(encoding, "replace").decode(encoding))
    return 0


def _feature_name(feature: Any) -> str:
    if isinstance(feature, Waveform):
        return f"Waveform, {feature.sampling_rate or 'native'} Hz"
    return str(feature.dtype)


def _table_lines(examples: list[dict[str, Any]], width: int) -> Iterator[str]:
    """Lay out one line an example; the last column takes the width that is left."""
    header = ("id", "task", "level", "language", "seconds", "text")
    rows = [header, *(_table_row(example) for example in examples)]
    name_width = max(8, min(24, (width - 32) // 4))  # 32: the three short columns and the gaps
    limits = [name_width, name_width, 5, 10, 7]
    widths = [
        min(limit, max(_display_width(row[column]) for row in rows))
        for column, limit in enumerate(limits)
    ]
    widths.append(max(10, width - sum(widths) - 2 * len(widths)))
    for row in rows:
        cells = (_fit(cell, size) for cell, size in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _table_row(example: dict[str, Any]) -> tuple[str, ...]:
    audio = example["audio"]
    seconds = len(audio["array"]) / audio["sampling_rate"]
    columns = (example[name] for name in ("id", "task", "level", "language"))
    return (*columns, f"{seconds:7.2f}", " ".join(example["text"].split()))


def _display_width(text: str) -> int:
    """Count terminal cells: Chinese characters take two, combining marks none."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(bool(unicodedata.combining(char)) for char in text)


def _fit(text: str, width: int) -> str:
    """Pad or shorten (with an ellipsis) to exactly `width` cells."""
    if _display_width(text) > width:
        while _display_width(text) > width - 1:
            text = text[:-1]
        text += "…"
    return text + " " * (width - _display_width(text))


if __name__ == "s2s_arena":
    register()
elif __name__ == "__main__":
    # One Waveform class a process: the `__main__` copy of this file hands over to the module.
    import s2s_arena

    sys.exit(s2s_arena.main(sys.argv[1:]))
else:
    # A script of datasets 3: the name is its path, but cached columns must read back as ours.
    _install_read_back()
    _install_embedding()
