"""scripts/train_classifier.py: what the model is shown, over epochs, restarts and processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from conftest import Corpus, load_script
from hub_fixtures import ROOT

for package in ("torch", "transformers", "accelerate", "sklearn", "matplotlib"):
    pytest.importorskip(package)

pytestmark = pytest.mark.filterwarnings("ignore")  # other people's, in the Trainer

SCRIPT = ROOT / "scripts/train_classifier.py"
FIRST, STEP = 300, 40  # Hz: clip number n is a tone of FIRST + n * STEP; _DRIVER knows too

# Runs the script, and notes for each training step which tones the model hears, by process.
_DRIVER = """
import importlib.util, os, sys
import numpy as np

spec = importlib.util.spec_from_file_location("train_classifier", sys.argv[1])
script = importlib.util.module_from_spec(spec)
sys.modules["train_classifier"] = script
spec.loader.exec_module(script)

class NotingTrainer(script.Trainer):
    def training_step(self, model, inputs, *args, **kwargs):
        spectra = np.abs(np.fft.rfft(inputs["input_values"].numpy(), axis=-1))
        hertz = spectra.argmax(-1) * 16_000 / inputs["input_values"].shape[-1]
        numbers = " ".join(str(round((hz - 300) / 40)) for hz in hertz)
        with open(f"{sys.argv[2]}.{os.environ.get('RANK', 0)}", "a") as file:
            file.write(numbers + chr(10))
        return super().training_step(model, inputs, *args, **kwargs)

script.Trainer = NotingTrainer
sys.exit(script.main(sys.argv[3:]))
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("train_classifier")


@pytest.fixture
def tones(corpus: Corpus) -> Corpus:
    """25 clips; the level goes by pitch, the emotion of every third is said."""
    for number in range(25):
        level = "L0" if number % 2 else "L3"
        hertz = FIRST + STEP * number
        text = "[emotion: sad]Oh no." if number % 3 == 0 else "Well."
        corpus.add(f"./emotion/audio_{number}.wav", hertz, level=level, text=text)
    return corpus.write()


HELD_OUT = set(range(4, 25, 5))
TRAINED = set(range(25)) - HELD_OUT


def flat(steps: Iterable[list[int]]) -> list[int]:
    return [number for step in steps for number in step]


def train(tones: Corpus, tmp_path: Path, *options: str, num_processes: int = 1) -> list[list[int]]:
    """Run the script; return the clips that each step showed the model, over all processes."""
    driver, notes = tmp_path / "driver.py", tmp_path / "notes"
    driver.write_text(_DRIVER)
    for old in tmp_path.glob("notes.*"):
        old.unlink()
    launcher = [sys.executable]
    if num_processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone"]
        launcher += [f"--nproc_per_node={num_processes}"]
    command = [*launcher, str(driver), str(SCRIPT), str(notes), "--data-dir", str(tones.root)]
    command += ["--label", "level", "--output-dir", str(tmp_path / "out"), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (tmp_path / "printed").write_text(done.stdout)
    by_process = [
        [[int(number) for number in line.split()] for line in file.read_text().splitlines()]
        for file in sorted(tmp_path.glob("notes.*"))
    ]
    assert len(by_process) == num_processes
    return [flat(steps) for steps in zip(*by_process, strict=True)]


STREAMED = pytest.mark.parametrize("streamed", [[], ["--streaming"]], ids=["loaded", "streamed"])


@pytest.mark.parametrize(
    "options",
    [[], ["--streaming"], ["--streaming", "--dataloader-num-workers=2"]],
    ids=["loaded", "streamed", "streamed by two workers"],
)
def test_every_training_row_once_an_epoch_and_no_other(
    tones: Corpus, tmp_path: Path, options: list[str]
) -> None:
    steps = train(tones, tmp_path, "--max-steps=8", "--per-device-train-batch-size=5", *options)
    assert sorted(flat(steps[:4])) == sorted(flat(steps[4:])) == sorted(TRAINED)
    assert flat(steps[:4]) != sorted(TRAINED)


@STREAMED
def test_resumed_in_the_second_epoch_it_goes_on_at_the_same_row(
    tones: Corpus, tmp_path: Path, streamed: list[str]
) -> None:
    options = ["--per-device-train-batch-size=4", "--save-steps=7", *streamed]
    (tmp_path / "whole").mkdir()
    whole = train(tones, tmp_path / "whole", "--max-steps=12", *options)
    first = train(tones, tmp_path, "--max-steps=7", *options)
    rest = train(tones, tmp_path, "--max-steps=12", "--resume", *options)
    assert len(whole) == 12
    assert first + rest == whole


@STREAMED
def test_two_processes_share_the_rows(tones: Corpus, tmp_path: Path, streamed: list[str]) -> None:
    """Of the five held-out rows the sixth, which fills up the last batch, must not count."""
    options = ["--per-device-train-batch-size=2", "--per-device-eval-batch-size=1", *streamed]
    steps = train(tones, tmp_path, "--max-steps=5", *options, num_processes=2)
    assert [len(step) for step in steps] == [4] * 5
    assert sorted(flat(steps)) == sorted(TRAINED)
    printed = (tmp_path / "printed").read_text()
    assert printed.count("held-out rows") == 1
    assert f"on {len(HELD_OUT)} held-out rows" in printed


def test_it_learns_what_can_be_heard_and_saves_what_transformers_loads(
    script: ModuleType, corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(40):
        level, hertz = ("L0", 300) if number // 2 % 2 else ("L3", 1_500)
        corpus.add(f"./emotion/audio_{number}.wav", hertz + 5 * number, level=level)
    corpus.write()
    out = tmp_path / "out"
    options = ["--label", "level", "--data-dir", str(corpus.root), "--output-dir", str(out)]
    assert script.main([*options, "--max-steps=40", "--learning-rate=1e-3"]) == 0
    printed = capsys.readouterr().out
    assert "accuracy 1.00 on 8 held-out rows" in printed
    assert (out / "confusion_matrix.png").read_bytes().startswith(b"\x89PNG")

    from transformers import AutoFeatureExtractor, AutoModelForAudioClassification

    model = AutoModelForAudioClassification.from_pretrained(out)
    assert model.config.id2label == {0: "L0", 1: "L3"}
    assert AutoFeatureExtractor.from_pretrained(out).sampling_rate == 16_000

    again = [*options, "--model", str(out), "--max-steps=1"]
    again[again.index("level")] = "id"
    again[again.index(str(out))] = str(tmp_path / "other")
    assert script.main(again) == 0  # a model of two labels gets a head of 40
    other = AutoModelForAudioClassification.from_pretrained(tmp_path / "other")
    assert len(other.config.id2label) == 40


def test_labels_and_folds_open_no_recording(script: ModuleType, tones: Corpus) -> None:
    for clip in tones.root.rglob("*.wav"):
        clip.write_bytes(b"not a recording")
    for streaming in (False, True):
        dataset = tones.load(streaming=streaming)
        assert script.find_label_names(dataset, "emotion") == ["none", "sad"]
        trained, held_out = script.split(dataset)
        ids = [{row["id"] for row in rows.select_columns(["id"])} for rows in (trained, held_out)]
        assert ids == [{f"clip_{n}" for n in part} for part in (TRAINED, HELD_OUT)]


def test_batch_holds_whole_clips_and_their_labels(script: ModuleType, tones: Corpus) -> None:
    rows = [tones.load(sampling_rate=16_000)[index] for index in (0, 1)]
    rows[1]["audio"]["array"] = rows[1]["audio"]["array"][:3_000]
    batch = script.collate(rows, script.build_extractor(None), "emotion", {"none": 0, "sad": 1})
    assert batch["labels"].tolist() == [1, 0]
    assert batch["attention_mask"].sum(-1).tolist() == [8_000, 3_000]
    hertz = np.abs(np.fft.rfft(batch["input_values"][0].numpy())).argmax() * 2
    assert hertz == FIRST


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--label", "nope"], r"--label 'nope' is no column; expected one of \['id',"),
        (["--label", "audio"], "--label 'audio' is no column"),
        (
            ["--label", "language"],
            r"--label 'language' is \['English'\] in every row;",
        ),
        (["--streaming"], "--streaming: a stream has no length; say --max-steps N"),
        (["--resume"], "--resume: no checkpoint in .*; leave it out to begin"),
        (["--config", "Educaton"], "BuilderConfig 'Educaton' not found"),
        (["--data-dir", "nowhere"], "no such folder"),
    ],
)
def test_refusals(
    script: ModuleType,
    tones: Corpus,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    given = ["--label", "level", "--data-dir", str(tones.root), "--output-dir", str(tmp_path / "o")]
    assert script.main([*given, *options]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert re.search(message, err)


def test_checkpoints_are_never_mixed(
    script: ModuleType, tones: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--data-dir", str(tones.root), "--output-dir", str(tmp_path / "out")]
    once = [*given, "--save-steps=1", "--per-device-train-batch-size=1"]
    assert script.main([*once, "--label=level", "--max-steps=1"]) == 0
    capsys.readouterr()
    assert script.main([*once, "--label=level", "--max-steps=2"]) == 1
    assert "exists: add --resume, or choose another --output-dir" in capsys.readouterr().err
    assert script.main([*once, "--label=emotion", "--max-steps=2", "--resume"]) == 1
    error = capsys.readouterr().err
    assert "was trained on the labels ['L0', 'L3']; expected ['none', 'sad']" in error


def test_damaged_clip_ends_the_training_and_is_named(
    script: ModuleType, tones: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clip = tones.root / "emotion/audio_3.wav"
    clip.write_bytes(clip.read_bytes()[:-1000])
    options = ["--label=level", "--data-dir", str(tones.root), "--output-dir", str(tmp_path / "o")]
    assert script.main([*options, "--num-train-epochs=1"]) == 1
    assert f"{clip}: cut short" in capsys.readouterr().err
