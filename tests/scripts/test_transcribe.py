"""scripts/transcribe.py: what a line holds, how a stopped job goes on, and the same on Ray."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import string
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import librosa
import numpy as np
import pytest
import soundfile
from conftest import Corpus, encoded, load_script, tone
from hub_fixtures import ROOT

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SCRIPT = ROOT / "scripts/transcribe.py"
GARBAGE = b"not one recording"

# Warnings of torch and transformers about their own insides.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("transcribe")


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that a test starts, and this one, which has read the variable already."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For a model this small, threads that wait for each other take most of the time."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small_corpus(small_corpus: Corpus) -> Corpus:
    """Above 100 kB a batch isn't sent to Ray's actors, who then fetch it from a store."""
    for path, frequency in (("emotion/audio_10.wav", 500), ("sing/audio_0.wav", 420)):
        small_corpus.file(path, encoded(tone(frequency, 3.0)))
    return small_corpus


# Models ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Whisper of random weights that says up to 36 letters a window."""
    folder = tmp_path_factory.mktemp("whisper")
    letters = [*string.ascii_lowercase, "Ġ"]
    marks = "endoftext startoftranscript en fr translate transcribe startoflm startofprev nospeech"
    times = [f"{number * 0.02:.2f}" for number in range(1501)]
    special = [f"<|{name}|>" for name in (*marks.split(), "notimestamps", *times)]
    ids = {token: number for number, token in enumerate([*letters, *special])}
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    sizes = {"d_model": 32, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    layers = {f"{part}_layers": 1 for part in ("encoder", "decoder")}
    heads = {f"{part}_attention_heads": 2 for part in ("encoder", "decoder")}
    tokens = {
        "pad_token_id": end,
        "bos_token_id": end,
        "eos_token_id": end,
        "decoder_start_token_id": start,
    }
    config = transformers.WhisperConfig(
        vocab_size=len(ids),
        max_target_positions=40,
        init_std=0.6,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **sizes,
        **layers,
        **heads,
        **tokens,
    )
    torch.manual_seed(0)
    model = transformers.WhisperForConditionalGeneration(config)
    with torch.no_grad():  # among 1,501 times the letters would hardly ever come up
        model.get_input_embeddings().weight[: len(letters)] *= 3
    model.generation_config = transformers.GenerationConfig(
        max_length=40,
        is_multilingual=True,
        no_timestamps_token_id=ids["<|notimestamps|>"],
        lang_to_id={name: ids[name] for name in ("<|en|>", "<|fr|>")},
        task_to_id={name: ids[f"<|{name}|>"] for name in ("translate", "transcribe")},
        suppress_tokens=list(range(start, ids["<|0.00|>"])),
        begin_suppress_tokens=[end],
        **tokens,
    )
    model.save_pretrained(folder)
    transformers.WhisperFeatureExtractor().save_pretrained(folder)
    tokenizer = transformers.WhisperTokenizer(vocab=ids, merges=[], pad_token="<|endoftext|>")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def ctc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CTC model of random weights that hears 8,000 Hz."""
    folder = tmp_path_factory.mktemp("ctc")
    letters = ["<pad>", "<unk>", "|", *string.ascii_lowercase]
    vocab = folder / "vocab.json"
    vocab.write_text(json.dumps({letter: number for number, letter in enumerate(letters)}))
    config = transformers.Wav2Vec2Config(
        vocab_size=len(letters),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        conv_dim=(16, 16),
        conv_kernel=(10, 8),
        conv_stride=(10, 8),
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2,
        initializer_range=0.6,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    transformers.Wav2Vec2ForCTC(config).save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(sampling_rate=8_000).save_pretrained(folder)
    tokens = {"bos_token": None, "eos_token": None}
    transformers.Wav2Vec2CTCTokenizer(str(vocab), **tokens).save_pretrained(folder)
    return folder


def heard(path: Path, sampling_rate: int) -> np.ndarray:
    """The file, read without our code."""
    samples, own_rate = soundfile.read(path, dtype="float32", always_2d=True)
    return librosa.resample(samples.mean(axis=1), orig_sr=own_rate, target_sr=sampling_rate)


def said_by_whisper(folder: Path, path: Path) -> str:
    """What the model itself makes of one file, without a pipeline or a batch."""
    speech = heard(path, 16_000)
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    is_long = len(speech) > 30 * 16_000
    options = {"truncation": False, "padding": "longest"} if is_long else {}
    features = extractor(speech, sampling_rate=16_000, return_tensors="pt", **options)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder)
    tokens = model.generate(features.input_features, num_beams=1, do_sample=False)
    tokenizer = transformers.WhisperTokenizer.from_pretrained(folder)
    return str(tokenizer.decode(tokens[0], skip_special_tokens=True))


def said_by_ctc(folder: Path, path: Path) -> str:
    extractor = transformers.Wav2Vec2FeatureExtractor.from_pretrained(folder)
    features = extractor(heard(path, 8_000), sampling_rate=8_000, return_tensors="pt")
    model = transformers.Wav2Vec2ForCTC.from_pretrained(folder)
    with torch.no_grad():
        tokens = model(features.input_values).logits.argmax(dim=-1)
    tokenizer = transformers.Wav2Vec2CTCTokenizer.from_pretrained(folder)
    return str(tokenizer.decode(tokens[0]))


# Runs --------------------------------------------------------------------------------------------


def to_argv(corpus: Corpus, model: Path, out: Path, *options: str) -> list[str]:
    """A command line with batches of two."""
    paths = ["--model", str(model), "--out", str(out), "--data-dir", str(corpus.root)]
    return [*paths, "--batch-size", "2", *options]


def transcripts(out: Path) -> list[str]:
    return [json.loads(line)["transcript"] for line in out.read_bytes().splitlines()]


def audio_files(corpus: Corpus) -> list[Path]:
    return [corpus.root / entry["input_path"] for entry in corpus.entries]


def damage(files: list[Path]) -> None:
    """Whoever decodes one of these from now on gets an AudioError."""
    for path in files:
        path.write_bytes(GARBAGE)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


@pytest.fixture(scope="module")
def kept() -> dict[str, bytes]:
    """What one test made and others read; no line depends on a test's own folder."""
    return {}


@pytest.fixture
def whole(
    script: ModuleType,
    small_corpus: Corpus,
    whisper: Path,
    tmp_path: Path,
    kept: dict[str, bytes],
    capsys: pytest.CaptureFixture[str],
) -> bytes:
    """What an unbroken run writes."""
    if "whole" not in kept:
        out = tmp_path / "whole.jsonl"
        assert script.main(to_argv(small_corpus, whisper, out)) == 0
        capsys.readouterr()
        kept["whole"] = out.read_bytes()
    return kept["whole"]


# The command -------------------------------------------------------------------------------------


def test_a_line_per_row_in_order(
    script: ModuleType,
    small_corpus: Corpus,
    whisper: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "new/out.jsonl"
    assert script.main(to_argv(small_corpus, whisper, out)) == 0
    assert capsys.readouterr().out == f"Transcribed 6 utterances into {out}\n"
    expected = [
        {
            "id": entry["id"],
            "input_path": entry["input_path"].removeprefix("./"),
            "text": entry["text"],
            "transcript": said_by_whisper(whisper, small_corpus.root / entry["input_path"]),
            "model": str(whisper),
        }
        for entry in small_corpus.entries
    ]
    content = out.read_bytes().decode("utf-8")
    assert content.endswith("\n")
    lines = [json.loads(line) for line in content[:-1].split("\n")]
    assert lines == expected
    assert [list(line) for line in lines] == [list(expected[0])] * 6
    assert "孩子们在门旁说话" in content
    assert len({line["transcript"] for line in lines}) == 6  # or swapped rows would go unnoticed


def test_config(script: ModuleType, small_corpus: Corpus, whisper: Path, out: Path) -> None:
    argv = to_argv(small_corpus, whisper, out, "--config", "Medical Consultation")
    assert script.main(argv) == 0
    assert [json.loads(line)["id"] for line in out.read_bytes().splitlines()] == [
        "clip_2",
        "clip_3",
    ]


def test_config_without_rows(
    script: ModuleType,
    small_corpus: Corpus,
    whisper: Path,
    out: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert script.main(to_argv(small_corpus, whisper, out, "--config", "Education")) == 0
    assert out.read_bytes() == b""
    assert capsys.readouterr().out == f"Nothing to do: {out} has all 0 utterances\n"


def test_recordings_longer_than_the_window_are_heard_to_their_end(
    script: ModuleType, corpus: Corpus, whisper: Path, out: Path
) -> None:
    # The same for 33 s, so past the window of 30 s; one of both shares its batch with a short clip.
    beginning = tone(440, 33.0, 8_000)
    for name, end in (("a", 300), ("b", 1_100)):
        corpus.add(f"./emotion/{name}.wav")
        samples = np.concatenate([beginning, tone(end, 9.0, 8_000)])
        corpus.file(f"emotion/{name}.wav", encoded(samples, 8_000))
        corpus.add(f"./emotion/short_{name}.wav", 600)
    assert script.main(to_argv(corpus.write(), whisper, out)) == 0
    expected = [said_by_whisper(whisper, path) for path in audio_files(corpus)]
    assert transcripts(out) == expected
    assert expected[0] != expected[2]


def test_ctc_model_gets_its_own_rate_and_no_padding(
    script: ModuleType, corpus: Corpus, ctc: Path, out: Path
) -> None:
    for number, seconds in enumerate((0.4, 1.3, 0.7)):
        corpus.add(f"./emotion/{number}.wav")
        corpus.file(f"emotion/{number}.wav", encoded(tone(300 + 90 * number, seconds)))
    assert script.main(to_argv(corpus.write(), ctc, out)) == 0
    expected = [said_by_ctc(ctc, path) for path in audio_files(corpus)]
    assert transcripts(out) == expected
    assert len(set(expected)) == 3


def test_other_kinds_of_model_are_refused(
    script: ModuleType,
    small_corpus: Corpus,
    tmp_path: Path,
    out: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kind = "Speech2TextForConditionalGeneration"
    transformers.Speech2TextConfig(architectures=[kind]).save_pretrained(tmp_path / "model")
    assert script.main(to_argv(small_corpus, tmp_path / "model", out)) == 1
    err = capsys.readouterr().err
    assert err.endswith(f"model: is a {kind}; expected a Whisper or CTC model\n")
    assert not out.exists()


def test_no_such_model(
    script: ModuleType,
    small_corpus: Corpus,
    tmp_path: Path,
    out: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert script.main(to_argv(small_corpus, tmp_path / "nothing", out)) == 1
    assert f"{tmp_path / 'nothing'}" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--model", "m"],
        ["--model", "m", "--out", "o", "--batch-size", "0"],
        ["--model", "m", "--out", "o", "--engine", "dask"],
        ["--model", "m", "--out", "o", "--config", "Sport"],
    ],
)
def test_bad_arguments(
    script: ModuleType, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        script.main(options)
    assert caught.value.code == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("engine", "module", "extra"),
    [("ray", "ray", "ray"), ("local", "transformers", "trainer"), ("ray", "torch", "ray")],
)
def test_what_is_not_installed_is_named(
    script: ModuleType,
    small_corpus: Corpus,
    whisper: Path,
    out: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    module: str,
    extra: str,
) -> None:
    for name in ("ray", "torch", "transformers"):  # ray need not be there for this test
        monkeypatch.setitem(sys.modules, name, sys.modules.get(name, ModuleType(name)))
        if not getattr(sys.modules[name], "__spec__", None):
            sys.modules[name].__spec__ = importlib.util.spec_from_loader(name, None)
    monkeypatch.setitem(sys.modules, module, None)
    assert script.main(to_argv(small_corpus, whisper, out, "--engine", engine)) == 1
    assert capsys.readouterr().err == (
        f'transcribe.py: --engine {engine} needs {module}: pip install "s2s-arena[{extra}]"\n'
    )
    assert not out.exists()


# Stopped, then the same command ------------------------------------------------------------------


def cut_in_line(number: int) -> Callable[[bytes], int]:
    return lambda content: content.index(f'"clip_{number}"'.encode()) + 3


@pytest.mark.parametrize(
    ("find_end", "num_done"),
    [
        (lambda _: 0, 0),
        (cut_in_line(0), 0),
        (cut_in_line(1), 0),
        (lambda content: content.index(b'{"id": "clip_2"'), 2),
        (lambda content: content.index(b'{"id": "clip_2"') - 1, 0),
        (cut_in_line(3), 2),
        (cut_in_line(4), 4),
        (lambda content: content.index("孩".encode()) + 1, 4),
        (lambda content: len(content) - 1, 4),
    ],
)
def test_a_file_cut_anywhere_becomes_that_of_an_unbroken_run(
    script: ModuleType,
    small_corpus: Corpus,
    whisper: Path,
    whole: bytes,
    out: Path,
    capsys: pytest.CaptureFixture[str],
    find_end: Callable[[bytes], int],
    num_done: int,
) -> None:
    out.write_bytes(whole[: find_end(whole)])
    damage(audio_files(small_corpus)[:num_done])
    assert script.main(to_argv(small_corpus, whisper, out)) == 0
    assert out.read_bytes() == whole
    earlier = f" ({num_done} were there before)" if num_done else ""
    expected = f"Transcribed {6 - num_done} utterances{earlier} into {out}\n"
    assert capsys.readouterr().out == expected


def test_progress_starts_at_what_is_done(
    script: ModuleType,
    small_corpus: Corpus,
    whisper: Path,
    whole: bytes,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bars = []

    def tqdm(**options: Any) -> Any:
        bars.append(real(**{**options, "disable": False}))
        return bars[0]

    real = script.tqdm
    monkeypatch.setattr(script, "tqdm", tqdm)
    out.write_bytes(b"".join(whole.splitlines(keepends=True)[:4]))
    assert script.main(to_argv(small_corpus, whisper, out)) == 0
    assert [(bar.initial, bar.n, bar.total) for bar in bars] == [(4, 6, 6)]


def test_nothing_to_do(
    script: ModuleType,
    small_corpus: Corpus,
    whisper: Path,
    whole: bytes,
    out: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out.write_bytes(whole)
    damage(audio_files(small_corpus))
    assert script.main([*to_argv(small_corpus, whisper, out), "--batch-size", "4"]) == 0
    assert out.read_bytes() == whole
    assert capsys.readouterr().out == f"Nothing to do: {out} has all 6 utterances\n"


def without_line(content: bytes, number: int) -> bytes:
    lines = content.splitlines(keepends=True)
    return b"".join(lines[:number] + lines[number + 1 :])


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (
            lambda content: without_line(content, 0)[:-9],
            "line 1: id is 'clip_1', expected 'clip_0'",
        ),
        (lambda content: without_line(content, 3), "line 4: id is 'clip_4', expected 'clip_3'"),
        (
            lambda content: content.replace(b"emotion/audio_2", b"emotion/audio_3"),
            "line 2: input_path is 'emotion/audio_3.mp3', expected 'emotion/audio_2.mp3'",
        ),
        (
            lambda content: content.replace("孩子们".encode(), b"Kids"),
            "line 6: text is 'Kids在门旁说话', expected '孩子们在门旁说话'",
        ),
        (
            lambda content: content.replace(b'"model": "', b'"model": "other', 1),
            "line 1: model is 'other",
        ),
        (lambda content: content * 2, "has 12 lines, the data has 6 rows"),
        (lambda content: content + b"{", "has 7 lines, the data has 6 rows"),
        (lambda _: b"my notes\n", "line 1: id is None, expected 'clip_0'"),
        (lambda _: b"[]\n", "line 1: id is None, expected 'clip_0'"),
        (lambda _: b"\xff\xfe\n", "line 1: id is None, expected 'clip_0'"),
        (lambda _: b"my notes", "line 1, which isn't whole, isn't that of 'clip_0'"),
        (
            lambda content: content[: cut_in_line(4)(content)] + b"x",
            "line 5, which isn't whole, isn't that of 'clip_4'",
        ),
    ],
)
def test_a_file_of_another_job_is_left_alone(
    script: ModuleType,
    small_corpus: Corpus,
    whisper: Path,
    whole: bytes,
    out: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[bytes], bytes],
    difference: str,
) -> None:
    content = change(whole)
    out.write_bytes(content)
    assert script.main(to_argv(small_corpus, whisper, out)) == 1
    assert out.read_bytes() == content
    message, err = capsys.readouterr()
    assert message == ""
    assert err.splitlines()[-1].startswith(f"transcribe.py: {out}: {difference}")
    assert "nothing was changed. Give the --model" in err


def test_damaged_recording(
    script: ModuleType,
    small_corpus: Corpus,
    whisper: Path,
    whole: bytes,
    out: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    *finished, damaged, _ = audio_files(small_corpus)
    content = damaged.read_bytes()
    damage([damaged])
    assert script.main(to_argv(small_corpus, whisper, out)) == 1
    message, err = capsys.readouterr()
    assert message == ""
    assert err.splitlines()[-1].startswith(f"transcribe.py: {damaged}: ")
    assert out.read_bytes() == b"".join(whole.splitlines(keepends=True)[:4])
    damaged.write_bytes(content)
    damage(finished)
    assert script.main(to_argv(small_corpus, whisper, out)) == 0
    assert out.read_bytes() == whole


# Sends itself a signal where it would decode a given recording; then the command line.
STOPPING = """
import os, runpy, sys
import s2s_arena

number, name, *argv = sys.argv[1:]
decode = s2s_arena.Waveform.decode_example

def stop_at(self, value, *args, **kwargs):
    if value["path"].endswith(name):
        os.kill(os.getpid(), int(number))
    return decode(self, value, *args, **kwargs)

s2s_arena.Waveform.decode_example = stop_at
sys.argv = argv
runpy.run_path(argv[0], run_name="__main__")
"""


@pytest.mark.skipif(os.name == "nt", reason="there are no such signals")
@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGKILL", -9)])
def test_stopped_in_the_middle(
    script: ModuleType,
    small_corpus: Corpus,
    whisper: Path,
    whole: bytes,
    out: Path,
    name: str,
    status: int,
) -> None:
    number = getattr(signal, name)
    argv = to_argv(small_corpus, whisper, out)
    command = [sys.executable, "-c", STOPPING, str(int(number)), "sing/audio_0.wav", str(SCRIPT)]
    done = subprocess.run([*command, *argv], capture_output=True, text=True, encoding="utf-8")
    assert (done.returncode, done.stdout) == (status, "")
    assert "Traceback" not in done.stderr
    assert out.read_bytes() == b"".join(whole.splitlines(keepends=True)[:4])
    damage(audio_files(small_corpus)[:4])
    assert script.main(argv) == 0
    assert out.read_bytes() == whole


# Ray ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one CPU each, which processes that a test starts will join."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80_000_000}
    # Ray's workers refuse a folder below the virtual environment, which is where nox has TMPDIR.
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as ray_dir,
    ):
        monkeypatch.setenv("RAY_TMPDIR", ray_dir)
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # else Ray may keep a token in the home
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        try:
            cluster.add_node(**node)
            monkeypatch.setenv("RAY_ADDRESS", cluster.address)
            yield cluster
        finally:
            cluster.shutdown()


def run_on_ray(argv: list[str]) -> tuple[int, str, str]:
    """Run the command line in a process; return status, output and the last line of errors."""
    command = [sys.executable, str(SCRIPT), *argv, "--engine", "ray"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, (done.stderr.splitlines() or [""])[-1]


@pytest.mark.timeout(600)
def test_two_nodes_write_what_one_process_writes(
    small_corpus: Corpus, whisper: Path, whole: bytes, out: Path, cluster: Any
) -> None:
    status, message, err = run_on_ray(to_argv(small_corpus, whisper, out))
    assert (status, message) == (0, f"Transcribed 6 utterances into {out}\n"), err
    assert out.read_bytes() == whole
    actors = cluster.global_state.actor_table(None, None, None).values()
    ours = [actor for actor in actors if "RayActor" in actor["ActorClassName"]]
    assert len({actor["Address"]["NodeID"] for actor in ours}) == 2


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("cluster")
def test_damaged_recording_then_the_rest_on_ray(
    small_corpus: Corpus, whisper: Path, whole: bytes, out: Path
) -> None:
    *finished, damaged, _ = audio_files(small_corpus)
    content = damaged.read_bytes()
    damage([damaged])
    status, message, err = run_on_ray(to_argv(small_corpus, whisper, out))
    assert (status, message) == (1, "")
    assert err.startswith(f"transcribe.py: {damaged}: ")
    assert out.read_bytes() == b"".join(whole.splitlines(keepends=True)[:4])
    damaged.write_bytes(content)
    damage(finished)
    status, message, err = run_on_ray(to_argv(small_corpus, whisper, out))
    expected = f"Transcribed 2 utterances (4 were there before) into {out}\n"
    assert (status, message) == (0, expected), err
    assert out.read_bytes() == whole
