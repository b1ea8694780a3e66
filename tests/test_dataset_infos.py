"""What tools read that don't run our code agrees with what loading gives."""

import json
from pathlib import Path
from types import ModuleType

import datasets
import pytest
import yaml
from conftest import load_script

import s2s_arena

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("make_dataset_infos")


@pytest.mark.usefixtures("quiet_embedded")
def test_committed_files_are_what_the_builder_says(script: ModuleType) -> None:
    assert script.main(["--check"]) == 0


@pytest.mark.usefixtures("quiet_embedded")
def test_stale_files_are_told_and_written(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("---\npretty_name: X\n---\nbody\n---\nmore\n")
    monkeypatch.setattr(script, "README_PATH", str(readme))
    monkeypatch.setattr(script, "INFOS_PATH", str(tmp_path / "dataset_infos.json"))
    assert script.main(["--check"]) == 1
    assert (
        capsys.readouterr().err.count("is stale: run `python scripts/make_dataset_infos.py`") == 2
    )
    assert script.main([]) == 0
    assert script.main(["--check"]) == 0
    header, body = readme.read_text().removeprefix("---\n").split("---\n", 1)
    assert body == "body\n---\nmore\n"
    assert yaml.safe_load(header)["pretty_name"] == "X"


def test_datasets_reads_them(tmp_path: Path) -> None:
    infos = json.loads((ROOT / "dataset_infos.json").read_text(encoding="utf-8"))
    counts = [info["splits"]["test"]["num_examples"] for info in infos.values()]
    assert (list(infos), counts) == (["all", *s2s_arena.CATEGORIES], [154, 47, 47, 42, 18])
    card = (ROOT / "README.md").read_text(encoding="utf-8")
    (tmp_path / "README.md").write_text(card, encoding="utf-8")
    from_card = datasets.info.DatasetInfosDict.from_directory(str(tmp_path))
    for name, info in infos.items():
        features = datasets.DatasetInfo.from_dict(info).features
        assert from_card[name].features == features
        assert from_card[name].splits["test"].num_examples == info["splits"]["test"]["num_examples"]


def test_they_hold_nothing_of_the_machine() -> None:
    text = (ROOT / "dataset_infos.json").read_text(encoding="utf-8")
    assert "num_bytes" not in text
    assert str(ROOT) not in text
