"""The stand-in for the Hub against the clients that are installed."""

from __future__ import annotations

import hashlib
import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile, RepoFolder
from stand_in_hub import (
    Block,
    Delay,
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

# b.wav is an LFS file, the others are not; the umlaut and the space need quoting.
FILES = {"README.md": b"# hi\n", "sub/b.wav": bytes(range(250)) * 4, "sub/ü 1.txt": b"text"}
WAV = FILES["sub/b.wav"]


@pytest.fixture(scope="module")
def shared_hub() -> Iterator[StandInHub]:
    with StandInHub() as hub:
        yield hub


@pytest.fixture
def hub(shared_hub: StandInHub) -> StandInHub:
    shared_hub.reset()
    return shared_hub


@pytest.fixture
def repo(hub: StandInHub, request: pytest.FixtureRequest) -> Repository:
    return hub.add_dataset(to_repo_id(request), FILES)


def to_repo_id(request: pytest.FixtureRequest) -> str:
    """Return an id of the test's own: clients cache by it."""
    digest = hashlib.sha1(request.node.nodeid.encode()).hexdigest()
    return f"owner/{digest[:12]}"


def read_folder(folder: str | Path) -> dict[str, bytes]:
    paths = (path for path in Path(folder).rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def download(
    hub: StandInHub, repo_id: str, path: str, cache_dir: Path, token: str | bool = False
) -> bytes:
    local_path = hf_hub_download(
        repo_id, path, repo_type="dataset", endpoint=hub.url, cache_dir=cache_dir, token=token
    )
    return Path(local_path).read_bytes()


def run_client(hub: StandInHub, tmp_path: Path, code: str, *arguments: str) -> None:
    """Run a logged-in client that knows no other hub."""
    command = [sys.executable, "-c", code, *arguments]
    subprocess.run(command, env=client_environment(hub, tmp_path, hub.token), check=True)


def post_commit(
    hub: StandInHub, repo: Repository, *changes: dict[str, object], parent: str | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    header = {"summary": "Change", **({"parentCommit": parent} if parent else {})}
    lines = [json.dumps(line) for line in ({"key": "header", "value": header}, *changes)]
    headers = {"Authorization": f"Bearer {hub.token}"}
    url = f"{hub.url}/api/datasets/{repo.repo_id}/commit/main"
    return ask(url, "POST", headers, "\n".join(lines).encode())


def ask(
    url: str,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    payload: bytes | None = None,
) -> tuple[http.client.HTTPResponse, bytes]:
    """Ask once, without redirects, retries or checks."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=10)
    try:
        connection.request(method, parts.path, payload, headers or {})
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def to_url(hub: StandInHub, repo: Repository, path: str = "README.md") -> str:
    return f"{hub.url}/datasets/{repo.repo_id}/resolve/main/{path}"


# Reading -------------------------------------------------------------------------------------


def test_snapshot_equals_files(hub: StandInHub, repo: Repository, tmp_path: Path) -> None:
    folder = snapshot_download(
        repo.repo_id, repo_type="dataset", endpoint=hub.url, cache_dir=tmp_path, token=False
    )
    assert read_folder(folder) == FILES
    assert Path(folder).name == repo.sha


def test_lfs_file_comes_from_other_host_without_token(
    hub: StandInHub, repo: Repository, tmp_path: Path
) -> None:
    assert download(hub, repo.repo_id, "sub/b.wav", tmp_path, hub.token) == WAV
    head, *others = hub.requests
    assert (head.kind, head.host, head.has_token) == ("head", "127.0.0.1", True)
    body = others[-1]
    assert (body.kind, body.host, body.has_token) == ("body", "localhost", False)
    assert (body.status, body.bytes_sent) == (200, len(WAV))


def test_info_names_commit_files_and_oids(hub: StandInHub, repo: Repository) -> None:
    info = HfApi(hub.url, token=False).dataset_info(repo.repo_id, files_metadata=True)
    assert info.sha == repo.sha
    assert info.last_modified == repo["main"].date
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    assert list(siblings) == list(FILES)
    assert siblings["README.md"].blob_id == hashlib.sha1(b"blob 5\0# hi\n").hexdigest()
    lfs = siblings["sub/b.wav"].lfs
    assert lfs is not None
    assert (lfs.sha256, lfs.size) == (hashlib.sha256(WAV).hexdigest(), len(WAV))


@pytest.mark.parametrize("page_size", [1, 2, 1000])
def test_tree_is_complete_with_any_page_size(
    hub: StandInHub, repo: Repository, page_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "page_size", page_size)
    api = HfApi(hub.url, token=False)
    tree = list(api.list_repo_tree(repo.repo_id, repo_type="dataset", recursive=True))
    assert sorted(entry.path for entry in tree) == ["README.md", "sub", "sub/b.wav", "sub/ü 1.txt"]
    assert [entry.path for entry in tree if isinstance(entry, RepoFolder)] == ["sub"]
    assert hub.count("tree") == -(-len(tree) // page_size)


def test_folder_is_listed_alone_and_expanded(hub: StandInHub, repo: Repository) -> None:
    first = repo.sha
    repo.commit({"README.md": b"new", "sub/c.txt": b""}, title="Second")
    api = HfApi(hub.url, token=False)
    tree = api.list_repo_tree(repo.repo_id, "sub", repo_type="dataset", expand=True)
    commits = {
        entry.path: entry.last_commit.oid
        for entry in tree
        if isinstance(entry, RepoFile) and entry.last_commit
    }
    assert commits == {"sub/b.wav": first, "sub/c.txt": repo.sha, "sub/ü 1.txt": first}


def test_paths_info_and_commits(hub: StandInHub, repo: Repository) -> None:
    api = HfApi(hub.url, token=False)
    infos = api.get_paths_info(repo.repo_id, ["sub", "sub/b.wav", "no"], repo_type="dataset")
    assert [info.path for info in infos] == ["sub", "sub/b.wav"]
    repo.commit({}, title="Second")
    commits = api.list_repo_commits(repo.repo_id, repo_type="dataset")
    assert [commit.title for commit in commits] == ["Second", "Initial commit"]


def test_revisions_stay_when_main_moves(hub: StandInHub, repo: Repository, tmp_path: Path) -> None:
    first = repo.sha
    repo.tag("v1")
    repo.branch("refs/convert/parquet")
    second = repo.commit({"README.md": b"new"}, delete=["sub/b.wav"])
    assert first != second == repo.sha
    found = {
        revision: Path(
            hf_hub_download(
                repo.repo_id,
                "README.md",
                repo_type="dataset",
                revision=revision,
                endpoint=hub.url,
                cache_dir=tmp_path,
                token=False,
            )
        ).read_bytes()
        for revision in ("main", second, first, "v1", "refs/convert/parquet")
    }
    assert list(found.values()) == [b"new", b"new", b"# hi\n", b"# hi\n", b"# hi\n"]
    with pytest.raises(EntryNotFoundError):
        download(hub, repo.repo_id, "sub/b.wav", tmp_path)
    refs = HfApi(hub.url, token=False).list_repo_refs(repo.repo_id, repo_type="dataset")
    assert [tag.target_commit for tag in refs.tags] == [first]


def test_commits_are_reproducible() -> None:
    def to_sha() -> str:
        repo = Repository("owner/name", lfs=())
        repo.commit(FILES)
        return repo.commit({"a": b"1"})

    assert to_sha() == to_sha()
    assert len(to_sha()) == 40


def test_missing_revision_and_repository(hub: StandInHub, repo: Repository) -> None:
    api = HfApi(hub.url, token=False)
    with pytest.raises(RevisionNotFoundError):
        api.dataset_info(repo.repo_id, revision="nowhere")
    with pytest.raises(RepositoryNotFoundError, match="401"):
        api.dataset_info("owner/nothing")
    with pytest.raises(RepositoryNotFoundError, match="404"):
        HfApi(hub.url, token=hub.token).dataset_info("owner/nothing")


def test_private_repository_needs_token(
    hub: StandInHub, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    repo_id = hub.add_dataset(to_repo_id(request), FILES, private=True).repo_id
    with pytest.raises(RepositoryNotFoundError, match="401"):
        HfApi(hub.url, token=False).dataset_info(repo_id)
    with pytest.raises(RepositoryNotFoundError, match="404"):
        HfApi(hub.url, token=hub.outsider_token).dataset_info(repo_id)
    with pytest.raises(HfHubHTTPError, match="401"):
        HfApi(hub.url, token="hf_invalid").dataset_info(repo_id)
    assert download(hub, repo_id, "sub/b.wav", tmp_path, hub.token) == WAV


def test_gated_repository_shows_list_but_no_file(
    hub: StandInHub, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    repo_id = hub.add_dataset(to_repo_id(request), FILES, gated=True).repo_id
    assert HfApi(hub.url, token=False).dataset_info(repo_id).gated == "auto"
    with pytest.raises(GatedRepoError, match="401"):
        download(hub, repo_id, "README.md", tmp_path)
    with pytest.raises(GatedRepoError, match="403"):
        download(hub, repo_id, "README.md", tmp_path, hub.outsider_token)
    assert download(hub, repo_id, "README.md", tmp_path, hub.token) == FILES["README.md"]


@pytest.mark.parametrize(
    ("wanted", "status", "start", "stop"),
    [
        ("bytes=10-19", 206, 10, 20),
        ("bytes=990-", 206, 990, 1000),
        ("bytes=-5", 206, 995, 1000),
        ("bytes=990-2000", 206, 990, 1000),
        ("bytes=1000-", 416, 0, 0),
        ("lines=1-2", 200, 0, 1000),
    ],
)
def test_range(
    hub: StandInHub, repo: Repository, wanted: str, status: int, start: int, stop: int
) -> None:
    redirect, _ = ask(to_url(hub, repo, "sub/b.wav"))
    response, body = ask(redirect.headers["Location"], headers={"Range": wanted})
    assert (response.status, body) == (status, WAV[start:stop])
    assert hub.requests[-1].range == wanted


# Faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
def test_status_fault_strikes_so_often_as_asked(
    hub: StandInHub, repo: Repository, status: int
) -> None:
    injection = hub.inject(Status(status, retry_after=7), path="*.md", times=2, skip=1)
    answers = [ask(to_url(hub, repo))[0] for _ in range(4)]
    assert [answer.status for answer in answers] == [200, status, status, 200]
    assert answers[1].headers["Retry-After"] == "7"
    assert injection.hits == 2


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Status(404), EntryNotFoundError),
        (Status(404, error_code="RevisionNotFound"), RevisionNotFoundError),
        (Status(403), GatedRepoError),
        (Status(401), RepositoryNotFoundError),
    ],
)
def test_client_understands_error_code(
    hub: StandInHub, repo: Repository, fault: Fault, error: type[Exception], tmp_path: Path
) -> None:
    hub.inject(fault, kind="head", times=None)
    with pytest.raises(error):
        download(hub, repo.repo_id, "README.md", tmp_path)


@pytest.mark.parametrize("path", ["README.md", "sub/b.wav"])
def test_client_fails_on_body_and_succeeds_next_time(
    hub: StandInHub, repo: Repository, path: str, tmp_path: Path
) -> None:
    hub.inject(Status(410), repo_id=repo.repo_id)  # 5xx would be retried by hub 0.x, after a sleep
    with pytest.raises(HfHubHTTPError, match="410"):
        download(hub, repo.repo_id, path, tmp_path)
    assert download(hub, repo.repo_id, path, tmp_path) == FILES[path]


def test_client_accepts_wrong_bytes(hub: StandInHub, repo: Repository, tmp_path: Path) -> None:
    hub.inject(WrongBytes(), path="sub/*")
    found = download(hub, repo.repo_id, "sub/b.wav", tmp_path)
    assert len(found) == len(WAV)
    assert [i for i in range(len(WAV)) if found[i] != WAV[i]] == [500]


def test_drop(hub: StandInHub, repo: Repository) -> None:
    hub.inject(Drop())
    with pytest.raises(http.client.RemoteDisconnected):
        ask(to_url(hub, repo))
    assert hub.requests[-1].status == 0


def test_reset(hub: StandInHub, repo: Repository) -> None:
    hub.inject(Reset(after=2))
    with pytest.raises(ConnectionResetError):
        ask(to_url(hub, repo))
    assert hub.requests[-1].bytes_sent == 2


def test_truncate(hub: StandInHub, repo: Repository) -> None:
    hub.inject(Truncate(after=2))
    with pytest.raises(http.client.IncompleteRead) as caught:
        ask(to_url(hub, repo))
    assert caught.value.partial == b"# "


def test_content_length_too_large(hub: StandInHub, repo: Repository) -> None:
    hub.inject(WrongLength(3))
    with pytest.raises(http.client.IncompleteRead, match="3 more expected"):
        ask(to_url(hub, repo))


def test_content_length_too_small(hub: StandInHub, repo: Repository) -> None:
    hub.inject(WrongLength(-3))
    assert ask(to_url(hub, repo))[1] == b"# "


def test_linked_size_of_lfs_file_is_wrong(
    hub: StandInHub, repo: Repository, tmp_path: Path
) -> None:
    hub.inject(WrongLength(3), kind="head")
    with pytest.raises(OSError, match="should be of size 1003"):
        download(hub, repo.repo_id, "sub/b.wav", tmp_path)


def test_range_ignored(hub: StandInHub, repo: Repository) -> None:
    hub.inject(IgnoreRange())
    response, body = ask(to_url(hub, repo), headers={"Range": "bytes=2-3"})
    assert (response.status, body) == (200, FILES["README.md"])


def test_delay_goes_with_other_faults(hub: StandInHub, repo: Repository) -> None:
    hub.inject(Delay(0.001), kind="any", times=None)
    hub.inject(Status(500))
    assert [ask(to_url(hub, repo))[0].status for _ in range(2)] == [500, 200]


def test_misspelt_kind_is_refused(hub: StandInHub) -> None:
    with pytest.raises(ValueError, match="got 'bodies', expected one of"):
        hub.inject(Drop(), kind="bodies")


def test_client_killed_in_mid_body(hub: StandInHub, repo: Repository, tmp_path: Path) -> None:
    block = Block(after=600)
    hub.inject(block, path="*.wav")
    code = """if True:
        import sys
        from huggingface_hub import hf_hub_download
        hf_hub_download(sys.argv[1], "sub/b.wav", repo_type="dataset")
    """
    command = [sys.executable, "-c", code, repo.repo_id]
    client = subprocess.Popen(command, env=client_environment(hub, tmp_path))
    assert block.reached.wait(timeout=30)
    client.send_signal(signal.SIGKILL)
    assert client.wait() == -signal.SIGKILL
    assert hub.requests[-1].bytes_sent == 600
    block.release.set()
    subprocess.run(command, env=client_environment(hub, tmp_path), check=True)
    assert WAV in read_folder(tmp_path).values()


def test_environment_of_caller_is_left_out(
    hub: StandInHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "of the caller")
    monkeypatch.setenv("HF_DATASETS_CACHE", "of the caller")
    found = client_environment(hub, tmp_path)
    assert "of the caller" not in found.values()
    assert client_environment(hub, tmp_path, hub.token)["HF_TOKEN"] == hub.token


def test_closed_hub_refuses() -> None:
    with StandInHub() as hub:
        repo = hub.add_dataset("owner/name", FILES)
        connection = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=10)
        connection.request("GET", f"/api/datasets/{repo.repo_id}")
        assert json.load(connection.getresponse())["sha"] == repo.sha
    # The connection was kept alive until now: its end shows on writing or on reading.
    with pytest.raises(ConnectionError):
        connection.request("GET", f"/api/datasets/{repo.repo_id}")
        connection.getresponse()
    connection.close()
    with pytest.raises(ConnectionRefusedError):
        ask(hub.url)


# Pushing -------------------------------------------------------------------------------------


def test_upload_folder_becomes_revision(
    hub: StandInHub, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    for path, content in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    code = """if True:
        import sys
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError
        api, (_, repo_id, folder) = HfApi(), sys.argv
        api.create_repo(repo_id, repo_type="dataset", private=True)
        api.create_repo(repo_id, repo_type="dataset", exist_ok=True)
        try:
            api.upload_folder(folder_path=folder, repo_id=repo_id, repo_type="dataset")
        except HfHubHTTPError as error:
            assert error.response.status_code == 500, error
        else:
            raise AssertionError("the first commit should fail")
        assert api.list_repo_files(repo_id, repo_type="dataset") == [".gitattributes"]
        api.upload_folder(folder_path=folder, repo_id=repo_id, repo_type="dataset")
    """
    repo_id = to_repo_id(request)
    hub.inject(Status(500), kind="commit")
    run_client(hub, tmp_path, code, repo_id, str(folder))
    repo = hub.repos[repo_id]
    assert repo.private
    assert len(repo.commits) == 2
    files = repo.read_files()
    del files[".gitattributes"]
    assert files == FILES
    assert hub.count("put") == 1  # the first attempt had stored the LFS file
    assert download(hub, repo_id, "sub/b.wav", tmp_path, hub.token) == WAV


def test_delete_folder(hub: StandInHub, repo: Repository) -> None:
    response, _ = post_commit(hub, repo, {"key": "deletedFolder", "value": {"path": "sub/"}})
    assert response.status == 200
    assert list(repo.read_files()) == ["README.md"]


def test_commit_on_outdated_parent(hub: StandInHub, repo: Repository) -> None:
    outdated = repo.sha
    repo.commit({"a": b"1"})
    response, _ = post_commit(hub, repo, parent=outdated)
    assert response.status == 412


def test_commit_whose_answer_is_lost(hub: StandInHub, repo: Repository) -> None:
    hub.inject(Reset(), kind="commit")
    with pytest.raises(ConnectionResetError):
        post_commit(hub, repo, {"key": "deletedFile", "value": {"path": "README.md"}})
    assert "README.md" not in repo.read_files()


def test_dropped_commit_is_not_made(hub: StandInHub, repo: Repository) -> None:
    hub.inject(Drop(), kind="commit")
    with pytest.raises(http.client.RemoteDisconnected):
        post_commit(hub, repo, {"key": "deletedFile", "value": {"path": "README.md"}})
    assert repo.read_files() == FILES


def test_push_without_right(hub: StandInHub, repo: Repository) -> None:
    api = HfApi(hub.url, token=hub.outsider_token)
    assert api.whoami()["name"] == "outsider"
    with pytest.raises(HfHubHTTPError, match="403"):
        api.upload_file(
            path_or_fileobj=b"", path_in_repo="a", repo_id=repo.repo_id, repo_type="dataset"
        )


def test_push_to_hub_round_trip(
    hub: StandInHub, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    code = """if True:
        import sys
        from datasets import Dataset, load_dataset
        repo_id = sys.argv[1]
        rows = {"text": ["a", "b"], "number": [1, 2]}
        Dataset.from_dict(rows).push_to_hub(repo_id, split="test")
        Dataset.from_dict(rows).push_to_hub(repo_id, "second", split="test")
        assert load_dataset(repo_id, split="test").to_dict() == rows
        assert list(load_dataset(repo_id, "second", split="test", streaming=True))[1] == {
            "text": "b", "number": 2,
        }
    """
    repo_id = to_repo_id(request)
    run_client(hub, tmp_path, code, repo_id)
    paths = set(hub.repos[repo_id].read_files())
    assert "README.md" in paths
    assert sum(path.endswith(".parquet") for path in paths) == 2
    assert hub.count("put") == 1  # both configurations have the same content
