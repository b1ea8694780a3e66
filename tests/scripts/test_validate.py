"""scripts/validate.py and find_problems: every problem of a folder, said once and in order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from conftest import Corpus, encoded, load_script, tone
from hub_fixtures import ROOT

import s2s_arena

SCRIPT = ROOT / "scripts/validate.py"
CASES = sorted((ROOT.parent / "shared/cases").glob("*/expect.json"))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("validate")


def validate(
    script: ModuleType, capsys: pytest.CaptureFixture[str], folder: Path
) -> tuple[int, dict[str, Any]]:
    """Return exit status and report."""
    status = script.main([str(folder), "--json"])
    out, err = capsys.readouterr()
    assert err == ""
    return status, json.loads(out)


def found(folder: Path) -> list[tuple[str, int | None, str]]:
    problems = s2s_arena.find_problems(folder)
    return [(problem.severity, problem.row, problem.what) for problem in problems]


# The command -------------------------------------------------------------------------------------


def test_folder_without_problems(
    script: ModuleType, small_corpus: Corpus, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main([str(small_corpus.root)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines() == [
        "0 errors",
        "",
        "0 warnings",
        "",
        "                                         entries     hours",
        "category",
        "  Social Companionship                         3    0.0004",
        "  Entertainment                                1    0.0001",
        "  Medical Consultation                         2    0.0003",
        "task",
        "  Emotion recognition and expression           3    0.0004",
        "  Singing capability                           1    0.0001",
        "  Health consultation                          2    0.0003",
        "level",
        "  L0                                           2    0.0003",
        "  L3                                           4    0.0006",
        "language",
        "  Chinese                                      1    0.0001",
        "  English                                      5    0.0007",
        "all                                            6    0.0008",
    ]


def test_report_has_errors_then_warnings_each_by_file_and_row(
    script: ModuleType, small_corpus: Corpus, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *_, last = small_corpus.entries
    last["level"] = "L9"
    first["language"] = "Chinese"
    small_corpus.write()
    small_corpus.file("emotion/audio_10.wav", b"")
    small_corpus.file("extra/audio_0.wav", b"")
    assert script.main([str(small_corpus.root)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:8] == [
        "2 errors:",
        f"- metadata.json row 0 (id 'clip_0'): {small_corpus.root}/emotion/audio_10.wav: the file "
        "is empty (0 bytes); get a fresh copy",
        "- metadata.json row 5 (id 'clip_5'): unknown level 'L9'; expected one of 'L0', 'L1', "
        "'L2', 'L3'; the paper's second version numbers the same four L1 to L4",
        "",
        "2 warnings:",
        "- extra/audio_0.wav: no entry names this file; expected an entry for it; remove it if it "
        "is none of the data",
        "- metadata.json row 0 (id 'clip_0'): language is 'Chinese', text '[emotion: happy]Kids "
        "are talking by the door'; expected mostly CJK letters",
        "",
    ]


def test_json(script: ModuleType, small_corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    small_corpus.file("sing/audio_0.wav", encoded(tone(420, 1.8)))
    small_corpus.file("emotion/audio_2.mp3", b"<html>")
    status, report = validate(script, capsys, small_corpus.root)
    assert status == 1
    assert report["problems"] == [
        {
            "severity": "error",
            "file": "metadata.json",
            "row": 1,
            "id": "clip_1",
            "what": f"{small_corpus.root}/emotion/audio_2.mp3: is an HTML or XML page, as a failed "
            "download leaves it, not one of WAV, MP3, FLAC, Ogg, AIFF",
            "expected": "get a fresh copy",
        }
    ]
    summary = report["summary"]
    assert (summary["errors"], summary["warnings"], summary["entries"]) == (1, 0, 6)
    assert summary["category"]["Entertainment"] == {"entries": 1, "hours": 0.0005}
    assert list(summary["level"]) == ["L0", "L3"]


def test_report_goes_to_stdout_and_status_to_the_shell(small_corpus: Corpus) -> None:
    small_corpus.file("sing/audio_0.wav", b"")
    command = [sys.executable, str(SCRIPT), str(small_corpus.root)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("1 error:\n- metadata.json row 4 (id 'clip_4'): ")


@pytest.mark.parametrize("arguments", [[], ["--format", "x", "."], ["a", "b"]])
def test_bad_arguments(
    script: ModuleType, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        script.main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().out == ""


def test_no_folder(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    assert script.main([str(tmp_path / "nothing")]) == 2
    assert script.main([str(tmp_path / "file")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        f"{tmp_path}/nothing: no such folder; expected the folder that holds metadata.json",
        f"{tmp_path}/file: not a folder; expected the folder that holds metadata.json",
    ]


def test_folder_without_metadata(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = validate(script, capsys, tmp_path)
    assert status == 1
    assert [problem["what"] for problem in report["problems"]] == ["no list of entries"]
    assert report["summary"]["entries"] == 0


def test_names_that_are_no_text(
    script: ModuleType, small_corpus: Corpus, capsys: pytest.CaptureFixture[str]
) -> None:
    name = b"\xff.wav"
    try:
        (small_corpus.root / os.fsdecode(name)).write_bytes(b"")
    except OSError:
        pytest.skip("this file system takes UTF-8 names alone")
    assert script.main([str(small_corpus.root)]) == 0
    assert "\\udcff.wav: no entry names this file" in capsys.readouterr().out
    assert validate(script, capsys, small_corpus.root)[1]["problems"][0]["file"] == "\udcff.wav"


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.parent.name)
def test_shared_case(script: ModuleType, capsys: pytest.CaptureFixture[str], case: Path) -> None:
    expected = json.loads(case.read_text(encoding="utf-8"))["expect"]
    status, report = validate(script, capsys, case.parent / "data")
    assert status == (1 if expected == "error" else 0), report["problems"]


def test_embedded_edition(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    if not (ROOT / "data/metadata.json").exists():
        pytest.skip("the embedded edition isn't built")
    status, report = validate(script, capsys, ROOT / "data")
    assert (status, report["problems"], report["summary"]["entries"]) == (0, [], 154)
    assert len(report["summary"]["task"]) == 21


# find_problems -----------------------------------------------------------------------------------


def test_problems_are_the_same_in_parallel(small_corpus: Corpus) -> None:
    small_corpus.file("sing/audio_0.wav", b"")
    small_corpus.file("emotion/audio_2.mp3", encoded(tone(300), format="MP3")[:-50])
    calls: tuple[list[Any], list[Any]] = ([], [])
    one, two = (
        s2s_arena.find_problems(
            small_corpus.root, num_proc=num_proc, on_file=lambda *call, to=to: to.append(call)
        )
        for num_proc, to in enumerate(calls, start=1)
    )
    assert one == two
    assert [problem.row for problem in one] == [1, 4]
    assert calls[0] == calls[1]
    assert calls[0][0] == ("emotion/audio_10.wav", 12_000, 24_000)
    assert calls[0][4] == ("sing/audio_0.wav", 0, 0)


def silent() -> np.ndarray:
    return np.zeros(12_000)


def clipped(num_samples: int) -> np.ndarray:
    samples = tone(440)
    samples[:num_samples] = 1.0
    return samples


@pytest.mark.parametrize(
    ("content", "warning"),
    [
        (encoded(silent()), "silent (peak 0 of the mono mix)"),
        (encoded(tone(440) / 700), "silent (peak 0.0007 of the mono mix)"),
        (encoded(tone(440) / 400), None),
        (encoded(clipped(10)), "clipped (10 samples at full scale)"),
        (encoded(clipped(9)), None),
        (encoded(clipped(10), subtype="PCM_24"), "clipped (10 samples at full scale)"),
        (encoded(clipped(10), subtype="FLOAT"), None),
        (encoded(tone(440, sampling_rate=24_001), 24_001), "sampling rate 24001 Hz"),
        (encoded(tone(440, sampling_rate=44_100), 44_100), None),
        (encoded(np.stack([tone(440)] * 2, axis=1)), "2 channels"),
        (encoded(tone(440, 0.29)), "lasts 0.29 s"),
        (encoded(tone(440, 0.3)), None),
        (encoded(tone(440, 60.0, 8_000), 8_000), None),
        (encoded(tone(440, 60.1, 8_000), 8_000), "lasts 60.10 s"),
    ],
)
def test_clip_warning(corpus: Corpus, content: bytes, warning: str | None) -> None:
    corpus.add("./emotion/a.wav")
    corpus.write().file("emotion/a.wav", content)
    expected = [("warning", 0, f"emotion/a.wav: {warning}")] if warning else []
    assert found(corpus.root) == expected


@pytest.mark.parametrize(
    ("path", "fields", "warning"),
    [
        ("./emotion/a?.wav", {}, "'emotion/a?.wav' can't be a file's name on Windows"),
        ("./emotion/con.wav", {}, "'emotion/con.wav' can't be a file's name on Windows"),
        ("./emotion /a.wav", {}, "'emotion /a.wav' can't be a file's name on Windows"),
        ("./emotion/console.wav", {}, None),
        ("./role/role0_Typing_1.wav", {}, "speaks of noise, noise is None"),
        ("./role/role0_Typing_1.wav", {"noise": "Typing"}, None),
        ("./role/role0_Dog_1.wav", {}, None),
        (
            "./emotion/a.wav",
            {"text": "[Emotion: sad]Hello"},
            "text '[Emotion: sad]Hello' isn't read",
        ),
        (
            "./emotion/a.wav",
            {"text": "[emotion: sad Hello"},
            "text '[emotion: sad Hello' isn't read",
        ),
        ("./emotion/a.wav", {"text": "[men voice]Hello"}, None),
        (
            "./emotion/a.wav",
            {"task": "Sarcasm detecton", "task_description": "?"},
            "task 'Sarcasm detecton' is none of the benchmark's",
        ),
        ("./emotion/a.wav", {"task": "My own", "task_description": "?"}, None),
        ("./emotion/a.wav", {"text": "孩子们 door"}, None),
        ("./emotion/a.wav", {"text": "孩子们在门旁 door"}, "language is 'English', text '孩子们在"),
        ("./emotion/a.wav", {"text": "[emotion: happy]孩子们"}, "language is 'English'"),
        ("./emotion/a.wav", {"text": "123!"}, None),
        ("./emotion/a.wav", {"language": "Japanese", "text": "ありがとう東京"}, None),
        ("./emotion/a.wav", {"language": "Klingon"}, None),
    ],
)
def test_entry_warning(
    corpus: Corpus, path: str, fields: dict[str, str], warning: str | None
) -> None:
    if os.name == "nt":
        pytest.skip("such names can't be made here")
    corpus.add(path, **fields)
    problems = found(corpus.write().root)
    assert len(problems) == (warning is not None)
    for severity, row, what in problems:
        assert (severity, row) == ("warning", 0)
        assert warning and warning in what


def test_same_bytes_and_same_file_under_two_ids(corpus: Corpus) -> None:
    corpus.add("./emotion/a.wav", 440)
    corpus.add("./emotion/b.wav", 440)
    corpus.add("input/emotion/a.wav", 440, at="emotion/a.wav")
    assert found(corpus.write().root) == [
        ("warning", 1, "the same bytes as metadata.json row 0 (id 'clip_0')"),
        ("warning", 2, "the same file as metadata.json row 0 (id 'clip_0')"),
    ]


def test_durations_far_from_their_task(corpus: Corpus) -> None:
    for number in range(5):
        corpus.add(f"./emotion/{number}.wav", 300 + 50 * number)
    corpus.file("emotion/2.wav", encoded(tone(900, 2.0)))
    assert found(corpus.write().root) == []  # 4 times the median
    corpus.file("emotion/2.wav", encoded(tone(900, 2.01)))
    task = corpus.entries[0]["task"]
    expected = [("warning", 2, f"lasts 2.01 s, the median of {task!r} is 0.50 s")]
    assert found(corpus.root) == expected
    corpus.write(entries=corpus.entries[:4])  # too few to tell
    assert [what for *_, what in found(corpus.root)] == ["no entry names this file"]


def test_entries_of_several_files_are_sorted_by_file_and_row(corpus: Corpus) -> None:
    for number in range(4):
        corpus.add(f"./emotion/{number}.wav", 300 + 50 * number, level="L7")
    corpus.write("b.json", corpus.entries[:2]).write("a.json", corpus.entries[2:])
    places = [(problem.file, problem.row) for problem in s2s_arena.find_problems(corpus.root)]
    assert places == [("a.json", 0), ("a.json", 1), ("b.json", 0), ("b.json", 1)]


def test_many_missing_files_do_not_take_the_square_of_their_number(corpus: Corpus) -> None:
    corpus.add("./emotion/a.wav")
    entries = [
        {**corpus.entries[0], "id": str(number), "input_path": f"emotion/x{number}.wav"}
        for number in range(3000)
    ]
    for number in range(3000):
        corpus.file(f"emotion/x{number}.mp3", b"")
    problems = s2s_arena.find_problems(corpus.write(entries=entries).root)
    errors = [problem for problem in problems if problem.severity == "error"]
    assert len(errors) == 3000
    assert all("did you mean" in problem.what for problem in errors)


def test_read_utterances_leaves_out_what_is_wrong(small_corpus: Corpus) -> None:
    small_corpus.entries[2]["category"] = "Sport"
    small_corpus.write()
    utterances = s2s_arena.read_utterances(small_corpus.root)
    assert [utterance.id for utterance in utterances] == [
        name for name in small_corpus.ids if name != "clip_2"
    ]
