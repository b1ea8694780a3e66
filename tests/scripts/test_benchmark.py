"""scripts/benchmark.py: its arithmetic, its report, and that every section runs. No times."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import numpy as np
import pytest
import soundfile
from conftest import Corpus, encoded, load_script, tone

import s2s_arena

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/benchmark.py"

# A smoke run starts a dozen processes, which a busy machine is slow with.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("benchmark")


def report_of(script: ModuleType, *arguments: str) -> dict[str, Any]:
    cached = list_cache()
    out = io.StringIO()
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the peers' own
        assert script.main([*arguments, "--smoke", "--rounds", "1", "--json"]) == 0
    assert list_cache() == cached
    report: dict[str, Any] = json.loads(out.getvalue())
    return report


def list_cache() -> list[Path]:
    return sorted(Path(datasets.config.HF_DATASETS_CACHE).rglob("*"))


def has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


# Results -----------------------------------------------------------------------------------------


def test_spread_is_median_lowest_highest(script: ModuleType) -> None:
    assert script.to_spread([3.0, 1.0, 2.0, 10.0]) == script.Spread(2.5, 1.0, 10.0)


@pytest.mark.parametrize(
    ("unit", "ours", "theirs", "ratios"),
    [
        ("examples/s", [90, 120], [100, 100], [0.9, 1.2]),
        ("MB/s", [5], [10], [0.5]),
        ("ms", [90, 200], [180, 100], [2.0, 0.5]),
        ("MB", [0, 1], [1, 1], []),
        ("MB", [1, 1], [1, 0], []),
    ],
)
def test_ratio_above_1_is_better_whatever_the_unit(
    script: ModuleType, unit: str, ours: list[float], theirs: list[float], ratios: list[float]
) -> None:
    assert script.to_ratios(ours, theirs, unit) == ratios


def test_ratio_is_that_of_each_round_and_not_of_the_medians(script: ModuleType) -> None:
    # The machine was slow in the second round, for both.
    values = {"s2s_arena": [100, 10, 102], "x": [50, 5, 100], "y": [100, 10, 102]}
    first, second = script.compare(("decode", "wav"), "examples/s", 7, values)
    assert (first.peer, first.ratio) == ("x", script.Spread(2.0, 1.02, 2.0))
    assert (second.peer, second.ratio) == ("y", script.Spread(1.0, 1.0, 1.0))
    assert (first.ours, first.theirs) == (script.Spread(100, 10, 102), script.Spread(50, 5, 100))
    assert (first.num_examples, first.rounds) == (7, 3)


def test_without_a_peer_ours_stands_alone(script: ModuleType) -> None:
    (only,) = script.compare(("first", "import"), "ms", 0, {"s2s_arena": [12.0]}, script.Aim(1))
    assert (only.peer, only.theirs, only.ratio, only.is_met) == (None, None, None, None)


@pytest.mark.parametrize(
    ("aim", "ours", "is_met", "text"),
    [
        ((0.9,), 90, True, "at least 0.9"),
        ((0.9,), 89, False, "at least 0.9"),
        ((2, "ours", True), 2, True, "ours at most 2"),
        ((2, "ours", True), 2.1, False, "ours at most 2"),
    ],
)
def test_aim(script: ModuleType, aim: Any, ours: float, is_met: bool, text: str) -> None:
    values = {"s2s_arena": [ours], "x": [100.0]}
    (found,) = script.compare(("decode", "wav"), "MB/s", 1, values, script.Aim(*aim))
    assert (found.is_met, str(found.aim)) == (is_met, text)


# Report ------------------------------------------------------------------------------------------


def findings_of(script: ModuleType) -> list[Any]:
    decode = {"s2s_arena": [90.0, 95.0, 92.0], "soundfile": [100.0, 100.0, 100.0]}
    return [
        *script.compare(("decode", "wav"), "examples/s", 9, decode, script.Aim(0.8)),
        *script.compare(("growth", "load of 154"), "us/entry", 154, {"s2s_arena": [1234.5]}),
        script.NotMeasured("decode", "wav", "lhotse", "ModuleNotFoundError: No module"),
        script.NotMeasured("decode", "mp3", "lhotse", "ModuleNotFoundError: No module"),
        script.NotMeasured("decode", "mp3", "torchcodec", "RuntimeError: no FFmpeg"),
    ]


def test_text(script: ModuleType) -> None:
    assert list(script.to_lines({"CPU": "one"}, findings_of(script))) == [
        "CPU: one",
        "ratio: how many times better than the peer, median (lowest-highest) of the rounds",
        "",
        "decode: decoded examples per second, loaded split",
        "  what  peer       unit        ours  peer's  ratio             rounds  aim",
        "  wav   soundfile  examples/s  92.0     100  0.92 (0.90-0.95)  3       at least 0.8: met",
        "",
        "growth: loads without a cache, by number of entries",
        "  what         peer  unit       ours  peer's  ratio  rounds  aim",
        "  load of 154  -     us/entry  1,234       -  -      1       -",
        "",
        "Not measured:",
        "- decode, lhotse (wav; mp3): ModuleNotFoundError: No module",
        "- decode, torchcodec (mp3): RuntimeError: no FFmpeg",
    ]


def test_nothing_missing(script: ModuleType) -> None:
    assert list(script.describe_missing(findings_of(script)[:2])) == ["Everything was measured."]


def test_json(script: ModuleType) -> None:
    report = json.loads(json.dumps(script.to_json({"CPU": "one"}, findings_of(script))))
    assert list(report) == ["machine", "measurements", "not_measured"]
    assert report["machine"] == {"CPU": "one"}
    assert report["measurements"][0] == {
        "section": "decode",
        "what": "wav",
        "unit": "examples/s",
        "ours": {"median": 92.0, "low": 90.0, "high": 95.0},
        "peer": "soundfile",
        "theirs": {"median": 100.0, "low": 100.0, "high": 100.0},
        "ratio": {"median": 0.92, "low": 0.9, "high": 0.95},
        "num_examples": 9,
        "rounds": 3,
        "aim": {"value": 0.8, "of": "ratio", "is_upper": False},
        "is_met": True,
    }
    assert report["not_measured"][2] == {
        "section": "decode",
        "what": "mp3",
        "who": "torchcodec",
        "reason": "RuntimeError: no FFmpeg",
    }


def test_machine_is_described(script: ModuleType) -> None:
    machine = script.describe_machine()
    assert re.search(r"\d+ of \d+ cores$", machine["CPU"])
    assert f"datasets {datasets.__version__}, " in machine["Packages"]
    assert f"s2s_arena {s2s_arena.__version__}, " in machine["Packages"]


# Running -----------------------------------------------------------------------------------------


def test_rounds_are_interleaved_and_their_order_rotates(script: ModuleType) -> None:
    order: list[str] = []

    def work(name: str) -> Callable[[], int]:
        return lambda: order.append(name) or len(order)

    contestants = {name: work(name) for name in ("s2s_arena", "x", "y")}
    results, missing = script.race(("decode", "wav"), contestants, rounds=2, warm_ups=1)
    warm_up, *rounds = [order[start : start + 3] for start in (0, 3, 6)]
    assert sorted(warm_up) == ["s2s_arena", "x", "y"]
    assert rounds == [["s2s_arena", "x", "y"], ["x", "y", "s2s_arena"]]
    assert (results, missing) == ({"s2s_arena": [4, 9], "x": [5, 7], "y": [6, 8]}, [])


def test_peer_that_fails_is_out_with_its_reason(script: ModuleType) -> None:
    def fail() -> int:
        raise RuntimeError("no FFmpeg\nand much more")

    contestants = {"s2s_arena": lambda: 1, "x": fail}
    results, missing = script.race(("decode", "wav"), contestants, rounds=2)
    assert results == {"s2s_arena": [1, 1]}
    assert missing == [script.NotMeasured("decode", "wav", "x", "RuntimeError: no FFmpeg")]
    with pytest.raises(RuntimeError, match="no FFmpeg"):
        script.race(("decode", "wav"), {"s2s_arena": fail}, rounds=1)


def test_section_that_fails_leaves_the_others(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> Iterator[Any]:
        yield from findings_of(script)[:1]
        raise script.ProcessError("MetadataError: bad")

    def work(_: object) -> Iterator[Any]:
        yield findings_of(script)[1]

    monkeypatch.setitem(script.SECTIONS, "decode", script.Section("decode", fail))
    monkeypatch.setitem(script.SECTIONS, "growth", script.Section("growth", work))
    assert script.main(["--only", "growth", "decode"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert "load of 154" in out
    assert "- decode, s2s_arena (the rest of the section): MetadataError: bad" in out


def to_read(*lengths: int) -> Callable[[], list[np.ndarray]]:
    return lambda: [np.zeros(length) for length in lengths]


@pytest.mark.parametrize(
    ("num_clips", "num_frames", "says"),
    [
        (5, 28, "gave 3 examples and no more"),
        (2, 20, "gave more than 2 examples"),
        (3, 40, "gave 28 frames, expected about 40"),
    ],
)
def test_reading_that_leaves_something_out_is_refused(
    script: ModuleType, num_clips: int, num_frames: int, says: str
) -> None:
    ours = {"s2s_arena": to_read(10, 10, 8)}
    times, missing = script.race_reads(("decode", "wav"), ours, 3, 28, rounds=2)
    assert ([len(found) for found in times.values()], missing) == ([2], [])
    with pytest.raises(RuntimeError, match=says):
        script.race_reads(("decode", "wav"), ours, num_clips, num_frames, rounds=1)


def test_peer_that_fails_at_a_clip_is_out_and_the_others_go_on(script: ModuleType) -> None:
    def fail() -> Iterator[Any]:
        yield np.zeros(10)
        raise OSError("no FFmpeg")

    reads = {"s2s_arena": to_read(10, 10), "torchcodec": fail, "soundfile": to_read(10, 10)}
    times, missing = script.race_reads(("decode", "wav"), reads, 2, 20, rounds=3)
    assert {name: len(found) for name, found in times.items()} == {"s2s_arena": 3, "soundfile": 3}
    assert missing == [script.NotMeasured("decode", "wav", "torchcodec", "OSError: no FFmpeg")]
    with pytest.raises(OSError, match="no FFmpeg"):
        script.race_reads(("decode", "wav"), {"s2s_arena": fail}, 2, 20, rounds=1)


def test_process_reports_the_first_line_of_its_error(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(script.ProcessError, match="^ModuleNotFoundError: No module named 'nope'$"):
        script.run_job(tmp_path, ["nope"])
    load = {"path": "s2s_arena", "data_dir": str(tmp_path / "nothing")}
    with pytest.raises(script.ProcessError, match="^MetadataError: .*nothing"):
        script.run_job(tmp_path, ["s2s_arena"], load)


def test_process_that_takes_too_long(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "PROCESS_TIMEOUT", 0.2)
    with pytest.raises(script.ProcessError, match="took more than 0.2 s"):
        script.run_process([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path)


def test_processes_have_caches_of_their_own(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", "/the/users")
    environment = script.to_environment(tmp_path)
    assert environment["HF_HOME"] == str(tmp_path / "hf_home")
    assert "HF_DATASETS_CACHE" not in environment


# Data --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["wav", "mp3", "flac"])
def test_clips_are_long_and_of_their_kind(script: ModuleType, tmp_path: Path, kind: str) -> None:
    run = script.Run(tmp_path, None, 1, script.SMOKE)
    clips = script.make_clips(run, kind, copies=2)
    infos = [soundfile.info(path) for path in clips.paths]
    assert [info.format for info in infos] == [kind.upper()] * 3
    assert all(info.duration >= script.MIN_CLIP for info in infos)
    assert clips.count_frames(None) == sum(info.frames for info in infos)
    assert clips.count_frames(16_000) == pytest.approx(clips.count_frames(None) * 2 / 3, abs=1)
    assert s2s_arena.find_problems(clips.data_dir) != []  # two entries share each file
    entries = json.loads((clips.data_dir / "metadata.json").read_text(encoding="utf-8"))
    lines = (clips.data_dir / "metadata.jsonl").read_text(encoding="utf-8").splitlines()
    for entry, line in zip(entries, lines, strict=True):
        assert json.loads(line) == {"file_name": entry["input_path"], **entry}
    assert len({entry["id"] for entry in entries}) == 6


def test_synthetic_metadata_is_what_the_loader_takes(script: ModuleType, tmp_path: Path) -> None:
    rows = script.read_rows(s2s_arena.embedded_dir())
    script.write_synthetic(tmp_path, rows, 200)
    problems = s2s_arena.find_problems(tmp_path)
    assert [problem for problem in problems if problem.severity == "error"] == []
    assert len(s2s_arena.read_utterances(tmp_path)) == 200


def test_clips_of_a_data_folder(script: ModuleType, corpus: Corpus) -> None:
    corpus.add("./emotion/short.wav")
    corpus.add("./emotion/long.wav")
    corpus.file("emotion/long.wav", encoded(tone(440, 4.0)))
    corpus.add("./emotion/short.mp3")
    before = sorted(corpus.write().root.rglob("*"))
    report = report_of(script, "--only", "stream", "--data-dir", str(corpus.root))
    works = {found["what"]: found["num_examples"] for found in report["measurements"]}
    assert works.pop("wav, native rate") == works.pop("wav, 16 kHz") == 1
    assert all(what.startswith("wav, DataLoader") for what in works)
    reasons = {found["reason"] for found in report["not_measured"]}
    for kind in ("mp3", "flac"):
        assert f"no .{kind} clips of 4 s and more in {corpus.root}" in reasons
    assert sorted(corpus.root.rglob("*")) == before


# The command -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "decoding"], "invalid choice: 'decoding'"),
        (["--rounds", "0"], "found '0', expected a number of at least 1"),
        (["--data-dir", "no/such"], "--data-dir no/such: no such folder"),
        (["--chart", "chart.pdf"], "expected a name that ends in .svg or .png"),
        (["x"], "unrecognized arguments: x"),
    ],
)
def test_bad_arguments(
    script: ModuleType,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    with pytest.raises(SystemExit) as caught:
        script.main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_help_lists_the_sections(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        script.main(["--help"])
    names = " ".join(capsys.readouterr().out.split())
    assert "One or more of decode, stream, first, growth, http, export" in names


def test_chart_without_matplotlib(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SystemExit) as caught:
        script.main(["--chart", "chart.svg"])
    assert caught.value.code == 2
    assert "--chart needs matplotlib: pip install matplotlib" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")  # matplotlib's own
@pytest.mark.parametrize("name", ["chart.svg", "chart.png"])
def test_chart_is_the_same_each_time(script: ModuleType, tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    findings = findings_of(script)
    machine = script.describe_machine()
    decode = {"s2s_arena": [2.0, 3.0], "soundfile": [1.0, 1.0]}
    findings += script.compare(("decode", "mp3, native rate"), "examples/s", 9, decode)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        script.write_chart(tmp_path / folder / name, machine, findings)
    first, second = (tmp_path / folder / name for folder in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size > 5_000
    script.write_chart(tmp_path / name, machine, [])  # nothing measured, nothing drawn


# A small run of everything -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def smoke(script: ModuleType) -> dict[str, Any]:
    return report_of(script)


def select(report: dict[str, Any], section: str, what: str = "") -> list[dict[str, Any]]:
    found = [m for m in report["measurements"] if m["section"] == section and what in m["what"]]
    assert found
    return found


def test_every_section_runs(script: ModuleType, smoke: dict[str, Any]) -> None:
    sections = dict.fromkeys(found["section"] for found in smoke["measurements"])
    assert list(sections) == list(script.SECTIONS)
    for found in smoke["measurements"]:
        assert found["ours"]["low"] <= found["ours"]["median"] <= found["ours"]["high"]
        assert (found["peer"] is None) == (found["theirs"] is None)
        assert found["rounds"] == 1
    assert smoke["machine"]["Sizes"].startswith("tiny")


def test_only_what_is_not_installed_is_missing(smoke: dict[str, Any]) -> None:
    optional = [name for name in ("torchcodec", "lhotse") if not has(name)]
    allowed = (
        *(f"ModuleNotFoundError: No module named '{name}'" for name in optional),
        "RuntimeError: Could not load libtorchcodec",  # there is no FFmpeg
        "needs 2 cores" if has("torch") else "torch isn't installed",
    )
    reasons = {found["reason"] for found in smoke["not_measured"]}
    assert [reason for reason in reasons if not reason.startswith(allowed)] == []


def test_contestants_decode_the_same_number_of_examples(smoke: dict[str, Any]) -> None:
    for kind in ("wav", "mp3", "flac"):
        for rate in ("native rate", "16 kHz"):
            found = select(smoke, "decode", f"{kind}, {rate}")
            assert {"soundfile", "librosa"} <= {m["peer"] for m in found}
            assert {m["num_examples"] for m in found} == {3}
            assert {m["num_examples"] for m in select(smoke, "stream", f"{kind}, {rate}")} == {3}
        if has("torch"):
            loaders = select(smoke, "stream", f"{kind}, DataLoader")
            assert {m["num_examples"] for m in loaders} == {18}
    assert all(not found["reason"].startswith("gave") for found in smoke["not_measured"])


def test_first_growth_and_export_went_through_their_entries(smoke: dict[str, Any]) -> None:
    steps = {found["what"] for found in select(smoke, "first")}
    assert {"cold load", "warm load", "stream", "import s2s_arena"} <= steps
    assert {found["num_examples"] for found in select(smoke, "growth", "load of 154")} == {154}
    assert {found["num_examples"] for found in select(smoke, "export", "6 recordings")} == {6}


def test_at_most_two_requests_an_example_and_hardly_more_than_its_bytes(
    smoke: dict[str, Any],
) -> None:
    counts = {found["unit"]: found for found in select(smoke, "http", "recordings")}
    assert 1 <= counts["requests/example"]["ours"]["high"] <= 2
    assert 1 <= counts["bytes/file bytes"]["ours"]["high"] <= 1.05


def test_outside_a_checkout_there_is_no_stand_in_hub(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "__file__", str(tmp_path / "scripts/benchmark.py"))
    run = script.Run(tmp_path, None, 1, script.SMOKE)
    (finding,) = script.measure_http(run)
    assert finding.reason == "needs a checkout: the stand-in Hub is tests/stand_in_hub.py"
