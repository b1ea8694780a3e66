"""A stand-in for the Hugging Face Hub, for tests and benchmarks without a network.

    with StandInHub() as hub:
        repo = hub.add_dataset("owner/name", {"a/b.wav": b"RIFF"}, private=True)
        hub.inject(Status(503), path="*.wav", kind="body", times=1)
        subprocess.run(command, env=client_environment(hub, tmp_path, token=hub.token))
        assert hub.count("body", path="*.wav") == 2

It serves datasets to the real clients: listing, downloading (with LFS files on another host name,
as on the Hub) and pushing with xet switched off. Repositories live in memory; revisions are real.
Not offered: xet, pull requests, card metadata in the repository info.

One server may serve a whole session: `reset` it and take a fresh repository id for each test.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import ClassVar
from urllib.parse import parse_qs, quote, unquote, urlencode

Seconds = float

DEFAULT_LFS = ("*.parquet", "*.wav", "*.mp3", "*.flac", "*.ogg")
FIRST_COMMIT_DATE = datetime(2025, 1, 1, tzinfo=timezone.utc)
MEMBER = "member"
OUTSIDER = "outsider"

# Repositories --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Blob:
    """Content of one file, with the names that git and LFS give it."""

    content: bytes
    is_lfs: bool

    @cached_property
    def sha256(self) -> str:
        """Name of an LFS file."""
        return hashlib.sha256(self.content).hexdigest()

    @cached_property
    def pointer(self) -> bytes:
        """What git stores for an LFS file; the version line of a real pointer is left out."""
        return f"oid sha256:{self.sha256}\nsize {len(self.content)}\n".encode()

    @cached_property
    def git_oid(self) -> str:
        """Git's name of the content, or of the pointer of an LFS file."""
        stored = self.pointer if self.is_lfs else self.content
        return hashlib.sha1(b"blob %d\0" % len(stored) + stored).hexdigest()

    @property
    def etag(self) -> str:
        """What the clients use as the name in their cache."""
        return self.sha256 if self.is_lfs else self.git_oid


@dataclass(frozen=True, eq=False)
class Commit:
    """A state of all files; blobs that did not change are shared with the parent."""

    parent: Commit | None
    files: Mapping[str, Blob]
    title: str
    date: datetime
    sha: str

    def to_last_change(self, path: str) -> Commit:
        """Return the commit that gave the file its present content."""
        commit = self
        while commit.parent and commit.parent.files.get(path) is commit.files[path]:
            commit = commit.parent
        return commit


class Repository:
    """A dataset repository.

    Attributes:
        branches: Name to commit; `main` always exists after the first commit.
        tags: Name to commit.
        commits: All commits by sha, the oldest first.
        objects: LFS content by sha256, also what was uploaded but not committed.
    """

    def __init__(
        self,
        repo_id: str,
        lfs: Iterable[str] = DEFAULT_LFS,
        private: bool = False,
        gated: bool = False,
    ) -> None:
        self.repo_id = repo_id
        self.lfs = tuple(lfs)
        self.private = private
        self.gated = gated
        self.branches: dict[str, Commit] = {}
        self.tags: dict[str, Commit] = {}
        self.commits: dict[str, Commit] = {}
        self.objects: dict[str, Blob] = {}
        self._lock = threading.Lock()

    @property
    def sha(self) -> str:
        """The commit that `main` points to."""
        return self.branches["main"].sha

    def is_lfs(self, path: str) -> bool:
        """Say whether a file of this name is stored outside git."""
        return any(fnmatchcase(path, pattern) for pattern in self.lfs)

    def commit(
        self,
        files: Mapping[str, bytes | Blob],
        *,
        delete: Iterable[str] = (),
        branch: str = "main",
        title: str = "Update",
        date: datetime | None = None,
    ) -> str:
        """Add or replace files on a branch, which is created if need be.

        Args:
            files: Path in the repository to content.
            delete: Paths to remove.
            branch: Moves to the new commit; other branches and tags stay.
            title: First line of the message.
            date: By default one day after the parent, so that commits are reproducible.

        Returns:
            The new commit: 40 hex digits that depend on nothing but the arguments and the parent.
        """
        blobs = {
            path: file if isinstance(file, Blob) else Blob(file, self.is_lfs(path))
            for path, file in files.items()
        }
        with self._lock:
            parent = self.branches.get(branch) or self.branches.get("main")
            merged = {**(parent.files if parent else {}), **blobs}
            ordered = {path: merged[path] for path in sorted(merged.keys() - set(delete))}
            date = date or (parent.date + timedelta(days=1) if parent else FIRST_COMMIT_DATE)
            oids = [f"{path} {blob.git_oid}" for path, blob in ordered.items()]
            parts = [self.repo_id, parent.sha if parent else "", title, date.isoformat(), *oids]
            sha = hashlib.sha1("\n".join(parts).encode()).hexdigest()
            self.commits[sha] = self.branches[branch] = Commit(parent, ordered, title, date, sha)
            self.objects |= {blob.sha256: blob for blob in blobs.values() if blob.is_lfs}
        return sha

    def branch(self, name: str, revision: str = "main") -> None:
        """Let a branch point to a revision."""
        self.branches[name] = self[revision]

    def tag(self, name: str, revision: str = "main") -> None:
        """Let a tag point to a revision."""
        self.tags[name] = self[revision]

    def __getitem__(self, revision: str) -> Commit:
        """Return the commit of a branch, a tag or a full sha."""
        for commits in (self.branches, self.tags, self.commits):
            if revision in commits:
                return commits[revision]
        raise KeyError(f"{self.repo_id} has no revision {revision!r}")

    def read_files(self, revision: str = "main") -> dict[str, bytes]:
        """Return path to content of every file at a revision."""
        return {path: blob.content for path, blob in self[revision].files.items()}


@lru_cache(maxsize=16)  # one listing is asked for page by page
def to_tree(commit: Commit) -> Mapping[str, Blob | None]:
    """Return path to blob of all files, and to None of the folders they imply, sorted by path."""
    tree: dict[str, Blob | None] = dict(commit.files)
    for path in commit.files:
        while path := path.rpartition("/")[0]:
            tree[path] = None
    return {path: tree[path] for path in sorted(tree)}


def select_folder(commit: Commit, folder: str, recursive: bool) -> list[str]:
    """Return the paths in a folder ("" is the root), with those below it if asked for."""
    prefix = f"{folder}/" if folder else ""
    return [
        path
        for path in to_tree(commit)
        if path.startswith(prefix) and (recursive or "/" not in path[len(prefix) :])
    ]


# Answers and faults --------------------------------------------------------------------------

NO_STATUS = 0  # the connection ends before a status line


@dataclass(frozen=True)
class Answer:
    """What is sent back. Endpoints fill the first block, faults alter the second."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_ranged: bool = False  # a Range header is honoured

    delay: Seconds = 0.0
    length_error: int = 0  # added to Content-Length
    cut_at: int | None = None  # the connection ends after this many bytes of the body
    is_reset: bool = False  # it ends with a reset and not with an orderly close
    block: Block | None = None


class Fault:
    """Something that goes wrong with a request."""

    # With True the endpoint never runs: a commit is not made, an upload is not stored.
    refuses: ClassVar[bool] = False

    def alter(self, answer: Answer) -> Answer:
        """Return the answer as the client is to get it."""
        raise NotImplementedError


@dataclass(frozen=True)
class Status(Fault):
    """An error status; 401, 403 and 404 say `X-Error-Code` as the Hub does."""

    status: int
    retry_after: int | None = None
    error_code: str | None = None
    refuses: ClassVar[bool] = True

    def alter(self, answer: Answer) -> Answer:
        usual_codes = {401: "RepoNotFound", 403: "GatedRepo", 404: "EntryNotFound"}
        code = self.error_code or usual_codes.get(self.status)
        refusal = HubError(self.status, code, "Fault of the stand-in").to_answer()
        retry = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return replace(refusal, headers={**refusal.headers, **retry}, delay=answer.delay)


@dataclass(frozen=True)
class Drop(Fault):
    """The connection is closed before any answer."""

    refuses: ClassVar[bool] = True

    def alter(self, answer: Answer) -> Answer:
        return replace(answer, status=NO_STATUS, cut_at=0)


@dataclass(frozen=True)
class Reset(Fault):
    """The connection is reset after some bytes of the body.

    On a commit or an upload: it is done, but the client doesn't learn it.
    """

    after: int = 0

    def alter(self, answer: Answer) -> Answer:
        return replace(answer, cut_at=self.after, is_reset=True)


@dataclass(frozen=True)
class Truncate(Fault):
    """The body ends early, against its Content-Length, with an orderly close."""

    after: int = 0

    def alter(self, answer: Answer) -> Answer:
        return replace(answer, cut_at=self.after)


@dataclass(frozen=True)
class WrongBytes(Fault):
    """One byte in the middle of the body is inverted: right length and a plausible start."""

    def alter(self, answer: Answer) -> Answer:
        middle = len(answer.body) // 2
        inverted = bytes(byte ^ 0xFF for byte in answer.body[middle : middle + 1])
        return replace(answer, body=answer.body[:middle] + inverted + answer.body[middle + 1 :])


@dataclass(frozen=True)
class WrongLength(Fault):
    """Content-Length (on a HEAD of an LFS file X-Linked-Size) is too large by this many bytes.

    With a negative number it is too small. The whole body is sent, then the connection closed.
    """

    by: int = 1

    def alter(self, answer: Answer) -> Answer:
        headers = dict(answer.headers)
        if "X-Linked-Size" in headers:
            headers["X-Linked-Size"] = str(int(headers["X-Linked-Size"]) + self.by)
            return replace(answer, headers=headers)
        return replace(answer, length_error=self.by, cut_at=len(answer.body))


@dataclass(frozen=True)
class IgnoreRange(Fault):
    """The whole file is sent with status 200 although a part was asked for."""

    def alter(self, answer: Answer) -> Answer:
        return replace(answer, is_ranged=False)


@dataclass(frozen=True)
class Delay(Fault):
    """The answer starts later; with kind="any" and times=None the latency of a network."""

    seconds: Seconds

    def alter(self, answer: Answer) -> Answer:
        return replace(answer, delay=answer.delay + self.seconds)


@dataclass(frozen=True, eq=False)
class Block(Fault):
    """The body stops in the middle until the test goes on.

    `reached.wait(timeout)` returns once `after` bytes are sent; `release.set()` sends the rest.
    """

    after: int = 0
    reached: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)

    def alter(self, answer: Answer) -> Answer:
        return replace(answer, block=self)


@dataclass(eq=False)
class HubError(Exception):
    """An endpoint says no."""

    status: int
    error_code: str | None
    message: str

    def to_answer(self) -> Answer:
        """Return status, headers and JSON as the Hub sends them."""
        headers = {"X-Error-Message": self.message}
        if self.error_code:
            headers["X-Error-Code"] = self.error_code
        return to_json({"error": self.message}, self.status, headers)


def to_json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Return an answer with a JSON body."""
    content_type = {"Content-Type": "application/json; charset=utf-8"}
    return Answer(status, {**content_type, **(headers or {})}, json.dumps(value).encode())


def parse_commit(payload: bytes) -> dict[str, list[dict[str, str]]]:
    """Return key to values of lines such as {"key": "deletedFile", "value": {"path": "a.wav"}}."""
    keys = ("header", "file", "lfsFile", "deletedFile", "deletedFolder")
    changes: dict[str, list[dict[str, str]]] = {key: [] for key in keys}
    for line in payload.splitlines():
        change = json.loads(line)
        changes[change["key"]].append(change["value"])
    return changes


def select_range(answer: Answer, wanted: str | None) -> Answer:
    """Cut the answer to a Range header such as "bytes=10-19", "bytes=10-" or "bytes=-5"."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted or "")
    if not (match and answer.is_ranged and any(match.groups())):
        return answer
    size = len(answer.body)
    first, last = match.groups()
    start = int(first) if first else max(size - int(last), 0)
    stop = min(int(last) + 1, size) if first and last else size
    if start >= stop:
        headers = {**answer.headers, "Content-Range": f"bytes */{size}"}
        return replace(answer, status=416, headers=headers, body=b"")
    headers = {**answer.headers, "Content-Range": f"bytes {start}-{stop - 1}/{size}"}
    return replace(answer, status=206, headers=headers, body=answer.body[start:stop])


# The hub -------------------------------------------------------------------------------------


@dataclass
class Request:
    """An entry of the log.

    `kind` is one of `KINDS`; `path` the file's path in the repository, elsewhere that of the URL.
    `bytes_sent` counts the bytes of the body that went out so far; it grows until the end.
    """

    method: str
    kind: str
    host: str
    repo_id: str | None
    path: str
    range: str | None
    has_token: bool
    status: int = NO_STATUS
    bytes_sent: int = 0

    def matches(self, kind: str, path: str, repo_id: str | None) -> bool:
        """Say whether kind (or group of kinds), path pattern and repository agree."""
        return (
            self.kind in to_kinds(kind)
            and fnmatchcase(self.path, path)
            and repo_id in (None, self.repo_id)
        )


@dataclass
class Injection:
    """A fault with the requests it is meant for; `hits` counts those it met."""

    fault: Fault
    path: str
    kind: str
    times: int | None
    skip: int
    repo_id: str | None
    hits: int = 0

    def take(self, request: Request) -> bool:
        """Say whether the fault strikes this request, and count it."""
        if not request.matches(self.kind, self.path, self.repo_id):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times is not None and self.hits >= self.times:
            return False
        self.hits += 1
        return True


class StandInHub:
    """The server: runs from its creation until `close`, on 127.0.0.1 and a free port.

    Attributes:
        url: What clients take as HF_ENDPOINT.
        storage_url: The same server under another host name, where LFS files are.
        token: Reads and writes everything.
        outsider_token: Valid, but sees no private repository, no gated file, and writes nothing.
        page_size: Most entries in one page of a listing.
        repos: Repository id to repository, including pushed ones.
    """

    def __init__(self, page_size: int = 1000) -> None:
        self.page_size = page_size
        self.token = "hf_member"
        self.outsider_token = "hf_outsider"
        self.users = {self.token: MEMBER, self.outsider_token: OUTSIDER}
        self.repos: dict[str, Repository] = {}
        self.closing = threading.Event()
        self._requests: list[Request] = []
        self._injections: list[Injection] = []
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.hub = self
        port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{port}"
        self.storage_url = f"http://localhost:{port}"
        # The default poll of half a second would be waited for by every close.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.daemon = True
        self._thread.start()

    def __enter__(self) -> StandInHub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections and the server; later requests are refused. May be called twice."""
        if self.closing.is_set():
            return
        self.closing.set()
        self.reset()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.close_connections()

    def reset(self) -> None:
        """Forget log and faults, release what is blocked; repositories stay."""
        with self._lock:
            for injection in self._injections:
                if isinstance(injection.fault, Block):
                    injection.fault.release.set()
            self._injections.clear()
            self._requests.clear()

    def add_dataset(
        self,
        repo_id: str,
        files: Mapping[str, bytes],
        *,
        lfs: Iterable[str] = DEFAULT_LFS,
        private: bool = False,
        gated: bool = False,
    ) -> Repository:
        """Create a repository with one commit.

        Args:
            repo_id: "owner/name". Clients cache by it: take a fresh one per test.
            files: Path in the repository to content.
            lfs: Patterns of the files that the storage host serves; "*" also matches "/".
            private: Without `token` it seems not to exist.
            gated: Listed for everybody, but files need `token`.
        """
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo_id):
            raise ValueError(f"repo_id: got {repo_id!r}, expected 'owner/name'")
        if repo_id in self.repos:
            raise ValueError(f"repo_id: {repo_id!r} exists already; commit to it")
        repo = Repository(repo_id, lfs, private, gated)
        repo.commit(files, title="Initial commit")
        self.repos[repo_id] = repo
        return repo

    def inject(
        self,
        fault: Fault,
        *,
        kind: str = "body",
        path: str = "*",
        times: int | None = 1,
        skip: int = 0,
        repo_id: str | None = None,
    ) -> Injection:
        """Let requests fail. Several faults on one request work together, in order.

        Args:
            fault: What happens.
            kind: One of `KINDS` or of `GROUPS`, e.g. "head", "body", "api", "commit".
            path: Pattern for `Request.path`; "*" also matches "/".
            times: How often; None is always.
            skip: So many matching requests succeed first.
            repo_id: Only requests to this repository.

        Returns:
            The record whose `hits` says how often the fault struck.
        """
        to_kinds(kind)  # a misspelt kind would never strike
        injection = Injection(fault, path, kind, times, skip, repo_id)
        with self._lock:
            self._injections.append(injection)
        return injection

    @property
    def requests(self) -> list[Request]:
        """The log since the last reset, in order of arrival."""
        with self._lock:
            return list(self._requests)

    def select_requests(
        self, kind: str = "any", *, path: str = "*", repo_id: str | None = None
    ) -> list[Request]:
        """Return the log entries that match; arguments as in `inject`."""
        return [request for request in self.requests if request.matches(kind, path, repo_id)]

    def count(self, kind: str = "any", *, path: str = "*", repo_id: str | None = None) -> int:
        """Count the log entries that match; arguments as in `inject`."""
        return len(self.select_requests(kind, path=path, repo_id=repo_id))

    def count_by_kind(self, repo_id: str | None = None) -> Counter[str]:
        """Return kind to number of requests."""
        return Counter(request.kind for request in self.select_requests(repo_id=repo_id))

    def take_faults(self, request: Request) -> list[Fault]:
        """Log a request and return the faults that strike it."""
        with self._lock:
            self._requests.append(request)
            return [entry.fault for entry in self._injections if entry.take(request)]


def client_environment(
    hub: StandInHub, home_dir: str | Path, token: str | None = None
) -> dict[str, str]:
    """Return all environment variables for a client that knows only this hub.

    Args:
        hub: Becomes HF_ENDPOINT, which clients read when they are imported.
        home_dir: Gets the caches, in a folder of its own.
        token: Becomes HF_TOKEN; without it the client is not logged in.

    Returns:
        A copy of the environment for `subprocess`, free of the caller's own settings of the
        clients. A conftest may `os.environ.update` with it before a client is imported.
    """
    foreign = ("HF_", "HUGGING_FACE_", "TRANSFORMERS_")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(foreign)},
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(Path(home_dir) / "hf_home"),
        "HF_TOKEN": token or "",
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        # Otherwise some loads send one more HEAD request, to another host.
        "HF_UPDATE_DOWNLOAD_COUNTS": "0",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }


# HTTP ----------------------------------------------------------------------------------------


class _Server(ThreadingHTTPServer):
    hub: StandInHub
    daemon_threads = True
    request_queue_size = 128  # clients download in parallel; 5 is the default

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        super().__init__(address, handler)
        self.connections: set[socket.socket] = set()

    def server_bind(self) -> None:
        # HTTPServer would look up its own name, which takes seconds on some machines.
        TCPServer.server_bind(self)

    def close_connections(self) -> None:
        """End connections kept alive: their threads would go on answering."""
        for connection in tuple(self.connections):
            with suppress(OSError):  # the client was faster
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        # A client that was killed or gave up is no fault of the server; anything else is.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    """One connection: finds the endpoint, lets faults alter its answer, sends it."""

    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes: else 40 ms apart
    chunk_size = 65536

    def setup(self) -> None:
        super().setup()
        self.hub = self.server.hub
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        super().finish()

    def log_message(self, *_: object) -> None:
        """Keep stderr for the client under test; `StandInHub.requests` is the log."""

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def _serve(self) -> None:
        self.payload = self._read_payload()
        # Split before unquoting: a revision such as refs/convert/parquet arrives as one part.
        raw_path, _, query = self.path.partition("?")
        self.query = {name: values[-1] for name, values in parse_qs(query).items()}
        route, arguments = _find_route(self.command, raw_path)
        request = self._to_request(route, arguments, unquote(raw_path))
        faults = self.hub.take_faults(request)
        answer = Answer()
        if not any(fault.refuses for fault in faults):
            try:
                answer = route.endpoint(self, **arguments)
            except HubError as refusal:
                answer = refusal.to_answer()
        for fault in faults:
            answer = fault.alter(answer)
        if self.command == "GET":
            answer = select_range(answer, request.range)
        self._send(answer, request)

    def _read_payload(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _to_request(self, route: _Route, arguments: Mapping[str, str], url_path: str) -> Request:
        repo_id = arguments.get("repo_id")
        is_file = route.kind == "file"
        return Request(
            method=self.command,
            kind=self._find_file_kind(arguments) if is_file else route.kind,
            host=self.headers.get("Host", "").partition(":")[0],
            repo_id=repo_id,
            path=arguments["path"] if is_file else url_path,
            range=self.headers.get("Range"),
            has_token="Authorization" in self.headers,
        )

    def _find_file_kind(self, arguments: Mapping[str, str]) -> str:
        if self.command == "HEAD":
            return "head"
        repo = self.hub.repos.get(arguments["repo_id"])
        is_redirect = "revision" in arguments and repo and repo.is_lfs(arguments["path"])
        return "redirect" if is_redirect else "body"

    def _send(self, answer: Answer, request: Request) -> None:
        # Waiting for the end of the hub and not for the time: closing need not wait.
        self.hub.closing.wait(answer.delay)
        request.status = answer.status
        try:
            if answer.status != NO_STATUS:
                self._send_head(answer)
                self._send_body(answer, request)
        except ConnectionError:
            self.close_connection = True
        if answer.cut_at is not None:
            self._end_connection(answer.is_reset)

    def _send_head(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body) + answer.length_error))
        self.end_headers()

    def _send_body(self, answer: Answer, request: Request) -> None:
        body = memoryview(b"" if self.command == "HEAD" else answer.body)[: answer.cut_at]
        block = answer.block
        if block:
            self._write(body[: block.after], request)
            block.reached.set()
            block.release.wait()
        self._write(body[block.after if block else 0 :], request)

    def _write(self, body: memoryview, request: Request) -> None:
        for start in range(0, len(body), self.chunk_size):
            chunk = body[start : start + self.chunk_size]
            # Counted before: a client that has everything must not find a smaller number.
            request.bytes_sent += len(chunk)
            self.wfile.write(chunk)

    def _end_connection(self, is_reset: bool) -> None:
        self.close_connection = True
        if is_reset:
            # No lingering makes close() send a reset; the reader shares the socket and holds it.
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.rfile.close()
            self.connection.close()

    # Access ----------------------------------------------------------------------------------

    def _find_user(self) -> str | None:
        header = self.headers.get("Authorization")
        if header is None:
            return None
        user = self.hub.users.get(header.removeprefix("Bearer "))
        if user is None:
            raise HubError(401, None, "Invalid credentials in Authorization header")
        return user

    def _check_member(self) -> None:
        user = self._find_user()
        if user != MEMBER:
            raise HubError(401 if user is None else 403, None, "You have no right to write here")

    def _find_repo(self, repo_id: str) -> Repository:
        user = self._find_user()
        repo = self.hub.repos.get(repo_id)
        # The Hub doesn't tell whether a private repository exists; 404 only for who logged in.
        if repo is None or (repo.private and user != MEMBER):
            raise HubError(401 if user is None else 404, "RepoNotFound", "Repository not found")
        return repo

    def _find_commit(self, repo_id: str, revision: str) -> Commit:
        repo = self._find_repo(repo_id)
        try:
            return repo[revision]
        except KeyError:
            raise HubError(404, "RevisionNotFound", f"Invalid rev id: {revision}") from None

    def _check_gate(self, repo: Repository) -> None:
        user = self._find_user()
        if repo.gated and user != MEMBER:
            message = f"Access to dataset {repo.repo_id} is restricted"
            raise HubError(401 if user is None else 403, "GatedRepo", message)

    # Files -----------------------------------------------------------------------------------

    def resolve(self, repo_id: str, revision: str, path: str) -> Answer:
        """Answer with a regular file, or with the address of an LFS file."""
        commit = self._find_commit(repo_id, revision)
        self._check_gate(self.hub.repos[repo_id])
        blob = commit.files.get(path)
        if blob is None:
            headers = {"X-Repo-Commit": commit.sha}
            refusal = HubError(404, "EntryNotFound", "Entry not found").to_answer()
            return replace(refusal, headers={**refusal.headers, **headers})
        headers = {"X-Repo-Commit": commit.sha, "ETag": f'"{blob.etag}"'}
        if not blob.is_lfs:
            return _to_file(blob, headers)
        headers |= {"X-Linked-Size": str(len(blob.content)), "X-Linked-ETag": f'"{blob.etag}"'}
        location = f"{self.hub.storage_url}/lfs/{repo_id}/{blob.sha256}/{quote(path)}"
        return Answer(302, {**headers, "Location": location}, b"Found\n")

    def read_stored(self, repo_id: str, oid: str, path: str) -> Answer:
        """Answer with an LFS file; who knows the address may read, as with signed addresses."""
        objects = self._find_objects(repo_id)
        if oid not in objects:
            raise HubError(404, None, f"{repo_id} has no object {oid} for {path}")
        return _to_file(objects[oid], {"ETag": f'"{oid}"'})

    def _find_objects(self, repo_id: str) -> dict[str, Blob]:
        if repo_id not in self.hub.repos:
            raise HubError(404, None, f"{repo_id} does not exist")
        return self.hub.repos[repo_id].objects

    # Listing ---------------------------------------------------------------------------------

    def show_info(self, repo_id: str, revision: str = "main") -> Answer:
        """Answer with the repository at a revision; with ?blobs=true sizes and oids too."""
        commit = self._find_commit(repo_id, revision)
        repo = self.hub.repos[repo_id]
        has_details = self._is_true("blobs")
        siblings = [
            {"rfilename": path, **(_to_details(blob) if has_details else {})}
            for path, blob in commit.files.items()
        ]
        info = {
            "id": repo_id,
            "author": repo_id.partition("/")[0],
            "sha": commit.sha,
            "lastModified": _to_date(commit.date),
            "createdAt": _to_date(FIRST_COMMIT_DATE),
            "private": repo.private,
            "gated": "auto" if repo.gated else False,
            "siblings": siblings,
        }
        return to_json(info)

    def list_tree(self, repo_id: str, revision: str, path: str = "") -> Answer:
        """Answer with one page of a folder."""
        commit = self._find_commit(repo_id, revision)
        paths = select_folder(commit, path, self._is_true("recursive"))
        if path and not paths:
            raise HubError(404, "EntryNotFound", f"{path} does not exist on {revision}")
        start = int(self.query.get("cursor", 0))
        stop = start + self.hub.page_size
        headers = {}
        if stop < len(paths):
            query = urlencode({**self.query, "cursor": stop})
            url = f"{self.hub.url}{self.path.partition('?')[0]}?{query}"
            headers["Link"] = f'<{url}>; rel="next"'
        expand = self._is_true("expand")
        page = [_to_entry(path, commit, expand) for path in paths[start:stop]]
        return to_json(page, headers=headers)

    def list_paths(self, repo_id: str, revision: str) -> Answer:
        """Answer with the entries among the paths asked for; others are left out."""
        commit = self._find_commit(repo_id, revision)
        form = parse_qs(self.payload.decode())
        expand = form.get("expand", [""])[-1].lower() == "true"
        known = [path for path in form.get("paths", []) if path in to_tree(commit)]
        return to_json([_to_entry(path, commit, expand) for path in known])

    def list_refs(self, repo_id: str) -> Answer:
        """Answer with branches and tags."""
        repo = self._find_repo(repo_id)

        def to_refs(folder: str, commits: Mapping[str, Commit]) -> list[dict[str, str]]:
            return [
                {"name": name, "ref": f"refs/{folder}/{name}", "targetCommit": commit.sha}
                for name, commit in commits.items()
            ]

        refs = {"branches": to_refs("heads", repo.branches), "tags": to_refs("tags", repo.tags)}
        return to_json({**refs, "converts": [], "pullRequests": []})

    def list_commits(self, repo_id: str, revision: str) -> Answer:
        """Answer with the history, the newest first."""
        commit: Commit | None = self._find_commit(repo_id, revision)
        history = []
        while commit:
            history.append({**_to_change(commit), "authors": [{"user": MEMBER}]})
            commit = commit.parent
        return to_json(history)

    # Pushing ---------------------------------------------------------------------------------

    def show_user(self) -> Answer:
        """Answer with the user whose token it is."""
        user = self._find_user()
        if user is None:
            raise HubError(401, None, "Invalid username or password.")
        role = "write" if user == MEMBER else "read"
        token = {"displayName": user, "role": role}
        auth = {"type": "access_token", "accessToken": token}
        return to_json({"type": "user", "id": user, "name": user, "orgs": [], "auth": auth})

    def create_repo(self) -> Answer:
        """Create a repository that holds .gitattributes, as a new one on the Hub does."""
        self._check_member()
        wanted = json.loads(self.payload)
        repo_id = f"{wanted.get('organization') or MEMBER}/{wanted['name']}"
        url = f"{self.hub.url}/datasets/{repo_id}"
        if wanted.get("type") != "dataset":
            raise HubError(400, None, f"type: got {wanted.get('type')!r}, expected 'dataset'")
        if repo_id in self.hub.repos:
            return to_json({"error": "You already created this dataset repo", "url": url}, 409)
        private = bool(wanted.get("private")) or wanted.get("visibility") == "private"
        lines = [f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in DEFAULT_LFS]
        files = {".gitattributes": "".join(lines).encode()}
        self.hub.add_dataset(repo_id, files, private=private)
        return to_json({"url": url, "id": repo_id, "name": repo_id})

    def validate_yaml(self) -> Answer:
        """Accept every card: the Hub's rules are its own."""
        return to_json({"errors": [], "warnings": []})

    def preupload(self, repo_id: str, revision: str) -> Answer:
        """Say which files go to LFS, and the oids of those that exist."""
        self._check_member()
        commit = self._find_commit(repo_id, revision)
        repo = self.hub.repos[repo_id]
        files = []
        for path in (wanted["path"] for wanted in json.loads(self.payload)["files"]):
            mode = "lfs" if repo.is_lfs(path) else "regular"
            oid = commit.files[path].etag if path in commit.files else None
            files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return to_json({"files": files})

    def start_upload(self, repo_id: str) -> Answer:
        """Answer an LFS batch with the addresses to send objects to."""
        self._check_member()
        repo = self._find_repo(repo_id)
        objects = []
        for wanted in json.loads(self.payload)["objects"]:
            entry = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in repo.objects:  # else the client has nothing to send
                upload = {"href": f"{self.hub.storage_url}/lfs/{repo_id}/{wanted['oid']}"}
                verify = {"href": f"{self.hub.url}/lfs/{repo_id}/verify"}
                entry["actions"] = {"upload": upload, "verify": verify}
            objects.append(entry)
        return to_json({"transfer": "basic", "objects": objects})

    def store_upload(self, repo_id: str, oid: str) -> Answer:
        """Store an object whose content has the sha256 it claims."""
        blob = Blob(self.payload, is_lfs=True)
        if blob.sha256 != oid:
            raise HubError(400, None, f"{repo_id}: content is {blob.sha256}, expected {oid}")
        self._find_objects(repo_id)[oid] = blob
        return Answer(headers={"ETag": f'"{oid}"'})

    def verify_upload(self, repo_id: str) -> Answer:
        """Answer 200 if the object is stored with the size claimed."""
        self._check_member()
        wanted = json.loads(self.payload)
        stored = self._find_repo(repo_id).objects.get(wanted["oid"])
        if stored is None or len(stored.content) != wanted["size"]:
            raise HubError(404, None, f"{repo_id}: object {wanted['oid']} is not stored")
        return to_json({})

    def commit(self, repo_id: str, revision: str) -> Answer:
        """Make a commit; it may ask for the parent it was prepared on."""
        self._check_member()
        parent = self._find_commit(repo_id, revision)
        repo = self.hub.repos[repo_id]
        if revision not in repo.branches or "create_pr" in self.query:
            raise HubError(400, None, f"{revision} is no branch, or a pull request is wanted")
        changes = parse_commit(self.payload)
        (header,) = changes["header"]
        if header.get("parentCommit", parent.sha) != parent.sha:
            raise HubError(412, None, "A commit has happened since. Please refresh and try again.")
        files = {file["path"]: _to_regular(file["content"]) for file in changes["file"]}
        for file in changes["lfsFile"]:
            if file["oid"] not in repo.objects:
                raise HubError(400, None, f"LFS object {file['oid']} was not uploaded")
            files[file["path"]] = repo.objects[file["oid"]]
        folders = tuple(folder["path"].rstrip("/") + "/" for folder in changes["deletedFolder"])
        deleted = [file["path"] for file in changes["deletedFile"]]
        deleted += [path for path in parent.files if path.startswith(folders)]
        sha = repo.commit(files, delete=deleted, branch=revision, title=header["summary"])
        url = f"{self.hub.url}/datasets/{repo_id}/commit/{sha}"
        return to_json({"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""})

    def create_branch(self, repo_id: str, name: str) -> Answer:
        """Create a branch at a starting point."""
        self._check_member()
        start = json.loads(self.payload or b"{}").get("startingPoint", "main")
        commit = self._find_commit(repo_id, start)
        branches = self.hub.repos[repo_id].branches
        if name in branches:
            raise HubError(409, None, f"Reference already exists: {name}")
        branches[name] = commit
        return to_json({})

    def show_nothing(self) -> Answer:
        """Answer a request that the stand-in doesn't know."""
        raise HubError(404, None, f"The stand-in has no {self.command} {self.path}")

    def _is_true(self, name: str) -> bool:
        return self.query.get(name, "").lower() == "true"


def _to_file(blob: Blob, headers: Mapping[str, str]) -> Answer:
    headers = {**headers, "Content-Type": "application/octet-stream", "Accept-Ranges": "bytes"}
    return Answer(200, headers, blob.content, is_ranged=True)


def _to_regular(content: str) -> Blob:
    return Blob(base64.b64decode(content), is_lfs=False)


def _to_date(date: datetime) -> str:
    return date.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _to_change(commit: Commit) -> dict[str, str]:
    date = _to_date(commit.date)
    return {"id": commit.sha, "title": commit.title, "message": "", "date": date}


def _to_details(blob: Blob) -> dict[str, object]:
    size = len(blob.content)
    lfs = {"sha256": blob.sha256, "size": size, "pointerSize": len(blob.pointer)}
    return {"size": size, "blobId": blob.git_oid, **({"lfs": lfs} if blob.is_lfs else {})}


def _to_entry(path: str, commit: Commit, expand: bool) -> dict[str, object]:
    blob = to_tree(commit)[path]
    if blob is None:
        # A real one follows the content of the folder; the clients don't use it.
        oid = hashlib.sha1(f"{commit.sha} {path}".encode()).hexdigest()
        return {"type": "directory", "path": path, "oid": oid, "size": 0}
    size = len(blob.content)
    entry: dict[str, object] = {"type": "file", "path": path, "oid": blob.git_oid, "size": size}
    if blob.is_lfs:
        entry["lfs"] = {"oid": blob.sha256, "size": size, "pointerSize": len(blob.pointer)}
    if expand:
        entry["lastCommit"] = _to_change(commit.to_last_change(path))
    return entry


@dataclass(frozen=True)
class _Route:
    methods: tuple[str, ...]
    pattern: re.Pattern[str]
    kind: str
    endpoint: Callable[..., Answer]


def _to_route(methods: str, pattern: str, kind: str, endpoint: Callable[..., Answer]) -> _Route:
    # A repository id has two parts, a path any number, everything else is one part.
    parts = {"repo_id": "[^/]+/[^/]+", "path": ".+", "oid": "[0-9a-f]{64}"}
    regex = re.sub(r"{(\w+)}", lambda m: f"(?P<{m[1]}>{parts.get(m[1], '[^/]+')})", pattern)
    return _Route(tuple(methods.split()), re.compile(regex), kind, endpoint)


_API = "/api/datasets/{repo_id}"
_REPO = "/datasets/{repo_id}"
_LFS = "/lfs/{repo_id}"

_ROUTES = (
    _to_route("GET HEAD", _REPO + "/resolve/{revision}/{path}", "file", _Handler.resolve),
    _to_route("GET HEAD", _LFS + "/{oid}/{path}", "file", _Handler.read_stored),
    _to_route("GET", _API, "info", _Handler.show_info),
    _to_route("GET", _API + "/revision/{revision}", "info", _Handler.show_info),
    _to_route("GET", _API + "/tree/{revision}", "tree", _Handler.list_tree),
    _to_route("GET", _API + "/tree/{revision}/{path}", "tree", _Handler.list_tree),
    _to_route("POST", _API + "/paths-info/{revision}", "paths", _Handler.list_paths),
    _to_route("GET", _API + "/refs", "refs", _Handler.list_refs),
    _to_route("GET", _API + "/commits/{revision}", "commits", _Handler.list_commits),
    _to_route("GET", "/api/whoami-v2", "user", _Handler.show_user),
    _to_route("POST", "/api/repos/create", "create", _Handler.create_repo),
    _to_route("POST", "/api/validate-yaml", "validate", _Handler.validate_yaml),
    _to_route("POST", _API + "/branch/{name}", "branch", _Handler.create_branch),
    _to_route("POST", _API + "/preupload/{revision}", "preupload", _Handler.preupload),
    _to_route("POST", _API + "/commit/{revision}", "commit", _Handler.commit),
    _to_route("POST", _REPO + ".git/info/lfs/objects/batch", "batch", _Handler.start_upload),
    _to_route("PUT", _LFS + "/{oid}", "put", _Handler.store_upload),
    _to_route("POST", _LFS + "/verify", "verify", _Handler.verify_upload),
)
_NO_ROUTE = _to_route("", "", "unknown", _Handler.show_nothing)

# "redirect" and "body" are the GET of a file: for an LFS file first the one, then the other.
FILE_KINDS = ("head", "redirect", "body")
KINDS = tuple(
    dict.fromkeys((*FILE_KINDS, *(r.kind for r in _ROUTES if r.kind != "file"), "unknown"))
)
UPLOAD_KINDS = ("batch", "put", "verify")
GROUPS = {
    "any": KINDS,
    "get": ("redirect", "body"),
    "upload": UPLOAD_KINDS,
    "api": tuple(kind for kind in KINDS if kind not in (*FILE_KINDS, *UPLOAD_KINDS, "unknown")),
}


def to_kinds(name: str) -> tuple[str, ...]:
    """Return the kinds of request that a kind or a group of kinds stands for."""
    if name not in KINDS and name not in GROUPS:
        raise ValueError(f"kind: got {name!r}, expected one of {(*KINDS, *GROUPS)}")
    return GROUPS.get(name, (name,))


def _find_route(method: str, raw_path: str) -> tuple[_Route, dict[str, str]]:
    for route in _ROUTES:
        match = route.pattern.fullmatch(raw_path)
        if match and method in route.methods:
            return route, {name: unquote(value) for name, value in match.groupdict().items()}
    return _NO_ROUTE, {}
