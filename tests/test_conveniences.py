"""What users do with a loaded dataset: to_parquet and push_to_hub give a plain Audio to others."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet as pq
import pytest
from conftest import Corpus
from hub_fixtures import Client
from stand_in_hub import StandInHub, client_environment

import s2s_arena

# Loads what its arguments say, without our package; prints what it finds as one line of JSON.
READER = """
import sys
sys.modules["s2s_arena"] = None  # can't be imported
import json
from datasets import Audio, load_dataset

def describe(path, options):
    ds = load_dataset(path, **options)
    feature = ds.features["audio"]
    rows = ds.cast_column("audio", Audio(decode=False))
    found = [[row["id"], row["audio"]["path"], row["audio"]["bytes"].hex()] for row in rows]
    return [f"{type(feature).__module__}.{type(feature).__name__}", feature.sampling_rate, found]

print(json.dumps([describe(*wanted) for wanted in json.loads(sys.argv[1])]))
"""

# Pushes and loads again in a process whose only Hub is the stand-in.
PUSHER = """
ds = load_dataset("s2s_arena", split="test", data_dir={data_dir!r})
ds.push_to_hub("owner/pushed", "Mine", private=True)
back = load_dataset("owner/pushed", "Mine", split="test")
value = [type(back.features["audio"]).__name__, [len(row["audio"]["array"]) for row in back]]
"""


def describe(corpus: Corpus) -> list[list[str]]:
    """Id, base name and bytes of each recording; datasets keeps no more than the base name."""
    contents = [(corpus.root / entry["input_path"]).read_bytes() for entry in corpus.entries]
    return [
        [entry["id"], entry["input_path"].rpartition("/")[2], content.hex()]
        for entry, content in zip(corpus.entries, contents, strict=True)
    ]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Three clips in two folders."""
    corpus = Corpus(tmp_path_factory.mktemp("source"))
    corpus.add("emotion/audio_0.wav", 500)
    corpus.add("sing/audio_0.wav", 300, category="Entertainment")
    corpus.add("sing/audio_1.mp3", 400, category="Entertainment")
    return corpus.write()


@dataclass(frozen=True)
class Outcome:
    """What became of a dataset that went to a Parquet file and to the Hub.

    `back` is what the pushing process loads, `elsewhere` what one without our package does.
    """

    back: Any
    elsewhere: list[Any]
    written: list[bytes]
    is_private: bool


@pytest.fixture(scope="module")
def outcome(source: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Both in one go: the processes take longer to start than to work."""
    folder = tmp_path_factory.mktemp("out")
    file = folder / "all.parquet"
    source.load().to_parquet(file)
    with StandInHub() as hub:
        with Client(hub, folder, HF_TOKEN=hub.token) as client:
            result = client.run(PUSHER.format(data_dir=str(source.root)))
        assert result.error is None, result.err
        wanted = [
            ("parquet", {"data_files": str(file), "split": "train"}),
            ("owner/pushed", {"name": "Mine", "split": "test"}),
        ]
        done = subprocess.run(
            [sys.executable, "-c", READER, json.dumps(wanted)],
            env=client_environment(hub, folder / "other", hub.token),
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )
        repo = hub.repos["owner/pushed"]
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    written = [file.read_bytes(), *repo.read_files().values()]
    return Outcome(result.value, found, written, repo.private)


@pytest.mark.parametrize("way", ["to_parquet", "push_to_hub"])
def test_others_get_a_plain_audio(outcome: Outcome, source: Corpus, way: str) -> None:
    found = outcome.elsewhere[("to_parquet", "push_to_hub").index(way)]
    assert found == ["datasets.features.audio.Audio", 24_000, describe(source)]


def test_no_path_of_the_machine_is_passed_on(outcome: Outcome, source: Corpus) -> None:
    assert all(str(source.root).encode() not in content for content in outcome.written)


def test_pushed_dataset_comes_back_with_our_waveforms(outcome: Outcome, source: Corpus) -> None:
    assert outcome.is_private
    assert outcome.back == ["Waveform", [len(row["audio"]["array"]) for row in source.load()]]


def test_to_parquet_and_back_keeps_our_waveforms(small_corpus: Corpus, tmp_path: Path) -> None:
    file = tmp_path / "all.parquet"
    ds = small_corpus.load()
    ds.to_parquet(file)
    back = datasets.load_dataset("parquet", data_files=str(file), split="train")
    assert isinstance(back.features["audio"], s2s_arena.Waveform)
    for row, expected in zip(back, ds, strict=True):
        assert row["id"] == expected["id"]
        assert (row["audio"]["array"] == expected["audio"]["array"]).all()


def test_rows_that_were_chosen_go_to_parquet(small_corpus: Corpus, tmp_path: Path) -> None:
    ds = small_corpus.load().filter(lambda level: level == "L0", input_columns="level")
    ds.to_parquet(tmp_path / "some.parquet")
    table = pq.read_table(tmp_path / "some.parquet")
    assert table["id"].to_pylist() == ["clip_2", "clip_3"]
    assert all(audio["bytes"] for audio in table["audio"].to_pylist())


def test_damaged_recording_is_not_passed_on(small_corpus: Corpus, tmp_path: Path) -> None:
    ds = small_corpus.load()
    (small_corpus.root / "sing/audio_0.wav").write_bytes(b"RIFF")
    with pytest.raises(s2s_arena.AudioError, match=r"sing/audio_0\.wav"):
        ds.to_parquet(tmp_path / "all.parquet")
