"""Loading and streaming `data_dir="hf://datasets/owner/name"` against a stand-in for the Hub."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import encoded, tone
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

IDS = [clip[0] for clip in CLIPS]
READ = "value = [[row['id'], len(row['audio']['array'])] for row in ds]"
ALL_READ = [[name, 2400] for name in IDS]


@pytest.fixture
def repo_id(request: pytest.FixtureRequest) -> str:
    """An id of the test's own: clients cache by it."""
    return f"owner/{hashlib.sha1(request.node.nodeid.encode()).hexdigest()[:12]}"


@pytest.fixture
def repo(hub: StandInHub, repo_id: str) -> Repository:
    return hub.add_dataset(repo_id, FILES)


def load(repo_id: str, config: str = "all", streaming: bool = True, options: str = "") -> str:
    return (
        f"ds = load_dataset('s2s_arena', {config!r}, split='test', streaming={streaming}, "
        f"data_dir='hf://datasets/{repo_id}'{options})\n"
    )


def read(client: Client, repo_id: str, streaming: bool = True, options: str = "") -> Result:
    return client.run(load(repo_id, streaming=streaming, options=options) + READ)


# Requests ----------------------------------------------------------------------------------------


def test_stream_takes_metadata_first_and_two_requests_a_row(
    client: Client, hub: StandInHub, repo: Repository
) -> None:
    client.run(load(repo.repo_id) + "rows = iter(ds)")
    before = hub.count()
    assert [request.path for request in hub.select_requests("body")] == ["metadata.json"]
    result = client.run(load(repo.repo_id) + "rows = iter(ds)\nvalue = next(rows)['id']")
    assert result.value == IDS[0]
    assert before == 3  # the commit and its files; HEAD and GET of the metadata
    assert hub.count() == before + 1 + 2
    assert read(client, repo.repo_id).value == ALL_READ
    assert hub.count() == before + 2 + 2 * len(IDS)


@pytest.mark.parametrize("streaming", [True, False])
def test_only_the_category_is_fetched(
    client: Client, hub: StandInHub, repo: Repository, streaming: bool
) -> None:
    result = client.run(load(repo.repo_id, "Entertainment", streaming) + READ)
    assert result.value == [["sing_audio_0", 2400]]
    assert [request.path for request in hub.select_requests("body")] == [
        "metadata.json",
        "sing/audio_0.wav",
    ]


@pytest.mark.parametrize(
    "code",
    [
        "value = [row['id'] for row in ds.select_columns(['id'])]",
        "value = [row['id'] for row in ds.select_columns('id')]",
        "value = [row['id'] for row in ds.remove_columns('audio')]",
        "value = [row['id'] for row in ds.remove_columns(['text', 'audio'])]",
        "value = ds.column_names and [row['id'] for row in ds.remove_columns('audio').skip(0)]",
        f"assert not list(ds.skip({len(IDS)}))\nvalue = {IDS}",
        "value = [row['id'] for row in ds.skip(0).take(9).remove_columns('audio')]",
        "ds = ds.shuffle(seed=1).remove_columns('audio')\n"
        f"value = sorted((row['id'] for row in ds), key={IDS}.index)",
        "ds = ds.cast_column('audio', s2s_arena.Waveform()).with_format('numpy')\n"
        "value = [row['id'] for row in ds.shard(1, 0).remove_columns('audio')]",
    ],
)
def test_without_the_audio_none_is_fetched(
    client: Client, hub: StandInHub, repo: Repository, code: str
) -> None:
    result = client.run(load(repo.repo_id) + code)
    assert (result.value, result.error) == (IDS, None)
    assert hub.count(path="*.wav") == 0


@pytest.mark.parametrize(
    "code",
    [
        "value = [row['id'] for row in ds.select_columns(['id'])]",
        "value = [row['id'] for row in ds.remove_columns('audio')]",
        f"assert not list(ds.skip({len(IDS)}))\nvalue = {IDS}",
    ],
)
def test_without_the_audio_none_is_fetched_ahead_either(
    client: Client, hub: StandInHub, repo: Repository, code: str
) -> None:
    result = client.run(load(repo.repo_id, options=", prefetch=4") + code)
    assert (result.value, result.error) == (IDS, None)
    assert hub.count(path="*.wav") == 0


def test_next_rows_are_fetched_while_one_is_waited_for(
    client: Client, hub: StandInHub, repo: Repository
) -> None:
    """Three bodies are held back at once: the first row's and those of the two rows ahead."""
    paths = [path.removeprefix("./") for _, path, _ in CLIPS]
    blocks = [Block() for _ in range(3)]
    for path, block in zip(paths, blocks, strict=False):
        hub.inject(block, path=path, kind="body")
    with ThreadPoolExecutor() as threads:
        running = threads.submit(read, client, repo.repo_id, options=", prefetch=2")
        reached = [block.reached.wait(20) for block in blocks]
        others = hub.count("body", path=paths[3])
        for block in blocks:
            block.release.set()
        assert running.result().value == ALL_READ
    assert reached == [True] * 3
    assert others == 0  # the window holds no more


def test_fetching_ahead_costs_no_more_requests(
    client: Client, hub: StandInHub, repo: Repository
) -> None:
    assert read(client, repo.repo_id, options=", prefetch=3").value == ALL_READ
    assert hub.count(path="*.wav") == 2 * len(IDS)


def test_fetching_ahead_fails_at_the_row_whose_clip_is_missing(
    client: Client, hub: StandInHub, repo: Repository
) -> None:
    hub.inject(Status(404), path=CLIPS[3][1].removeprefix("./"), times=None)
    code = """
rows, value = iter(ds), []
try:
    for row in rows:
        value.append(row["id"])
except s2s_arena.AudioError as error:
    value.append(str(error))
"""
    value = client.run(load(repo.repo_id, options=", prefetch=4") + code).value
    assert value[:-1] == IDS[:3]
    assert "illness/illness1.wav" in value[-1]


def test_skipped_rows_are_not_fetched(client: Client, hub: StandInHub, repo: Repository) -> None:
    result = client.run(load(repo.repo_id) + "ds = ds.skip(3)\n" + READ)
    assert result.value == ALL_READ[3:]
    assert hub.count("body", path="*.wav") == 1


def test_removing_columns_keeps_the_others_and_knows_names(
    client: Client, repo: Repository
) -> None:
    code = """
left = ds.remove_columns(["audio", "text"])
value = [list(next(iter(left))), list(left.features), ds.column_names]
"""
    row, features, columns = client.run(load(repo.repo_id) + code).value
    assert row == features == [name for name in columns if name not in ("audio", "text")]
    error = client.run(load(repo.repo_id) + "ds.remove_columns('sound')").error
    assert error and error.startswith("ValueError: no column ['sound']; expected some of ['id',")


def test_stream_is_pickled_and_shuffled_and_mapped(client: Client, repo: Repository) -> None:
    code = """
import pickle
ds = pickle.loads(pickle.dumps(ds)).map(lambda row: {"text": "new"}).shuffle(seed=1)
value = sorted([row["id"], len(row["audio"]["array"]), row["text"]] for row in ds)
"""
    result = client.run(load(repo.repo_id) + code)
    assert result.value == sorted([*row, "new"] for row in ALL_READ)


# Revisions and the cache -------------------------------------------------------------------------


def test_load_has_the_files_and_loads_again_without_fetching(
    client: Client, hub: StandInHub, repo: Repository
) -> None:
    code = "value = [[row['id'], len(row['audio']['array']), row['audio']['path']] for row in ds]"
    rows = client.run(load(repo.repo_id, streaming=False) + code).value
    assert [row[:2] for row in rows] == ALL_READ
    assert [Path(path).read_bytes() for *_, path in rows] == list(AUDIO.values())
    hub.reset()
    assert client.run(load(repo.repo_id, streaming=False) + code).value == rows
    assert hub.count_by_kind() == {"info": 1}


@pytest.mark.parametrize("streaming", [True, False])
def test_revision_in_url_and_as_option(client: Client, repo: Repository, streaming: bool) -> None:
    repo.tag("v1.0")
    repo.branch("refs/convert/old")
    first = repo.sha
    repo.commit({"metadata.json": to_json(ENTRIES[:1])})
    for revision in ("v1.0", first, "refs/convert/old"):
        assert read(client, f"{repo.repo_id}@{revision}", streaming).value == ALL_READ
    option = ", revision='v1.0'"
    assert read(client, repo.repo_id, streaming, option).value == ALL_READ
    assert read(client, repo.repo_id, streaming).value == ALL_READ[:1]


def test_unknown_revision_and_two_revisions(client: Client, repo: Repository) -> None:
    error = read(client, f"{repo.repo_id}@v9").error
    assert error == (
        f"FileNotFoundError: {repo.repo_id} at revision 'v9': no such revision on the Hub"
    )
    error = read(client, f"{repo.repo_id}@v9", options=", revision='v1'").error
    assert error == "ValueError: data_dir says revision 'v9', revision= says 'v1'"


def test_stream_stays_at_its_commit_while_the_repository_moves(
    client: Client, hub: StandInHub, repo: Repository
) -> None:
    changed = {path: to_clip(20) for path in AUDIO}
    client.run(f"import builtins\n{load(repo.repo_id)}builtins.kept = iter(ds), next(iter(ds))")
    repo.commit(changed)
    result = client.run("""
import hashlib, huggingface_hub
value = [len(row["audio"]["array"]) for row in kept[0]]
""")
    assert result.value == [2400] * len(IDS)
    sent = {request.path for request in hub.select_requests("body", path="*.wav")}
    assert sent == set(AUDIO)
    # Another stream takes the new commit, and so fetches again.
    assert read(client, repo.repo_id).value == ALL_READ
    assert hub.count("body", path="*.wav") == len(AUDIO) + 1


@pytest.fixture(scope="module")
def offline_client(shared_hub: StandInHub, home_dir: Path) -> Iterator[Client]:
    """Shares the cache of huggingface_hub with the client, but not that of datasets."""
    datasets_cache = str(home_dir / "offline")
    with Client(shared_hub, home_dir, HF_HUB_OFFLINE="1", HF_DATASETS_CACHE=datasets_cache) as off:
        yield off


@pytest.mark.parametrize("streaming", [True, False])
def test_offline_after_complete_run(
    client: Client, offline_client: Client, hub: StandInHub, repo: Repository, streaming: bool
) -> None:
    assert read(client, repo.repo_id, streaming).value == ALL_READ
    hub.reset()
    assert read(offline_client, repo.repo_id, streaming).value == ALL_READ
    assert hub.count() == 0


@pytest.mark.parametrize("streaming", [True, False])
def test_offline_names_what_was_not_fetched(
    client: Client, offline_client: Client, hub: StandInHub, repo: Repository, streaming: bool
) -> None:
    entertainment = load(repo.repo_id, "Entertainment", streaming) + READ
    assert client.run(entertainment).value == [["sing_audio_0", 2400]]
    hub.reset()
    assert offline_client.run(entertainment).value == [["sing_audio_0", 2400]]
    error = read(offline_client, repo.repo_id, streaming).error
    assert error and f"emotion/audio_0.wav of {repo.repo_id}" in error
    assert "not in the cache, and HF_HUB_OFFLINE is set; load it once while online" in error
    error = read(offline_client, "owner/never-seen", streaming).error
    assert error and error.startswith(
        "ConnectionError: owner/never-seen at revision 'main' is not in the cache"
    )
    assert hub.count() == 0


# Access ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [True, False])
def test_token_reaches_every_row_and_nothing_else(
    client: Client, hub: StandInHub, repo_id: str, home_dir: Path, streaming: bool
) -> None:
    hub.add_dataset(repo_id, FILES, private=True)
    code = READ + "\nprint(ds, ds.features, ds.info)"
    result = client.run(load(repo_id, streaming=streaming, options=f", token={hub.token!r}") + code)
    assert result.value == ALL_READ
    assert hub.token not in result.out + result.err
    for path in home_dir.rglob("*"):
        assert hub.token not in path.name
        assert not path.is_file() or hub.token.encode() not in path.read_bytes()


@pytest.mark.parametrize("token", [None, "hf_outsider"])
def test_private_repository(
    client: Client, hub: StandInHub, repo_id: str, token: str | None
) -> None:
    hub.add_dataset(repo_id, FILES, private=True)
    result = read(client, repo_id, options=f", token={token!r}")
    assert result.error == (
        f"PermissionError: {repo_id} at revision 'main': no such repository, or no access to it; "
        "check the name, log in with `hf auth login` or set HF_TOKEN"
    )
    assert "hf_outsider" not in result.out + result.err
    assert result.slept == 0


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("token", [None, "hf_outsider"])
def test_gated_repository(
    client: Client, hub: StandInHub, repo_id: str, token: str | None, streaming: bool
) -> None:
    hub.add_dataset(repo_id, FILES, gated=True)
    error = read(client, repo_id, streaming, f", token={token!r}").error
    assert error and error.startswith("PermissionError: metadata.json of")
    assert error.endswith(
        "the repository is gated; ask for access on its page, then log in with `hf auth login` "
        "or set HF_TOKEN"
    )


# Faults ------------------------------------------------------------------------------------------

ONCE = [
    (Status(500), "body"),
    (Status(503), "body"),
    (Status(503, retry_after=3), "body"),
    (Status(429, retry_after=3), "body"),
    (Status(429, retry_after=3), "head"),
    (Status(503), "head"),
    (Status(500), "info"),
    (Status(429, retry_after=3), "info"),
    (Drop(), "body"),
    (Drop(), "head"),
    (Drop(), "info"),
    (Reset(100), "body"),
    (Reset(10), "info"),
    (Truncate(100), "body"),
    (Truncate(10), "info"),
    (WrongBytes(), "body"),
    (WrongLength(3), "body"),
    (WrongLength(-3), "body"),
    (WrongLength(-3), "info"),
    (WrongLength(3), "head"),
]


def to_name(value: object) -> str:
    return repr(value).replace(", error_code=None", "").replace(", retry_after=None", "")


@pytest.mark.parametrize(("fault", "kind"), ONCE, ids=to_name)
def test_fault_that_passes_is_not_noticed(
    client: Client, hub: StandInHub, repo: Repository, fault: Fault, kind: str
) -> None:
    path = "*" if kind == "info" else "emotion/audio_1.wav"
    injection = hub.inject(fault, kind=kind, path=path)
    result = read(client, repo.repo_id)
    assert (result.value, result.error) == (ALL_READ, None)
    assert injection.hits == 1
    assert result.slept < 10


@pytest.mark.parametrize(
    ("fault", "kind", "error"),
    [
        (Status(404), "head", "no such file on the Hub"),
        (Status(404), "body", "no such file on the Hub"),
        (Status(401), "head", "no such repository, or no access to it"),
        (Status(403), "head", "the repository is gated"),
        (Status(403), "body", "the repository is gated"),
        (Status(500), "body", "the Hub answered 500; try again later"),
        (Status(503, retry_after=5), "body", "the Hub answered 503; try again in 5 s, as it asks"),
        (Status(503, retry_after=3600), "body", "the Hub answered 503; try again in 3600 s"),
        (Status(503), "head", "the Hub answered 503; try again later"),
        (Status(429), "head", "the Hub answered 429; try again later"),
        (Drop(), "body", "the connection to the Hub failed"),
        (Drop(), "head", "the connection to the Hub failed"),
        (Reset(100), "body", "the connection to the Hub failed"),
        (Truncate(100), "body", "the connection to the Hub failed"),
        (WrongBytes(), "body", "arrived twice with other bytes than the Hub lists; try again"),
    ],
    ids=to_name,
)
@pytest.mark.parametrize("streaming", [True, False])
def test_lasting_fault_names_the_file_and_a_second_run_completes(
    client: Client,
    hub: StandInHub,
    repo: Repository,
    fault: Fault,
    kind: str,
    error: str,
    streaming: bool,
) -> None:
    hub.inject(fault, kind=kind, path="emotion/audio_1.wav", times=None)
    result = read(client, repo.repo_id, streaming)
    assert result.error and error in result.error
    assert f"emotion/audio_1.wav of {repo.repo_id} at commit {repo.sha}" in result.error
    assert result.slept < 30
    hub.reset()
    assert read(client, repo.repo_id, streaming).value == ALL_READ
    assert hub.count("body", path="emotion/audio_0.wav") == 0  # kept from the first run


@pytest.mark.parametrize("is_range_ignored", [False, True])
def test_long_clip_is_resumed(
    client: Client, hub: StandInHub, repo_id: str, is_range_ignored: bool
) -> None:
    """The client resumes in steps of 10 MiB, so that shorter files are asked for anew."""
    clip = encoded(tone(440, 260.0))
    entries = [to_entry("long", "long.wav", "Education")]
    hub.add_dataset(repo_id, {"metadata.json": to_json(entries), "long.wav": clip})
    hub.inject(Truncate(11 << 20), path="long.wav")
    if is_range_ignored:
        hub.inject(IgnoreRange(), path="long.wav", skip=1)
    assert read(client, repo_id).value == [["long", 260 * 24_000]]
    first, second = hub.select_requests("body", path="long.wav")
    assert (first.range, second.range) == (None, f"bytes={10 << 20}-")
    assert second.status == (200 if is_range_ignored else 206)


def test_hub_that_is_gone(home_dir: Path) -> None:
    with StandInHub() as other:
        other.add_dataset("owner/gone", FILES)
        with Client(other, home_dir) as client:
            assert read(client, "owner/gone").value == ALL_READ
            other.close()
            result = read(client, "owner/gone")
    assert result.error
    assert result.error.startswith("ConnectionError: owner/gone at revision 'main': the connection")
    assert result.slept < 30


def test_stream_that_fails_goes_on_after_the_rows_it_gave(
    client: Client, hub: StandInHub, repo: Repository
) -> None:
    hub.inject(Status(500), path="sing/*", times=None)
    code = """
value = []
try:
    for row in ds:
        value.append(row["id"])
except s2s_arena.AudioError as error:
    value.append(str(error))
"""
    *ids, error = client.run(load(repo.repo_id) + code).value
    assert ids == IDS[:2]
    assert error.startswith(f"hf://datasets/{repo.repo_id}@{repo.sha}/sing/audio_0.wav: can't be")


# Layouts and metadata ----------------------------------------------------------------------------

HALVES = {"a.json": to_json(ENTRIES[:2]), "b.json": to_json(ENTRIES[2:])}
WEB_ENTRIES = [{**entry, "input_path": f"/input{entry['input_path'][1:]}"} for entry in ENTRIES]
WEB_AUDIO = {f"input/{path}": content for path, content in AUDIO.items()}


def in_data(entries: list[dict[str, str]]) -> dict[str, bytes]:
    return {f"data/{entry['id']}.json": to_json([entry]) for entry in entries}


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("files", "order"),
    [
        (FILES, IDS),
        ({**HALVES, **AUDIO, "dataset_infos.json": b"{}"}, IDS),
        ({**in_data(ENTRIES), **AUDIO}, sorted(IDS)),
        ({**in_data(WEB_ENTRIES), **WEB_AUDIO, "config.json": b'{"a": 1}'}, sorted(IDS)),
        ({"metadata.json": to_json(WEB_ENTRIES), **AUDIO}, IDS),
        ({"metadata.json": b"\n".join(map(to_json, ENTRIES)).replace(b"\n ", b" "), **AUDIO}, IDS),
    ],
    ids=["metadata.json", "json at the root", "data/", "web arena", "/input/ in paths", "lines"],
)
def test_layout(
    client: Client,
    hub: StandInHub,
    repo_id: str,
    files: dict[str, bytes],
    order: list[str],
    streaming: bool,
) -> None:
    if files.get("metadata.json", b"").startswith(b"{"):
        files = {**files, "metadata.json": files["metadata.json"].replace(b"\n}", b"}")}
    hub.add_dataset(repo_id, files)
    result = read(client, repo_id, streaming)
    assert (result.value, result.error) == ([[name, 2400] for name in order], None)


def test_folder_within_a_repository(client: Client, hub: StandInHub, repo_id: str) -> None:
    hub.add_dataset(repo_id, {f"v1/a b/{path}": content for path, content in FILES.items()})
    assert read(client, f"{repo_id}@main/v1/a b").value == ALL_READ


def test_repository_without_metadata(client: Client, hub: StandInHub, repo_id: str) -> None:
    hub.add_dataset(repo_id, {**AUDIO, "provenance.json": b'{"commit": "x"}'})
    error = read(client, repo_id).error
    assert error and "no list of entries; saw provenance.json: an object with keys 'co" in error


@pytest.mark.parametrize("streaming", [True, False])
def test_repeated_ids_are_refused_and_the_way_out_named(
    client: Client, hub: StandInHub, repo_id: str, streaming: bool
) -> None:
    entries = [*ENTRIES, to_entry(IDS[0], "./sing/audio_0.wav", "Entertainment")]
    hub.add_dataset(repo_id, {**FILES, "metadata.json": to_json(entries)})
    error = read(client, repo_id, streaming).error
    assert error and error.startswith("MetadataError: 1 problem in the metadata of hf://")
    assert f"row {len(ENTRIES)} (id 'emotion_audio_0'): the id is already that of" in error
    assert f"`python scripts/fetch_official.py --repo-id {repo_id} --out DIR` writes" in error
    assert hub.count(path="*.wav") == 0


def test_missing_audio_is_refused_before_any_is_fetched(
    client: Client, hub: StandInHub, repo_id: str
) -> None:
    files = {**FILES, "sing/audio_0.mp3": b"x"}
    del files["sing/audio_0.wav"]
    hub.add_dataset(repo_id, files)
    error = read(client, repo_id).error
    assert error and "sing/audio_0.wav (did you mean 'audio_0.mp3'?)" in error
    assert hub.count(path="*.wav") == 0


# Interruptions -----------------------------------------------------------------------------------


def test_load_killed_in_mid_download_then_completed(
    client: Client, hub: StandInHub, repo: Repository, home_dir: Path
) -> None:
    block = Block(after=100)
    hub.inject(block, path="sing/audio_0.wav")
    code = "import s2s_arena\nfrom datasets import load_dataset\n"
    process = subprocess.Popen(
        [sys.executable, "-c", code + load(repo.repo_id, streaming=False)],
        env=client_environment(hub, home_dir),
        cwd=ROOT,
    )
    assert block.reached.wait(timeout=60)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    hub.reset()
    assert read(client, repo.repo_id, streaming=False).value == ALL_READ
    assert read(client, repo.repo_id).value == ALL_READ
