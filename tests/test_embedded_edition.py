"""The embedded edition as shipped, judged without the script that made it.

Every number here is measured from data/ alone. Only the SNR of the noisy copies is read from
scripts/embedded_source.toml, which states it.
"""

import collections
import functools
import hashlib
import itertools
import json
import re
from pathlib import Path

import librosa
import numpy as np
import pytest
import soundfile

import s2s_arena

ROOT_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = Path(s2s_arena.embedded_dir())
SAMPLING_RATE = 24_000
ROWS = json.loads((DATA_DIR / "metadata.json").read_text(encoding="utf-8"))
PATHS = [row["input_path"].removeprefix("./") for row in ROWS]
BY_PATH = dict(zip(PATHS, ROWS, strict=True))

NUM_PER_FOLDER = {
    "pronounciation": 5, "stress": 5, "rhythm": 7, "polyphone": 6, "pause": 4, "translation": 14,
    "language": 6, "humor": 4, "irony": 3, "identity": 16, "emotion": 24, "sing": 7, "nature": 5,
    "poetry": 4, "role": 4, "story": 5, "tongue_twister": 9, "crosstalk": 8, "illness": 6,
    "healthcare": 7, "psychological": 5,
}  # fmt: skip
NUM_PER_CATEGORY = {
    "Education": 47,
    "Social Companionship": 47,
    "Entertainment": 42,
    "Medical Consultation": 18,
}
NOISES = (
    "AirConditioner", "AirportAnnouncements", "CopyMachine", "Munching", "Neighbor",
    "ShuttingDoor", "Typing", "VacuumCleaner",
)  # fmt: skip
LEADING_MARKS = {
    *(f"emotion: {emotion}" for emotion in ("happy", "sad", "angry", "fearful", "surprised")),
    *(f"emotion: {emotion}" for emotion in ("disgusted", "calm", "sarcastic")),
    *(f"{voice} voice" for voice in ("men", "women", "children", "adults", "elderly")),
    *(f"{voice} voice" for voice in ("weak", "whispering")),
}  # fmt: skip
KEYS = (
    "id", "input_path", "text", "task", "task_description", "text_cn", "language", "category",
    "level", "noise",
)  # fmt: skip

# healthcare0_Typing_1.wav is made from item 0 of its folder, illness1_..._2.wav from item 1.
TWINS = {
    "healthcare/healthcare0_Typing_1.wav": "healthcare/audio_0.mp3",
    "healthcare/healthcare1_Typing_1.wav": "healthcare/audio_1.mp3",
    "illness/illness1_AirConditioner_2.wav": "illness/illness1.mp3",
    "illness/illness3_AirConditioner_2.wav": "illness/illness3.mp3",
    "pronounciation/pronounciation0_AirportAnnouncements_1.wav": "pronounciation/audio_0.mp3",
    "pronounciation/pronounciation1_AirportAnnouncements_1.wav": "pronounciation/audio_1.mp3",
    "role/role0_VacuumCleaner_1.wav": "role/audio_0.mp3",
    "role/role1_VacuumCleaner_1.wav": "role/audio_1.mp3",
    "story/story0_CopyMachine_1.wav": "story/audio_0.mp3",
    "story/story1_CopyMachine_1.wav": "story/audio_1.mp3",
    "stress/stress1_Munching_1.wav": "stress/stress1.mp3",
    "stress/stress2_Munching_1.wav": "stress/stress2.mp3",
    "tongue_twister/tongue_twister0_Neighbor_1.wav": "tongue_twister/audio_0.mp3",
    "tongue_twister/tongue_twister2_Neighbor_1.wav": "tongue_twister/audio_2.mp3",
    "translation/translation3_ShuttingDoor_1.wav": "translation/translation3.mp3",
    "translation/translation4_ShuttingDoor_1.wav": "translation/translation4.mp3",
}


@functools.cache
def read(path):
    """Return the waveform of a clip, shape (num_frames,)."""
    waveform, sampling_rate = soundfile.read(DATA_DIR / path, dtype="float32")
    assert sampling_rate == SAMPLING_RATE
    assert waveform.ndim == 1
    return waveform


def estimate_f0(waveform):
    """Return F0 in Hz by pYIN, one value for every 40 ms, NaN where unvoiced."""
    # Half the rate and half the precision of librosa's defaults: a quarter of their time.
    halved = librosa.resample(waveform, orig_sr=SAMPLING_RATE, target_sr=12_000)
    f0, _, _ = librosa.pyin(
        halved, fmin=60, fmax=600, sr=12_000, frame_length=1024, hop_length=480, resolution=0.2
    )
    return f0


def semitones(f0):
    """Return voiced F0 on a scale of semitones."""
    return 12 * np.log2(f0[~np.isnan(f0)])


def median_f0(path):
    return float(np.nanmedian(estimate_f0(read(path)[: round(2.5 * SAMPLING_RATE)])))


def f0_range(path):
    low, high = np.percentile(semitones(estimate_f0(read(path))), (10, 90))
    return float(high - low)


def decibels(amplitude):
    return float(20 * np.log10(amplitude))


def window_rms(waveform):
    """Return the RMS of windows of 10 ms."""
    return librosa.feature.rms(y=waveform, frame_length=240, hop_length=240, center=False)[0]


def active_level(waveform):
    """Return the level of the windows within 30 dB of the loudest, in dBFS."""
    rms = window_rms(waveform)
    return decibels(np.sqrt(np.mean(rms[rms > rms.max() / 31.6] ** 2)))


def find_phrases(path, pause=0.3):
    """Return the stretches of a clip between pauses, as waveforms."""
    waveform = read(path)
    intervals = librosa.effects.split(waveform, top_db=40, frame_length=480, hop_length=240)
    joined = [list(intervals[0])]
    for start, end in intervals[1:]:
        if start - joined[-1][1] < pause * SAMPLING_RATE:
            joined[-1][1] = end
        else:
            joined.append([start, end])
    return [waveform[start:end] for start, end in joined]


def words(path):
    text = re.sub(r"\[[^\]]*\]|\(emphasized\)", " ", BY_PATH[path]["text"])
    return re.findall(r"[\w'’]+", text)


def words_per_second(path):
    return len(words(path)) / (len(read(path)) / SAMPLING_RATE)


def onsets_per_second(path):
    waveform = read(path)
    onsets = librosa.onset.onset_detect(y=waveform, sr=SAMPLING_RATE, hop_length=256)
    return len(onsets) / (len(waveform) / SAMPLING_RATE)


def with_mark(mark):
    """Return the clean clips whose text begins with a mark."""
    return [p for p in PATHS if BY_PATH[p]["text"].startswith(f"[{mark}]") and p not in TWINS]


# --- The metadata ---------------------------------------------------------------------------------


def test_counts_are_those_of_the_benchmark():
    assert len(ROWS) == 154
    assert collections.Counter(path.split("/")[0] for path in PATHS) == NUM_PER_FOLDER
    assert collections.Counter(row["category"] for row in ROWS) == NUM_PER_CATEGORY
    assert list(dict.fromkeys(path.split("/")[0] for path in PATHS)) == list(NUM_PER_FOLDER)


def test_levels_spread_over_the_categories():
    pairs = {(row["category"], row["level"]) for row in ROWS}
    assert {level for _, level in pairs} == {"L0", "L1", "L2", "L3"}
    assert len(pairs) >= 14


def test_ids_are_unique_and_named_like_the_published_ones():
    ids = [row["id"] for row in ROWS]
    assert len(set(ids)) == 154
    assert [i for i in ids if i.startswith("identity")] == [
        f"identity_audio_{n}" for n in range(16)
    ]
    assert {"emotion_audio_0", "singing_audio_0", "tongue_twisters_audio_0"} <= set(ids)
    for row, path in zip(ROWS, PATHS, strict=True):
        if not path.startswith("identity"):
            assert row["id"].endswith(f"_{Path(path).stem}")


def test_keys_come_in_the_published_order():
    for row in ROWS:
        assert list(row) == [key for key in KEYS if key in row]
        assert set(KEYS) - set(row) <= {"text_cn", "noise"}


def test_exactly_the_23_chinese_entries_lack_a_translation():
    without = [row for row in ROWS if "text_cn" not in row]
    assert [row["language"] for row in without] == ["Chinese"] * 23
    assert sum(row["language"] == "Chinese" for row in ROWS) == 23
    for row in ROWS:
        chinese = row.get("text_cn", row["text"])
        assert re.search("[\u4e00-\u9fff]", chinese), row["id"]


def test_other_languages_only_where_consistency_is_tested():
    others = [p for p in PATHS if BY_PATH[p]["language"] not in ("English", "Chinese")]
    assert others == [path for path in PATHS if path.startswith("language/")]


def test_marks_are_those_of_the_official_texts():
    marks = collections.Counter()
    for row in ROWS:
        leading = re.match(r"\[([^\]]*)\](?=\S)", row["text"])
        rest = row["text"][leading.end() :] if leading else row["text"]
        marks.update([leading[1]] if leading else [])
        assert "[" not in rest and "]" not in rest
        assert set(re.findall(r"\([^)]*\)", rest)) <= {"(emphasized)"}
    assert set(marks) == LEADING_MARKS


def test_texts_have_three_to_forty_words():
    lengths = [len(words(p)) for p in PATHS if BY_PATH[p]["language"] == "English"]
    assert min(lengths) == 3
    assert 30 <= max(lengths) <= 40


def test_no_two_texts_are_near_duplicates():
    grams = {}
    for path in set(PATHS) - set(TWINS):
        text = re.sub(r"\[[^\]]*\]|\W", "", BY_PATH[path]["text"].lower())
        size = 2 if BY_PATH[path]["language"] == "Chinese" else 4
        grams[path] = {text[i : i + size] for i in range(len(text) - size + 1)}
    for one, other in itertools.combinations(sorted(grams), 2):
        overlap = len(grams[one] & grams[other]) / len(grams[one] | grams[other])
        assert overlap < 0.4, (one, other)


# --- The files ------------------------------------------------------------------------------------


def test_every_file_belongs_to_a_row():
    files = {p.relative_to(DATA_DIR).as_posix() for p in DATA_DIR.rglob("*.*") if p.is_file()}
    assert {f for f in files if f.endswith((".mp3", ".wav"))} == set(PATHS)
    assert all(path.isascii() for path in files)


def test_endings_and_size():
    wav = [path for path in PATHS if path.endswith(".wav")]
    assert len(set(wav) - set(TWINS)) <= 10
    assert all(path.endswith((".mp3", ".wav")) for path in PATHS)
    assert sum(p.stat().st_size for p in DATA_DIR.rglob("*") if p.is_file()) <= 12e6


@pytest.mark.parametrize("path", PATHS)
def test_clip_is_sound(path):
    info = soundfile.info(DATA_DIR / path)
    waveform = read(path)
    assert info.samplerate == SAMPLING_RATE
    assert info.channels == 1
    assert info.frames == len(waveform)
    assert 1.0 <= info.duration <= 20.0
    assert -12.0 <= decibels(np.abs(waveform).max()) <= -1.0
    assert abs(waveform.mean()) < 1e-3
    loud = np.flatnonzero(np.abs(waveform) > np.abs(waveform).max() / 100)
    assert loud[0] / SAMPLING_RATE <= 0.5
    assert (len(waveform) - loud[-1]) / SAMPLING_RATE <= 0.5


def test_mp3_has_a_constant_rate_in_bounds():
    for path in PATHS:
        if path.endswith(".mp3"):
            duration = len(read(path)) / SAMPLING_RATE
            bit_rate = (DATA_DIR / path).stat().st_size * 8 / duration
            # Each file begins with one header frame and ends with up to two frames of padding.
            assert 48_000 <= bit_rate <= 64_000 * (1 + 0.1 / duration), path


def test_no_two_clips_are_equal():
    digests = {hashlib.sha256(read(path).tobytes()).hexdigest() for path in PATHS}
    assert len(digests) == 154


def test_provenance_names_each_file():
    provenance = json.loads((DATA_DIR / "provenance.json").read_text(encoding="utf-8"))
    assert list(provenance["clips"]) == PATHS
    for path, clip in provenance["clips"].items():
        assert clip["sha256"] == hashlib.sha256((DATA_DIR / path).read_bytes()).hexdigest(), path
        assert clip["num_frames"] == len(read(path))


# --- Noise ----------------------------------------------------------------------------------------


def test_noisy_copies_are_named_by_kind():
    noisy = {path: row["noise"] for path, row in BY_PATH.items() if "noise" in row}
    assert set(noisy) == set(TWINS)
    assert collections.Counter(noisy.values()) == dict.fromkeys(NOISES, 2)
    assert all(f"_{kind}_" in path for path, kind in noisy.items())


@pytest.mark.parametrize(("noisy", "clean"), TWINS.items())
def test_noisy_copy_repeats_its_twin(noisy, clean):
    kept = ("text", "text_cn", "task", "language", "category", "level")
    assert [BY_PATH[noisy].get(key) for key in kept] == [BY_PATH[clean].get(key) for key in kept]
    assert len(read(noisy)) == len(read(clean))


def test_noisy_copies_have_the_stated_snr():
    tomllib = pytest.importorskip("tomllib")
    with (ROOT_DIR / "scripts" / "embedded_source.toml").open("rb") as file:
        source = tomllib.load(file)
    for noisy, clean in TWINS.items():
        folder, name = noisy.split("/")
        (stated,) = (item["noise"] for item in source[folder] if item["file"] == name)
        noise = read(noisy) - read(clean)
        snr = 10 * np.log10(np.mean(read(clean) ** 2) / np.mean(noise**2))
        assert snr == pytest.approx(stated["snr_db"], abs=1.0), noisy
        assert f"{folder}/{stated['twin']}" == clean


def test_noise_is_independent_of_the_speech():
    for noisy, clean in TWINS.items():
        noise = read(noisy) - read(clean)
        assert abs(np.corrcoef(noise, read(clean))[0, 1]) < 0.1, noisy


def test_no_noise_is_used_twice():
    for one, other in itertools.combinations(TWINS, 2):
        first, second = (read(path) - read(TWINS[path]) for path in (one, other))
        length = min(len(first), len(second))
        assert abs(np.corrcoef(first[:length], second[:length])[0, 1]) < 0.2, (one, other)


# --- What the voice tells -------------------------------------------------------------------------

CHILDREN = [f"identity/age/children/audio_{n}.mp3" for n in range(5)]
WOMEN = [f"identity/gender/women/audio_{n}.mp3" for n in range(3)]
MEN = [f"identity/gender/men/audio_{n}.mp3" for n in range(3)]


def test_children_lie_above_women_and_women_above_men():
    children, women, men = ([median_f0(p) for p in paths] for paths in (CHILDREN, WOMEN, MEN))
    assert min(children) > 1.1 * max(women)
    assert min(women) > 1.15 * max(men)


def test_sad_is_narrower_slower_and_softer_than_happy():
    happy, sad = "emotion/audio_0.wav", "emotion/audio_1.wav"  # by the same woman
    assert f0_range(sad) < 0.7 * f0_range(happy)
    assert words_per_second(sad) < 0.8 * words_per_second(happy)
    assert active_level(read(sad)) < active_level(read(happy)) - 3


def test_emotions_differ_in_pace_and_level():
    def median(measure, mark):
        return np.median([measure(path) for path in with_mark(f"emotion: {mark}")])

    def level(path):
        return active_level(read(path))

    assert median(onsets_per_second, "sad") < median(onsets_per_second, "angry")
    assert median(level, "sad") < median(level, "happy") - 3
    assert median(level, "calm") < median(level, "angry") - 3


def test_stress_moves_from_the_first_word_to_the_last():
    # "Peter (emphasized) paid for the tickets. | Peter paid for the tickets (emphasized). | ..."
    first, second, _ = find_phrases("stress/stress1.mp3")

    def head_over_tail(phrase):
        # "Peter" is a quarter of the sentence, "tickets" a third.
        head, tail = phrase[: len(phrase) // 4], phrase[-len(phrase) // 3 :]
        return decibels(window_rms(head).max() / window_rms(tail).max())

    assert head_over_tail(first) > head_over_tail(second) + 6


def test_fast_and_slow_versions_of_one_sentence():
    # "The shop closes at seven tonight. | The shop closes at seven tonight. | Which time ..."
    slow, fast, _ = find_phrases("rhythm/audio_22.mp3")
    assert len(slow) > 1.7 * len(fast)


def test_fast_items_are_faster_than_slow_ones():
    fast, slow = "rhythm/input_audio_3.wav", "rhythm/audio_7.mp3"
    assert words_per_second(fast) > 1.6 * words_per_second(slow)
    assert onsets_per_second(fast) > 1.2 * onsets_per_second(slow)


@pytest.mark.parametrize(
    ("path", "num_phrases"),
    [("pause/pause1.mp3", 3), ("pause/pause3.mp3", 4), ("pause/pause4.mp3", 5)],
)
def test_pauses_are_heard(path, num_phrases):
    assert len(find_phrases(path)) == num_phrases


def test_whisper_has_no_pitch():
    voiced = np.mean(~np.isnan(estimate_f0(read("nature/audio_4.mp3"))))
    spoken = np.mean(~np.isnan(estimate_f0(read("emotion/audio_0.wav"))))
    assert voiced < 0.1
    assert spoken > 0.4


def test_weak_voices_are_soft_and_slow():
    for weak, plain in (
        ("illness/illness1.mp3", "healthcare/audio_0.mp3"),  # the same woman
        ("illness/illness3.mp3", "healthcare/audio_1.mp3"),  # the same man
    ):
        assert words_per_second(weak) < 0.9 * words_per_second(plain)
        assert active_level(read(weak)) < active_level(read(plain)) - 2


@pytest.mark.parametrize(
    ("path", "notes"), [("sing/sing1.mp3", "D4 E4 F4 G4"), ("sing/sing4.mp3", "C3 D3 E3")]
)
def test_the_melody_is_sung_in_tune(path, notes):
    sung = semitones(estimate_f0(np.concatenate(find_phrases(path)[:-1])))
    scale = 12 * np.log2(librosa.note_to_hz(notes.split()))
    distances = np.abs(sung[:, None] - scale)
    assert np.mean(distances.min(axis=1) < 0.6) > 0.7
    assert set(distances.argmin(axis=1)[distances.min(axis=1) < 0.6]) == set(range(len(scale)))
