"""A tiny corpus of tones, and caches that no other test or user shares."""

import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

# Read by datasets and huggingface_hub when they are imported, so set before that.
_CACHE = tempfile.TemporaryDirectory(prefix="s2s_arena_tests_")
# Two processes that compile into one numba cache, librosa's beside its code, can crash each other.
os.environ["NUMBA_CACHE_DIR"] = f"{_CACHE.name}/numba"
os.environ.update(HF_HOME=_CACHE.name, HF_UPDATE_DOWNLOAD_COUNTS="0", HF_HUB_DISABLE_TELEMETRY="1")

import datasets
import numpy as np
import pytest
import soundfile

import s2s_arena

datasets.disable_progress_bars()

ENTRY = {
    "text": "[emotion: happy]Kids are talking by the door",
    "task": "Emotion recognition and expression",
    "task_description": "Can the model recognize emotions and provide appropriate responses "
    "based on different emotions?",
    "text_cn": "孩子们在门旁说话",
    "language": "English",
    "category": "Social Companionship",
    "level": "L3",
}


ROOT = Path(__file__).parent.parent


def load_script(name: str) -> ModuleType:
    """One of the scripts as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"scripts/{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def tone(frequency: float, seconds: float = 0.5, sampling_rate: int = 24_000) -> np.ndarray:
    """A sine of amplitude 0.5: float64, shape (num_frames,)."""
    times = np.arange(round(seconds * sampling_rate)) / sampling_rate
    return 0.5 * np.sin(2 * np.pi * frequency * times)


def encoded(
    samples: np.ndarray,
    sampling_rate: int = 24_000,
    format: str = "WAV",
    subtype: str | None = None,
) -> bytes:
    """An audio file's bytes, written by libsndfile."""
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, sampling_rate, format=format, subtype=subtype)
    return buffer.getvalue()


def frequency_of(array: np.ndarray, sampling_rate: int) -> float:
    """The strongest frequency in Hz, an independent check of which clip this is."""
    spectrum = np.abs(np.fft.rfft(array * np.hanning(len(array))))
    return float(np.argmax(spectrum)) * sampling_rate / len(array)


def is_tone(audio: dict[str, Any], frequency: float) -> bool:
    """Whether a row's audio is the tone, to the width of one bin."""
    array, rate = audio["array"], audio["sampling_rate"]
    return abs(frequency_of(array, rate) - frequency) <= rate / len(array)


@dataclass
class Corpus:
    """A data folder in the making; what is added is what the loader must give back."""

    root: Path
    entries: list[dict[str, Any]] = field(default_factory=list)
    frequencies: dict[str, float] = field(default_factory=dict)

    def add(
        self, path: str, frequency: float = 440.0, *, at: str | None = None, **fields: Any
    ) -> None:
        """Add an entry with `input_path` `path` and its tone, at `at` where that differs."""
        place = at or path
        container = "MP3" if place.endswith(".mp3") else "WAV"
        self.file(place, encoded(tone(frequency), format=container))
        entry = {"id": f"clip_{len(self.entries)}", "input_path": path, **ENTRY, **fields}
        self.entries.append(entry)
        self.frequencies[entry["id"]] = frequency

    def file(self, path: str, content: bytes) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        return target

    def write(self, file: str = "metadata.json", entries: list[Any] | None = None) -> "Corpus":
        rows = self.entries if entries is None else entries
        self.file(file, json.dumps(rows, ensure_ascii=False, indent=1).encode())
        return self

    @property
    def ids(self) -> list[str]:
        return [entry["id"] for entry in self.entries]

    def load(self, name: str | None = None, **options: Any) -> Any:
        options = {"split": "test", "data_dir": str(self.root), **options}
        return datasets.load_dataset("s2s_arena", name, **options)


def run_over_forty_clips(code: str, corpus: Corpus) -> int:
    """Run code in a process of its own; return the number that it prints. Its argument is a folder
    of 40 entries that share a clip of 2 s."""
    corpus.add("./emotion/audio_0.wav")
    corpus.file("emotion/audio_0.wav", encoded(tone(440, 2.0)))
    entry = corpus.entries[0]
    corpus.write(entries=[{**entry, "id": f"clip_{number}"} for number in range(40)])
    command = [sys.executable, "-c", code, str(corpus.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """An empty data folder."""
    return Corpus(tmp_path / "data")


@pytest.fixture
def small_corpus(corpus: Corpus) -> Corpus:
    """Six clips in an order that is neither of names nor of frequencies; three categories."""
    medical = {"category": "Medical Consultation", "task": "Health consultation", "level": "L0"}
    corpus.add("./emotion/audio_10.wav", 500)
    corpus.add("./emotion/audio_2.mp3", 300)
    corpus.add("./healthcare/audio_0.mp3", 700, **medical)
    corpus.add("./healthcare/healthcare0_Typing_1.wav", 640, noise="Typing", **medical)
    corpus.add("./sing/audio_0.wav", 420, category="Entertainment", task="Singing ability")
    corpus.add("./emotion/audio_0.wav", 360, language="Chinese", text="孩子们在门旁说话")
    del corpus.entries[-1]["text_cn"]
    return corpus.write()


@pytest.fixture
def quiet_embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the once-a-process warning of the embedded edition to the test that wants it."""
    monkeypatch.setattr(s2s_arena, "_warn_that_embedded", lambda: None)
