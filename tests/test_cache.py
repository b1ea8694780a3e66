"""The cache never serves what has changed, moved or been left half-written."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import datasets
import pytest
from conftest import Corpus, encoded, is_tone, tone

import s2s_arena
from s2s_arena import AudioError


def start(code: str, **environment: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", textwrap.dedent(code)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **environment}
    )


def finish(process: "subprocess.Popen[str]") -> str:
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return output.strip()


def test_changed_metadata_of_the_same_size_and_time_is_noticed(corpus: Corpus) -> None:
    corpus.add("./emotion/a.wav", 440, text="version 1")
    path = corpus.write().root / "metadata.json"
    os.utime(path, (1_700_000_000, 1_700_000_000))
    size = path.stat().st_size
    first = corpus.load()
    corpus.entries[0]["text"] = "version 2"
    corpus.write()
    os.utime(path, (1_700_000_000, 1_700_000_000))
    assert path.stat().st_size == size
    second = corpus.load()
    assert (first[0]["text"], second[0]["text"]) == ("version 1", "version 2")
    assert corpus.load().cache_files == second.cache_files


def test_one_changed_file_of_many_is_noticed(corpus: Corpus) -> None:
    for number in range(3):
        corpus.add(f"./emotion/{number}.wav", text="one")
        corpus.write(f"data/{number}.json", corpus.entries[-1:])
    assert corpus.load()["text"] == ["one"] * 3
    corpus.entries[1]["text"] = "two"
    corpus.write("data/1.json", corpus.entries[1:2])
    assert corpus.load()["text"] == ["one", "two", "one"]


def test_relative_folder_means_the_one_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, frequency in (("one", 300), ("two", 600)):
        corpus = Corpus(tmp_path / place / "data")
        corpus.add("./emotion/a.wav", frequency)
        corpus.write()
        monkeypatch.chdir(tmp_path / place)
        assert is_tone(corpus.load(data_dir="data")[0]["audio"], frequency)


def test_two_installs_in_turn_on_one_cache(tmp_path: Path) -> None:
    """The second must not be served the paths of the first, which is gone."""
    source = Path(s2s_arena._embedded_dir(None))
    for number in (1, 2):
        site = tmp_path / f"site{number}"
        (site / "s2s_arena_data").mkdir(parents=True)
        shutil.copy(s2s_arena.__file__, site)
        shutil.copytree(source, site / "s2s_arena_data" / "data")
        printed = finish(
            start(
                f"""
                import sys
                sys.path.insert(0, {str(site)!r})
                import s2s_arena
                from datasets import load_dataset
                assert s2s_arena.__file__.startswith({str(site)!r})
                rows = load_dataset("s2s_arena", "Medical Consultation", split="test")
                path = rows[0]["audio"]["path"]
                print(rows.num_rows, path.startswith({str(site)!r}))
                """,
                HF_HOME=str(tmp_path / "home"),
            )
        )
        assert printed == "18 True"
        shutil.rmtree(site)


def test_cached_path_whose_file_has_gone_names_the_way_out(small_corpus: Corpus) -> None:
    rows = small_corpus.load()
    (small_corpus.root / "emotion/audio_10.wav").unlink()
    with pytest.raises(
        AudioError, match=r'emotion/audio_10.wav: .*download_mode="force_redownload"'
    ):
        rows[0]
    assert is_tone(rows[1]["audio"], 300)
    with pytest.raises(s2s_arena.MetadataError, match="no audio file at .*audio_10.wav"):
        small_corpus.load(download_mode="force_redownload")


def test_changed_audio_changes_what_cached_maps_go_by(corpus: Corpus) -> None:
    corpus.add("./emotion/a.wav", 300)
    corpus.write()

    def first_sample(row: dict) -> dict:
        return {"second": float(row["audio"]["array"][1])}

    before = corpus.load().map(first_sample)[0]["second"]
    assert corpus.load().map(first_sample)[0]["second"] == before
    corpus.file("emotion/a.wav", encoded(tone(900, 0.6)))
    assert corpus.load().map(first_sample)[0]["second"] > 2 * before


def test_replaced_audio_of_the_same_size_and_time_is_noticed(corpus: Corpus) -> None:
    corpus.add("./emotion/a.wav", 300)
    path = corpus.write().root / "emotion/a.wav"
    os.utime(path, (1_700_000_000, 1_700_000_000))

    def second_sample(row: dict) -> dict:
        return {"second": float(row["audio"]["array"][1])}

    before = corpus.load().map(second_sample)[0]["second"]
    path.unlink()
    corpus.file("emotion/a.wav", encoded(tone(900)))
    os.utime(path, (1_700_000_000, 1_700_000_000))
    assert corpus.load().map(second_sample)[0]["second"] > 2 * before


def test_metadata_that_changes_under_a_builder_is_refused(corpus: Corpus) -> None:
    """Else its rows would be cached under the name of the old ones."""
    corpus.add("./emotion/a.wav")
    corpus.write()
    builder = datasets.load_dataset_builder("s2s_arena", data_dir=str(corpus.root))
    corpus.add("./emotion/b.wav")
    corpus.write()
    with pytest.raises(s2s_arena.MetadataError, match="has changed since this builder was made"):
        builder.download_and_prepare()
    assert corpus.load().num_rows == 2


def test_killed_load_leaves_nothing_to_trip_over(small_corpus: Corpus, tmp_path: Path) -> None:
    """SIGKILL after some rows were written; then a load in a process of its own."""
    load = f"load_dataset('s2s_arena', split='test', data_dir={str(small_corpus.root)!r})"
    process = start(
        f"""
        import s2s_arena
        from datasets import load_dataset
        original = s2s_arena.S2SArena._generate_examples

        def hanging(self, rows):
            for number, example in enumerate(original(self, rows)):
                if number == 3:
                    print("half-way", flush=True)
                    import threading
                    threading.Event().wait()
                yield example

        s2s_arena.S2SArena._generate_examples = hanging
        {load}
        """,
        HF_HOME=str(tmp_path),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "half-way\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert list(tmp_path.rglob("*.incomplete"))
    for _ in range(2):
        code = f"import s2s_arena\nfrom datasets import load_dataset\nprint(len({load}[:]['id']))"
        assert finish(start(code, HF_HOME=str(tmp_path))) == "6"


def test_four_processes_at_once_with_an_empty_cache(small_corpus: Corpus, tmp_path: Path) -> None:
    code = f"""
        import sys
        import s2s_arena
        from datasets import load_dataset
        rows = load_dataset("s2s_arena", split="test", data_dir={str(small_corpus.root)!r})
        print(len([row["audio"]["array"] for row in rows]))
    """
    processes = [start(code, HF_HOME=str(tmp_path)) for _ in range(4)]
    assert [finish(process) for process in processes] == ["6"] * 4


def test_failed_load_leaves_no_partial_cache(corpus: Corpus) -> None:
    corpus.add("./emotion/a.wav")
    whole = corpus.write().root.joinpath("metadata.json").read_bytes()
    corpus.file("metadata.json", whole[:-20])
    with pytest.raises(s2s_arena.MetadataError, match=r"not valid JSON \(.*line \d+ column \d+"):
        corpus.load()
    corpus.file("metadata.json", whole)
    assert corpus.load().num_rows == 1


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_environment_that_the_user_cant_write_to(tmp_path: Path) -> None:
    """Nothing is written beside the package, nor does loading need it."""
    site = tmp_path / "site"
    (site / "s2s_arena_data").mkdir(parents=True)
    shutil.copy(s2s_arena.__file__, site)
    shutil.copytree(s2s_arena._embedded_dir(None), site / "s2s_arena_data" / "data")
    before = sorted(site.rglob("*"))
    folders = [tmp_path, site, *(path for path in before if path.is_dir())]
    home = tmp_path / "home"
    home.mkdir()
    code = f"""
        import sys
        sys.path.insert(0, {str(site)!r})
        import s2s_arena
        from datasets import load_dataset
        try:
            open({str(site / "probe")!r}, "w")
        except PermissionError:
            rows = load_dataset("s2s_arena", "Education", split="test")
            print(rows.num_rows, len(rows[0]["audio"]["array"]) > 0)
    """
    command = [sys.executable, "-B", "-c", textwrap.dedent(code)]
    if os.geteuid() == 0:  # permissions bind root only without this capability
        command = ["setpriv", "--bounding-set=-dac_override", *command]
    try:
        for folder in folders:
            folder.chmod(0o555)
        environment = {**os.environ, "HF_HOME": str(home)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert (done.returncode, done.stdout) == (0, "47 True\n"), done.stderr
    assert sorted(site.rglob("*")) == before


def test_cache_of_another_rate_is_another(small_corpus: Corpus) -> None:
    low, high = small_corpus.load(sampling_rate=8_000), small_corpus.load()
    assert low[0]["audio"]["sampling_rate"] == 8_000
    assert high[0]["audio"]["sampling_rate"] == 24_000
    assert isinstance(low, datasets.Dataset)
