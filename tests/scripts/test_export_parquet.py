"""scripts/export_parquet.py: the repository it makes, who can read it, and what it refuses."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import Corpus, encoded, load_script, tone
from hub_fixtures import Client
from stand_in_hub import Reset, StandInHub, Status, client_environment

import s2s_arena

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "export_parquet.py"


script = load_script("export_parquet")

SOCIAL, MEDICAL = "Social Companionship", "Medical Consultation"
FILES = [
    "README.md",
    "dataset_infos.json",
    "education/test-00000-of-00001.parquet",
    "entertainment/test-00000-of-00001.parquet",
    "medical_consultation/test-00000-of-00001.parquet",
    "social_companionship/test-00000-of-00002.parquet",
    "social_companionship/test-00001-of-00002.parquet",
]


def fill(corpus: Corpus) -> Corpus:
    """Six clips, no Education: Social, Medical and Entertainment, then Social again."""
    medical = {"category": MEDICAL, "task": "Health consultation", "level": "L0"}
    own = {"task": "my | own\ntask", "task_description": "Is it mine?"}
    corpus.add("./emotion/audio_0.wav", 500)
    corpus.add("./input/emotion/audio_2.mp3", 300, language="Klingon", **own)
    corpus.add("./healthcare/audio_0.wav", 700, **medical)
    corpus.add("./healthcare/healthcare0_Typing_1.wav", 640, noise="Typing", **medical)
    corpus.add("./sing/audio_0.wav", 420, category="Entertainment", task="Singing ability")
    corpus.add("./emotion/a/audio_0.wav", 360, language="Chinese", text="孩子们在门旁说话")
    corpus.file("emotion/audio_0.wav", encoded(tone(500, sampling_rate=48_000), 48_000))
    return corpus.write()


def export(corpus: Corpus, out: Path, *options: str) -> int:
    return script.main(["--out", str(out), "--data-dir", str(corpus.root), *options])


def read_folder(folder: Path) -> dict[str, bytes]:
    return {path: (folder / path).read_bytes() for path in script.list_files(folder)}


def read_header(card: str) -> dict[str, Any]:
    return yaml.safe_load(card.split("---\n")[1])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Shared by tests that only read it."""
    return fill(Corpus(tmp_path_factory.mktemp("source")))


@pytest.fixture(scope="module")
def exported(source: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its export, which tests only read."""
    out = tmp_path_factory.mktemp("exported") / "new" / "DIR"
    assert export(source, out) == 0
    return out


@pytest.fixture(scope="module")
def card(exported: Path) -> str:
    return (exported / "README.md").read_text(encoding="utf-8")


def input_paths(corpus: Corpus) -> list[str]:
    return [entry["input_path"].removeprefix("./") for entry in corpus.entries]


# --- Plan ----------------------------------------------------------------------------------------


def plan(categories: str, sizes: list[int] | None = None, selected: str = "ESNM") -> dict[str, Any]:
    """Plan rows given as letters; return config to its files' rows."""
    names = dict(zip("ESNM", s2s_arena.CATEGORIES, strict=True))
    configs = script.plan_configs(
        [names[letter] for letter in categories],
        sizes or [1] * len(categories),
        [names[letter] for letter in selected],
    )
    letters = {name: letter for letter, name in names.items()}
    return {
        letters.get(config, config): [list(file.rows) for file in files]
        for config, files in configs.items()
    }


def test_each_run_of_a_category_is_a_file() -> None:
    assert plan("SSMNS") == {
        "all": [[0, 1], [2], [3], [4]],
        "E": [[]],
        "S": [[0, 1], [4]],
        "N": [[3]],
        "M": [[2]],
    }


def test_all_lists_the_files_of_the_categories() -> None:
    names = [s2s_arena.CATEGORIES[number] for number in (1, 3, 1)]
    configs = script.plan_configs(names, [1, 1, 1], s2s_arena.CATEGORIES)
    assert [file.path for file in configs["all"]] == [
        "social_companionship/test-00000-of-00002.parquet",
        "medical_consultation/test-00000-of-00001.parquet",
        "social_companionship/test-00001-of-00002.parquet",
    ]


def test_files_are_split_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "MAX_FILE_BYTES", 10)
    found = plan("EEEEES", [4, 6, 1, 25, 3, 2])
    assert found["E"] == [[0, 1], [2], [3], [4]]
    assert found["all"] == [[0, 1], [2], [3], [4], [5]]


def test_too_many_runs_store_all_a_second_time() -> None:
    categories = "ES" * 250
    assert len(plan(categories)["all"]) == 500
    found = plan(categories + "E")
    assert found["all"] == [list(range(501))]
    assert found["E"] == [list(range(0, 501, 2))]
    assert found["S"] == [list(range(1, 501, 2))]


def test_a_part_has_no_all() -> None:
    assert plan("ESEM", selected="EM") == {"E": [[0, 2]], "M": [[3]]}


# --- What is written -----------------------------------------------------------------------------


def test_folder_is_a_repository_without_code(exported: Path) -> None:
    assert script.list_files(exported) == FILES
    assert list(exported.parent.iterdir()) == [exported]
    assert os.stat(exported).st_mode == os.stat(exported / "education").st_mode


def test_recordings_are_embedded_unchanged(exported: Path, source: Corpus) -> None:
    files = [exported / path for path in read_header_paths(exported, "all")]
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert [row["id"] for row in rows] == source.ids
    for row, input_path in zip(rows, input_paths(source), strict=True):
        content = (source.root / input_path).read_bytes()
        assert row["input_path"] == input_path.removeprefix("input/")
        assert row["audio"] == {"bytes": content, "path": row["input_path"]}


def read_header_paths(folder: Path, config: str) -> list[str]:
    header = read_header((folder / "README.md").read_text(encoding="utf-8"))
    configs = {entry["config_name"]: entry["data_files"] for entry in header["configs"]}
    ((split),) = configs[config]
    assert split["split"] == "test"
    return split["path"]


def test_schema_says_audio_with_our_mark(exported: Path) -> None:
    for path in FILES[2:]:
        schema = pq.read_schema(exported / path)
        info = json.loads(schema.metadata[b"huggingface"])["info"]
        assert info["features"]["audio"] == {
            "sampling_rate": 24_000,
            "id": "s2s_arena.Waveform",
            "_type": "Audio",
        }
        assert list(info["features"]) == schema.names == list(script.COLUMNS)


def test_parquet_is_made_for_streaming(
    source: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "ROW_GROUP_BYTES", 20_000)
    assert export(source, tmp_path / "out") == 0
    metadata = pq.read_metadata(tmp_path / "out" / FILES[5])
    assert [metadata.row_group(number).num_rows for number in range(2)] == [1, 1]
    group = metadata.row_group(0)
    columns = {
        column.path_in_schema: column for column in map(group.column, range(group.num_columns))
    }
    audio = columns.pop("audio.bytes")
    assert (audio.compression, audio.encodings.count("PLAIN_DICTIONARY")) == ("UNCOMPRESSED", 0)
    assert not audio.has_dictionary_page
    assert not audio.is_stats_set
    assert {column.compression for column in columns.values()} == {"SNAPPY"}
    assert all(column.has_offset_index for column in (audio, *columns.values()))
    assert all(column.has_column_index for column in columns.values())


def test_default_row_groups_hold_some_megabytes() -> None:
    assert 1_000_000 <= script.ROW_GROUP_BYTES <= 5_000_000


def test_no_path_of_the_machine_is_written(exported: Path, source: Corpus) -> None:
    for path, content in read_folder(exported).items():
        for folder in (source.root, exported, Path.home()):
            assert str(folder).encode() not in content, path


def test_second_run_writes_the_same_bytes(exported: Path, source: Corpus, tmp_path: Path) -> None:
    assert export(source, tmp_path / "again") == 0
    assert read_folder(tmp_path / "again") == read_folder(exported)


def test_second_run_into_the_same_folder_leaves_it(
    source: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()  # an empty folder may be there
    assert export(source, tmp_path / "out") == 0
    files = [tmp_path / "out" / path for path in FILES]
    before = [path.stat().st_mtime_ns for path in files]
    assert export(source, tmp_path / "out") == 0
    assert "Already there, unchanged: 6 utterances" in capsys.readouterr().out
    assert [path.stat().st_mtime_ns for path in files] == before


def test_run_tells_its_progress(
    source: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert export(source, tmp_path / "out") == 0
    out, err = capsys.readouterr()
    assert "Checking: 100%" in err
    assert "Writing: 100%" in err
    assert out.splitlines() == [
        f"Exported 6 utterances (own data), 5 Parquet files, 0.2 MB, in {tmp_path / 'out'}",
        "  all: 6",
        "  Education: 0",
        "  Social Companionship: 3",
        "  Entertainment: 1",
        "  Medical Consultation: 2",
    ]


def test_chosen_categories(source: Corpus, tmp_path: Path) -> None:
    assert export(source, tmp_path / "out", "--config", MEDICAL, SOCIAL) == 0
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    names = [entry["config_name"] for entry in read_header(card)["configs"]]
    assert names == [SOCIAL, MEDICAL]
    assert "Left out: Education, Entertainment." in card
    assert script.list_files(tmp_path / "out") == [
        "README.md",
        "dataset_infos.json",
        "medical_consultation/test-00000-of-00001.parquet",
        "social_companionship/test-00000-of-00001.parquet",
    ]


def test_all_is_stored_twice_and_said(
    source: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(script, "MAX_RUNS", 3)
    assert export(source, tmp_path / "out") == 0
    assert script.STORED_TWICE in capsys.readouterr().out
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert script.STORED_TWICE in card
    assert "FROM 'all/*.parquet'" in card
    assert read_header_paths(tmp_path / "out", "all") == ["all/test-00000-of-00001.parquet"]
    table = pq.read_table(tmp_path / "out" / "all" / "test-00000-of-00001.parquet")
    assert table["id"].to_pylist() == source.ids


# --- Card ----------------------------------------------------------------------------------------


def test_card_counts(card: str) -> None:
    assert "| all |  | 2 | 0 | 0 | 4 | 6 |" in card
    assert "| Medical Consultation | `medical_consultation/` | 2 | 0 | 0 | 0 | 2 |" in card
    assert "| my \\| own task | 0 | 0 | 0 | 1 | 1 |" in card
    assert "| Singing capability | 0 | 0 | 0 | 1 | 1 |" in card
    assert "Languages: English 4, Klingon 1, Chinese 1." in card
    assert "stored at 24000, 48000 Hz" in card
    assert "No rows: Education." in card


def test_card_describes_each_config(exported: Path, card: str) -> None:
    header = read_header(card)
    assert header["language"] == ["en", "zh"]
    assert header["size_categories"] == ["n<1K"]
    assert [entry.get("default") for entry in header["configs"]] == [True, *[None] * 4]
    infos = {info["config_name"]: info for info in header["dataset_info"]}
    assert list(infos) == ["all", *s2s_arena.CATEGORIES]
    counts = [info["splits"][0]["num_examples"] for info in infos.values()]
    assert counts == [6, 0, 3, 1, 2]
    for config, info in infos.items():
        files = [exported / path for path in read_header_paths(exported, config)]
        assert info["download_size"] == sum(file.stat().st_size for file in files)
        assert info["dataset_size"] == info["splits"][0]["num_bytes"] >= 0


def test_dataset_infos_say_what_the_card_says(exported: Path, card: str) -> None:
    known = json.loads((exported / "dataset_infos.json").read_text(encoding="utf-8"))
    for info in read_header(card)["dataset_info"]:
        old = datasets.DatasetInfo.from_dict(known[info["config_name"]])
        new = datasets.DatasetInfo._from_yaml_dict(info)
        assert old.features == new.features
        assert old.splits["test"].num_examples == new.splits["test"].num_examples
        assert (old.download_size, old.dataset_size) == (new.download_size, new.dataset_size)


def test_card_of_own_data_claims_nothing(exported: Path, card: str) -> None:
    assert "license" not in read_header(card)
    assert set(read_header(card)["tags"]).isdisjoint({"benchmark", "s2s-arena", "synthetic"})
    for claim in ("Citation", "jiang2025", "cc-by", s2s_arena.OFFICIAL_REPO_ID, "154"):
        assert claim not in card
        assert claim.encode() not in (exported / "dataset_infos.json").read_bytes()


def test_embedded_edition_says_that_it_is_synthetic(tmp_path: Path) -> None:
    assert script.main(["--out", str(tmp_path / "out"), "--config", MEDICAL]) == 0
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    header = read_header(card)
    assert header["license"] == "cc-by-nc-sa-4.0"
    assert "synthetic" in header["tags"]
    assert "benchmark" not in header["tags"]
    assert "Scores on it are not S2S-Arena scores." in card
    assert "@article{jiang2025s2sarena" in card


@pytest.mark.parametrize(
    ("num_examples", "name"),
    [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (10**6, "1M<n<10M"), (10**8, "n>10M")],
)
def test_size_category(num_examples: int, name: str) -> None:
    assert script.to_size_category(num_examples) == name


# --- Which edition it is -------------------------------------------------------------------------


def write_provenance(corpus: Corpus, **changes: Any) -> None:
    """Write what fetch_official.py writes beside the data."""
    files = {}
    for written in input_paths(corpus):
        content = (corpus.root / written).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        files[written.removeprefix("input/")] = {"sha256": digest, "size": len(content)}
    provenance = {
        "repository": f"datasets/{s2s_arena.OFFICIAL_REPO_ID}",
        "commit": "a" * 40,
        "files": files,
    }
    content = json.dumps({**provenance, **changes}).encode()
    corpus.file("provenance.json", content)


@pytest.fixture
def fetched(corpus: Corpus) -> Corpus:
    """A folder that says it holds the official recordings."""
    write_provenance(fill(corpus))
    return corpus


def find_edition(corpus: Corpus) -> Any:
    return script.find_edition(corpus.root, script.read_recordings(corpus.root))


def test_fetched_data_names_its_commit(fetched: Corpus, tmp_path: Path) -> None:
    assert export(fetched, tmp_path / "out") == 0
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert f"at commit `{'a' * 40}`, unaltered" in card
    assert read_header(card)["license"] == "cc-by-nc-sa-4.0"
    assert "@article{jiang2025s2sarena" in card


@pytest.mark.parametrize(
    "changes", [{"repository": "datasets/somebody/else"}, {"files": {}}, {"files": None}]
)
def test_what_is_not_proven_is_own_data(fetched: Corpus, changes: dict[str, Any]) -> None:
    write_provenance(fetched, **changes)
    assert find_edition(fetched) is script.OWN


def test_broken_provenance_is_own_data(fetched: Corpus) -> None:
    fetched.file("provenance.json", b"{")
    assert find_edition(fetched) is script.OWN


def test_altered_recording_is_own_data(fetched: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    fetched.file("sing/audio_0.wav", encoded(tone(421)))
    assert find_edition(fetched) is script.OWN
    assert "sing/audio_0.wav isn't what provenance.json says" in capsys.readouterr().err


# --- Readers -------------------------------------------------------------------------------------

# Prints what each config holds, loaded and streamed, as a line of JSON.
FOREIGN_READER = """
import hashlib, json, sys
import datasets
from datasets import Audio, load_dataset

def describe(row):
    audio = row["audio"]
    return [row["id"], audio["path"], hashlib.sha256(audio["bytes"]).hexdigest()]

repo = sys.argv[1]
found = {}
for config in sys.argv[2:]:
    for streaming in (False, True):
        ds = load_dataset(repo, config, split="test", streaming=streaming)
        assert type(ds.features["audio"]) is Audio, ds.features
        assert ds.features["audio"].sampling_rate == 24_000
        rows = ds.cast_column("audio", Audio(decode=False))
        found[f"{config}, {streaming}"] = [describe(row) for row in rows]
print(json.dumps(found))
"""

# The stock class decodes on datasets 3 alone, without torchcodec.
FOREIGN_DECODER = """
if datasets.__version__.startswith("3."):
    audio = next(iter(ds))["audio"]
    print([len(audio["array"]), audio["sampling_rate"]])
"""


def run_foreign(code: str, *arguments: str, cwd: Path, **environment: str) -> str:
    """Run code in a process that can't import our package; return what it printed."""
    guard = "import sys; sys.modules['s2s_arena'] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", guard + code, *arguments],
        cwd=cwd,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def describe_rows(source: Corpus, category: str | None = None) -> list[list[str]]:
    """What the foreign reader must find."""
    found = []
    for entry, written in zip(source.entries, input_paths(source), strict=True):
        content = (source.root / written).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        if category in (None, entry["category"]):
            found.append([entry["id"], written.removeprefix("input/"), digest])
    return found


@pytest.fixture(scope="module")
def printed(exported: Path, card: str) -> list[str]:
    """What a process in the exported folder prints that reads it and runs the card's snippet."""
    (snippet,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    code = FOREIGN_READER + FOREIGN_DECODER + snippet
    return run_foreign(code, str(exported), "all", MEDICAL, SOCIAL, cwd=exported).splitlines()


def test_anybody_reads_it_without_our_package(printed: list[str], source: Corpus) -> None:
    found = json.loads(next(line for line in printed if line.startswith("{")))
    for streaming in (False, True):
        assert found[f"all, {streaming}"] == describe_rows(source)
        for category in (SOCIAL, MEDICAL):
            assert found[f"{category}, {streaming}"] == describe_rows(source, category)


def test_snippet_of_the_card_runs(printed: list[str]) -> None:
    assert printed[-1] == "emotion/audio_0.wav (24000,) 48000"


@pytest.mark.skipif(
    not datasets.__version__.startswith("3."), reason="newer datasets decode with torchcodec alone"
)
def test_datasets_3_decodes_it_without_our_package(printed: list[str]) -> None:
    assert printed[-2] == "[12000, 24000]"


@pytest.mark.parametrize("streaming", [False, True])
def test_waveforms_equal_the_loader(exported: Path, source: Corpus, streaming: bool) -> None:
    plain = datasets.load_dataset(str(exported), split="test", streaming=streaming)
    # Marked columns come back as ours; the cast that users are told of gives the same.
    assert isinstance(plain.features["audio"], s2s_arena.Waveform)
    cast = plain.cast_column("audio", s2s_arena.Waveform(sampling_rate=24_000))
    for ours in (plain, cast):
        for row, expected in zip(ours, source.load(), strict=True):
            audio, wanted = row.pop("audio"), expected.pop("audio")
            assert row == expected
            assert audio["sampling_rate"] == wanted["sampling_rate"] == 24_000
            np.testing.assert_array_equal(audio["array"], wanted["array"])


def test_empty_category_is_streamed_with_its_columns(exported: Path) -> None:
    ds = datasets.load_dataset(str(exported), "Education", split="test", streaming=True)
    assert list(ds.features) == list(script.COLUMNS)
    assert list(ds) == []


def test_duckdb_counts(exported: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    query = f"SELECT level, count(*) FROM '{exported}/*/*.parquet' GROUP BY level ORDER BY level"
    assert duckdb.sql(query).fetchall() == [("L0", 2), ("L3", 4)]


def test_polars_counts(exported: Path) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.scan_parquet(f"{exported}/*/*.parquet")
    counted = polars.SQLContext(data=frame, eager=True).execute(
        "SELECT level, count(*) AS n FROM data GROUP BY level ORDER BY level"
    )
    assert counted.rows() == [("L0", 2), ("L3", 4)]


def test_pandas_reads_the_columns(exported: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(exported / FILES[4])
    assert list(frame.columns) == list(script.COLUMNS)
    assert list(frame["noise"].isna()) == [True, False]
    assert frame["audio"][1]["path"] == "healthcare/healthcare0_Typing_1.wav"


# --- What is refused, and what is left after -----------------------------------------------------


def fail(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> str:
    """Run a command line that must fail; return stderr."""
    assert script.main(list(arguments)) == status
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_errors_of_the_recordings_are_listed(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(corpus)
    corpus.file("sing/audio_0.wav", encoded(tone(420))[:-100])
    corpus.file("healthcare/audio_0.wav", b"")
    options = ("--data-dir", str(corpus.root), "--out", str(tmp_path / "out"))
    err = fail(capsys, 1, *options, "--config", SOCIAL)
    assert "nothing was exported, errors: 2; `python scripts/validate.py" in err
    assert re.search(r"metadata.json row 2 \(id 'clip_2'\).*is empty", err)
    assert re.search(r"metadata.json row 4 \(id 'clip_4'\).*cut short", err)
    assert not (tmp_path / "out").exists()


def test_errors_of_the_metadata_are_listed(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(corpus).entries[0]["level"] = "L9"
    corpus.write()
    err = fail(capsys, 1, "--data-dir", str(corpus.root), "--out", str(tmp_path / "out"))
    assert "row 0 (id 'clip_0'): unknown level 'L9'" in err
    assert not (tmp_path / "out").exists()


def test_folder_of_others_is_left_alone(
    source: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "README.md").write_text("# Mine\n")
    err = fail(capsys, 1, "--data-dir", str(source.root), "--out", str(tmp_path))
    assert "not empty, and no export (README.md, ...); nothing was changed" in err
    assert read_folder(tmp_path) == {"README.md": b"# Mine\n"}


def test_another_export_is_left_alone(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert export(fill(corpus), out) == 0
    before = read_folder(out)
    corpus.entries[0]["text"] = "changed"
    corpus.write()
    capsys.readouterr()
    err = fail(capsys, 1, "--data-dir", str(corpus.root), "--out", str(out))
    assert "holds an export that differs" in err
    assert read_folder(out) == before
    assert [path.name for path in tmp_path.glob("*out*")] == ["out"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: --out"),
        (["--out", "x", "--config", "Educaton"], "invalid choice: 'Educaton'"),
        (["--out", "x", "--data-dir", "gone"], "--data-dir gone: no such folder"),
        (["--out", "x", "--data-dir", "hf://datasets/a/b"], "fetch_official.py"),
        (["--out", "x", "--private"], "needs --push-to-hub"),
        (["--out", "x", "--push-to-hub", "name"], "--push-to-hub name: expected OWNER/NAME"),
        (["--out", "x", "--push-to-hub", "a/b--c"], "--push-to-hub a/b--c: expected OWNER/NAME"),
        (["--out", "."], "is the working directory"),
        (["--out", "file"], "file: is a file; name a folder"),
    ],
)
def test_bad_arguments_are_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="2"):
        script.main(arguments)
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KeyboardInterrupt(), 130, "Interrupted."),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
    ],
)
def test_nothing_is_left_of_a_run_that_ended(
    source: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    message: str,
) -> None:
    def strike(*_: object) -> str:
        raise error

    monkeypatch.setattr(script, "to_card", strike)  # the Parquet files are written by then
    options = ("--data-dir", str(source.root), "--out", str(tmp_path / "out"))
    assert message in fail(capsys, status, *options)
    assert list(tmp_path.iterdir()) == []


def test_killed_run_leaves_nothing_under_the_final_name(
    source: Corpus, exported: Path, tmp_path: Path
) -> None:
    code = f"""
import os, signal, sys
sys.path[:0] = [{str(SCRIPT.parent)!r}, {str(ROOT)!r}]
import export_parquet
export_parquet.to_dataset_infos = lambda export: os.kill(os.getpid(), signal.SIGKILL)
export_parquet.main(sys.argv[1:])
"""
    out = tmp_path / "out"
    command = [sys.executable, "-c", code, "--out", str(out), "--data-dir", str(source.root)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == -9
    (left,) = tmp_path.iterdir()
    assert re.fullmatch(r"\.out\..*\.partial", left.name)
    assert export(source, out) == 0
    assert read_folder(out) == read_folder(exported)


# --- The Hub -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared_hub() -> Iterator[StandInHub]:
    with StandInHub() as hub:
        yield hub


@pytest.fixture
def hub(shared_hub: StandInHub) -> StandInHub:
    shared_hub.reset()
    return shared_hub


@pytest.fixture(scope="module")
def client(shared_hub: StandInHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A process that knows no other Hub."""
    with Client(shared_hub, tmp_path_factory.mktemp("client")) as client:
        yield client


@pytest.fixture
def repo_id(request: pytest.FixtureRequest) -> str:
    """An id of the test's own."""
    return f"owner/{hashlib.sha1(request.node.nodeid.encode()).hexdigest()[:12]}"


def push(
    client: Client, out: Path, source: Corpus, repo_id: str, *options: str, token: str = ""
) -> tuple[int, str, str]:
    """Export and push in the client's process; return status, stdout and stderr."""
    arguments = ["--out", str(out), "--data-dir", str(source.root), "--push-to-hub", repo_id]
    result = client.run(
        f"import os; os.environ['HF_TOKEN'] = {token!r}\n"
        f"value = load_script({str(SCRIPT)!r}).main({[*arguments, *options]!r})"
    )
    assert result.error is None, result.err
    assert not token or token not in result.out + result.err
    return result.value, result.out, result.err


def test_push_is_one_commit(
    hub: StandInHub, client: Client, source: Corpus, repo_id: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    status, printed, _ = push(client, out, source, repo_id, "--private", token=hub.token)
    assert status == 0
    repo = hub.repos[repo_id]
    assert repo.private
    assert f"Pushed to {hub.url}/datasets/{repo_id}\n" in printed
    assert repo.sha in printed
    assert len(repo.commits) == 2  # the Hub's own, with .gitattributes, and ours
    found, local = repo.read_files(), read_folder(out)
    del found[".gitattributes"]
    card, own_card = found.pop("README.md").decode(), local.pop("README.md").decode()
    assert found == local
    assert f'load_dataset("{repo_id}", "all", split="test")' in card
    assert f"'hf://datasets/{repo_id}/*/*.parquet'" in card
    assert read_header(card) == read_header(own_card)
    environment = client_environment(hub, tmp_path, hub.token)
    text = run_foreign(FOREIGN_READER, repo_id, "all", SOCIAL, cwd=tmp_path, **environment)
    rows = json.loads(text.splitlines()[-1])
    assert rows["all, True"] == rows["all, False"] == describe_rows(source)
    assert rows[f"{SOCIAL}, False"] == describe_rows(source, SOCIAL)


def test_failed_commit_is_reported_and_tried_again(
    hub: StandInHub, client: Client, source: Corpus, repo_id: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    hub.inject(Status(500), kind="commit")
    status, printed, err = push(client, out, source, repo_id, token=hub.token)
    assert status == 1
    assert "Pushed" not in printed
    assert f"{repo_id}: the Hub answered 500" in err
    assert f"{out} is complete; the same command tries again." in err
    assert list(hub.repos[repo_id].read_files()) == [".gitattributes"]
    uploads = hub.count("put")
    status, printed, _ = push(client, out, source, repo_id, token=hub.token)
    assert status == 0
    assert "Already there, unchanged" in printed
    assert len(hub.repos[repo_id].commits) == 2
    assert hub.count("put") == uploads  # the first attempt had stored the recordings


def test_commit_whose_answer_was_lost_is_not_made_twice(
    hub: StandInHub, client: Client, source: Corpus, repo_id: str, tmp_path: Path
) -> None:
    hub.inject(Reset(), kind="commit")
    status, _, err = push(client, tmp_path / "out", source, repo_id, token=hub.token)
    assert status == 1
    assert "can't be reached" in err
    assert push(client, tmp_path / "out", source, repo_id, token=hub.token)[0] == 0
    assert len(hub.repos[repo_id].commits) == 2


def test_push_replaces_what_an_earlier_one_left(
    hub: StandInHub, client: Client, source: Corpus, repo_id: str, tmp_path: Path
) -> None:
    stale, own = "social_companionship/test-00007-of-00008.parquet", "notes/test.parquet"
    repo = hub.add_dataset(repo_id, {stale: b"PAR1", own: b"PAR1", "LICENSE": b"mine"})
    assert push(client, tmp_path / "out", source, repo_id, token=hub.token)[0] == 0
    assert set(repo.read_files()) == {*FILES, own, "LICENSE"}
    assert len(repo.commits) == 2


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({"LICENSE": b""}, ["--private"], "exists and is public"),
        ({"NAME.py": b""}, [], "a loading script"),
    ],
)
def test_repository_that_must_not_be_pushed_to(
    hub: StandInHub,
    client: Client,
    source: Corpus,
    repo_id: str,
    tmp_path: Path,
    files: dict[str, bytes],
    options: list[str],
    message: str,
) -> None:
    name = repo_id.partition("/")[2]
    files = {path.replace("NAME", name): content for path, content in files.items()}
    repo = hub.add_dataset(repo_id, files)
    status, _, err = push(client, tmp_path / "out", source, repo_id, *options, token=hub.token)
    assert status == 1
    assert message in err
    assert "nothing was pushed" in err
    assert repo.read_files() == files


def test_who_is_not_logged_in_is_told_before_the_work(
    hub: StandInHub, client: Client, source: Corpus, repo_id: str, tmp_path: Path
) -> None:
    status, _, err = push(client, tmp_path / "out", source, repo_id)
    assert status == 1
    assert "`hf auth login`, or set HF_TOKEN" in err
    assert not (tmp_path / "out").exists()
    assert push(client, tmp_path / "out", source, repo_id, token="hf_wrong")[0] == 1
    assert repo_id not in hub.repos


def test_who_may_not_write_is_told(
    hub: StandInHub, client: Client, source: Corpus, repo_id: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    status, _, err = push(client, out, source, repo_id, token=hub.outsider_token)
    assert status == 1
    assert "no right to write there (403)" in err
    assert f"{out} is complete" in err
    assert script.list_files(out) == FILES
