"""Streams through torch's DataLoader, as Trainer reads them: workers, epochs, resuming, memory."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Corpus, is_tone, run_over_forty_clips

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # more workers than cores


@pytest.fixture
def eleven(corpus: Corpus) -> Corpus:
    """Eleven clips, each with a tone of its own."""
    for number in range(11):
        corpus.add(f"./emotion/audio_{number}.wav", 300 + 40 * number)
    return corpus.write()


def read(dataset: Any, num_workers: int, start: str | None = None) -> list[dict[str, Any]]:
    """Return the rows that a DataLoader hands out."""
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=3,
        collate_fn=list,
        num_workers=num_workers,
        multiprocessing_context=start,
    )
    return [row for batch in loader for row in batch]


WORKERS = pytest.mark.parametrize(
    ("num_workers", "start"),
    [(0, None), (2, "fork"), (4, "fork"), (2, "spawn"), (4, "spawn"), (16, "fork")],
)


@WORKERS
def test_every_row_once_over_workers(eleven: Corpus, num_workers: int, start: str | None) -> None:
    for rows in (eleven.load(streaming=True, prefetch=2), eleven.load()):
        seen = read(rows, num_workers, start)
        assert sorted(row["id"] for row in seen) == sorted(eleven.ids)
        assert all(is_tone(row["audio"], eleven.frequencies[row["id"]]) for row in seen)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_shuffled_epochs_differ_and_hold_every_row(eleven: Corpus, num_workers: int) -> None:
    stream = eleven.load(streaming=True).shuffle(seed=3, buffer_size=4)
    orders = []
    for epoch in range(2):
        stream.set_epoch(epoch)
        orders.append([row["id"] for row in read(stream, num_workers)])
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(eleven.ids)
    assert orders[0] != orders[1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_row_once_over_nodes_and_their_workers(eleven: Corpus, num_workers: int) -> None:
    from datasets.distributed import split_dataset_by_node

    seen = []
    for rank in range(2):
        stream = split_dataset_by_node(eleven.load(streaming=True).shuffle(seed=1), rank, 2)
        seen += [row["id"] for row in read(stream, num_workers)]
    assert sorted(seen) == sorted(eleven.ids)


def test_mapped_in_batches_and_formatted_for_torch(eleven: Corpus) -> None:
    stream = eleven.load(streaming=True).map(
        lambda rows: {"peak": [float(abs(audio["array"]).max()) for audio in rows["audio"]]},
        batched=True,
        batch_size=4,
    )
    rows = read(stream.with_format("torch"), num_workers=2, start="fork")
    assert sorted(row["id"] for row in rows) == sorted(eleven.ids)
    for row in rows:
        audio = {**row["audio"], "array": row["audio"]["array"].numpy()}
        assert is_tone(audio, eleven.frequencies[row["id"]])
        assert row["peak"].item() == pytest.approx(0.5, abs=1e-3)


def test_damaged_clip_is_named_by_the_worker_that_met_it(eleven: Corpus) -> None:
    clip = eleven.root / "emotion/audio_5.wav"
    clip.write_bytes(clip.read_bytes()[:-500])
    with pytest.raises(ValueError, match=r"audio_5\.wav: cut short"):
        read(eleven.load(streaming=True), num_workers=2, start="fork")


# Runs alone: its own memory and that of its workers is what counts.
_EPOCHS = """
import sys, psutil, torch, datasets, s2s_arena

def memory():
    process = psutil.Process()
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))

if __name__ == "__main__":
    stream = datasets.load_dataset("s2s_arena", split="test", data_dir=sys.argv[1], streaming=True)
    stream = stream.shuffle(seed=0)
    loader = torch.utils.data.DataLoader(
        stream, batch_size=4, collate_fn=list, num_workers=4, persistent_workers=True
    )
    for epoch in range(20):
        stream.set_epoch(epoch)
        assert sum(len(batch) for batch in loader) == 40
        if epoch == 0:
            first = memory()
    print(memory() - first)
"""


def test_memory_stays_flat_over_epochs_of_four_workers(corpus: Corpus) -> None:
    """An epoch that is kept would add 40 clips of 2 s, which are 7.7 MB."""
    assert run_over_forty_clips(_EPOCHS, corpus) < 20e6
