"""scripts/build_embedded.py: its pure parts, which need neither a voice nor the `build` extra."""

import dataclasses

import numpy as np
import pytest
from conftest import load_script

pytest.importorskip("tomllib")  # the script needs Python 3.11

script = load_script("build_embedded")

SAMPLING_RATE = script.SAMPLING_RATE
TASK = {"name": "Humming", "description": "Hum?", "category": "Fun", "id_prefix": "hum"}
SPEAKER = {"about": "a woman", "voices": {"v": 1.0}, "accent": "en-us"}


def item(**changes):
    """Return the table of one item, as the source file has it."""
    table = {
        "file": "a.mp3",
        "level": "L0",
        "speaker": "ann",
        "text": "Hello.",
        "text_cn": "你好。",
    }
    return {key: value for key, value in (table | changes).items() if value is not None}


def document(*items, folder="hum"):
    """Return a whole source document."""
    return {
        "tasks": {"hum": TASK},
        "speakers": {"ann": SPEAKER},
        "cues": {"sad": {"pace": 0.8}},
        folder: list(items),
    }


def parse(*items, folder="hum"):
    return script.parse_source(document(*items, folder=folder))


def upper(text):
    """Stand in for a phonemizer."""
    return text.strip().upper()


def tone(duration=1.0, amplitude=0.5):
    times = np.arange(round(duration * SAMPLING_RATE)) / SAMPLING_RATE
    return amplitude * np.sin(2 * np.pi * 220 * times)


# --- The source -----------------------------------------------------------------------------------


def test_shipped_source_is_valid():
    source = script.read_source()
    assert len(source.items) == 154
    assert len(source.tasks) == 21


def test_item_is_split_at_its_pauses():
    table = item(say="One | two", cue=["sad", "plain"], pace=1.2)
    (parsed,) = parse(table).items
    assert [(p.say, p.cue, p.pace) for p in parsed.phrases] == [
        ("One", "sad", 1.2),
        ("two", "plain", 1.2),
    ]


def test_leading_mark_is_not_spoken():
    (parsed,) = parse(item(text="[emotion: sad]Hello.")).items
    assert parsed.phrases[0].say == "Hello."
    assert parsed.text == "[emotion: sad]Hello."


def test_noisy_copy_takes_over_its_twin():
    noise = {"kind": "Typing", "snr_db": 9.0, "twin": "a.mp3"}
    clean, noisy = parse(item(), {"file": "a_Typing.wav", "noise": noise}).items
    assert (noisy.text, noisy.level) == (clean.text, clean.level)
    assert noisy.twin_path == clean.audio_path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"level": "L9"}, r"hum/a\.mp3: unknown level 'L9'; expected one of \('L0'"),
        ({"speaker": "bob"}, r"unknown speaker 'bob'; expected one of \('ann',\)"),
        ({"cue": "merry"}, r"unknown cue 'merry'"),
        ({"file": "a.ogg"}, r"unknown file ending '\.ogg'"),
        ({"text_cn": None}, r"expected text_cn exactly where"),
        ({"melody": "H4:1"}, r"note 'H4:1'; expected"),
    ],
)
def test_bad_items_are_named(changes, message):
    with pytest.raises(script.EditionError, match=message):
        parse(item(**changes))


def test_all_problems_are_reported_at_once():
    with pytest.raises(script.EditionError) as caught:
        parse(item(level="L9"), item(cue="merry"))
    assert len(str(caught.value).splitlines()) == 3  # the file appears twice as well


def test_missing_twin_is_named():
    noise = {"kind": "Typing", "snr_db": 9.0, "twin": "b.mp3"}
    with pytest.raises(script.EditionError, match=r"the twin 'b\.mp3' is not in the folder"):
        parse(item(), {"file": "c.wav", "noise": noise})


def test_manners_combine():
    both = script.Manner(pitch=1.5, gain_db=2.0, breath=0.1) & script.Manner(pitch=2, gain_db=-5)
    assert both == script.Manner(pitch=3.0, gain_db=-3.0, breath=0.1)


@pytest.mark.parametrize(("note", "hz"), [("A4:1", 440.0), ("A3:1", 220.0), ("C4:2", 261.63)])
def test_notes_have_their_frequency(note, hz):
    assert script.parse_note(note).frequency == pytest.approx(hz, abs=0.01)


# --- The metadata ---------------------------------------------------------------------------------


def test_row_has_the_published_keys_in_order():
    (row,) = script.to_rows(parse(item()))
    assert list(row) == [
        "id", "input_path", "text", "task", "task_description", "text_cn", "language",
        "category", "level",
    ]  # fmt: skip
    assert row["id"] == "hum_a"
    assert row["input_path"] == "./hum/a.mp3"


def test_ids_are_counted_through_the_leaves_of_a_task():
    source = document(item(), folder="hum/high")
    source["hum/low"] = [item()]
    assert script.to_ids(script.parse_source(source)) == ["hum_audio_0", "hum_audio_1"]


def test_check_names_each_field_that_differs():
    (row,) = script.to_rows(parse(item()))
    problems = script.check_rows([row | {"text": "Bye."}], [row])
    assert problems == ["metadata.json 'hum_a': text is 'Bye.'; expected 'Hello.'."]


# --- Phonemes -------------------------------------------------------------------------------------


def test_ipa_and_stress_are_kept_apart_from_plain_words():
    pieces = script.to_pieces("I never (emphasized), ever say /ˈeɪzəl/.", upper)
    assert [(p.phonemes, p.stressed) for p in pieces] == [
        ("I", False),
        (" NEVER", True),
        (", EVER SAY", False),
        (" ˈAzəl", False),
        (".", False),
    ]


@pytest.mark.parametrize(
    ("ipa", "phonemes"),
    [("ˈeɪzəl", "ˈAzəl"), ("wˈaʊnd", "wˈWnd"), ("tʃˈɔɪs", "ʧˈYs"), ("lɪv", "lɪv")],
)
def test_diphthongs_become_one_letter(ipa, phonemes):
    assert script.tie_diphthongs(ipa) == phonemes


def test_espeak_output_is_mapped(monkeypatch):
    def run(*_, **__):
        return type("Result", (), {"stdout": "hˌa^ʊ ɡˈo^ʊz\nðə bˈɜːd\n"})()

    monkeypatch.setattr(script.subprocess, "run", run)
    script.read_espeak.cache_clear()
    assert script.read_espeak("How goes the bird", "en-us") == "hˌW ɡˈOz ðə bˈɜɹd"
    script.read_espeak.cache_clear()


# --- Prosody --------------------------------------------------------------------------------------


def test_f0_range_and_level_are_set_and_unvoiced_frames_kept():
    f0 = np.array([100.0, 200.0, 3.0])
    shaped = script.shape_f0(f0, script.Manner(pitch=2.0, range=0.5), np.zeros(3))
    # The mean is 141.4 Hz; 100 and 200 Hz come half as close to it, then twice as high.
    assert shaped == pytest.approx([237.8, 336.4, 3.0], abs=0.1)


def test_stressed_tokens_last_longer():
    stretched = script.stretch_stressed(np.array([2.0, 2.0]), np.array([False, True]))
    assert stretched.tolist() == [2.0, 3.0]


SONG = "hˈQm ʌɡˈAn"  # home again: three syllables
MELODY = tuple(script.Note(hz, beats) for hz, beats in ((220.0, 1.0), (247.0, 1.0), (262.0, 2.0)))


def test_consonants_belong_to_the_next_vowel_and_the_last_to_the_last():
    #                                                   ~  h  ˈ  Q  m     ʌ  ɡ  ˈ  A  n  ~
    assert script.find_syllables(SONG).tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2]


def test_sung_syllables_fill_their_beats():
    sung = script.sing_durations(np.full(len(SONG) + 2, 2.0), SONG, MELODY)
    beat = script.BEAT * SAMPLING_RATE / script.FRAME
    assert [sung[1:4].sum(), sung[4:7].sum(), sung[7:11].sum()] == [beat, beat, 2 * beat]


def test_notes_are_held_and_unvoiced_frames_kept():
    durations = np.full(len(SONG) + 2, 4.0)
    f0 = np.full(int(2 * durations.sum()), 180.0)
    f0[:3] = 2.0
    sung = script.sing_f0(f0, durations, SONG, MELODY)
    assert sung[:3].tolist() == [2.0, 2.0, 2.0]
    assert sung[10] == pytest.approx(220, rel=0.02)
    assert sung[-5] == pytest.approx(262, rel=0.02)


def test_melody_must_fit_its_words():
    with pytest.raises(script.EditionError, match="1 notes for 3 syllables"):
        script.sing_durations(np.ones(len(SONG) + 2), SONG, MELODY[:1])


# --- Sound ----------------------------------------------------------------------------------------


def test_level_is_that_of_the_speech_alone():
    padded = np.concatenate([np.zeros(SAMPLING_RATE), tone(), np.zeros(SAMPLING_RATE)])
    assert script.active_level_db(padded) == pytest.approx(-9.03, abs=0.2)


def test_trim_leaves_30_ms():
    padded = np.concatenate([np.zeros(SAMPLING_RATE), tone(), np.zeros(SAMPLING_RATE)])
    assert len(script.trim(padded)) == pytest.approx(1.06 * SAMPLING_RATE, abs=100)


@pytest.mark.parametrize(("amplitude", "peak_db"), [(0.99, -2), (0.01, -11), (0.5, -6.02)])
def test_peaks_are_bounded(amplitude, peak_db):
    bounded = script.bound_peak(tone(amplitude=amplitude), -11, -2)
    assert script.peak_db(bounded) == pytest.approx(peak_db, abs=0.05)


def test_warp_moves_formants():
    spectrum = np.full((1, 1025), 1e-6)
    spectrum[0, 500] = 1.0
    assert script.warp_spectrum(spectrum, 1.2).argmax() == 600


def test_breath_of_one_is_all_noise():
    assert script.add_breath(np.full((2, 513), 0.1), 1.0) == pytest.approx(np.ones((2, 513)))


def test_tilt_leaves_the_low_band():
    inner = slice(200, -200)  # the cut edges of a tone hold high frequencies
    assert script.tilt(tone(), 6.0)[inner] == pytest.approx(tone()[inner], abs=0.03)
    assert script.tilt(tone(), 0.0).tolist() == tone().tolist()


# --- Noise ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(script.NOISES))
def test_noise_has_the_stated_snr_and_a_fixed_seed(kind):
    clean = tone(3.0, amplitude=0.1)
    noise = script.Noise(kind, 12.0, "a.mp3")
    voices = [tone(0.7), tone(0.9)]
    first, second = (script.add_noise(clean, noise, "hum/b.wav", voices) for _ in range(2))
    added = first - clean
    assert 10 * np.log10(np.mean(clean**2) / np.mean(added**2)) == pytest.approx(12.0, abs=0.01)
    assert np.array_equal(first, second)


def test_noise_that_would_clip_is_refused():
    noise = script.Noise("AirConditioner", -20.0, "a.mp3")
    with pytest.raises(script.EditionError, match=r"hum/b\.wav: peak .* Raise snr_db"):
        script.add_noise(tone(), noise, "hum/b.wav", [])


# --- Files, the report, the command ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.mp3", "a.wav"])
def test_encoded_clip_decodes_to_its_full_length(name):
    (parsed,) = parse(item(file=name)).items
    audio = script.encode_checked(tone(2.03), parsed)
    assert len(script.decode(audio)) == len(tone(2.03))


def test_clip_of_half_a_second_is_refused():
    (parsed,) = parse(item()).items
    with pytest.raises(script.EditionError, match=r"hum/a\.mp3: 0\.5 s; expected 1\.0 to 20\.0 s"):
        script.encode_checked(tone(0.5), parsed)


def test_rebuilt_clips_are_compared_by_tolerance():
    (parsed,) = parse(item(file="a.wav")).items
    shipped = script.encode(tone(2.0), ".wav")
    assert script.compare_sound(parsed, shipped, script.encode(tone(2.1), ".wav")) == []
    longer, softer = script.compare_sound(
        parsed, shipped, script.encode(tone(2.5, amplitude=0.1), ".wav")
    )
    assert "2.00 s shipped, 2.50 s rebuilt" in longer
    assert "rebuilt -14.0 dB louder" in softer


@pytest.mark.parametrize(
    ("found", "num_errors"), [("a b c", 0), ("a c", 1), ("a x c", 1), ("a b b c", 1), ("", 3)]
)
def test_word_errors(found, num_errors):
    assert script.count_errors(["a", "b", "c"], found.split()) == num_errors


def test_words_leave_out_marks_and_ipa():
    text = "[men voice]I didn’t (emphasized) say /lɪv/."
    assert script.to_words(text) == ["i", "didn't", "say"]


def test_report_pools_words_and_takes_medians():
    (parsed,) = parse(item()).items
    spoken = script.Measured(parsed, 200.0, 6.0, 3.0, -20.0, num_words=10, num_errors=1)
    whispered = dataclasses.replace(spoken, f0=0.0, level_db=-30.0, num_words=5, num_errors=2)
    assert script.group_numbers([spoken, whispered]) == "200 | 6.0 | 3.0 | -25.0 | 0.20"
    foreign = dataclasses.replace(whispered, num_words=0)
    assert script.group_numbers([foreign]) == "– | – | – | -30.0 | –"


def test_missing_programs_come_with_their_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(script.shutil, "which", lambda _: None)
    problems = script.find_missing({"no_such_module": "no-such"}, True, tmp_path / "v.tgz")
    assert 'no-such: run `pip install "s2s_arena[build]"`' in problems
    assert any("apt install espeak-ng" in problem for problem in problems)
    assert any("npm pack kokoro-js" in problem for problem in problems)


def test_main_says_what_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(script, "find_missing", lambda *_: ["a voice: run `this`"])
    assert script.main([]) == 2
    assert "a voice: run `this`" in capsys.readouterr().err


def test_damaged_voices_are_refused(tmp_path):
    path = tmp_path / "voices.tgz"
    path.write_bytes(b"not it")
    with pytest.raises(script.EditionError, match="SHA-256 .*; expected 1f0d0383"):
        script.read_voices(path, ["af_heart"])


def test_check_accepts_the_shipped_data(capsys):
    assert script.main(["--check"]) == 0
    assert "154 clips match" in capsys.readouterr().out


def test_check_reports_what_was_altered(tmp_path):
    source = parse(item(file="a.wav"))
    script.write_json(script.to_rows(source), tmp_path / "metadata.json")
    clip = script.write_clip(tone(), tmp_path, source.items[0])
    provenance = {"source_sha256": script.source_digest(), "clips": {"hum/a.wav": clip}}
    script.write_json(provenance, tmp_path / "provenance.json")
    assert script.check_data(source, tmp_path) == []

    (tmp_path / "hum" / "a.wav").write_bytes(script.encode(tone(1.5), ".wav"))
    (tmp_path / "hum" / "b.mp3").write_bytes(b"")
    assert script.check_data(source, tmp_path) == [
        "hum/a.wav: changed since the build.",
        "hum/a.wav: 36000 frames; expected 24000.",
        "hum/b.mp3: not in the source; remove it.",
    ]


def test_check_without_data_says_so(tmp_path):
    with pytest.raises(script.EditionError, match=r"metadata\.json is missing"):
        script.check_data(parse(item()), tmp_path)


def test_plain_items_exclude_cues_and_noise():
    noise = {"kind": "Typing", "snr_db": 9.0, "twin": "a.mp3"}
    source = parse(
        item(),
        item(file="b.mp3", level="L1"),
        item(file="c.mp3", cue="sad"),
        {"file": "d.wav", "noise": noise},
    )
    assert [one.file for one in source.items if script.is_plain(one)] == ["a.mp3"]
    assert dataclasses.replace(source.items[0], language="French") != source.items[0]
