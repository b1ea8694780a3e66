"""scripts/fetch_official.py against a stand-in for the Hub."""

from __future__ import annotations

import errno
import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_fixtures import (  # the fixtures are used by name
    AUDIO,
    CLIPS,
    ENTRIES,
    FILES,
    ROOT,
    Client,
    Result,
    client,
    home_dir,
    hub,
    shared_hub,
    to_clip,
    to_entry,
    to_json,
)
from stand_in_hub import (
    Block,
    Drop,
    Fault,
    IgnoreRange,
    Repository,
    Reset,
    StandInHub,
    Status,
    Truncate,
    WrongBytes,
    WrongLength,
    client_environment,
)

__all__ = ["client", "home_dir", "hub", "shared_hub"]

SCRIPT = ROOT / "scripts/fetch_official.py"
IDS = [clip[0] for clip in CLIPS]


@pytest.fixture
def repo_id(request: pytest.FixtureRequest) -> str:
    return f"owner/{hashlib.sha1(request.node.nodeid.encode()).hexdigest()[:12]}"


@pytest.fixture
def repo(hub: StandInHub, repo_id: str) -> Repository:
    return hub.add_dataset(repo_id, FILES)


@pytest.fixture
def out_dir(tmp_path: Path) -> Path:
    return tmp_path / "official"


def fetch(client: Client, out_dir: Path, *arguments: str, before: str = "") -> Result:
    """Run the command; `value` is its exit status."""
    code = f"""
import io, os, sys
script = load_script({str(SCRIPT)!r})
{before}
try:
    value = script.main({["--out", str(out_dir), *arguments]!r})
except SystemExit as error:
    value = error.code
"""
    return client.run(code)


def read_folder(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def read_json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def check_complete(out_dir: Path, audio: dict[str, bytes] = AUDIO) -> None:
    """Nothing is missing, nothing is too much, and the loader takes it."""
    found = read_folder(out_dir)
    assert sorted(found) == sorted([*audio, "metadata.json", "provenance.json"])
    assert {path: found[path] for path in audio} == audio
    files = read_json(out_dir / "provenance.json")["files"]
    assert {path: file["sha256"] for path, file in files.items()} == {
        path: hashlib.sha256(content).hexdigest() for path, content in audio.items()
    }


# A fetch that goes well --------------------------------------------------------------------------


def test_folder_and_report(
    client: Client, hub: StandInHub, repo: Repository, out_dir: Path
) -> None:
    result = fetch(client, out_dir, "--repo-id", repo.repo_id)
    assert (result.value, result.error, result.err) == (0, None, "")
    assert result.out.splitlines()[:3] == [
        f"{repo.repo_id} at commit {repo.sha} of 2025-01-01T00:00:00+00:00 is in {out_dir}:",
        "4 entries, 4 recordings, 0.0 MB (4 fetched, 0 were there); all digests agree.",
        f"4 changes to entries are listed in {out_dir / 'provenance.json'}.",
    ]
    check_complete(out_dir)
    assert hub.count(path="README.md") == 0
    entries = read_json(out_dir / "metadata.json")
    assert entries == [
        {**entry, "input_path": entry["input_path"].removeprefix("./")} for entry in ENTRIES
    ]
    assert list(entries[0]) == list(ENTRIES[0])
    assert (out_dir / "metadata.json").read_text(encoding="utf-8").count("孩子们") == len(ENTRIES)


def test_folder_loads(client: Client, repo: Repository, out_dir: Path) -> None:
    fetch(client, out_dir, "--repo-id", repo.repo_id)
    code = f"ds = load_dataset('s2s_arena', split='test', data_dir={str(out_dir)!r})\n"
    code += "value = [[row['id'], len(row['audio']['array'])] for row in ds]"
    assert client.run(code).value == [[name, 2400] for name in IDS]


def test_provenance_lists_every_change(
    client: Client, hub: StandInHub, repo_id: str, out_dir: Path
) -> None:
    entries = [
        {**to_entry("a", "/input/sing/1.wav", "Entertainment"), "task": "Singing ability"},
        {**to_entry("a", "sing/2.wav", "Entertainment"), "output_path_4o": "x.wav"},
        to_entry("a__2", "sing/3.wav", "Entertainment"),
        to_entry("a", "sing\\4.wav", "Entertainment"),
    ]
    audio = {f"sing/{number}.wav": to_clip(number) for number in range(1, 5)}
    hub.add_dataset(repo_id, {"metadata.json": to_json(entries), **audio})
    assert fetch(client, out_dir, "--repo-id", repo_id).value == 0
    provenance = read_json(out_dir / "provenance.json")
    changes = [
        (change["row"], change["id"], change["field"], change["published"], change["written"])
        for change in provenance["changes"]
    ]
    assert changes == [
        (0, "a", "input_path", "/input/sing/1.wav", "sing/1.wav"),
        (0, "a", "task", "Singing ability", "Singing capability"),
        (1, "a", "id", "a", "a__3"),
        (1, "a", "output_path_4o", "x.wav", None),
        (3, "a", "id", "a", "a__4"),
        (3, "a", "input_path", "sing\\4.wav", "sing/4.wav"),
    ]
    assert [entry["id"] for entry in read_json(out_dir / "metadata.json")] == [
        "a",
        "a__3",
        "a__2",
        "a__4",
    ]
    assert (provenance["commit"], provenance["commit_date"]) == (
        hub.repos[repo_id].sha,
        "2025-01-01T00:00:00+00:00",
    )
    check_complete(out_dir, audio)


def test_two_fetches_are_identical(client: Client, repo: Repository, tmp_path: Path) -> None:
    repo.tag("v1")
    for name, revision in (("one", "main"), ("two", "v1"), ("three", repo.sha)):
        out_dir = tmp_path / name
        arguments = ("--repo-id", repo.repo_id, "--revision", revision)
        assert fetch(client, out_dir, *arguments).value == 0
    one, two, three = (read_folder(tmp_path / name) for name in ("one", "two", "three"))
    assert one == two == three


def test_folder_stays_at_its_commit(
    client: Client, hub: StandInHub, repo: Repository, out_dir: Path, tmp_path: Path
) -> None:
    first = repo.sha
    fetch(client, out_dir, "--repo-id", repo.repo_id)
    before = read_folder(out_dir)
    repo.commit({"metadata.json": to_json(ENTRIES[:2]), "emotion/audio_0.wav": to_clip(9)})
    hub.reset()
    assert fetch(client, out_dir).value == 0
    assert read_folder(out_dir) == before
    assert hub.count("body", path="*.wav", repo_id=repo.repo_id) == 0
    assert fetch(client, out_dir, "--revision", "main").value == 0
    assert read_json(out_dir / "provenance.json")["commit"] == repo.sha != first
    audio = {"emotion/audio_0.wav": to_clip(9), "emotion/audio_1.wav": AUDIO["emotion/audio_1.wav"]}
    check_complete(out_dir, audio)
    fresh = tmp_path / "fresh"
    fetch(client, fresh, "--repo-id", repo.repo_id)
    assert read_folder(fresh) == read_folder(out_dir)
    assert not (out_dir / "sing").exists()


def test_missing_and_damaged_files_alone_are_fetched_again(
    client: Client, hub: StandInHub, repo: Repository, out_dir: Path
) -> None:
    fetch(client, out_dir, "--repo-id", repo.repo_id)
    (out_dir / "sing/audio_0.wav").unlink()
    damaged = out_dir / "emotion/audio_1.wav"
    damaged.write_bytes(damaged.read_bytes()[:-2] + b"xx")
    (out_dir / "notes.txt").write_text("mine")
    hub.reset()
    result = fetch(client, out_dir)
    assert "(2 fetched, 2 were there)" in result.out
    fetched = sorted(
        request.path for request in hub.select_requests("body", path="*.wav", repo_id=repo.repo_id)
    )
    assert fetched == ["emotion/audio_1.wav", "sing/audio_0.wav"]
    (out_dir / "notes.txt").unlink()  # and it is still there
    check_complete(out_dir)


def test_regular_files_are_checked_by_their_git_id(
    client: Client, hub: StandInHub, repo_id: str, out_dir: Path
) -> None:
    hub.add_dataset(repo_id, FILES, lfs=())
    hub.inject(WrongBytes(), path="sing/*", times=2)
    assert fetch(client, out_dir, "--repo-id", repo_id).value == 0
    check_complete(out_dir)


# Metadata ----------------------------------------------------------------------------------------

WEB_ENTRIES = [{**entry, "input_path": f"/input{entry['input_path'][1:]}"} for entry in ENTRIES]
WEB_AUDIO = {f"input/{path}": content for path, content in AUDIO.items()}
IN_DATA = {f"data/{entry['id']}.json": to_json([entry]) for entry in WEB_ENTRIES}
LINES = "\n".join(json.dumps(entry) for entry in ENTRIES).encode()


@pytest.mark.parametrize(
    ("files", "metadata_files"),
    [
        (FILES, ["metadata.json"]),
        (
            {"b.json": to_json(ENTRIES[2:]), "a.json": to_json(ENTRIES[:2]), **AUDIO},
            ["a.json", "b.json"],
        ),
        ({**IN_DATA, **WEB_AUDIO, "infos.json": b"{}"}, sorted(IN_DATA)),
        ({"metadata.json": to_json(WEB_ENTRIES), **AUDIO}, ["metadata.json"]),
        ({"metadata.json": LINES, **AUDIO}, ["metadata.json"]),
        ({"metadata.json": b"\xef\xbb\xbf" + FILES["metadata.json"], **AUDIO}, ["metadata.json"]),
    ],
    ids=["metadata.json", "root", "data/ and input/", "/input/", "JSON Lines", "BOM"],
)
def test_layout(
    client: Client,
    hub: StandInHub,
    repo_id: str,
    out_dir: Path,
    files: dict[str, bytes],
    metadata_files: list[str],
) -> None:
    hub.add_dataset(repo_id, files)
    result = fetch(client, out_dir, "--repo-id", repo_id)
    assert (result.value, result.err) == (0, "")
    check_complete(out_dir)
    assert read_json(out_dir / "provenance.json")["metadata_files"] == metadata_files
    found = [entry["input_path"] for entry in read_json(out_dir / "metadata.json")]
    assert sorted(found) == sorted(AUDIO)


def test_metadata_elsewhere_is_named(
    client: Client, hub: StandInHub, repo_id: str, out_dir: Path
) -> None:
    files = {**AUDIO, "infos.json": b'{"a": 1}', "meta/en.json": FILES["metadata.json"]}
    hub.add_dataset(repo_id, files)
    result = fetch(client, out_dir, "--repo-id", repo_id)
    assert (result.value, result.out) == (1, "")
    assert result.err.splitlines() == [
        f"{repo_id} at commit {hub.repos[repo_id].sha}: no list of entries was found; saw:",
        "- infos.json: an object with keys 'a'",
        "- meta/en.json: not looked into",
        "Expected metadata.json, or *.json at the root, or data/*.json. Name the right files with "
        "--metadata PATH, which may be given more than once and may hold *.",
    ]
    assert not out_dir.exists()
    assert fetch(client, out_dir, "--repo-id", repo_id, "--metadata", "meta/*.json").value == 0
    check_complete(out_dir)
    assert fetch(client, out_dir).value == 0  # remembers which file it was
    result = fetch(client, out_dir, "--metadata", "meta/zh.json")
    assert result.err == (
        "--metadata 'meta/zh.json' names no file; the repository's tables are: "
        "infos.json, meta/en.json\n"
    )


def test_repository_without_any_table(
    client: Client, hub: StandInHub, repo_id: str, out_dir: Path
) -> None:
    hub.add_dataset(repo_id, AUDIO)
    result = fetch(client, out_dir, "--repo-id", repo_id)
    assert result.value == 1
    assert "no list of entries was found; it has no table of any kind\n" in result.err


def test_two_places_are_one_too_many(
    client: Client, hub: StandInHub, repo_id: str, out_dir: Path
) -> None:
    hub.add_dataset(repo_id, {**FILES, "data/old.json": to_json(ENTRIES[:1])})
    result = fetch(client, out_dir, "--repo-id", repo_id)
    assert result.value == 1
    assert "more than one place has entries; saw:\n" in result.err
    assert "- metadata.json: 4 entries\n- data/old.json: 1 entries\n" in result.err
    assert fetch(client, out_dir, "--repo-id", repo_id, "--metadata", "metadata.json").value == 0
    check_complete(out_dir)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[{", "metadata.json: not valid JSON"),
        (b"[]", "metadata.json: the list is empty"),
        (to_json([to_entry("a", "../x.wav", "Education")]), "row 0 (id 'a'): input_path '../x"),
        (to_json([to_entry("a", "x.wav", "Education")]), "row 0 (id 'a'): no audio file at x.wav"),
        (to_json([to_entry("a", "x.wav", "Sport")]), "row 0 (id 'a'): unknown category 'Sport'"),
    ],
)
def test_metadata_that_cannot_be_right(
    client: Client, hub: StandInHub, repo_id: str, out_dir: Path, content: bytes, message: str
) -> None:
    hub.add_dataset(repo_id, {**AUDIO, "metadata.json": content})
    result = fetch(client, out_dir, "--repo-id", repo_id)
    assert result.value == 1
    assert result.err.startswith("1 problem in the repository's metadata; nothing was written:\n- ")
    assert message in result.err
    assert not out_dir.exists()


def test_recording_at_two_places(
    client: Client, hub: StandInHub, repo_id: str, out_dir: Path
) -> None:
    repo = hub.add_dataset(repo_id, {**FILES, "input/sing/audio_0.wav": to_clip(9)})
    result = fetch(client, out_dir, "--repo-id", repo_id)
    assert "both 'sing/audio_0.wav' and 'input/sing/audio_0.wav' exist, with diff" in result.err
    repo.commit({"input/sing/audio_0.wav": AUDIO["sing/audio_0.wav"]})
    assert fetch(client, out_dir, "--repo-id", repo_id).value == 0
    check_complete(out_dir)


def test_recording_that_is_damaged_in_the_repository(
    client: Client, hub: StandInHub, repo_id: str, out_dir: Path
) -> None:
    hub.add_dataset(repo_id, {**FILES, "sing/audio_0.wav": AUDIO["sing/audio_0.wav"][:-100]})
    result = fetch(client, out_dir, "--repo-id", repo_id)
    assert result.value == 1
    assert (
        "sing/audio_0.wav: cut short, promises 4800 bytes of samples but holds 4700" in result.err
    )
    assert "it is as the repository has it" in result.err


# Faults ------------------------------------------------------------------------------------------


def to_name(value: object) -> str:
    return repr(value).replace(", error_code=None", "").replace(", retry_after=None", "")


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Status(500), "body"),
        (Status(503), "body"),
        (Status(503, retry_after=3), "body"),
        (Status(429, retry_after=3), "body"),
        (Status(503), "redirect"),
        (Status(500), "info"),
        (Status(429, retry_after=3), "info"),
        (Status(503), "tree"),
        (Status(503), "commits"),
        (Drop(), "body"),
        (Drop(), "redirect"),
        (Drop(), "info"),
        (Drop(), "tree"),
        (Reset(100), "body"),
        (Reset(10), "tree"),
        (Truncate(100), "body"),
        (Truncate(10), "info"),
        (WrongBytes(), "body"),
        (WrongLength(3), "body"),
        (WrongLength(-3), "body"),
        (WrongLength(-3), "tree"),
        (IgnoreRange(), "body"),
    ],
    ids=to_name,
)
def test_fault_that_passes(
    client: Client, hub: StandInHub, repo: Repository, out_dir: Path, fault: Fault, kind: str
) -> None:
    path = "emotion/audio_1.wav" if kind in ("body", "redirect") else "*"
    injection = hub.inject(fault, kind=kind, path=path)
    result = fetch(client, out_dir, "--repo-id", repo.repo_id)
    assert (result.value, result.error) == (0, None)
    assert injection.hits == 1
    assert result.slept < 10
    check_complete(out_dir)


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        (Status(404), "body", "no such file on the Hub"),
        (Status(401), "redirect", "no such repository, or no access to it"),
        (Status(403), "redirect", "the repository is gated; ask for access on its page, then log"),
        (Status(429, retry_after=3600), "body", "answered 429; try again in 3600 s, as it asks"),
        (Status(500), "body", "the Hub answered 500; try again later"),
        (Status(503), "redirect", "the Hub answered 503; try again later"),
        (Drop(), "body", "the connection to the Hub failed"),
        (Reset(100), "body", "the connection to the Hub failed"),
        (Truncate(100), "body", "the connection to the Hub failed"),
        (WrongBytes(), "body", "arrived, the Hub lists 4844 bytes with digest"),
        (WrongLength(-3), "body", "arrived, the Hub lists 4844 bytes with digest"),
        (WrongLength(3), "body", "the connection to the Hub failed"),
    ],
    ids=to_name,
)
def test_lasting_fault_names_the_file_and_a_second_run_completes(
    client: Client,
    hub: StandInHub,
    repo: Repository,
    out_dir: Path,
    fault: Fault,
    kind: str,
    message: str,
) -> None:
    hub.inject(fault, kind=kind, path="emotion/audio_1.wav", times=None)
    result = fetch(client, out_dir, "--repo-id", repo.repo_id)
    assert (result.value, result.error, result.out) == (1, None, "")
    assert f"emotion/audio_1.wav of {repo.repo_id} at commit {repo.sha}: " in result.err
    assert message in result.err
    assert result.slept < 90 * 8  # seconds, of eight workers together
    left = read_folder(out_dir)
    assert {path: AUDIO[path] for path in left} == left  # nothing else, nothing half-written
    hub.reset()
    assert fetch(client, out_dir, "--repo-id", repo.repo_id).value == 0
    check_complete(out_dir)
    asked = {
        request.path for request in hub.select_requests("body", path="*.wav", repo_id=repo.repo_id)
    }
    assert asked.isdisjoint(left)


def test_hub_that_is_down_for_good_ends_it_all(
    client: Client, hub: StandInHub, repo_id: str, out_dir: Path
) -> None:
    many = {f"sing/{number}.wav": to_clip(number) for number in range(40)}
    entries = [to_entry(path, path, "Entertainment") for path in many]
    hub.add_dataset(repo_id, {**many, "metadata.json": to_json(entries)})
    hub.inject(Status(503), path="*.wav", times=None)
    result = fetch(client, out_dir, "--repo-id", repo_id)
    assert (result.value, result.out) == (1, "")
    assert "the Hub answered 503; try again later" in result.err
    asked = {request.path for request in hub.select_requests("body", path="*.wav", repo_id=repo_id)}
    assert len(asked) <= 2 * 8  # not file after file, each with all its patience


def test_unknown_repository_and_revision(client: Client, repo: Repository, out_dir: Path) -> None:
    result = fetch(client, out_dir, "--repo-id", "owner/nothing")
    assert result.value == 1
    assert result.err == (
        "owner/nothing at revision 'main': no such repository, or no access to it; check the "
        "name, log in with `hf auth login` or set HF_TOKEN\n"
    )
    result = fetch(client, out_dir, "--repo-id", repo.repo_id, "--revision", "v9")
    assert result.err == f"{repo.repo_id} at revision 'v9': no such revision on the Hub\n"
    assert not out_dir.exists()


@pytest.mark.parametrize("kind", ["private", "gated"])
def test_token_opens_and_is_never_shown(
    client: Client, hub: StandInHub, repo_id: str, out_dir: Path, kind: str
) -> None:
    hub.add_dataset(repo_id, FILES, private=kind == "private", gated=kind == "gated")
    closed = fetch(client, out_dir, "--repo-id", repo_id)
    assert closed.value == 1
    assert "`hf auth login` or set HF_TOKEN" in closed.err
    outsider = f"os.environ['HF_TOKEN'] = {hub.outsider_token!r}"
    assert fetch(client, out_dir, "--repo-id", repo_id, before=outsider).value == 1
    member = f"os.environ['HF_TOKEN'] = {hub.token!r}"
    opened = fetch(client, out_dir, "--repo-id", repo_id, before=member)
    client.run("import os\nos.environ['HF_TOKEN'] = ''")
    assert opened.value == 0
    check_complete(out_dir)
    assert not any(
        request.has_token for request in hub.select_requests() if "local" in request.host
    )
    contents = b"".join(read_folder(out_dir).values())
    for token in (hub.token, hub.outsider_token):
        assert token not in closed.err + opened.out + opened.err
        assert token.encode() not in contents


# This machine ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.ENOSPC, "No space left on device"), (errno.EACCES, "Permission denied")],
)
def test_file_that_cannot_be_written(
    client: Client, repo: Repository, out_dir: Path, number: int, reason: str
) -> None:
    before = f"""
class Refusing:
    def replace(source, target):
        raise OSError({number}, os.strerror({number}), str(target))
script.os = Refusing
"""
    result = fetch(client, out_dir, "--repo-id", repo.repo_id, before=before)
    assert (result.value, result.error, result.out) == (1, None, "")
    assert f".wav: {reason}; nothing is half-written under its final name" in result.err
    assert read_folder(out_dir) == {}


def test_folder_below_a_file(client: Client, repo: Repository, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    result = fetch(client, tmp_path / "file/out", "--repo-id", repo.repo_id)
    assert result.value == 1
    assert "file/out" in result.err
    assert "Not a directory" in result.err or "File exists" in result.err


def test_folder_of_another(client: Client, repo: Repository, out_dir: Path) -> None:
    out_dir.mkdir()
    (out_dir / "metadata.json").write_text("mine")
    result = fetch(client, out_dir, "--repo-id", repo.repo_id)
    assert result.err == (
        f"{out_dir} has a metadata.json but no provenance.json, so this command didn't write it; "
        "choose another folder\n"
    )
    assert (out_dir / "metadata.json").read_text() == "mine"


def test_folder_of_another_repository_and_broken_provenance(
    client: Client, repo: Repository, out_dir: Path
) -> None:
    fetch(client, out_dir, "--repo-id", repo.repo_id)
    result = fetch(client, out_dir, "--repo-id", "owner/other")
    expected = f"{out_dir} holds {repo.repo_id}, not owner/other; choose another folder\n"
    assert (result.value, result.err) == (1, expected)
    (out_dir / "provenance.json").write_text("[]")
    result = fetch(client, out_dir)
    assert "provenance.json can't be read (TypeError" in result.err


def test_arguments(client: Client, out_dir: Path) -> None:
    assert fetch(client, out_dir, "--token", "x").value == 2
    result = fetch(client, out_dir, "--repo-id", "a b")
    assert result.value == 2
    assert "argument --repo-id: " in result.err
    assert "'a b'" in result.err


# Interruptions -----------------------------------------------------------------------------------


@pytest.fixture
def command(repo: Repository, out_dir: Path) -> list[str]:
    return [sys.executable, str(SCRIPT), "--out", str(out_dir), "--repo-id", repo.repo_id]


@pytest.fixture
def environment(hub: StandInHub, home_dir: Path) -> Iterator[dict[str, str]]:
    yield client_environment(hub, home_dir)


@pytest.mark.parametrize(
    ("path", "after"),
    [("metadata.json", 50), ("emotion/audio_0.wav", 0), ("sing/audio_0.wav", 3000)],
)
def test_killed_in_mid_download_then_completed(
    client: Client,
    hub: StandInHub,
    repo: Repository,
    out_dir: Path,
    command: list[str],
    environment: dict[str, str],
    path: str,
    after: int,
) -> None:
    block = Block(after=after)
    hub.inject(block, path=path)
    process = subprocess.Popen(command, env=environment)
    assert block.reached.wait(timeout=60)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    left = read_folder(out_dir) if out_dir.exists() else {}
    assert "metadata.json" not in left
    whole = {name for name in left if not name.startswith(".partial/")}
    assert all(left[name] == AUDIO[name] for name in whole)
    hub.reset()
    assert fetch(client, out_dir, "--repo-id", repo.repo_id).value == 0
    check_complete(out_dir)
    assert hub.count("body", path="*.wav", repo_id=repo.repo_id) == len(AUDIO) - len(whole)


# A shell starts background jobs with SIGINT ignored, and Python leaves it so.
LISTENING = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_interrupted_by_the_keyboard(
    hub: StandInHub, out_dir: Path, command: list[str], environment: dict[str, str]
) -> None:
    block = Block(after=100)
    hub.inject(block, path="sing/*")
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENING, *command[1:]],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert block.reached.wait(timeout=60)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)  # while the server still holds the body back
    assert (process.returncode, out) == (130, "")
    assert err == "Interrupted; run the same command again to go on.\n"
    left = read_folder(out_dir)
    assert {path: AUDIO[path] for path in left} == left
