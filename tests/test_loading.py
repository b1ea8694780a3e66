"""`load_dataset("s2s_arena", ...)`: configs, order, modes, options, and the name itself."""

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from conftest import Corpus, encoded, frequency_of, is_tone, tone
from datasets import load_dataset

import s2s_arena

COLUMNS = [
    "id",
    "audio",
    "input_path",
    "text",
    "emotion",
    "task",
    "task_description",
    "text_cn",
    "language",
    "category",
    "level",
    "noise",
]


def assert_same_rows(rows: Any, others: Any) -> None:
    for row, other in zip(rows, others, strict=True):
        audio, other_audio = row.pop("audio"), other.pop("audio")
        assert row == other
        np.testing.assert_array_equal(audio.pop("array"), other_audio.pop("array"))
        assert audio == other_audio


# --- Rows -----------------------------------------------------------------------------------------


def test_rows_are_typed_and_in_the_order_of_the_metadata(small_corpus: Corpus) -> None:
    rows = small_corpus.load()
    assert list(rows.features) == COLUMNS
    assert rows.features["audio"] == s2s_arena.Waveform(sampling_rate=24_000)
    assert all(
        rows.features[name] == datasets.Value("string") for name in COLUMNS if name != "audio"
    )
    assert rows["id"] == small_corpus.ids
    for row in rows:
        audio = row["audio"]
        assert (audio["array"].dtype, audio["array"].shape) == (np.float32, (12_000,))
        assert audio["sampling_rate"] == 24_000
        assert is_tone(audio, small_corpus.frequencies[row["id"]])
        assert Path(audio["path"]) == small_corpus.root / row["input_path"]
    assert rows["noise"] == [None, None, None, "Typing", None, None]
    assert rows["text_cn"][-1] is None
    assert rows["task"][4] == "Singing capability"


@pytest.mark.parametrize("name", [None, "all", *s2s_arena.CATEGORIES])
def test_streamed_rows_equal_loaded_rows(small_corpus: Corpus, name: str | None) -> None:
    stream = small_corpus.load(name, streaming=True)
    rows = small_corpus.load(name)
    assert stream.features == rows.features
    expected = [e["id"] for e in small_corpus.entries if name in (None, "all", e["category"])]
    assert rows["id"] == expected
    assert_same_rows(list(rows), list(stream))


def test_processes_keep_the_order(small_corpus: Corpus) -> None:
    rows = small_corpus.load(num_proc=2)
    assert rows["id"] == small_corpus.ids
    assert all(is_tone(row["audio"], small_corpus.frequencies[row["id"]]) for row in rows)


def test_category_without_entries_is_an_empty_split_with_the_schema(small_corpus: Corpus) -> None:
    full = small_corpus.load()
    for options in ({}, {"num_proc": 2}, {"keep_in_memory": True}):
        empty = small_corpus.load("Education", **options)
        assert (empty.num_rows, empty.features) == (0, full.features)
    assert small_corpus.load("Education", split="test[:50%]").num_rows == 0
    stream = small_corpus.load("Education", streaming=True)
    assert (list(stream), stream.features) == ([], full.features)
    assert small_corpus.load("Education", split=None)["test"].num_rows == 0
    assert empty.map(lambda row: row).num_rows == 0


def test_splits_and_slices(small_corpus: Corpus) -> None:
    assert list(small_corpus.load(split=None)) == ["test"]
    assert small_corpus.load(split="test[1:3]")["id"] == ["clip_1", "clip_2"]
    with pytest.raises(ValueError, match="train"):
        small_corpus.load(split="train")


def test_names_with_every_character_stay_whole(corpus: Corpus) -> None:
    names = ["音频 文件", "c# 1", "100%20 ok", "[take 1] a*b", "x=1&y", "café", "a::b", " lead"]
    for number, name in enumerate(names):
        corpus.add(f"./音 频/{name}.wav", 300 + 50 * number)
    corpus.write()
    for rows in (corpus.load(), corpus.load(streaming=True)):
        for row in rows:
            assert is_tone(row["audio"], corpus.frequencies[row["id"]])


def test_equal_base_names_in_many_folders(corpus: Corpus) -> None:
    leaves = ["age/adults", "age/children", "gender/men", "gender/women"]
    for number, leaf in enumerate(leaves):
        corpus.add(f"./identity/{leaf}/audio_0.mp3", 300 + 100 * number)
    corpus.write()
    for row in corpus.load():
        assert is_tone(row["audio"], corpus.frequencies[row["id"]])


# --- Options --------------------------------------------------------------------------------------


def test_sampling_rate_of_the_config(corpus: Corpus) -> None:
    corpus.add("./emotion/a.wav")
    corpus.file("emotion/a.wav", encoded(tone(440, 0.5, 48_000), 48_000))
    corpus.write()
    native = corpus.load(sampling_rate="native")[0]["audio"]
    assert (native["sampling_rate"], len(native["array"])) == (48_000, 24_000)
    for rate in (16_000, 24_000):
        for streaming in (False, True):
            rows = corpus.load(sampling_rate=rate, streaming=streaming)
            audio = next(iter(rows))["audio"]
            assert (audio["sampling_rate"], len(audio["array"])) == (rate, rate // 2)
            assert abs(frequency_of(audio["array"], rate) - 440) <= 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sampling_rate": 0}, "sampling_rate is 0; expected a positive int"),
        ({"sampling_rate": -16_000}, "sampling_rate is -16000"),
        ({"sampling_rate": True}, "sampling_rate is True"),
        ({"sampling_rate": 16_000.0}, "sampling_rate is 16000.0"),
        ({"sampling_rate": "16k"}, "sampling_rate is '16k'; .* or \"native\""),
        ({"prefetch": -1}, "prefetch is -1; expected a number of rows, 0 or more"),
        ({"prefetch": True}, "prefetch is True"),
        ({"prefetch": 2.0}, "prefetch is 2.0"),
        ({"category": "Education"}, "category is 'Education' in config 'all'"),
        ({"revision": "v1"}, "revision='v1' needs a data_dir on the Hub"),
        ({"name": "Educaton"}, "'Educaton' not found. Available: .*'Social Companionship'"),
        ({"colour": "red"}, "colour"),
        ({"data_dir": ""}, "data_dir is ''; expected a folder or URL"),
        ({"data_dir": b"x"}, "data_dir is b'x'"),
        ({"data_dir": "d\udcff"}, "as valid Unicode"),
    ],
)
def test_option_that_cant_be_right(
    small_corpus: Corpus, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        small_corpus.load(**options)


def test_builder_alone_loads_too(small_corpus: Corpus) -> None:
    builder = s2s_arena.S2SArena(config_name="Entertainment", data_dir=small_corpus.root)
    builder.download_and_prepare()
    assert builder.as_dataset("test")["id"] == ["clip_4"]


def test_file_url_is_a_folder(small_corpus: Corpus) -> None:
    url = small_corpus.root.as_uri()
    assert is_tone(next(iter(small_corpus.load(data_dir=url, streaming=True)))["audio"], 500)
    assert small_corpus.load(data_dir=url).num_rows == 6


def test_home_is_expanded(small_corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(small_corpus.root.parent))
    assert small_corpus.load(data_dir="~/data").num_rows == 6


def test_folder_behind_a_url(small_corpus: Corpus) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(small_corpus.root), "/arena", recursive=True)
    stream = small_corpus.load(data_dir="memory://arena", streaming=True)
    rows = small_corpus.load(data_dir="memory://arena")
    for found in (stream, rows):
        for row in found:
            assert is_tone(row["audio"], small_corpus.frequencies[row["id"]])
    memory.rm("/arena/sing/audio_0.wav")
    with pytest.raises(
        s2s_arena.MetadataError, match="no audio file at memory://arena/sing/audio_0"
    ):
        small_corpus.load(data_dir="memory://arena", streaming=True)


# --- The embedded edition -------------------------------------------------------------------------


@pytest.mark.usefixtures("quiet_embedded")
@pytest.mark.parametrize("name", ["all", *s2s_arena.CATEGORIES])
def test_embedded_edition_loads_and_its_counts_are_known(name: str) -> None:
    expected = {"all": 154, "Education": 47, "Social Companionship": 47, "Entertainment": 42}
    rows = load_dataset("s2s_arena", name, split="test")
    assert rows.num_rows == expected.get(name, 18)
    assert rows.info.splits["test"].num_examples == rows.num_rows
    info = datasets.load_dataset_builder("s2s_arena", name).info
    assert info.splits["test"].num_examples == rows.num_rows
    assert (info.license, str(info.version)) == ("cc-by-nc-sa-4.0", str(s2s_arena.VERSION))
    assert "2503.05085" in info.citation and info.homepage.endswith("FreedomIntelligence/S2S-Arena")


@pytest.mark.usefixtures("quiet_embedded")
def test_embedded_edition_that_lost_rows_is_refused(
    small_corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s2s_arena, "_embedded_dir", lambda _: str(small_corpus.root))
    with pytest.raises(datasets.exceptions.NonMatchingSplitsSizesError, match="examples=154"):
        load_dataset("s2s_arena", split="test")


def test_counts_of_a_users_data_are_never_checked(small_corpus: Corpus) -> None:
    builder = datasets.load_dataset_builder("s2s_arena", data_dir=str(small_corpus.root))
    assert builder.info.splits is None
    assert small_corpus.load(verification_mode="all_checks").num_rows == 6


def test_embedded_edition_says_what_it_is_once(caplog: pytest.LogCaptureFixture) -> None:
    s2s_arena._warn_that_embedded.cache_clear()
    with caplog.at_level(logging.WARNING, logger="s2s_arena"):
        for _ in range(2):
            datasets.load_dataset_builder("s2s_arena")
    assert len(caplog.records) == 1
    message = caplog.records[0].getMessage()
    assert "synthetic speech" in message and "FreedomIntelligence/S2S-Arena" in message


# --- The name -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quiet_embedded")
def test_inspection_functions_know_the_name() -> None:
    assert datasets.get_dataset_config_names("s2s_arena") == ["all", *s2s_arena.CATEGORIES]
    assert datasets.get_dataset_split_names("s2s_arena", "Education") == ["test"]
    infos = datasets.get_dataset_infos("s2s_arena")
    assert infos["Entertainment"].splits["test"].num_examples == 42


def test_other_names_go_to_datasets(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": 1}')
    s2s_arena.register()
    s2s_arena.register()
    rows = load_dataset("json", data_files=str(tmp_path / "x.json"), split="train")
    assert rows["a"] == [1]
    assert not hasattr(datasets.load.dataset_module_factory.__wrapped__, "__wrapped__")


@pytest.mark.usefixtures("quiet_embedded")
def test_folder_of_that_name_doesnt_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s2s_arena").mkdir()
    (tmp_path / "s2s_arena" / "x.json").write_text('{"a": 1}')
    monkeypatch.chdir(tmp_path)
    assert load_dataset("s2s_arena", "Education", split="test").num_rows == 47


def test_unknown_datasets_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(datasets.inspect, "dataset_module_factory")
    with pytest.raises(
        ImportError, match=r"datasets.inspect has no dataset_module_factory; install"
    ):
        s2s_arena.register()


def test_import_brings_no_other_package() -> None:
    code = (
        "import sys, datasets; before = {name.partition('.')[0] for name in sys.modules}; "
        "import s2s_arena; print(*({name.partition('.')[0] for name in sys.modules} - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) - sys.stdlib_module_names == {"s2s_arena"}


def test_loading_leaves_the_module_as_it_is_and_imports_no_scipy(small_corpus: Corpus) -> None:
    """datasets replaces names in a builder's module, and imports scipy.io for it: half a second."""
    code = (
        "import sys, datasets, s2s_arena; from os.path import join\n"
        "options = dict(split='test', data_dir=sys.argv[1])\n"
        "print(len(datasets.load_dataset('s2s_arena', **options)[0]['audio']['array']))\n"
        "print(next(iter(datasets.load_dataset('s2s_arena', streaming=True, **options)))['id'])\n"
        "print('scipy' in sys.modules, s2s_arena.os.path.join is join, hasattr(s2s_arena, 'open'))"
    )
    command = [sys.executable, "-c", code, str(small_corpus.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["12000", "clip_0", "False", "True", "False"]


@pytest.mark.skipif(datasets.__version__ >= "4", reason="datasets 4 removed loading scripts")
def test_same_file_as_a_loading_script(small_corpus: Corpus) -> None:
    """Twice, in processes of their own: the second reads its columns back from the cache."""
    script = Path(s2s_arena.__file__)
    (small_corpus.root / "sing/audio_0.wav").write_bytes(encoded(tone(420))[:-1000])
    code = f"""
import datasets, sys
assert "s2s_arena" not in sys.modules
options = dict(split="test", trust_remote_code=True)
rows = datasets.load_dataset({str(script)!r}, "Social Companionship", **options)
assert rows.num_rows == 47, rows
assert rows[0]["audio"]["sampling_rate"] == 24_000
assert type(rows.features["audio"]).__name__ == "Waveform"
own = datasets.load_dataset({str(script)!r}, data_dir={str(small_corpus.root)!r}, **options)
assert own.num_rows == 6
try:
    own[4]
except ValueError as error:
    assert type(error).__name__ == "AudioError", error
    print("refused")
"""
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr
