"""Inputs made from public bug reports, each with the behaviour that is right.

They lie beside the checkout and aren't part of it; without them these tests are skipped. Each kind
of fault has a test of its own elsewhere in this folder.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import frequency_of
from datasets import load_dataset

import s2s_arena
from s2s_arena import AudioError, MetadataError

CASES = sorted((Path(__file__).parents[2] / "shared" / "cases").glob("[0-9]*"))


def load(case: Path, **options: Any) -> Any:
    options = {
        "split": "test",
        "data_dir": str(case / "data"),
        "sampling_rate": "native",
        **options,
    }
    return load_dataset("s2s_arena", **options)


def ids_of(case: Path) -> list[str]:
    return [e["id"] for e in json.loads((case / "data/metadata.json").read_text("utf-8-sig"))]


def expected(case: Path) -> tuple[bool, dict[str, Any]]:
    content = json.loads((case / "expect.json").read_text(encoding="utf-8"))
    return content["expect"] == "ok", content.get("facts", {})


GOOD = [case for case in CASES if expected(case)[0]]
BAD = [case for case in CASES if not expected(case)[0]]


def by_name(case: Path) -> str:
    return case.name


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("case", GOOD, ids=by_name)
def test_odd_but_right_input(case: Path, streaming: bool) -> None:
    _, facts = expected(case)
    rows = list(load(case, streaming=streaming))
    assert [row["id"] for row in rows] == facts.get("ids", facts.get("v1_ids", ids_of(case)))
    if "noise" in facts:
        assert [row["noise"] for row in rows] == facts["noise"]
    frequencies = facts.get("freqs", facts.get("v1_freqs"))
    for number, row in enumerate(rows):
        array, rate = row["audio"]["array"], row["audio"]["sampling_rate"]
        assert array.dtype == np.float32 and array.ndim == 1
        assert rate == facts.get("sampling_rate", rate)
        assert len(array) == facts.get("frames", len(array))
        least, most = facts.get("frames_min", 1), facts.get("frames_max", len(array))
        if isinstance(least, dict):
            least, most = least[row["id"]], most[row["id"]]
        assert least <= len(array) <= most
        if "peak" in facts:
            assert abs(np.abs(array).max() - facts["peak"]) <= facts.get("tol", 0.001)
        assert not np.any(array[: facts.get("leading_silence", 0)])
        assert np.abs(array).max() <= facts.get("mono_peak_max", np.inf) + 0.001
        hertz = frequencies[number] if frequencies else facts.get("freq")
        if hertz:
            assert abs(frequency_of(array, rate) - hertz) <= rate / len(array)
    if "same_samples" in facts:
        first, second = (row["audio"]["array"] for row in rows)
        np.testing.assert_array_equal(first, second)
    if "cast_to" in facts:
        cast = load(case, streaming=streaming, sampling_rate=facts["cast_to"])
        lengths = {row["id"]: len(row["audio"]["array"]) for row in cast}
        for key, length in facts["frames_after"].items():
            assert abs(lengths[key] - length) <= (facts["tol_frames"] if key == "stm" else 0)
    for name, count in facts.get("config_rows", {}).items():
        config = load(case, streaming=streaming, name=name)
        assert (len(list(config)), list(config.features)) == (count, list(rows[0]))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("case", BAD, ids=by_name)
def test_input_that_must_be_refused(case: Path, streaming: bool) -> None:
    _, facts = expected(case)
    bad = facts.get("bad_ids", [])
    try:
        rows = load(case, streaming=streaming)
    except MetadataError as error:
        assert all(f"(id {key!r})" in str(error) for key in bad)
        assert not any(f"(id {key!r}): " in str(error) for key in facts.get("good_ids", []))
        return
    paths = dict(zip(ids_of(case), rows.select_columns(["id", "input_path"]), strict=True))
    refused = {}
    undecoded = rows.cast_column("audio", s2s_arena.Waveform(decode=False))
    for row in undecoded:
        try:
            s2s_arena.Waveform().decode_example(row["audio"])
        except AudioError as error:
            refused[row["id"]] = str(error)
    assert list(refused) == bad
    assert all(paths[key]["input_path"] in text for key, text in refused.items())


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_find_problems_agrees_with_the_loader(case: Path) -> None:
    is_good, facts = expected(case)
    problems = s2s_arena.find_problems(case / "data")
    errors = [problem for problem in problems if problem.severity == "error"]
    assert bool(errors) != is_good
    if "bad_ids" in facts and not is_good:
        assert {problem.id for problem in errors} == set(facts["bad_ids"])
