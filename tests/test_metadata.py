"""Metadata files to entries: what is accepted, what is refused, and how it is said."""

import json
import re
from typing import Any

import pytest
from conftest import ENTRY, Corpus, encoded, is_tone, tone
from hypothesis import given, settings
from hypothesis import strategies as st

import s2s_arena
from s2s_arena import MetadataError


def entry(**fields: Any) -> dict[str, Any]:
    return {"id": "a", "input_path": "./emotion/a.wav", **ENTRY, **fields}


def parse(content: bytes | str) -> tuple[list[Any], list[str]]:
    """Parse one metadata file; problems as text."""
    raw = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    rows, problems = s2s_arena._parse_rows(raw, "metadata.json")
    entries, more = s2s_arena._parse_entries(rows, "metadata.json")
    problems += [*more, *s2s_arena._repeated_id_problems(entries)]
    return entries, [str(problem) for problem in problems]


def parse_one(**fields: Any) -> s2s_arena.Utterance:
    entries, problems = parse(json.dumps([entry(**fields)]))
    assert problems == []
    return entries[0].utterance


def test_published_entry_becomes_its_columns() -> None:
    utterance = parse_one(id="emotion_audio_0", input_path="./emotion/audio_0.wav")
    assert utterance == s2s_arena.Utterance(
        id="emotion_audio_0",
        input_path="emotion/audio_0.wav",
        text="[emotion: happy]Kids are talking by the door",
        emotion="happy",
        task="Emotion recognition and expression",
        task_description=ENTRY["task_description"],
        text_cn="孩子们在门旁说话",
        language="English",
        category="Social Companionship",
        level="L3",
        noise=None,
    )


@pytest.mark.parametrize(
    ("text", "emotion"),
    [
        ("[emotion: sad]Hello", "sad"),
        ("[emotion:very  sad ] Hello", "very  sad"),
        ("[men voice]Hello", None),
        ("Hello [emotion: sad]", None),
        ("[emotion: ]Hello", None),
    ],
)
def test_emotion_is_read_from_a_leading_mark(text: str, emotion: str | None) -> None:
    utterance = parse_one(text=text)
    assert (utterance.text, utterance.emotion) == (text, emotion)


# The paper's table 3 and the spellings seen in public JSON files.
@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("Correcting pronunciation ability", "Pronunciation correction"),
        ("Rhythm control capabilities", "Rhythm control"),
        ("Cross-language translation with emotion", "Cross-lingual emotional translation"),
        ("Sarcasm detections", "Sarcasm detection"),
        ("Identity coping ability", "Identity-based response"),
        ("Singing ability", "Singing capability"),
        ("Tongue twisters capabilities", "Tongue twisters"),
        ("Crosstalk ability", "Stand-up comedy/skit performance"),
        ("Storytelling", "Storytelling"),
    ],
)
def test_task_spellings_get_the_papers_name(spelling: str, name: str) -> None:
    assert parse_one(task=spelling, task_description="?").task == name


def test_unknown_task_is_recognised_by_its_description_with_any_quotes() -> None:
    description = 'Can the model detect sarcasm in phrases like "You\'re amazing!"?'
    assert parse_one(task="sarcasm", task_description=description).task == "Sarcasm detection"


def test_folder_names_the_task_only_where_no_spelling_is_known() -> None:
    own = {"task": "my own", "task_description": "?"}
    pause = {"input_path": "/input/pause/pause1.wav", "category": "Education"}
    assert parse_one(**own, **pause).task == "Pause and segmentation"
    assert parse_one(**own, **{**pause, "category": "Entertainment"}).task == "my own"
    assert parse_one(**own, input_path="emotion/x.wav").task == "my own"


def test_facts_agree_with_the_paper() -> None:
    assert len(s2s_arena.TASKS) == len(set(s2s_arena.TASKS)) == 21
    counts = {name: s2s_arena._NUM_ENTRIES[name] for name in ("all", *s2s_arena.CATEGORIES)}
    assert list(counts.values()) == [154, 47, 47, 42, 18]
    assert s2s_arena.LEVELS == ("L0", "L1", "L2", "L3")


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("./emotion/audio_0.wav", "emotion/audio_0.wav"),
        ("/input/emotion/audio_0.wav", "emotion/audio_0.wav"),
        ("input/identity/age/adults/audio_0.mp3", "identity/age/adults/audio_0.mp3"),
        (".\\emotion\\a.wav", "emotion/a.wav"),
        ("emotion//./a.wav", "emotion/a.wav"),
        ("./audio/../audio/a.wav", "audio/a.wav"),
        ("noise/a::b #1 100%20.wav", "noise/a::b #1 100%20.wav"),
    ],
)
def test_path_styles_normalise_to_one(written: str, path: str) -> None:
    assert parse_one(input_path=written).input_path == path


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("../x.wav", "leaves the data folder"),
        ("..\\x.wav", "leaves the data folder"),
        ("a/../../x.wav", "leaves the data folder"),
        ("/input/../../x.wav", "leaves the data folder"),
        ("/etc/passwd", "is absolute"),
        ("//server/share/x.wav", "is absolute"),
        ("\\\\server\\x.wav", "is absolute"),
        ("C:\\x.wav", "drive letter"),
        ("c:x.wav", "drive letter"),
        ("https://example.org/x.wav", "is a URL"),
        ("file:///etc/passwd", "is a URL"),
        ("a\0.wav", "NUL"),
        ("./", "names no file"),
    ],
)
def test_unsafe_paths_are_refused(written: str, reason: str) -> None:
    entries, problems = parse(json.dumps([entry(input_path=written)]))
    assert entries[0].path is None
    assert len(problems) == 1
    assert problems[0].startswith("metadata.json row 0 (id 'a'): input_path")
    assert reason in problems[0]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"category": "social companionship "}, "did you mean 'Social Companionship'?"),
        ({"category": "Finance"}, "expected one of 'Education', 'Social Companionship'"),
        ({"level": "L4"}, "second version numbers the same four L1 to L4"),
        ({"level": 3}, "level is 3 (int); expected a string"),
        ({"text": None}, "text is None (NoneType); expected a string"),
        ({"noise": ["Typing"]}, "noise is a list of 1; expected a string or null"),
        ({"id": " "}, "id is ' '; expected a name"),
        ({"text_cn": "half \ud83d end"}, "text_cn is 'half \\ud83d end', with a lone surrogate"),
    ],
)
def test_field_that_cant_be_right_is_named(fields: dict[str, Any], says: str) -> None:
    _, problems = parse(json.dumps([entry(id="ok", input_path="b.wav"), entry(**fields)]))
    assert len(problems) == 1
    assert problems[0].startswith("metadata.json row 1")
    assert says in problems[0]


def test_every_missing_field_is_listed() -> None:
    _, problems = parse(json.dumps([{"id": "a"}]))
    missing = [re.search(r": (\w+) is missing", problem) for problem in problems]
    fields = ["input_path", "text", "task", "task_description", "language", "category", "level"]
    assert [match and match[1] for match in missing] == fields


def test_optional_fields_may_be_absent_null_or_empty() -> None:
    without = entry()
    del without["text_cn"]
    rows = [without, entry(id="b", noise=None), entry(id="c", noise=""), entry(id="d", noise="x")]
    entries, problems = parse(json.dumps(rows))
    assert problems == []
    assert [e.utterance.noise for e in entries] == [None, None, "", "x"]
    assert entries[0].utterance.text_cn is None


def test_extra_keys_are_no_part_of_an_entry() -> None:
    assert parse_one(output_path_4o="x.wav", emotion="calm") == parse_one()


def test_pairs_and_nul_in_text_are_kept() -> None:
    assert parse_one(text="\U0001f600\0").text == "\U0001f600\0"


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_lacks_are_reported_with_row_and_field(value: str) -> None:
    text = json.dumps([entry(noise="@")]).replace('"@"', value)
    assert parse(text)[1] == [
        f"metadata.json row 0 (id 'a'): noise is {value}, which is not JSON; "
        "expected a string or null"
    ]


def test_repeated_key_is_reported() -> None:
    text = json.dumps([entry()]).replace('"level": "L3"', '"level": "L3", "level": "L0"')
    assert "row 0 (id 'a'): key 'level' is repeated" in parse(text)[1][0]


def test_repeated_id_names_both_places() -> None:
    assert parse(json.dumps([entry(), entry(input_path="b.wav")]))[1] == [
        "metadata.json row 1 (id 'a'): the id is already that of metadata.json row 0 (id 'a'); "
        "expected unique ids: they key the rows and the model outputs"
    ]


@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_json_lines_and_bom_are_read(bom: str) -> None:
    lines = [
        json.dumps(entry(id=str(i), text="line\u2028separator"), ensure_ascii=False) for i in (0, 1)
    ]
    entries, problems = parse(bom + "\n".join(["", *lines, "", ""]))
    assert problems == []
    assert [e.id for e in entries] == ["0", "1"]
    assert [e.id for e in parse(bom + lines[0])[0]] == ["0"]  # one line alone is an object


def test_bad_line_of_json_lines_keeps_its_place() -> None:
    lines = [json.dumps(entry(id="a")), '{"id": "b", ', json.dumps(entry(id="c"))]
    entries, problems = parse("\n".join(lines))
    assert [(e.row, e.id) for e in entries] == [(0, "a"), (1, None), (2, "c")]
    assert len(problems) == 1
    assert problems[0].startswith("metadata.json row 1: found line 2 (")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        (b"[]", "the list is empty"),
        (b"12", "found 12 (int)"),
        (b'"x"', "found 'x' (str)"),
        (b'[{"id": "a",', "not valid JSON (Expecting property name"),
        (b"[" * 200_000, "nested too deeply"),
        (b"[1" + b"0" * 5000 + b"]", "metadata.json: not valid JSON (Exceeds the limit"),
        ("[]".encode("utf-16"), "not UTF-8 (it is UTF-16)"),
        (b'[{"id": "\xe9"}]', "not UTF-8 ("),
        (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs pointer; run `git lfs pull`"),
        (b"[1, null]", "row 1: found None (NoneType); expected an object"),
    ],
)
def test_file_that_is_no_list_of_entries_is_refused(content: bytes, says: str) -> None:
    problems = parse(content)[1]
    assert problems
    assert any(says in problem for problem in problems)


def test_error_lists_all_problems_in_order_the_first_twenty_written_out(corpus: Corpus) -> None:
    for row in range(25):
        corpus.add(f"./emotion/{row}.wav", level="L9")
    corpus.write()
    with pytest.raises(MetadataError, match="25 problems in the metadata") as raised:
        corpus.load()
    lines = str(raised.value).splitlines()
    assert [int(re.search(r"row (\d+)", line)[1]) for line in lines[1:-1]] == list(range(20))
    assert lines[-1] == "- and 5 more; s2s_arena.find_problems(data_dir) lists them all"


@pytest.mark.parametrize("streaming", [False, True])
def test_all_kinds_of_problem_come_in_one_error_unwrapped(corpus: Corpus, streaming: bool) -> None:
    corpus.add("./emotion/a.wav")
    corpus.add("./emotion/b.wav", level="L9", category="Finance")
    corpus.add("./emotion/c.wav", id="clip_0")
    corpus.add("./emotion/gone.wav", level="high")
    corpus.write()
    (corpus.root / "emotion/gone.wav").rename(corpus.root / "emotion/gone.WAV")
    with pytest.raises(MetadataError) as raised:
        corpus.load("Entertainment", streaming=streaming)
    assert type(raised.value) is MetadataError
    text = str(raised.value)
    assert text.startswith(f"5 problems in the metadata of {corpus.root}:\n- metadata.json row 1")
    assert f"no audio file at {corpus.root}/emotion/gone.wav (did you mean 'gone.WAV'?)" in text
    assert text.index("unknown category 'Finance'") < text.index(
        "already that of metadata.json row 0"
    )


# --- Where metadata and recordings are looked for -------------------------------------------------


def test_web_arena_layout_with_21_files(corpus: Corpus) -> None:
    for number, task in enumerate(s2s_arena.TASKS):
        path = f"/input/folder{number}/audio_0.wav"
        corpus.add(path, 300 + 20 * number, at=path[1:], task=task, output_path_4o="out/x.wav")
        corpus.write(f"data/{number:02}.json", corpus.entries[-1:])
    rows = corpus.load()
    assert rows["id"] == corpus.ids
    assert rows[7]["input_path"] == "folder7/audio_0.wav"
    assert all(is_tone(row["audio"], corpus.frequencies[row["id"]]) for row in rows)


def test_input_is_taken_away_or_put_in_front(corpus: Corpus) -> None:
    corpus.add("input/emotion/a.wav", 300, at="emotion/a.wav")
    corpus.add("./emotion/b.wav", 400, at="input/emotion/b.wav")
    corpus.write()
    rows = corpus.load()
    assert rows["input_path"] == ["emotion/a.wav", "emotion/b.wav"]
    assert [is_tone(row["audio"], hz) for row, hz in zip(rows, (300, 400), strict=True)] == [
        True
    ] * 2


def test_two_different_files_for_one_path_are_refused(corpus: Corpus) -> None:
    corpus.add("./emotion/a.wav", 300)
    corpus.file("input/emotion/a.wav", encoded(tone(600)))
    corpus.write()
    with pytest.raises(
        MetadataError, match=r"both 'emotion/a.wav' and 'input/emotion/a.wav' exist"
    ):
        corpus.load()
    corpus.file("input/emotion/a.wav", encoded(tone(300)))  # the same content: no doubt
    assert corpus.load().num_rows == 1


def test_metadata_json_wins_then_root_then_data(corpus: Corpus) -> None:
    corpus.add("./emotion/a.wav")
    corpus.file("provenance.json", b'{"commit": "0"}')
    corpus.write("data/z.json", [{**corpus.entries[0], "id": "in_data"}])
    assert corpus.load()["id"] == ["in_data"]
    corpus.write("tasks.json", [{**corpus.entries[0], "id": "at_root"}])
    assert corpus.load()["id"] == ["at_root"]
    corpus.write("metadata.json", [{**corpus.entries[0], "id": "metadata"}])
    assert corpus.load()["id"] == ["metadata"]


def test_damaged_file_among_many_is_a_problem(corpus: Corpus) -> None:
    corpus.add("./emotion/a.wav")
    corpus.write("data/a.json")
    corpus.file("data/b.json", b'[{"id": "b"')
    with pytest.raises(MetadataError, match=r"1 problem .*\n- data/b.json: not valid JSON"):
        corpus.load()


def test_folder_without_entries_says_what_it_saw(corpus: Corpus) -> None:
    corpus.file("metadata.json", b'{"version": 1, "data": []}')
    with pytest.raises(
        MetadataError, match=r"saw metadata.json: an object with keys 'version', 'data'"
    ):
        corpus.load()
    with pytest.raises(MetadataError, match=r"nowhere: no such folder; expected the folder that"):
        corpus.load(data_dir=str(corpus.root / "nowhere"), streaming=True)


def test_message_can_always_be_printed(corpus: Corpus) -> None:
    corpus.add("./emotion/a.wav")
    corpus.entries[0]["input_path"] = "./emotion/\ud800.wav"
    corpus.file("metadata.json", json.dumps(corpus.entries).encode())
    with pytest.raises(MetadataError, match="1 problem") as raised:
        corpus.load()
    str(raised.value).encode()


def test_path_too_long_is_one_problem_among_others(corpus: Corpus) -> None:
    corpus.add("./emotion/a.wav", level="L9")
    corpus.add("./emotion/b.wav", input_path=f"{'a' * 300}/a.wav")
    corpus.write()
    with pytest.raises(MetadataError, match=r"(?s)2 problems.*can't be looked up"):
        corpus.load()


def test_files_that_macos_leaves_are_passed_over(corpus: Corpus) -> None:
    corpus.add("./emotion/a.wav")
    corpus.write("tasks.json")
    corpus.file("._tasks.json", b"\0\5\x16\7 Mac OS X")
    assert corpus.load().num_rows == 1


def test_metadata_under_another_ending_is_named_with_the_way_out(corpus: Corpus) -> None:
    corpus.add("./emotion/a.wav")
    corpus.write("metadata.jsonl")
    with pytest.raises(MetadataError, match="saw metadata.jsonl: rename it, or give data_files="):
        corpus.load()
    rows = corpus.load(data_dir=None, data_files=str(corpus.root / "metadata.jsonl"))
    assert rows["id"] == corpus.ids


def test_near_name_in_another_unicode_form_is_suggested(corpus: Corpus) -> None:
    corpus.add("./emotion/cafe\u0301.wav", at="emotion/caf\u00e9.wav")
    corpus.write()
    with pytest.raises(MetadataError, match="did you mean 'caf\u00e9.wav'"):
        corpus.load()


def test_links_may_not_leave_the_folder(corpus: Corpus) -> None:
    outside = corpus.root.parent / "outside"
    outside.mkdir()
    (outside / "secret.wav").write_bytes(encoded(tone(440)))
    corpus.add("./emotion/link.wav", at="emotion/other.wav")
    corpus.add("./leaving/secret.wav", at="emotion/third.wav")
    (corpus.root / "emotion/link.wav").symlink_to(outside / "secret.wav")
    (corpus.root / "leaving").symlink_to(outside)
    corpus.write()
    with pytest.raises(MetadataError, match="2 problems") as raised:
        corpus.load()
    assert str(raised.value).count("link that leaves the data folder") == 2


def test_metadata_behind_a_link_out_is_refused_not_overlooked(corpus: Corpus) -> None:
    corpus.add("./emotion/a.wav")
    corpus.write("data/a.json")
    outside = corpus.root.parent / "b.json"
    outside.write_text("[]")
    (corpus.root / "data/b.json").symlink_to(outside)
    with pytest.raises(MetadataError, match=r"1 problem .*\n- data/b.json: is a link that leaves"):
        corpus.load()


def test_link_to_itself_and_folder_in_place_of_a_file(corpus: Corpus) -> None:
    for name in ("loop", "folder", "broken"):
        corpus.add(f"./emotion/{name}.wav", at="emotion/x.wav")
    corpus.write()
    (corpus.root / "emotion/loop.wav").symlink_to("loop.wav")
    (corpus.root / "emotion/folder.wav").mkdir()
    (corpus.root / "emotion/broken.wav").symlink_to("nowhere.wav")
    with pytest.raises(MetadataError, match="3 problems") as raised:
        corpus.load()
    for what in ("can't be looked up", "is a folder", "is a broken link"):
        assert what in str(raised.value)


def test_snapshot_of_the_hub_cache_links_into_its_blobs(corpus: Corpus) -> None:
    repo = corpus.root.parent / "datasets--owner--name"
    snapshot = Corpus(repo / "snapshots" / ("0123456789" * 4))
    snapshot.add("./emotion/a.wav", at="emotion/placeholder.wav")
    blob = repo / "blobs" / "b10b"
    blob.parent.mkdir()
    blob.write_bytes(encoded(tone(520)))
    (snapshot.root / "emotion/a.wav").symlink_to("../../../blobs/b10b")
    snapshot.write()
    assert is_tone(snapshot.load()[0]["audio"], 520)


def test_noisy_file_beside_its_twin_or_under_noise(corpus: Corpus) -> None:
    corpus.add("./illness/illness1.wav", 300)
    corpus.add("./illness/illness1_AirConditioner_2.wav", 400, noise="AirConditioner")
    corpus.add(
        "/input/noise/illness1_AirConditioner_2.wav",
        500,
        at="input/noise/illness1_AirConditioner_2.wav",
    )
    corpus.write()
    assert all(is_tone(row["audio"], corpus.frequencies[row["id"]]) for row in corpus.load())


@pytest.mark.parametrize("as_mapping", [False, True])
def test_data_files_name_the_metadata(corpus: Corpus, as_mapping: bool) -> None:
    corpus.add("/input/emotion/a.wav", 300, at="input/emotion/a.wav")
    corpus.add("/input/emotion/b.wav", 500, at="input/emotion/b.wav")
    corpus.write("data/a.json", corpus.entries[:1]).write("data/b.json", corpus.entries[1:])
    files: Any = [str(corpus.root / "data/b.json"), str(corpus.root / "data/a.json")]
    rows = corpus.load(data_dir=None, data_files={"test": files} if as_mapping else files)
    assert rows["id"] == ["clip_1", "clip_0"]
    assert is_tone(rows[0]["audio"], 500)
    pattern = corpus.load(data_dir=None, data_files=str(corpus.root / "data/*.json"))
    assert pattern["id"] == ["clip_0", "clip_1"]
    below = corpus.load(data_files="data/a.json")
    assert below["id"] == ["clip_0"]


def test_data_files_that_arent_there(corpus: Corpus) -> None:
    with pytest.raises(MetadataError, match="no such file at"):
        corpus.load(data_dir=None, data_files="nowhere.json")
    with pytest.raises(ValueError, match="expected 'test' alone"):
        corpus.load(data_dir=None, data_files={"train": "x.json"})


# --- Properties -----------------------------------------------------------------------------------

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3)
    ),
    max_leaves=5,
)
PATHS = st.lists(
    st.sampled_from(["..", ".", "", "a", "input", "b.wav", "\\", "C:", "http:", "~"]), max_size=6
)
ENTRIES = st.fixed_dictionaries(
    {}, optional={key: JSON_VALUES | st.just(value) for key, value in entry().items()}
)


@settings(deadline=None, max_examples=200)
@given(st.one_of(JSON_VALUES, st.lists(ENTRIES, max_size=4)))
def test_any_json_gives_records_or_problems(value: Any) -> None:
    entries, problems = parse(json.dumps(value))
    assert problems or all(e.utterance is not None for e in entries)
    for e in entries:
        if e.utterance:
            e.utterance.text.encode()
            assert e.utterance.category in s2s_arena.CATEGORIES


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200))
def test_any_bytes_give_records_or_problems(content: bytes) -> None:
    entries, problems = parse(content)
    assert problems or entries


@settings(deadline=None, max_examples=500)
@given(st.one_of(st.text(), PATHS.map("/".join), PATHS.map("\\".join)))
def test_no_path_leaves_the_root(written: str) -> None:
    import os

    try:
        path = s2s_arena._to_relative_path(written)
    except ValueError:
        return
    for candidate in s2s_arena._candidate_paths(path):
        resolved = os.path.normpath(os.path.join("/root/of/data", candidate))
        assert resolved.startswith("/root/of/data/")
        assert "\\" not in candidate
