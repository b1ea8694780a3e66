"""Streams as training uses them: shuffled, over epochs, mixed, resumed; each row once."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from conftest import Corpus, encoded, is_tone, run_over_forty_clips, tone
from datasets.distributed import split_dataset_by_node

import s2s_arena


@pytest.fixture
def twelve(corpus: Corpus) -> Corpus:
    """Twelve clips, each with a tone of its own."""
    for number in range(12):
        corpus.add(f"./emotion/audio_{number}.wav", 300 + 40 * number)
    return corpus.write()


def ids(rows: Any) -> list[str]:
    return [row["id"] for row in rows]


Make = Callable[[Any], Any]
SHUFFLES: dict[str, Make] = {
    "shuffle": lambda stream: stream.shuffle(seed=1),
    "small buffer": lambda stream: stream.shuffle(seed=1, buffer_size=2),
    "then map": lambda stream: stream.shuffle(seed=1).map(lambda row: {"text": row["id"]}),
    "then batched map": lambda stream: stream.shuffle(seed=1).map(
        lambda rows: {"text": rows["text"]}, batched=True, batch_size=1
    ),
    "columns first": lambda stream: stream.select_columns(["text", "id"]).shuffle(seed=1),
    "cast first": lambda stream: stream.cast_column(
        "level", datasets.ClassLabel(names=list(s2s_arena.LEVELS))
    ).shuffle(seed=1),
    "format first": lambda stream: stream.with_format("numpy").shuffle(seed=1),
    "repeat": lambda stream: stream.shuffle(seed=1).repeat(2),
}


@pytest.mark.parametrize("how", SHUFFLES)
def test_shuffled_stream_resumes_with_every_row(twelve: Corpus, how: str) -> None:
    """datasets' own shuffle loses what stood in its buffer: here all the rest."""

    def make() -> Any:
        return SHUFFLES[how](twelve.load(streaming=True))

    whole = ids(make())
    assert sorted(set(whole)) == sorted(twelve.ids)
    assert whole[:12] != twelve.ids
    seen: list[str] = []
    state = None
    for stop in (3, 7, len(whole)):
        stream = make()
        if state is not None:
            stream.load_state_dict(state)
        for row in stream:
            seen.append(row["id"])
            if len(seen) == stop:
                break
        state = json.loads(json.dumps(stream.state_dict()))
    assert seen == whole


def test_shuffled_rows_carry_their_own_audio(twelve: Corpus) -> None:
    for row in twelve.load(streaming=True).shuffle(seed=4):
        assert is_tone(row["audio"], twelve.frequencies[row["id"]])


def test_same_seed_gives_the_same_order_and_every_epoch_another(twelve: Corpus) -> None:
    stream = twelve.load(streaming=True).shuffle(seed=7)
    orders = []
    for epoch in range(3):
        stream.set_epoch(epoch)
        orders.append(ids(stream))
    assert [sorted(order) for order in orders] == [sorted(twelve.ids)] * 3
    assert len({tuple(order) for order in orders}) == 3
    assert ids(twelve.load(streaming=True).shuffle(seed=7)) == orders[0]
    assert ids(twelve.load(streaming=True).shuffle(seed=8)) != orders[0]


def test_taken_rows_are_still_shuffled(twelve: Corpus) -> None:
    """take() forbids shuffling the shards, so these rows go through the buffer."""
    some = ids(twelve.load(streaming=True).take(8).shuffle(seed=1))
    assert sorted(some) == sorted(twelve.ids[:8])
    assert some != twelve.ids[:8]


def test_every_row_once_over_nodes_and_epochs(twelve: Corpus) -> None:
    stream = twelve.load(streaming=True).shuffle(seed=2)
    parts = [split_dataset_by_node(stream, rank, 5) for rank in range(5)]
    for epoch in range(2):
        for part in parts:
            part.set_epoch(epoch)
        assert sorted(row for part in parts for row in ids(part)) == sorted(twelve.ids)


def test_folds_share_the_rows(twelve: Corpus) -> None:
    """What the training script splits by, loaded and streamed alike; no recording is opened."""
    stream, loaded = twelve.load(streaming=True), twelve.load()
    for clip in twelve.root.rglob("*.wav"):
        clip.write_bytes(b"not a recording")
    for index in range(5):
        fold = stream.shard(5, index, contiguous=False).remove_columns("audio")
        assert ids(fold) == twelve.ids[index::5]
        assert loaded.shard(5, index, contiguous=False)["id"] == twelve.ids[index::5]


def test_interleaved_with_another_audio_dataset(twelve: Corpus, tmp_path: Path) -> None:
    """Rows of another dataset alternate with ours, both decoded, until ours are all there."""
    clip = tmp_path / "other.wav"
    clip.write_bytes(encoded(tone(1_000, sampling_rate=24_000)))
    features = datasets.Features(
        {"id": datasets.Value("string"), "audio": s2s_arena.Waveform(sampling_rate=24_000)}
    )
    other = datasets.Dataset.from_dict(
        {"id": [f"other_{n}" for n in range(20)], "audio": [str(clip)] * 20}, features=features
    )
    ours = twelve.load(streaming=True).select_columns(["id", "audio"])
    mixed = datasets.interleave_datasets([ours, other.to_iterable_dataset()])
    rows = list(mixed)
    assert ids(rows)[::2] == twelve.ids
    frequencies = {**twelve.frequencies, **dict.fromkeys(ids(other), 1_000.0)}
    assert ids(rows)[1::2] == ids(other)[:11]
    for row in rows:
        assert is_tone(row["audio"], frequencies[row["id"]])


# --- Reading ahead --------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [1, 5, 100])
def test_rows_that_were_read_ahead_are_the_same_in_the_same_order(
    twelve: Corpus, prefetch: int
) -> None:
    stream = twelve.load(streaming=True, prefetch=prefetch)
    for rows in (list(stream), list(stream.map(lambda row: {"text": row["id"]}))):
        assert ids(rows) == twelve.ids
        for row, plain in zip(rows, twelve.load(streaming=True), strict=True):
            np.testing.assert_array_equal(row["audio"]["array"], plain["audio"]["array"])
            assert row["audio"]["path"] == plain["audio"]["path"]


def test_rows_are_read_ahead_in_the_order_of_a_shuffle_and_after_resuming(twelve: Corpus) -> None:
    def make() -> Any:
        return twelve.load(streaming=True, prefetch=3).shuffle(seed=1)

    whole = list(make())
    assert ids(whole) == ids(twelve.load(streaming=True).shuffle(seed=1))
    stream = make()
    for row in stream:
        if row["id"] == whole[4]["id"]:
            break
    state = json.loads(json.dumps(stream.state_dict()))
    resumed = make()
    resumed.load_state_dict(state)
    rows = list(resumed)
    assert ids(rows) == ids(whole)[5:]
    for row in (*whole, *rows):
        assert is_tone(row["audio"], twelve.frequencies[row["id"]])


def test_nodes_read_their_own_rows_ahead(twelve: Corpus) -> None:
    stream = twelve.load(streaming=True, prefetch=2)
    seen = [row for rank in range(5) for row in split_dataset_by_node(stream, rank, 5)]
    assert sorted(ids(seen)) == sorted(twelve.ids)
    assert all(is_tone(row["audio"], twelve.frequencies[row["id"]]) for row in seen)


def test_damaged_clip_that_was_read_ahead_fails_at_its_own_row(twelve: Corpus) -> None:
    clip = twelve.root / "emotion/audio_4.wav"
    rows = iter(twelve.load(streaming=True, prefetch=8))
    clip.unlink()
    assert [next(rows)["id"] for _ in range(4)] == twelve.ids[:4]
    with pytest.raises(s2s_arena.AudioError, match=r"audio_4\.wav: the file has gone"):
        next(rows)


def test_batched_map_over_a_stream(twelve: Corpus) -> None:
    stream = twelve.load(streaming=True)
    peaks = stream.map(
        lambda rows: {"peak": [float(abs(audio["array"]).max()) for audio in rows["audio"]]},
        batched=True,
        batch_size=5,
    )
    rows = list(peaks)
    assert ids(rows) == twelve.ids
    assert [row["peak"] for row in rows] == pytest.approx([0.5] * 12, abs=1e-3)


# Runs alone: its own memory is what counts. Prints how many bytes 19 epochs after the first added.
_EPOCHS = """
import sys, psutil, datasets, s2s_arena
process = psutil.Process()
stream = datasets.load_dataset("s2s_arena", split="test", data_dir=sys.argv[1], streaming=True)
for epoch in range(20):
    stream.set_epoch(epoch)
    assert sum(1 for row in stream.shuffle(seed=0) if len(row["audio"]["array"])) == 40
    if epoch == 0:
        first = process.memory_info().rss
print(process.memory_info().rss - first)
"""


def test_memory_stays_flat_over_epochs(corpus: Corpus) -> None:
    """An epoch that is kept would add 40 clips of 2 s, which are 7.7 MB."""
    assert run_over_forty_clips(_EPOCHS, corpus) < 20e6
