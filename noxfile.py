"""The matrix: three versions of datasets, four of Python, and the Trainer.

    nox                      # everything
    nox -s "tests-3.11(datasets='datasets==3.6.0')"

The package is installed as users install it (a wheel, not editable) and the tests run from a copy
outside the checkout, so what they import and load is what lies in site-packages.
"""

import re
import shutil

import nox

nox.options.default_venv_backend = "virtualenv"
nox.options.error_on_missing_interpreters = True

NEWEST = "datasets>=5,<6"
DATASETS = ("datasets==3.6.0", "datasets>=4,<5", NEWEST)


def run_installed_tests(session: nox.Session, *arguments: str) -> None:
    """Run the tests of a copied checkout that lacks the module."""
    copy = session.create_tmp()
    shutil.rmtree(copy, ignore_errors=True)
    left_out = shutil.ignore_patterns("s2s_arena.py", ".git", ".nox", "__pycache__")
    shutil.copytree(".", copy, ignore=left_out)
    session.chdir(copy)
    session.run("pytest", "-q", "-n", "2", *arguments, *session.posargs)


@nox.session(python="3.11")
@nox.parametrize("datasets", DATASETS)
def tests(session: nox.Session, datasets: str) -> None:
    """Run the suite on one version of datasets."""
    session.install(".[test]", datasets)
    run_installed_tests(session)


@nox.session(python=["3.10", "3.13"])
def pythons(session: nox.Session) -> None:
    """Run the suite on the oldest and the newest Python."""
    session.install(".[test]", NEWEST)
    run_installed_tests(session)


@nox.session(python="3.10")
def oldest(session: nox.Session) -> None:
    """Run the suite on the lower bounds that pyproject.toml names."""
    with open("pyproject.toml", encoding="utf-8") as file:
        dependencies = file.read().partition("dependencies = [")[2].partition("]")[0]
    bounds = re.findall(r'"([\w-]+)>=([\w.]+)', dependencies)
    session.install(".[test]", *(f"{name}=={version}" for name, version in bounds))
    run_installed_tests(session)


@nox.session(python="3.11")
def trainer(session: nox.Session) -> None:
    """Run what needs torch: training, transcribing (on Ray too), the README, torch formats."""
    session.install("torch==2.13.0")
    session.install(".[test,trainer,ray]", NEWEST)
    run_installed_tests(session, "-k", "torch or readme or train or transcribe")
