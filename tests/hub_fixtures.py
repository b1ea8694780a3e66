"""Clients of the stand-in Hub: small repositories, and a process that knows no other Hub.

Clients read HF_ENDPOINT when they are imported, and importing them takes a second: so one process
per test module runs all the code that talks to the server.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import ENTRY, encoded, tone
from stand_in_hub import StandInHub, client_environment

ROOT = Path(__file__).parent.parent

# Runs code that it is sent, a JSON line each, and answers with what was printed and raised.
# Waiting takes no time: it puts the clock forward, for the clients' own retries and for ours.
_WORKER = """
import contextlib, importlib.util, io, json, sys, time, traceback

class Clock:
    slept = 0.0

    def sleep(self, seconds):
        self.slept += seconds

    def monotonic(self):
        return time.monotonic() + self.slept

    def __getattr__(self, name):
        return getattr(time, name)

def load_script(path):
    spec = importlib.util.spec_from_file_location(path.rpartition("/")[2][:-3], path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module

sys.path.insert(0, sys.argv[1])
import datasets, huggingface_hub.file_download, huggingface_hub.utils._http
import s2s_arena
clock = Clock()
for module in (huggingface_hub.utils._http, huggingface_hub.file_download, s2s_arena):
    module.time = clock
channel, sys.stdout = sys.stdout, sys.stderr
known = {"s2s_arena": s2s_arena, "load_dataset": datasets.load_dataset, "load_script": load_script}
for line in sys.stdin:
    out, err, clock.slept, names = io.StringIO(), io.StringIO(), 0.0, dict(known)
    answer = {"error": None, "value": None}
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            exec(json.loads(line), names)
            answer["value"] = names.get("value")
        except Exception as error:
            answer["error"] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
    answer |= {"out": out.getvalue(), "err": err.getvalue(), "slept": clock.slept}
    print(json.dumps(answer), file=channel, flush=True)
"""


@dataclass(frozen=True)
class Result:
    """What came of some code: the variable `value`, or the error; what was printed; time slept."""

    value: Any
    error: str | None
    out: str
    err: str
    slept: float


class Client:
    """A process with caches of its own that runs code against one Hub, or offline."""

    def __init__(self, hub: StandInHub, home_dir: Path, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(ROOT)],
            env={**client_environment(hub, home_dir), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=home_dir,
            text=True,
            encoding="utf-8",
        )

    def run(self, code: str) -> Result:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        return Result(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture(scope="module")
def shared_hub() -> Iterator[StandInHub]:
    with StandInHub() as hub:
        yield hub


@pytest.fixture
def hub(shared_hub: StandInHub) -> StandInHub:
    shared_hub.reset()
    return shared_hub


@pytest.fixture(scope="module")
def home_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def client(shared_hub: StandInHub, home_dir: Path) -> Iterator[Client]:
    with Client(shared_hub, home_dir) as client:
        yield client


# A repository ------------------------------------------------------------------------------------

# id, path as the metadata writes it, category
CLIPS = (
    ("emotion_audio_0", "./emotion/audio_0.wav", "Social Companionship"),
    ("emotion_audio_1", "./emotion/audio_1.wav", "Social Companionship"),
    ("sing_audio_0", "./sing/audio_0.wav", "Entertainment"),
    ("illness_illness1", "./illness/illness1.wav", "Medical Consultation"),
)


def to_entry(id: str, input_path: str, category: str, **fields: str) -> dict[str, str]:
    entry = {"id": id, "input_path": input_path, **ENTRY, "category": category}
    return {**entry, "task": category, "task_description": category, **fields}


ENTRIES = [to_entry(*clip) for clip in CLIPS]


def to_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode()


def to_clip(number: int) -> bytes:
    """A tenth of a second of a tone of its own."""
    return encoded(tone(300 + 50 * number, 0.1))


AUDIO = {path.removeprefix("./"): to_clip(number) for number, (_, path, _) in enumerate(CLIPS)}
FILES = {"README.md": b"# hi\n", "metadata.json": to_json(ENTRIES), **AUDIO}
