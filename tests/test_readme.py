"""The README says only what happens: its Python is run, and its output compared."""

import contextlib
import importlib
import io
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import s2s_arena

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
_BLOCK = re.compile(
    r"^```python(?: needs=(\S+))?\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """A fenced block of Python, the modules it needs, and the output printed under it."""

    needs: tuple[str, ...]
    code: str
    output: str | None


BLOCKS = [
    Block(tuple((needs or "").split(",")) if needs else (), code, output or None)
    for needs, code, output in _BLOCK.findall(README)
]


def is_installed(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def shell_lines() -> list[str]:
    """Every command that the README shows; of a console only what follows the prompt."""
    lines = []
    for kind, block in re.findall(r"^```(sh|bash|console)\n(.*?)^```", README, re.M | re.S):
        shown = block.splitlines()
        if kind == "console":
            shown = [line[2:] for line in shown if line.startswith("$ ")]
        lines += [line.partition(" # ")[0].strip() for line in shown if line.strip()]
    return lines


def test_every_python_block_is_found() -> None:
    assert len(BLOCKS) == README.count("```python") >= 10


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders that the README speaks of, below the working directory."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(s2s_arena.embedded_dir(), tmp_path / "path/to/S2S-Arena")
    command = "python scripts/export_parquet.py --out s2s-arena-parquet"
    assert command in shell_lines()
    script = [sys.executable, str(ROOT / "scripts/export_parquet.py"), *command.split()[2:]]
    subprocess.run(script, check=True, capture_output=True)


@pytest.mark.filterwarnings("ignore")  # other people's, in the Trainer
@pytest.mark.usefixtures("quiet_embedded", "exported")
def test_python_blocks_run_one_after_the_other() -> None:
    names: dict[str, Any] = {}
    for block in BLOCKS:
        modules = [module for module in block.needs if module != "export"]
        if "hub" in modules or not all(map(is_installed, modules)):
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(block.code, names)
        if block.output is not None:
            assert printed.getvalue().rstrip() == block.output.rstrip()


@pytest.mark.parametrize("number", [n for n, block in enumerate(BLOCKS) if "hub" in block.needs])
def test_blocks_that_need_the_hub_run_against_the_stand_in(number: int, tmp_path: Path) -> None:
    from stand_in_hub import StandInHub, client_environment

    data = Path(s2s_arena.embedded_dir())
    files = {
        str(path.relative_to(data)): path.read_bytes()
        for path in data.rglob("*")
        if path.suffix in (".json", ".wav", ".mp3")
    }
    with StandInHub() as hub:
        hub.add_dataset(s2s_arena.OFFICIAL_REPO_ID, files)
        done = subprocess.run(
            [sys.executable, "-c", BLOCKS[number].code],
            env=client_environment(hub, tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    if BLOCKS[number].output is not None:
        assert done.stdout == BLOCKS[number].output


def test_error_texts_of_the_troubleshooting_are_real() -> None:
    """Two of them come from this package; the table must not drift from the code."""
    source = Path(s2s_arena.__file__).read_text(encoding="utf-8")
    for text in ("the file has gone since the dataset was loaded", "a git-lfs pointer"):
        assert text in README and text in source


def test_counts_in_the_text_are_the_benchmarks() -> None:
    assert "4 domains, 21 tasks, 154 instructions" in README


def test_shell_lines_are_known_to_ci() -> None:
    """Each is run by .ci/run, or listed there with the reason why not."""
    ci = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert shell_lines()
    assert [line for line in shell_lines() if line not in ci] == []
