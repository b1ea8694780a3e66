"""`python -m s2s_arena`: what a new user sees first."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Corpus

import s2s_arena


def look(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "s2s_arena", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_embedded_edition_in_a_terminal() -> None:
    done = look("Social Companionship", "--limit", "5", env={**os.environ, "COLUMNS": "90"})
    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    edition = f"embedded edition {s2s_arena.VERSION}"
    assert first.startswith(f"S2S-Arena, {edition}, config 'Social Companionship'")
    assert s2s_arena.__version__ in first
    features = [line.split()[0] for line in lines[1:13]]
    assert features[:3] == ["id", "audio", "input_path"] and features[-1] == "noise"
    header, *rows = lines[14:]
    assert header.split() == ["id", "task", "level", "language", "seconds", "text"]
    assert len(rows) == 5
    for row in rows:
        assert s2s_arena._display_width(row) <= 90
        assert re.search(r"  L[0-3]  +\w+  +\d+\.\d\d  ", row)
    assert "synthetic speech" in done.stderr


def test_readme_shows_what_it_prints() -> None:
    readme = Path(__file__).parents[1] / "README.md"
    done = look("Social Companionship", "--limit", "5", env={**os.environ, "COLUMNS": "100"})
    assert f"```text\n{done.stdout}```" in readme.read_text(encoding="utf-8")


def test_own_data(small_corpus: Corpus) -> None:
    done = look("Entertainment", "--data-dir", str(small_corpus.root))
    assert done.returncode == 0, done.stderr
    assert f"data of {small_corpus.root}, config 'Entertainment'" in done.stdout
    assert re.search(r"^clip_4 .* 0\.50  \[emotion: happy\]Kids", done.stdout, re.M)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["Educaton"], "invalid choice: 'Educaton'"),
        (["--limit", "0"], "argument --limit: invalid positive number value: '0'"),
        (["--limit", "many"], "argument --limit"),
        (["--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_bad_arguments_take_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        s2s_arena.main(arguments)
    output = capsys.readouterr()
    assert (stopped.value.code, output.out) == (2, "")
    assert says in output.err
    assert len(output.err.splitlines()) == 1


def test_unreadable_data_says_why(small_corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    small_corpus.file("emotion/audio_2.mp3", b"")
    assert s2s_arena.main(["--data-dir", str(small_corpus.root)]) == 1
    assert "emotion/audio_2.mp3: the file is empty" in capsys.readouterr().err
    nowhere = str(small_corpus.root / "nowhere")
    assert s2s_arena.main(["--data-dir", nowhere]) == 1
    assert f"1 problem in the metadata of {nowhere}" in capsys.readouterr().err


def test_help_names_configs_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        s2s_arena.main(["--help"])
    text = capsys.readouterr().out
    assert stopped.value.code == 0
    for word in ("CONFIG", "--data-dir", "--limit", "'Medical Consultation'", "hf://datasets"):
        assert word in text


@pytest.mark.parametrize("width", [60, 80, 200])
def test_table_fits_any_width(width: int) -> None:
    row = {"id": "a" * 50, "task": "Cross-lingual emotional translation", "level": "L3"}
    audio = {"array": [0.0] * 24_000, "sampling_rate": 24_000}
    rows = [
        {**row, "language": "Chinese", "text": "孩子们在门旁说话" * 20, "audio": audio},
        {**row, "language": "English", "text": "line\nbreak", "audio": audio},
    ]
    lines = list(s2s_arena._table_lines(rows, width))
    assert all(s2s_arena._display_width(line) <= width for line in lines)
    assert "…" in lines[1] and "line break" in lines[2] and "   1.00" in lines[1]


def test_one_waveform_class_under_m(tmp_path: Path) -> None:
    done = look("--limit", "1", cwd=tmp_path)
    assert "Waveform, 24000 Hz" in done.stdout
