"""Fetch the official recordings with their metadata into a folder that `data_dir=` loads.

    python scripts/fetch_official.py --out DIR [--repo-id OWNER/NAME] [--revision REV]
                                     [--metadata PATTERN ...]

Every file is compared with the size and digest that the Hub lists, then decoded. Run the same
command again after any interruption: only what is missing or damaged is fetched. The folder's
provenance.json names the repository and the commit, the sha256 of every file, and every change
that was made to an entry: its path style, its task's spelling, its id where that was repeated.
The folder stays at its commit unless --revision is given.

Gated or private repository: log in with `hf auth login`, or set HF_TOKEN.

Exit status: 0 if the folder is complete and every recording decodes, 1 if not, 2 for arguments
that can't be right, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import hashlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import (
    HFValidationError,
    build_hf_headers,
    get_session,
    hf_raise_for_status,
    validate_repo_id,
)
from tqdm import tqdm

import s2s_arena

# In the order of the benchmark's public JSON; what an entry has beside them is left out.
KEYS = (
    "id",
    "input_path",
    "text",
    "task",
    "task_description",
    "text_cn",
    "language",
    "category",
    "level",
    "noise",
)
NUM_WORKERS = 8
# A request that gets no byte for so long has failed; a file is given up after so much trying. The
# two together stay below 90 s, after which the command ends if nothing succeeds any more.
TIMEOUT, PATIENCE = 20.0, 60.0
PROVENANCE = "provenance.json"
METADATA = "metadata.json"
PARTIAL = ".partial"  # holds what is being written, in the same file system
TABLE_ENDINGS = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".xlsx", ".yaml")


class FetchError(RuntimeError):
    """The repository or the folder isn't what it must be; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    """A file of the repository as the Hub lists it.

    Attributes:
        path: In the repository.
        size: Bytes.
        digest: sha256 of an LFS file, else git's name of the content.
        is_lfs: Which of the two.
    """

    path: str
    size: int
    digest: str
    is_lfs: bool

    def describes(self, content: bytes) -> bool:
        """Tell whether these are the file's bytes."""
        if len(content) != self.size:
            return False
        if self.is_lfs:
            return hashlib.sha256(content).hexdigest() == self.digest
        blob = b"blob %d\0" % len(content) + content
        return hashlib.sha1(blob, usedforsecurity=False).hexdigest() == self.digest


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A repository at one commit.

    Attributes:
        repo_id: `owner/name`.
        commit: 40 hex digits.
        date: When the commit was made, ISO 8601.
        files: By their path in the repository.
    """

    repo_id: str
    commit: str
    date: str
    files: Mapping[str, RemoteFile]

    def read(self, path: str) -> bytes:
        """Download a file.

        Raises:
            OSError: If it can't be had; names the file and the reason.
        """
        file = self.files[path]
        url = huggingface_hub.hf_hub_url(
            self.repo_id, path, repo_type="dataset", revision=self.commit
        )

        def get() -> bytes:
            response = get_session().get(url, headers=build_hf_headers(), timeout=TIMEOUT)
            hf_raise_for_status(response)
            content: bytes = response.content
            if not file.describes(content):
                # As after a broken connection, the file is asked for again.
                raise ConnectionError(
                    f"{len(content)} bytes with sha256 {to_sha256(content)[:12]}... arrived, "
                    f"the Hub lists {file.size} bytes with digest {file.digest[:12]}..."
                )
            return content

        what = f"{path} of {self.repo_id} at commit {self.commit}"
        return s2s_arena.ask_hub(get, what, patience=PATIENCE)


@dataclasses.dataclass(frozen=True)
class Change:
    """One value of an entry that isn't as the repository has it; None: the key is left out."""

    file: str
    row: int
    id: str
    field: str
    published: object
    written: str | None


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the folder is to hold.

    Attributes:
        entries: Of metadata.json.
        changes: Against the entries as published.
        audio: Path in the folder to the file in the repository.
        metadata_files: What the entries were read from.
    """

    entries: list[dict[str, Any]]
    changes: list[Change]
    audio: Mapping[str, RemoteFile]
    metadata_files: tuple[str, ...]


def to_sha256(content: bytes) -> str:
    """Return the digest as hex digits."""
    return hashlib.sha256(content).hexdigest()


def to_json(value: object) -> bytes:
    """Return what a JSON file of the folder holds."""
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()


# The repository ----------------------------------------------------------------------------------


def read_snapshot(repo_id: str, revision: str) -> Snapshot:
    """Resolve a revision to a commit, once, and list its files."""
    api = huggingface_hub.HfApi()
    what = f"{repo_id} at revision {revision!r}"

    def read() -> Snapshot:
        info = api.dataset_info(repo_id, revision=revision, timeout=TIMEOUT)
        commit = str(info.sha)
        history = api.list_repo_commits(repo_id, repo_type="dataset", revision=commit)
        tree = api.list_repo_tree(repo_id, repo_type="dataset", revision=commit, recursive=True)
        files = {entry.path: to_remote_file(entry) for entry in tree if isinstance(entry, RepoFile)}
        return Snapshot(repo_id, commit, history[0].created_at.isoformat(), files)

    return s2s_arena.ask_hub(read, what, patience=PATIENCE)


def to_remote_file(entry: RepoFile) -> RemoteFile:
    """Read an entry of the Hub's listing that is a file."""
    if entry.lfs:
        return RemoteFile(entry.path, entry.lfs.size, entry.lfs.sha256, is_lfs=True)
    return RemoteFile(entry.path, entry.size, entry.blob_id, is_lfs=False)


def read_metadata(snapshot: Snapshot, patterns: Iterable[str]) -> dict[str, s2s_arena.MetadataFile]:
    """Find and parse the metadata: what the patterns name, or the one place that has entries.

    Raises:
        FetchError: If there is no such place, or more than one; says what was seen.
        MetadataError: If an entry or a file can't be right.
    """
    places = select_places(snapshot.files, patterns)
    parsed = {
        path: s2s_arena.parse_metadata(snapshot.read(path), path)
        for paths in places
        for path in paths
    }
    found = [
        {path: parsed[path] for path in paths if parsed[path].passed_over is None}
        for paths in places
    ]
    # A place without any entry counts only where there is no other, so that its fault is told.
    candidates = [files for files in found if any(file.entries for file in files.values())]
    candidates = candidates or [files for files in found if files][:1]
    if len(candidates) != 1:
        raise FetchError(describe_choice(snapshot, parsed))
    check_entries(candidates[0])
    return candidates[0]


def select_places(paths: Iterable[str], patterns: Iterable[str]) -> list[list[str]]:
    """Return the files of each place where metadata may be; those that patterns name are one.

    Raises:
        FetchError: If a pattern names no file.
    """
    paths = sorted(paths)
    named: dict[str, None] = {}
    for pattern in patterns:
        matches = [path for path in paths if fnmatchcase(path, pattern)]
        if not matches:
            tables = ", ".join(select_tables(paths)) or "none"
            raise FetchError(
                f"--metadata {pattern!r} names no file; the repository's tables are: {tables}"
            )
        named.update(dict.fromkeys(matches))
    if named:
        return [list(named)]
    root = [path for path in paths if path.endswith(".json") and "/" not in path]
    data = [path for path in paths if path.endswith(".json") and path.rpartition("/")[0] == "data"]
    main = [METADATA] if METADATA in root else []
    return [main, [path for path in root if path != METADATA], data]


def select_tables(paths: Iterable[str]) -> list[str]:
    """Return the files that could hold metadata, by their ending; the first 20."""
    return [path for path in paths if path.endswith(TABLE_ENDINGS)][:20]


def describe_choice(snapshot: Snapshot, parsed: Mapping[str, s2s_arena.MetadataFile]) -> str:
    """Say which files could be the metadata and how to name the right ones."""
    lines = []
    for path in dict.fromkeys([*parsed, *select_tables(sorted(snapshot.files))]):
        file = parsed.get(path)
        if file is None:
            what = "not looked into"
        else:
            what = file.passed_over or f"{len(file.entries)} entries"
        lines.append(f"- {path}: {what}")
    is_several = any(file.entries for file in parsed.values())
    what = "more than one place has entries" if is_several else "no list of entries was found"
    saw = "saw:\n" + "\n".join(lines) if lines else "it has no table of any kind"
    return (
        f"{snapshot.repo_id} at commit {snapshot.commit}: {what}; {saw}\n"
        "Expected metadata.json, or *.json at the root, or data/*.json. Name the right files with "
        "--metadata PATH, which may be given more than once and may hold *."
    )


def check_entries(files: Mapping[str, s2s_arena.MetadataFile]) -> None:
    """Raise MetadataError with every problem of the metadata files."""
    problems = [problem for file in files.values() for problem in file.problems]
    problems += [
        s2s_arena.Problem("error", path, None, None, f"is {file.passed_over}", "expected entries")
        for path, file in files.items()
        if file.passed_over is not None
    ]
    raise_problems([str(problem) for problem in problems])


def raise_problems(problems: list[str]) -> None:
    """Raise MetadataError if there are any; the first 20 are written out."""
    if problems:
        lines = [f"- {problem}" for problem in problems[:20]]
        rest = [f"- and {len(problems) - 20} more"] if len(problems) > 20 else []
        many = "problem" if len(problems) == 1 else "problems"
        heading = f"{len(problems)} {many} in the repository's metadata; nothing was written:"
        raise s2s_arena.MetadataError("\n".join([heading, *lines, *rest]))


# The plan ----------------------------------------------------------------------------------------


def make_plan(snapshot: Snapshot, files: Mapping[str, s2s_arena.MetadataFile]) -> Plan:
    """Say which entries and files the folder is to hold.

    Raises:
        MetadataError: If a recording isn't in the repository, or is there twice and different.
    """
    ids = make_unique(raw["id"] for file in files.values() for raw, _ in file.entries)
    new_ids = iter(ids)
    entries, changes, audio, problems = [], [], {}, []
    for path, file in files.items():
        for row, (raw, utterance) in enumerate(file.entries):
            entry = to_entry(raw, utterance, next(new_ids))
            entries.append(entry)
            changes += find_changes(raw, entry, path, row)
            found = find_audio(utterance.input_path, snapshot.files)
            if isinstance(found, RemoteFile):
                audio[utterance.input_path] = found
            else:
                problems.append(f"{path} row {row} (id {raw['id']!r}): {found}")
    raise_problems(problems)
    return Plan(entries, changes, audio, tuple(files))


def make_unique(ids: Iterable[str]) -> list[str]:
    """Give the second and later of equal ids `__2`, `__3`, passing over ids that exist."""
    ids = list(ids)
    taken = set(ids)
    counts: collections.Counter[str] = collections.Counter()
    unique = []
    for name in ids:
        counts[name] += 1
        new = name
        while counts[name] > 1 and new in taken:
            new = f"{name}__{counts[name]}"
            counts[name] += new in taken
        taken.add(new)
        unique.append(new)
    return unique


def to_entry(raw: Mapping[str, Any], utterance: s2s_arena.Utterance, new_id: str) -> dict[str, Any]:
    """Return the entry in the published keys, with the values that the loader gives."""
    changed = {"id": new_id, "input_path": utterance.input_path, "task": utterance.task}
    return {key: changed.get(key, raw[key]) for key in KEYS if key in raw}


def find_changes(
    raw: Mapping[str, Any], entry: Mapping[str, Any], file: str, row: int
) -> list[Change]:
    """List the values that differ, in the order in which they were published."""
    return [
        Change(file, row, raw["id"], key, value, entry.get(key))
        for key, value in raw.items()
        if key not in entry or entry[key] != value
    ]


def find_audio(input_path: str, files: Mapping[str, RemoteFile]) -> RemoteFile | str:
    """Return where a recording lies, at the root or below `input/`, or what is wrong."""
    paths = (input_path, f"input/{input_path}")
    found = [files[path] for path in paths if path in files]
    if not found:
        return f"no audio file at {input_path} in the repository; every entry needs its recording"
    if len({file.digest for file in found}) > 1:
        return f"both {paths[0]!r} and {paths[1]!r} exist, with different content; expected one"
    return found[0]


def to_provenance(snapshot: Snapshot, plan: Plan, digests: Mapping[str, str]) -> dict[str, Any]:
    """Return what provenance.json holds: the same for every fetch of one commit."""
    return {
        "repository": f"datasets/{snapshot.repo_id}",
        "commit": snapshot.commit,
        "commit_date": snapshot.date,
        "metadata_files": list(plan.metadata_files),
        "files": {
            path: {
                "sha256": digests[path],
                "size": plan.audio[path].size,
                "published_as": plan.audio[path].path,
            }
            for path in sorted(plan.audio)
        },
        "changes": [dataclasses.asdict(change) for change in plan.changes],
    }


# The folder --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Earlier:
    """What the provenance.json of an earlier run says.

    Attributes:
        repo_id: `owner/name`.
        commit: 40 hex digits.
        metadata_files: In the repository.
        digests: Path in the folder to sha256.
    """

    repo_id: str
    commit: str
    metadata_files: list[str]
    digests: Mapping[str, str]


def read_provenance(out_dir: Path) -> Earlier | None:
    """Read what an earlier run left; None if there was none.

    Raises:
        FetchError: If the folder is another's.
    """
    path = out_dir / PROVENANCE
    if not path.exists():
        if (out_dir / METADATA).exists():
            raise FetchError(
                f"{out_dir} has a {METADATA} but no {PROVENANCE}, so this command didn't write it; "
                "choose another folder"
            )
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return Earlier(
            str(value["repository"]).removeprefix("datasets/"),
            str(value["commit"]),
            [str(file) for file in value["metadata_files"]],
            {name: str(file["sha256"]) for name, file in value["files"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FetchError(
            f"{path} can't be read ({type(error).__name__}: {error}); move it away together with "
            f"{METADATA}, then run again: recordings that are whole are kept"
        ) from error


def write_file(out_dir: Path, path: str, content: bytes) -> None:
    """Write a file whole or not at all."""
    target = out_dir / path
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = out_dir / PARTIAL / to_sha256(path.encode())
    partial.write_bytes(content)
    os.replace(partial, target)


class Fetcher:
    """Brings the recordings of a plan into a folder, several at a time.

    Attributes:
        digests: Path to sha256 of what is there and whole.
        failures: What couldn't be had, and why.
        fetched: Paths of what wasn't there before.
    """

    def __init__(self, snapshot: Snapshot, out_dir: Path, progress: tqdm[Any]) -> None:
        self._snapshot = snapshot
        self._out_dir = out_dir
        self._progress = progress
        self._writing = threading.Lock()
        self._is_over = False
        self.digests: dict[str, str] = {}
        self.failures: list[str] = []
        self.fetched: list[str] = []

    def fetch_all(self, audio: Mapping[str, RemoteFile]) -> None:
        """Fetch what is missing or damaged.

        Raises:
            OSError: If going on makes no sense: no access, no space, or nothing succeeds any more.
        """
        # Its threads are daemons: Ctrl-C and errors need not wait for requests under way.
        with ThreadPool(NUM_WORKERS) as pool:
            try:
                for _ in pool.imap_unordered(self._fetch, sorted(audio.items())):
                    pass
            finally:
                with self._writing:
                    self._is_over = True

    def _fetch(self, item: tuple[str, RemoteFile]) -> None:
        path, file = item
        content = self._read_whole(path, file)
        if content is None:
            num_done = len(self.digests)
            try:
                content = self._snapshot.read(file.path)
            except FileNotFoundError as error:
                self.failures.append(str(error))
                return
            except ConnectionError as error:
                if len(self.digests) == num_done:
                    raise
                self.failures.append(str(error))
                return
            with self._writing:
                if self._is_over:  # a request under way when all ended
                    return
                write_file(self._out_dir, path, content)
            self.fetched.append(path)
        self.digests[path] = to_sha256(content)
        self._progress.update(file.size)

    def _read_whole(self, path: str, file: RemoteFile) -> bytes | None:
        target = self._out_dir / path
        # A size that differs saves reading what an interrupted copy left.
        if not target.is_file() or target.stat().st_size != file.size:
            return None
        content = target.read_bytes()
        return content if file.describes(content) else None


def remove_old(out_dir: Path, digests: Mapping[str, str], plan: Plan) -> None:
    """Remove the recordings of an earlier commit that this one lacks, unless they were changed."""
    for path in sorted(digests.keys() - plan.audio.keys()):
        target = out_dir / path
        if target.is_file() and to_sha256(target.read_bytes()) == digests[path]:
            target.unlink()
            for folder in target.relative_to(out_dir).parents[:-1]:
                if not any((out_dir / folder).iterdir()):
                    (out_dir / folder).rmdir()


# The command -------------------------------------------------------------------------------------


def fetch(out_dir: Path, repo_id: str | None, revision: str | None, patterns: list[str]) -> int:
    """Fetch a repository into a folder; return the exit status."""
    earlier = read_provenance(out_dir)
    if earlier and repo_id not in (None, earlier.repo_id):
        raise FetchError(f"{out_dir} holds {earlier.repo_id}, not {repo_id}; choose another folder")
    if earlier:
        repo_id, revision = earlier.repo_id, revision or earlier.commit
    snapshot = read_snapshot(repo_id or s2s_arena.OFFICIAL_REPO_ID, revision or "main")
    if earlier and earlier.commit == snapshot.commit:
        patterns = patterns or earlier.metadata_files
    plan = make_plan(snapshot, read_metadata(snapshot, patterns))
    out_dir.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(out_dir / PARTIAL, ignore_errors=True)  # of a run that was killed
    (out_dir / PARTIAL).mkdir()
    try:
        fetcher = fill(out_dir, snapshot, plan, earlier)
    finally:
        shutil.rmtree(out_dir / PARTIAL, ignore_errors=True)
    if fetcher.failures:
        return report_failures(fetcher.failures, len(plan.audio))
    return report(out_dir, snapshot, plan, len(fetcher.fetched))


def fill(out_dir: Path, snapshot: Snapshot, plan: Plan, earlier: Earlier | None) -> Fetcher:
    """Bring the folder to what the plan says; without its metadata as long as files are missing."""
    if earlier and earlier.commit != snapshot.commit:
        (out_dir / METADATA).unlink(missing_ok=True)  # else a mixture of both would load
    fetcher = fetch_audio(snapshot, plan, out_dir)
    if fetcher.failures:
        return fetcher
    if earlier:
        remove_old(out_dir, earlier.digests, plan)
    write_file(out_dir, PROVENANCE, to_json(to_provenance(snapshot, plan, fetcher.digests)))
    write_file(out_dir, METADATA, to_json(plan.entries))
    return fetcher


def fetch_audio(snapshot: Snapshot, plan: Plan, out_dir: Path) -> Fetcher:
    """Fetch the recordings with a progress bar, which a file or pipe doesn't get."""
    size = sum(file.size for file in plan.audio.values())
    options = {"unit": "B", "unit_scale": True, "desc": "Fetching", "disable": None}
    with tqdm(total=size, **options) as progress:
        fetcher = Fetcher(snapshot, out_dir, progress)
        fetcher.fetch_all(plan.audio)
    return fetcher


def report_failures(failures: list[str], num_files: int) -> int:
    """Say which files are missing; return the exit status."""
    print(f"{len(failures)} of {num_files} recordings couldn't be fetched:", file=sys.stderr)
    for failure in sorted(failures):
        print(f"- {failure}", file=sys.stderr)
    print("Run the same command again: what is there is kept.", file=sys.stderr)
    return 1


def report(out_dir: Path, snapshot: Snapshot, plan: Plan, num_fetched: int) -> int:
    """Check the folder as the loader would, decoding every file; return the exit status."""
    with tqdm(total=len(plan.entries), desc="Decoding", disable=None) as progress:
        problems = s2s_arena.find_problems(out_dir, on_file=lambda *_: progress.update())
    size = sum(file.size for file in plan.audio.values())
    kept = len(plan.audio) - num_fetched
    print(f"{snapshot.repo_id} at commit {snapshot.commit} of {snapshot.date} is in {out_dir}:")
    print(
        f"{len(plan.entries)} entries, {len(plan.audio)} recordings, {size / 1e6:.1f} MB "
        f"({num_fetched} fetched, {kept} were there); all digests agree."
    )
    print(f"{len(plan.changes)} changes to entries are listed in {out_dir / PROVENANCE}.")
    errors = [problem for problem in problems if problem.severity == "error"]
    for problem in errors:
        print(f"{problem}; it is as the repository has it", file=sys.stderr)
    if num_warnings := len(problems) - len(errors):
        print(f"{num_warnings} warnings: `python scripts/validate.py {out_dir}` lists them.")
    if not errors:
        print(f'Load it: load_dataset("s2s_arena", split="test", data_dir="{out_dir}")')
    return 1 if errors else 0


def describe_local(error: OSError, out_dir: Path) -> str:
    """Say what this machine refused; errors of the Hub have their message."""
    if error.errno is None:
        return str(error)
    place = error.filename or out_dir
    return (
        f"{place}: {error.strerror}; nothing is half-written under its final name, run the same "
        "command again once that is put right"
    )


def to_repo_id(text: str) -> str:
    """Check an argument as the Hub's client would."""
    try:
        validate_repo_id(text)
    except HFValidationError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def main(argv: list[str]) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog="Gated or private repository: log in with `hf auth login`, or set HF_TOKEN.",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder to fill")
    parser.add_argument(
        "--repo-id",
        type=to_repo_id,
        metavar="OWNER/NAME",
        help=f"dataset repository (default: {s2s_arena.OFFICIAL_REPO_ID}, or the folder's)",
    )
    parser.add_argument(
        "--revision", metavar="REV", help="branch, tag or commit (default: main, or the folder's)"
    )
    parser.add_argument(
        "--metadata",
        action="append",
        default=[],
        metavar="PATTERN",
        help="metadata file in the repository, such as 'data/*.json'; may be given several times",
    )
    options = parser.parse_args(argv)
    out_dir = options.out.expanduser()
    try:
        return fetch(out_dir, options.repo_id, options.revision, options.metadata)
    except KeyboardInterrupt:
        print("Interrupted; run the same command again to go on.", file=sys.stderr)
        return 130
    except OSError as error:
        print(describe_local(error, out_dir), file=sys.stderr)
    except (FetchError, s2s_arena.MetadataError) as error:
        print(error, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
