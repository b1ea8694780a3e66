"""Bytes to waveforms: odd but valid files decode right, everything short or damaged is an error.

The truth is independent: a known tone, its exact number of frames, `librosa.resample`, and dr_mp3
(the miniaudio package) for MP3. Test files are laid out by hand where the writer matters.
"""

import io
import os
import re
import struct
from pathlib import Path

import librosa
import miniaudio
import numpy as np
import pytest
import soundfile
from conftest import encoded, frequency_of, tone

import s2s_arena
from s2s_arena import AudioError

RATE = 16_000


def decode(content: bytes, sampling_rate: int | None = None) -> tuple[np.ndarray, int]:
    recording = s2s_arena._decode(content, "clip")
    return s2s_arena._to_waveform(recording, sampling_rate)


# --- WAV ------------------------------------------------------------------------------------------


def chunk(tag: bytes, body: bytes, size: int | None = None) -> bytes:
    return tag + struct.pack("<I", len(body) if size is None else size) + body


def pcm16(samples: np.ndarray) -> bytes:
    return np.round(samples * 32767).astype("<i2").tobytes()


FORMAT = struct.pack("<HHIIHH", 1, 1, RATE, 2 * RATE, 2, 16)
TONE = tone(440, 0.5, RATE)


def wav(
    *before: bytes, data: bytes | None = None, data_size: int | None = None, after: bytes = b""
) -> bytes:
    """A mono 16-bit WAV of TONE, with chunks before and behind the data as given."""
    body = pcm16(TONE) if data is None else data
    chunks = b"WAVE" + chunk(b"fmt ", FORMAT) + b"".join(before) + chunk(b"data", body, data_size)
    return chunk(b"RIFF", chunks + after)


@pytest.mark.parametrize(
    "subtype", ["PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "PCM_U8", "ULAW", "ALAW"]
)
@pytest.mark.parametrize("format", ["WAV", "WAVEX", "RF64"])
def test_every_sample_format_of_wav(format: str, subtype: str) -> None:
    array, rate = decode(encoded(TONE, RATE, format, subtype))
    assert (array.shape, array.dtype, rate) == ((8000,), np.float32, RATE)
    tolerance = {"PCM_U8": 1 / 128, "ULAW": 0.02, "ALAW": 0.02}.get(subtype, 1e-4)
    np.testing.assert_allclose(array, TONE, atol=tolerance)


@pytest.mark.parametrize("num_channels", [1, 2, 3, 6])
def test_16_bit_wav_is_what_libsndfile_reads(num_channels: int) -> None:
    """These are read without libsndfile: every value, channel by channel, must be its own."""
    every_value = np.arange(-(2**15), 2**15, dtype=np.int16)
    samples = np.stack([np.roll(every_value, 7 * n) for n in range(num_channels)], axis=1)
    content = encoded(samples, 44_100, "WAV", "PCM_16")
    expected, _ = soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True)
    recording = s2s_arena._decode(content, "clip.wav")
    np.testing.assert_array_equal(recording.samples, expected)
    assert (recording.samples.dtype, recording.sampling_rate) == (np.float32, 44_100)


def test_big_endian_wav() -> None:
    buffer_format = struct.pack(">HHIIHH", 1, 1, RATE, 2 * RATE, 2, 16)
    data = np.round(TONE * 32767).astype(">i2").tobytes()
    chunks = [(b"fmt ", buffer_format), (b"data", data)]
    body = b"WAVE" + b"".join(tag + struct.pack(">I", len(b)) + b for tag, b in chunks)
    array, _ = decode(b"RIFX" + struct.pack(">I", len(body)) + body)
    np.testing.assert_allclose(array, TONE, atol=1e-4)


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 0x7FFFF000])
def test_size_that_a_pipe_leaves_means_to_the_end(size: int) -> None:
    array, _ = decode(wav(data_size=size))
    assert array.shape == (8000,)
    np.testing.assert_allclose(array, TONE, atol=1e-4)


@pytest.mark.parametrize(
    "content",
    [
        wav(chunk(b"LIST", b"INFOISFT\x05\0\0\0Lavf\0\0")),
        wav(chunk(b"LIST", b"odd") + b"\0"),  # with its pad byte
        wav(chunk(b"bext", bytes(602)), chunk(b"JUNK", bytes(28))),
        wav(after=chunk(b"LIST", b"behind the samples")),
        wav(after=b"trailing bytes"),
        wav()[:4] + struct.pack("<I", 0) + wav()[8:],  # a RIFF size that nobody filled in
    ],
)
def test_chunks_around_the_samples_are_no_samples(content: bytes) -> None:
    array, _ = decode(content)
    np.testing.assert_allclose(array, TONE, atol=1e-4)


def test_odd_number_of_data_bytes_with_and_without_pad() -> None:
    fmt = struct.pack("<HHIIHH", 1, 1, RATE, 3 * RATE, 3, 24)
    data = b"".join(int(i * 1000).to_bytes(3, "little") for i in range(101))
    for pad in (b"", b"\0" + chunk(b"LIST", b"INFO")):
        content = chunk(b"RIFF", b"WAVE" + chunk(b"fmt ", fmt) + chunk(b"data", data) + pad)
        array, _ = decode(content)
        np.testing.assert_allclose(array, np.arange(101) * 1000 / 2**23, atol=1e-7)


def test_compressed_wav_keeps_the_frames_that_fact_counts() -> None:
    content = encoded(tone(440, 1.0, RATE), RATE, "WAV", "IMA_ADPCM")
    array, _ = decode(content)
    assert 16_000 <= len(array) < 17_100
    assert abs(frequency_of(array, RATE) - 440) < 2
    with pytest.raises(AudioError, match="cut short"):
        decode(content[: len(content) // 2])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", r"clip: the file is empty \(0 bytes\)"),
        (wav()[:10_000], "cut short, promises 16000 bytes of samples but holds 9956"),
        (wav()[:-1], "cut short, promises 16000 bytes of samples but holds 15999"),
        (wav(data=b""), "no samples"),
        (wav()[:36], r"without samples \(no data chunk\)"),
        (wav()[:4], "text that begins 'RIFF'"),
        (wav(data_size=0), "its header says 0 bytes of samples but 16000 bytes follow"),
        (wav(data_size=100), "its header says 100 bytes of samples but 16000 bytes follow"),
        (wav().replace(FORMAT, struct.pack("<HHIIHH", 1, 1, 3, 6, 2, 16)), "sampling rate 3 Hz"),
        (
            wav().replace(FORMAT, struct.pack("<HHIIHH", 0x1234, 1, RATE, 0, 2, 16)),
            "can't be decoded",
        ),
    ],
)
def test_damaged_wav_is_an_error(content: bytes, reason: str) -> None:
    with pytest.raises(AudioError, match=reason):
        decode(content)


def test_truncated_rf64_is_an_error() -> None:
    content = encoded(TONE, RATE, "RF64")
    assert decode(content)[0].shape == (8000,)
    with pytest.raises(AudioError, match="cut short, promises 16000 bytes"):
        decode(content[:-100])


# --- FLAC, Ogg, AIFF ------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["FLAC", "OGG", "AIFF"])
def test_other_containers_decode_whole_or_not_at_all(format: str) -> None:
    content = encoded(tone(440, 2.0, RATE), RATE, format)
    array, rate = decode(content)
    assert (len(array), rate) == (32_000, RATE)
    assert abs(frequency_of(array, RATE) - 440) < 1
    for length in (len(content) - 3, len(content) // 2, 200):
        with pytest.raises(AudioError, match="clip: "):
            decode(content[:length])


@pytest.mark.parametrize("format", ["OGG", "FLAC"])
def test_recordings_joined_in_one_file_are_refused(format: str) -> None:
    content = encoded(TONE, RATE, format)
    with pytest.raises(AudioError, match="several .* recordings joined in one file"):
        decode(content * 2)


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_damage_inside_an_ogg_file_is_an_error(subtype: str) -> None:
    content = encoded(tone(440, 20.0, RATE), RATE, "OGG", subtype)
    starts = [match.start() for match in re.finditer(b"OggS", content)]
    middle = len(starts) // 2
    without_a_page = content[: starts[middle]] + content[starts[middle + 1] :]
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    assert len(decode(content)[0]) == 20 * RATE
    for damaged in (without_a_page, bytes(flipped)):
        with pytest.raises(AudioError, match="damaged, at or before Ogg page"):
            decode(damaged)


def test_aiff_from_a_pipe_and_one_cut_short() -> None:
    content = encoded(TONE, RATE, "AIFF")
    start = content.index(b"SSND")
    unknown = b"\x7f\xff\xff\xff"
    piped = content[:4] + unknown + content[8 : start + 4] + unknown + content[start + 8 :]
    np.testing.assert_array_equal(decode(piped)[0], decode(content)[0])
    with pytest.raises(AudioError, match="cut short, promises .* bytes of samples"):
        decode(content[:-100])


def test_flac_that_doesnt_say_its_length_is_refused() -> None:
    content = bytearray(encoded(TONE, RATE, "FLAC"))
    content[21] &= 0xF0  # the 36 bits of the count
    content[22:26] = bytes(4)
    with pytest.raises(AudioError, match="doesn't say how long it is"):
        decode(bytes(content))


# --- MP3 ------------------------------------------------------------------------------------------


def dr_mp3(content: bytes) -> np.ndarray:
    """What another decoder makes of it: shape (num_frames, num_channels)."""
    info = miniaudio.mp3_get_info(content)
    decoded = miniaudio.decode(
        content, miniaudio.SampleFormat.FLOAT32, info.nchannels, info.sample_rate
    )
    return np.array(decoded.samples).reshape(-1, info.nchannels)


def mp3(seconds: float = 2.0, rate: int = 24_000, channels: int = 1, **options: object) -> bytes:
    """A tone that grows louder; libsndfile writes a Xing or Info frame in front."""
    samples = tone(440, seconds, rate) * np.linspace(0.1, 1, round(seconds * rate))
    buffer = io.BytesIO()
    shape = np.stack([samples] * channels, axis=1)
    soundfile.write(buffer, shape, rate, format="MP3", **options)
    return buffer.getvalue()


def frames_of(content: bytes) -> list[bytes]:
    """The MPEG frames one by one, the Xing or Info frame first."""
    frames, position = [], 0
    while header := s2s_arena._mpeg_header_at(content, position):
        frames.append(content[position : position + header.length])
        position += header.length
    assert position == len(content)
    return frames


CBR = {"bitrate_mode": "CONSTANT", "compression_level": 0.5}
VBR = {"bitrate_mode": "VARIABLE", "compression_level": 0.7}


@pytest.mark.parametrize("options", [CBR, VBR])
@pytest.mark.parametrize(
    ("rate", "channels"), [(16_000, 1), (24_000, 1), (24_000, 2), (44_100, 2), (48_000, 1)]
)
def test_mp3_with_a_header_has_the_frames_that_went_in(
    rate: int, channels: int, options: dict
) -> None:
    content = mp3(2.0, rate, channels, **options)
    recording = s2s_arena._decode(content, "clip")
    assert recording.samples.shape == (2 * rate, channels)
    np.testing.assert_allclose(recording.samples, dr_mp3(content), atol=1e-4)


@pytest.mark.parametrize("options", [CBR, VBR])
@pytest.mark.parametrize(("rate", "channels"), [(16_000, 1), (24_000, 1), (44_100, 2)])
def test_mp3_without_a_header_is_whole(rate: int, channels: int, options: dict) -> None:
    content = b"".join(frames_of(mp3(4.0, rate, channels, **options))[1:])
    recording = s2s_arena._decode(content, "clip")
    truth = dr_mp3(content)
    assert recording.samples.shape == truth.shape
    assert len(truth) >= 4 * rate
    np.testing.assert_allclose(recording.samples, truth, atol=1e-4)


def id3(size: int, fill: bytes = b"\0") -> bytes:
    return (
        b"ID3\x04\0\0"
        + bytes([size >> 21 & 127, size >> 14 & 127, size >> 7 & 127, size & 127])
        + fill * size
    )


APE = b"APETAGEX" + struct.pack("<IIII", 2000, 32, 0, 0) + bytes(8)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (id3(3000, b"\xff\xfb\x90\x00"[:1]), b"TAG" + bytes(125)),
        (id3(100) + id3(200), b""),
        (id3(40_000, b"\xff"), APE + b"TAG" + bytes(125)),
        (bytes(500), bytes(300)),
    ],
)
def test_tags_and_padding_are_no_sound(before: bytes, after: bytes) -> None:
    content = mp3(1.0)
    np.testing.assert_array_equal(decode(before + content + after)[0], decode(content)[0])


def test_recordings_joined_with_a_tag_between_are_refused() -> None:
    content = mp3(1.0)
    without_header = b"".join(frames_of(content)[1:])
    tag = b"TAG" + b"a" * 125
    for joined in (content + id3(100) + content, without_header + tag + without_header):
        with pytest.raises(AudioError, match="several MP3 recordings joined in one file"):
            decode(joined)


def test_zeros_that_an_interrupted_download_left_are_no_padding() -> None:
    content = b"".join(frames_of(mp3(4.0, **CBR))[1:])
    half = len(content) // 2
    with pytest.raises(AudioError, match="cut short, promises more than zeros"):
        decode(content[:half] + bytes(half))


def test_mp3_whose_beginning_is_missing_is_refused() -> None:
    frames = frames_of(mp3(2.0, 44_100, bitrate_mode="CONSTANT", compression_level=0.6))[1:]
    with pytest.raises(AudioError, match="its beginning is missing"):
        decode(b"".join(frames[5:]))


def test_vbri_header_counts_the_frames() -> None:
    frames = frames_of(mp3(2.0, **CBR))[1:]
    silent = bytearray(frames[0][:4].ljust(len(frames[0]), b"\0"))
    silent[36:54] = b"VBRI" + bytes(6) + struct.pack(">II", 0, len(frames))
    whole, _ = decode(bytes(silent) + b"".join(frames))
    assert len(whole) >= 2 * 24_000
    with pytest.raises(AudioError, match=f"promises {len(frames)} MPEG frames but holds"):
        decode(bytes(silent) + b"".join(frames[: len(frames) // 2]))


def test_mp3_files_joined_end_to_end_give_both() -> None:
    content = mp3(1.0)
    array, rate = decode(content * 2)
    truth = dr_mp3(b"".join(frames_of(content * 2)[1:]))
    assert len(array) == len(truth) >= 2 * rate
    np.testing.assert_allclose(array, truth[:, 0], atol=1e-4)


@pytest.mark.parametrize("options", [CBR, VBR])
def test_truncated_mp3_is_an_error(options: dict) -> None:
    with_header = mp3(2.0, **options)
    frames = frames_of(with_header)
    without_header = b"".join(frames[1:])
    for content in (with_header[:-7], without_header[:-7], b"".join(frames[:-3])):
        with pytest.raises(AudioError, match="clip: cut short, promises .* MPEG frames"):
            decode(content)


@pytest.mark.parametrize("seed", range(5))
def test_overwritten_mp3_is_an_error(seed: int) -> None:
    content = bytearray(mp3(2.0, **CBR))
    content[2000:6000] = np.random.default_rng(seed).bytes(4000)
    with pytest.raises(AudioError, match="damaged, .* bytes from byte"):
        decode(bytes(content))


def test_junk_beside_the_frames_needs_a_header_that_vouches_for_them() -> None:
    content = mp3(1.0, **CBR)
    without_header = b"".join(frames_of(content)[1:])
    for before, after in ((b"some garbage", b""), (b"", b"some garbage")):
        array, _ = decode(before + content + after)
        np.testing.assert_array_equal(array, decode(content)[0])
        with pytest.raises(AudioError, match="damaged, 12 bytes from byte"):
            decode(before + without_header + after)


def test_mp3_cut_to_its_header() -> None:
    with pytest.raises(AudioError, match="cut short"):
        decode(frames_of(mp3(1.0))[0])
    with pytest.raises(AudioError, match="an ID3 tag and no audio behind it"):
        decode(id3(1000)[:500])


# --- What is no audio -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "git lfs pull"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "HTML or XML page"),
        (b"\n <HTML>", "HTML or XML page"),
        (b"Entry not found\n", "text that begins 'Entry not found'"),
        (b'{"error": "not found"}\n', "text that begins"),
        (b"\xef\xbb\xbf<!-- page -->", "HTML or XML page"),
        (
            b"\0\0\0\x20ftypM4A " + bytes(90) + b"\xff\xfb\x90\x00" + bytes(200),
            "an MP4 or M4A file",
        ),
        (b"\xff\xf1\x50\x80\x02\x1f\xfc" + bytes(100), "is AAC"),
        (b"\0\0\0\x20ftypM4A ", "an MP4 or M4A file"),
        (b"\x1aE\xdf\xa3" + bytes(50), "Matroska or WebM"),
        (b"PK\x03\x04" + bytes(50), "zip archive"),
        (bytes(5000), "5000 zero bytes"),
        (b"\x80\x01\x02\x03" * 100, "data that begins 80 01 02 03"),
    ],
)
def test_error_says_what_the_content_is(content: bytes, says: str) -> None:
    with pytest.raises(AudioError, match="^clip: ") as raised:
        decode(content)
    assert says in str(raised.value)


def test_name_ending_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "really_wav.mp3"
    path.write_bytes(wav())
    row = s2s_arena.Waveform().decode_example({"path": str(path), "bytes": None})
    np.testing.assert_allclose(row["array"], TONE, atol=1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
def test_samples_that_are_no_numbers_are_an_error(value: float, subtype: str) -> None:
    samples = TONE.copy()
    samples[[7, 9]] = value
    with pytest.raises(AudioError, match="2 samples are NaN or infinite, the first at 7"):
        decode(encoded(samples, RATE, "WAV", subtype))


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_finite_samples_that_overflow_are_an_error() -> None:
    stereo = encoded(np.full((100, 2), 3e38), RATE, "WAV", "FLOAT")
    with pytest.raises(AudioError, match="NaN or infinite"):
        s2s_arena.Waveform().decode_example({"path": None, "bytes": stereo})


def test_formats_that_cant_be_sought_in_are_read_whole() -> None:
    array, _ = decode(encoded(tone(440, 1.0, 8_000), 8_000, "WAV", "GSM610"))
    assert len(array) >= 8_000
    assert abs(frequency_of(array, 8_000) - 440) < 5


def test_bw64_is_rf64_by_another_name() -> None:
    content = encoded(TONE, RATE, "RF64")
    np.testing.assert_array_equal(decode(b"BW64" + content[4:])[0], decode(content)[0])


def test_float_samples_above_full_scale_are_kept() -> None:
    array, _ = decode(encoded(3 * TONE, RATE, "WAV", "FLOAT"))
    np.testing.assert_allclose(array, 3 * TONE, atol=1e-6)


# --- Downmix and resampling -----------------------------------------------------------------------


def test_stereo_is_averaged_in_time_order() -> None:
    left, right = tone(440, 0.5, RATE), tone(880, 0.5, RATE)
    array, _ = decode(encoded(np.stack([left, right], axis=1), RATE, subtype="FLOAT"))
    np.testing.assert_allclose(array, (left + right) / 2, atol=1e-6)


@pytest.mark.parametrize("num_frames", [1, 2, 3, 100, 8000, 12_345])
@pytest.mark.parametrize(
    ("rate", "new_rate"),
    [(16_000, 24_000), (48_000, 24_000), (44_100, 16_000), (22_050, 24_000), (8_000, 24_000)],
)
def test_resampling_is_that_of_librosa(num_frames: int, rate: int, new_rate: int) -> None:
    samples = np.random.default_rng(num_frames).uniform(-0.9, 0.9, num_frames).astype(np.float32)
    array, got_rate = decode(encoded(samples, rate, subtype="FLOAT"), new_rate)
    truth = librosa.resample(samples, orig_sr=rate, target_sr=new_rate)
    assert (got_rate, array.shape, array.dtype) == (new_rate, truth.shape, np.float32)
    np.testing.assert_array_equal(array, truth)


def test_order_is_decode_downmix_resample() -> None:
    stereo = np.random.default_rng(0).uniform(-0.9, 0.9, (9001, 2)).astype(np.float32)
    array, _ = decode(encoded(stereo, 44_100, subtype="FLOAT"), 24_000)
    truth = librosa.resample(librosa.to_mono(stereo.T), orig_sr=44_100, target_sr=24_000)
    np.testing.assert_allclose(array, truth, atol=1e-6)


# --- Encoding what `map` hands back ---------------------------------------------------------------


def test_waveform_survives_encoding_bit_for_bit() -> None:
    samples = np.random.default_rng(1).normal(0, 2, 1001).astype(np.float32)
    content = s2s_arena._encode_wav(samples, 24_000, "clip")
    read, rate = soundfile.read(io.BytesIO(content), dtype="float32")
    assert rate == 24_000
    np.testing.assert_array_equal(read, samples)
    np.testing.assert_array_equal(decode(content)[0], samples)
    assert content == s2s_arena._encode_wav(samples, 24_000, "clip")


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.zeros((2, 100), np.float32), r"shape \(2, 100\)"),
        (np.zeros(100, np.int16), "type int16"),
        (np.zeros(0, np.float32), "no samples"),
        (np.array([0, np.nan], np.float32), "NaN or infinite"),
    ],
)
def test_array_that_is_no_waveform_is_refused(array: np.ndarray, says: str) -> None:
    with pytest.raises(AudioError, match=says):
        s2s_arena._encode_wav(array, 24_000, "clip")


# --- Real clips -----------------------------------------------------------------------------------

OFFICIAL = Path(__file__).parents[2] / "shared" / "official_audio"


@pytest.mark.skipif(not OFFICIAL.is_dir(), reason="the official clips aren't on this machine")
def test_official_clips_decode_like_another_decoder() -> None:
    paths = sorted(OFFICIAL.rglob("*.mp3"))
    assert paths
    for path in paths:
        content = path.read_bytes()
        recording = s2s_arena._decode(content, os.fspath(path))
        assert recording.sampling_rate == 24_000
        np.testing.assert_allclose(recording.samples, dr_mp3(content), atol=1e-4)
