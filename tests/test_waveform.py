"""The feature survives what users do, without torch, in this process and in those after it."""

import io
import json
import multiprocessing
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from conftest import Corpus, encoded, is_tone, tone

import s2s_arena
from s2s_arena import AudioError, Waveform


def assert_tones(rows: Any, corpus: Corpus, rate: int = 24_000) -> None:
    """Every row of the corpus, in order, with its own tone."""
    count = 0
    for row, expected in zip(rows, corpus.ids, strict=True):
        assert row["id"] == expected
        assert row["audio"]["sampling_rate"] == rate
        assert np.asarray(row["audio"]["array"]).dtype == np.float32
        assert is_tone(row["audio"], corpus.frequencies[expected])
        count += 1
    assert count == len(corpus.ids)


def louder(row: dict[str, Any]) -> dict[str, Any]:
    """A map that touches the audio."""
    audio = row["audio"]
    return {"audio": {**audio, "array": audio["array"] * 1.5}}


def in_new_process(code: str) -> str:
    """Run code in a fresh interpreter with the same caches; return what it prints."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# --- The same process -----------------------------------------------------------------------------


def test_second_load_comes_from_the_cache_with_the_same_feature(small_corpus: Corpus) -> None:
    first = small_corpus.load()
    second = small_corpus.load()
    assert first.cache_files == second.cache_files
    assert second.features["audio"] == Waveform(sampling_rate=24_000)
    assert_tones(second, small_corpus)


def test_filter_select_shuffle_split_sort_concatenate(small_corpus: Corpus) -> None:
    rows = small_corpus.load()
    typing = rows.filter(lambda row: row["noise"] == "Typing")
    assert is_tone(typing[0]["audio"], 640)
    assert is_tone(rows.select([3])[0]["audio"], 640)
    shuffled = rows.shuffle(seed=1)
    assert sorted(shuffled["id"]) == sorted(small_corpus.ids)
    parts = rows.train_test_split(test_size=2, seed=0)
    both = datasets.concatenate_datasets([parts["train"], parts["test"]]).sort("id")
    assert isinstance(both.features["audio"], Waveform)
    assert_tones(both, small_corpus)
    assert is_tone(rows.remove_columns(["text"])[0]["audio"], 500)
    assert is_tone(rows.rename_column("audio", "speech")[0]["speech"], 500)


@pytest.mark.parametrize("batched", [False, True])
def test_map_that_touches_audio(small_corpus: Corpus, batched: bool) -> None:
    def batch(rows: dict[str, Any]) -> dict[str, Any]:
        return {"audio": [louder({"audio": audio})["audio"] for audio in rows["audio"]]}

    rows = small_corpus.load()
    mapped = rows.map(batch if batched else louder, batched=batched)
    assert isinstance(mapped.features["audio"], Waveform)
    assert_tones(mapped, small_corpus)
    for row, original in zip(mapped, rows, strict=True):
        np.testing.assert_array_equal(row["audio"]["array"], original["audio"]["array"] * 1.5)
        assert row["audio"]["path"] == original["audio"]["path"]


def test_map_that_leaves_audio_alone_or_adds_columns(small_corpus: Corpus) -> None:
    rows = small_corpus.load().map(lambda row: {"seconds": len(row["audio"]["array"]) / 24_000})
    assert rows["seconds"] == [0.5] * 6
    assert isinstance(rows.features["audio"], Waveform)
    np.testing.assert_array_equal(
        rows[2]["audio"]["array"], small_corpus.load()[2]["audio"]["array"]
    )


def test_streamed_map_filter_take_skip_shuffle(small_corpus: Corpus) -> None:
    stream = small_corpus.load(streaming=True)
    assert_tones(stream.map(louder), small_corpus)
    ids = [row["id"] for row in stream.skip(1).take(2)]
    assert ids == small_corpus.ids[1:3]
    quiet = stream.filter(lambda row: row["level"] == "L0")
    assert [row["id"] for row in quiet] == ["clip_2", "clip_3"]
    shuffled = [row["id"] for row in stream.shuffle(seed=0, buffer_size=2)]
    assert sorted(shuffled) == small_corpus.ids


def test_cast_to_another_rate_loaded_and_streamed(small_corpus: Corpus) -> None:
    for streaming in (False, True):
        rows = small_corpus.load(streaming=streaming)
        cast = rows.cast_column("audio", Waveform(sampling_rate=16_000))
        assert_tones(cast, small_corpus, 16_000)
        undecoded = rows.cast_column("audio", Waveform(decode=False))
        path = Path(next(iter(undecoded))["audio"]["path"])
        assert path == small_corpus.root / "emotion/audio_10.wav"


def test_stock_audio_stays_stock(small_corpus: Corpus) -> None:
    rows = small_corpus.load()
    cast = rows.cast_column("audio", datasets.Audio(decode=False))
    assert type(cast.features["audio"]) is datasets.Audio
    assert type(datasets.Features.from_dict(cast.features.to_dict())["audio"]) is datasets.Audio
    stock = datasets.Features({"x": datasets.Audio(sampling_rate=8_000)})
    back = datasets.Features.from_arrow_schema(stock.arrow_schema)["x"]
    assert (type(back), back.sampling_rate) == (datasets.Audio, 8_000)


def test_with_format_numpy_and_arrow(small_corpus: Corpus) -> None:
    rows = small_corpus.load()
    audio = rows.with_format("numpy")[0]["audio"]
    assert audio["array"].dtype == np.float32
    assert is_tone(audio, 500)
    assert isinstance(rows.with_format("arrow")[0], pa.Table)
    columns = small_corpus.load(streaming=True).with_format("numpy")
    assert is_tone(next(iter(columns))["audio"], 500)


def test_with_format_torch(small_corpus: Corpus) -> None:
    torch = pytest.importorskip("torch")
    for streaming in (False, True):
        rows = small_corpus.load(streaming=streaming).with_format("torch")
        array = next(iter(rows))["audio"]["array"]
        assert array.dtype == torch.float32
        assert is_tone({"array": array.numpy(), "sampling_rate": 24_000}, 500)


def test_batches_and_columns(small_corpus: Corpus) -> None:
    rows = small_corpus.load()
    batch = rows[:2]["audio"]
    assert [is_tone(audio, hz) for audio, hz in zip(batch, (500, 300), strict=True)] == [True, True]
    assert is_tone(rows["audio"][1], 300)
    assert is_tone(next(iter(rows.iter(batch_size=4)))["audio"][3], 640)


def test_class_label_cast_for_training(small_corpus: Corpus) -> None:
    label = datasets.ClassLabel(names=list(s2s_arena.CATEGORIES))
    for streaming in (False, True):
        rows = small_corpus.load(streaming=streaming).cast_column("category", label)
        assert [row["category"] for row in rows] == [1, 1, 3, 3, 2, 1]


def test_resumed_stream_continues_exactly(corpus: Corpus) -> None:
    for number in range(12):
        corpus.add(f"./emotion/audio_{number}.wav", 300 + 40 * number)
    corpus.write()

    def streams() -> Any:
        stream = corpus.load(streaming=True)
        return stream, stream.map(lambda row: {"text": row["text"].upper()})

    for which in (0, 1):
        stream = streams()[which]
        rows = iter(stream)
        seen = [next(rows)["id"] for _ in range(5)]
        for more in (3, None):
            state = json.loads(json.dumps(stream.state_dict()))
            stream = streams()[which]
            stream.load_state_dict(state)
            rows = iter(stream)
            seen += [
                row["id"] for row in (rows if more is None else (next(rows) for _ in range(more)))
            ]
        assert seen == corpus.ids


def test_every_row_once_over_nodes(small_corpus: Corpus) -> None:
    from datasets.distributed import split_dataset_by_node

    for world_size in (2, 3, 4):
        seen = []
        for rank in range(world_size):
            stream = small_corpus.load(streaming=True)
            seen += [row["id"] for row in split_dataset_by_node(stream, rank, world_size)]
        assert sorted(seen) == small_corpus.ids


# --- Storing --------------------------------------------------------------------------------------


def test_save_and_load_from_disk(small_corpus: Corpus, tmp_path: Path) -> None:
    small_corpus.load().save_to_disk(str(tmp_path / "saved"))
    saved = datasets.load_from_disk(str(tmp_path / "saved"))
    assert isinstance(saved.features["audio"], Waveform)
    assert_tones(saved, small_corpus)


def test_parquet_and_back(small_corpus: Corpus, tmp_path: Path) -> None:
    small_corpus.load().to_parquet(tmp_path / "x.parquet")
    audio = pq.read_table(tmp_path / "x.parquet")["audio"].to_pylist()
    files = [small_corpus.root / entry["input_path"] for entry in small_corpus.entries]
    assert [row["bytes"] for row in audio] == [file.read_bytes() for file in files]
    assert [row["path"] for row in audio] == [file.name for file in files]
    back = datasets.Dataset.from_parquet(str(tmp_path / "x.parquet"))
    assert isinstance(back.features["audio"], Waveform)
    assert_tones(back, small_corpus)


def test_parquet_of_a_category_without_entries_has_the_schema(
    small_corpus: Corpus, tmp_path: Path
) -> None:
    empty = small_corpus.load("Education")
    empty.to_parquet(tmp_path / "x.parquet")
    table = pq.read_table(tmp_path / "x.parquet")
    features = datasets.Features.from_arrow_schema(table.schema)
    assert (table.num_rows, features) == (0, empty.features)


def test_damaged_clip_is_not_embedded(small_corpus: Corpus, tmp_path: Path) -> None:
    rows = small_corpus.load()
    small_corpus.file("emotion/audio_2.mp3", b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(AudioError, match=r"emotion/audio_2.mp3: is a git-lfs pointer"):
        rows.to_parquet(tmp_path / "x.parquet")


def test_on_disk_the_column_is_a_plain_audio(small_corpus: Corpus) -> None:
    schema = small_corpus.load().data.schema
    written = json.loads(schema.metadata[b"huggingface"])["info"]["features"]["audio"]
    assert written.pop("id") == "s2s_arena.Waveform"
    assert written == {"sampling_rate": 24_000, "_type": "Audio"}


def test_feature_pickles_copies_and_compares() -> None:
    feature = Waveform(sampling_rate=16_000)
    features = datasets.Features({"audio": feature})
    assert pickle.loads(pickle.dumps(feature)) == feature
    assert pickle.loads(pickle.dumps(features)) == features.copy() == features
    assert datasets.Features.from_dict(features.to_dict()) == features
    assert datasets.Features._from_yaml_list(features._to_yaml_list()) == features
    assert feature != Waveform(sampling_rate=8_000)
    assert feature != datasets.Audio(sampling_rate=16_000)


@pytest.mark.parametrize("rate", [0, -1, 16_000.0, "16k", True])
def test_feature_refuses_what_is_no_rate(rate: Any) -> None:
    with pytest.raises(ValueError, match="expected a positive int"):
        Waveform(sampling_rate=rate)


def test_feature_is_mono() -> None:
    channels = {"mono": False} if datasets.__version__ < "4" else {"num_channels": 2}
    with pytest.raises(ValueError, match="Waveform is mono"):
        Waveform(**channels)


def test_every_way_to_give_audio(small_corpus: Corpus) -> None:
    content = encoded(tone(440))
    file = small_corpus.file("x.wav", content)
    given = [
        str(file),
        file,
        content,
        bytearray(content),
        {"path": str(file), "bytes": None},
        {"bytes": content},
        {"array": tone(440).astype(np.float32), "sampling_rate": 24_000},
        {"array": tone(440).tolist(), "sampling_rate": 24_000, "path": None},
    ]
    feature = Waveform()
    for value in given:
        assert is_tone(feature.decode_example(feature.encode_example(value)), 440)
    for value in (17, {}, {"array": tone(440)}, {"path": None, "bytes": None}, None):
        with pytest.raises(ValueError, match="expected|needs its rate"):
            feature.encode_example(value)


def test_columns_of_paths_bytes_and_arrays_cast(small_corpus: Corpus) -> None:
    content = encoded(tone(440))
    file = str(small_corpus.file("x.wav", content))
    array = {"array": tone(440).tolist(), "sampling_rate": 24_000}
    for column in ([file, None], [content, None], [{"path": file}, None], [array, None]):
        rows = datasets.Dataset.from_dict({"audio": column}).cast_column("audio", Waveform())
        assert is_tone(rows[0]["audio"], 440)
        assert rows[1]["audio"] is None


def test_decoding_can_be_switched_off() -> None:
    with pytest.raises(RuntimeError, match="decoding is switched off"):
        Waveform(decode=False).decode_example({"path": "x", "bytes": None})
    decoded = {"path": None, "array": np.zeros(1, np.float32), "sampling_rate": 1}
    assert Waveform().decode_example(decoded) is decoded


# --- Other processes ------------------------------------------------------------------------------


def test_map_in_processes_run_again_the_next_day(small_corpus: Corpus, tmp_path: Path) -> None:
    """The second run of one script reads the result of its map back from the Arrow schema."""
    script = tmp_path / "day.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import s2s_arena
            from datasets import load_dataset

            def louder(row):
                return {{"audio": {{**row["audio"], "array": row["audio"]["array"] * 1.5}}}}

            if __name__ == "__main__":
                rows = load_dataset("s2s_arena", split="test", data_dir={str(small_corpus.root)!r})
                rows = rows.map(louder, num_proc=2)
                peak = max(abs(row["audio"]["array"]).max() for row in rows)
                print(type(rows.features["audio"]).__name__, float(peak), list(rows["id"]))
            """
        )
    )
    outputs = [
        subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    kind, peak, ids = outputs[0].strip().split(" ", 2)
    assert (kind, ids) == ("Waveform", str(small_corpus.ids))
    assert 0.74 < float(peak) < 0.85  # 1.5 times 0.5, and what MP3 adds
    assert outputs[0] == outputs[1]


def _first_tone(rows: Any) -> float:
    return float(np.abs(rows[0]["audio"]["array"]).max())


def test_rows_pass_to_spawned_workers(small_corpus: Corpus) -> None:
    rows = small_corpus.load()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert 0.49 < pool.apply(_first_tone, (rows,)) < 0.51


def test_errors_pass_between_processes(small_corpus: Corpus) -> None:
    rows = small_corpus.load()
    small_corpus.file("sing/audio_0.wav", b"")
    for error in (AudioError("x"), s2s_arena.MetadataError("y")):
        assert pickle.loads(pickle.dumps(error)).args == error.args
    with pytest.raises(AudioError, match="sing/audio_0.wav: the file is empty"):
        rows.map(louder, num_proc=2)


def test_reader_without_this_package_sees_a_plain_audio(
    small_corpus: Corpus, tmp_path: Path
) -> None:
    small_corpus.load().to_parquet(tmp_path / "x.parquet")
    printed = in_new_process(
        f"""
        import sys
        from datasets import Audio, Dataset
        rows = Dataset.from_parquet({str(tmp_path / "x.parquet")!r})
        assert "s2s_arena" not in sys.modules
        assert type(rows.features["audio"]) is Audio
        rows = rows.cast_column("audio", Audio(decode=False))
        print([len(row["audio"]["bytes"]) for row in rows])
        """
    )
    sizes = [(small_corpus.root / e["input_path"]).stat().st_size for e in small_corpus.entries]
    assert printed == str(sizes)


@pytest.mark.parametrize("fault", ["raise OSError('Could not load libtorchcodec')", "import math"])
def test_torchcodec_working_or_broken_changes_nothing(
    small_corpus: Corpus, tmp_path: Path, fault: str
) -> None:
    """A stand-in for torchcodec, found by datasets and broken on import, or harmless."""
    package = tmp_path / "torchcodec"
    package.mkdir()
    (package / "__init__.py").write_text(fault + "\n")
    metadata = tmp_path / "torchcodec-0.9.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torchcodec\nVersion: 0.9.0\n")
    printed = in_new_process(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import s2s_arena
        from datasets import load_dataset
        rows = load_dataset("s2s_arena", split="test", data_dir={str(small_corpus.root)!r})
        louder = rows.map(lambda row: {{"audio": row["audio"]}})
        louder.to_parquet({str(tmp_path / "x.parquet")!r})
        print(len(rows[0]["audio"]["array"]), len(louder[0]["audio"]["array"]))
        """
    )
    assert printed == "12000 12000"


def test_loading_needs_no_torch(small_corpus: Corpus) -> None:
    printed = in_new_process(
        f"""
        import sys
        sys.modules["torch"] = sys.modules["torchcodec"] = None
        import s2s_arena
        from datasets import load_dataset
        rows = load_dataset("s2s_arena", split="test", data_dir={str(small_corpus.root)!r})
        print(rows.map(lambda row: {{"audio": row["audio"]}})[1]["audio"]["array"].shape)
        """
    )
    assert printed == "(12000,)"


def test_mapped_audio_is_a_wav_that_others_read(small_corpus: Corpus) -> None:
    mapped = small_corpus.load().map(louder).cast_column("audio", Waveform(decode=False))
    array, rate = soundfile.read(io.BytesIO(mapped[0]["audio"]["bytes"]), dtype="float32")
    assert is_tone({"array": array, "sampling_rate": rate}, 500)
