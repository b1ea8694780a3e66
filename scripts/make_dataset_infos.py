"""Write dataset_infos.json and the `dataset_info` of the README's header from the builder.

    python scripts/make_dataset_infos.py          # write both
    python scripts/make_dataset_infos.py --check  # exit status 1 if either is stale

Both are what tools read that don't run our code: features, version, licence, citation and the
number of examples, counted by loading. Nothing in them depends on the machine.
"""

import argparse
import json
import os
import sys
from typing import Any

import datasets
import yaml
from tqdm import tqdm

import s2s_arena

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INFOS_PATH = os.path.join(ROOT, "dataset_infos.json")
README_PATH = os.path.join(ROOT, "README.md")
FENCE = "---\n"


def count_examples(builder: datasets.DatasetBuilder) -> int:
    """Return the number of rows of the split, decoding none of them."""
    stream = builder.as_streaming_dataset(s2s_arena.SPLIT)
    return sum(1 for _ in stream.select_columns(["id"]))


def to_info(builder: datasets.DatasetBuilder) -> dict[str, Any]:
    """Return one config's entry of dataset_infos.json."""
    info, split = builder.info, s2s_arena.SPLIT
    return {
        "description": info.description,
        "citation": info.citation,
        "homepage": info.homepage,
        "license": info.license,
        "features": info.features.to_dict(),
        "builder_name": "s2s_arena",
        "dataset_name": "s2s_arena",
        "config_name": builder.config.name,
        "version": {"version_str": str(info.version)},
        "splits": {split: {"name": split, "num_examples": count_examples(builder)}},
    }


def to_card_entry(info: dict[str, Any]) -> dict[str, Any]:
    """Return one config's entry of the card's `dataset_info`."""
    features = datasets.Features.from_dict(info["features"])
    splits = list(info["splits"].values())
    return {
        "config_name": info["config_name"],
        "features": features._to_yaml_list(),
        "splits": splits,
    }


def read_infos() -> dict[str, dict[str, Any]]:
    """Build every config of the embedded edition and return their infos by name."""
    names = [config.name for config in s2s_arena.S2SArena.BUILDER_CONFIGS]
    builders = (s2s_arena.S2SArena(config_name=name) for name in names)
    progress = tqdm(builders, desc="Counting", total=len(names), unit="config")
    return {builder.config.name: to_info(builder) for builder in progress}


def with_card_infos(readme: str, infos: dict[str, dict[str, Any]]) -> str:
    """Return the README with `dataset_info` replaced in its YAML header.

    Raises:
        ValueError: If the README doesn't begin with a YAML header.
    """
    header, end, body = readme.removeprefix(FENCE).partition(FENCE)
    if not readme.startswith(FENCE) or not end:
        raise ValueError(f"{README_PATH}: expected a YAML header between two lines of '---'")
    card = yaml.safe_load(header)
    card["dataset_info"] = [to_card_entry(info) for info in infos.values()]
    dumped: str = yaml.safe_dump(card, sort_keys=False, allow_unicode=True, width=100)
    return FENCE + dumped + FENCE + body


def read_text(path: str) -> str:
    """Return a text file, or an empty text where there is none yet."""
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as file:
        return file.read()


def main(argv: list[str]) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description="Write what tools read about the dataset.")
    parser.add_argument("--check", action="store_true", help="only tell whether they are stale")
    options = parser.parse_args(argv)
    infos = read_infos()
    wanted = {
        INFOS_PATH: json.dumps(infos, ensure_ascii=False, indent=2) + "\n",
        README_PATH: with_card_infos(read_text(README_PATH), infos),
    }
    stale = [path for path, text in wanted.items() if read_text(path) != text]
    for path in stale:
        if options.check:
            print(f"{path} is stale: run `python scripts/make_dataset_infos.py`", file=sys.stderr)
            continue
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(wanted[path])
        print(f"wrote {path}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
