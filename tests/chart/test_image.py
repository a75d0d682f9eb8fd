"""The Containerfile: what it promises is read from it, and where that is asked for it is built and looked at.

The parts that no builder is needed for run everywhere: what it copies is there and is let through, nothing that a wheel needs is left out,
and the last stage holds no tool and no secret. A build takes minutes, a registry and a package index, so that it is made only with
RLJOB_TEST_IMAGE=1; then what it lacks is a failure and no skip.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTAINERFILE = ROOT / "Containerfile"
ASK_VARIABLE = "RLJOB_TEST_IMAGE"
BASE_VARIABLE = "RLJOB_IMAGE_BASE"
ENGINES = ("buildah", "podman", "docker")
NAME = "localhost/rljob-operator:test-image"


@dataclass(frozen=True)
class Step:
    """One instruction."""

    word: str
    rest: str


def steps() -> list[Step]:
    text = re.sub(r"^#.*\n", "", CONTAINERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [Step(*line.split(maxsplit=1)) for line in lines if line.strip()]


def stages() -> list[list[Step]]:
    found: list[list[Step]] = []
    for step in steps():
        if step.word == "FROM":
            found.append([])
        if found:
            found[-1].append(step)
    return found


def rest(stage: list[Step], word: str) -> list[str]:
    return [step.rest for step in stage if step.word == word]


def copied() -> list[str]:
    """What is copied from the folder of the repository."""
    sources = []
    for stage in stages():
        for arguments in rest(stage, "COPY"):
            if not arguments.startswith("--from"):
                sources += arguments.split()[:-1]
    return sources


def let_through(path: str) -> bool:
    """Whether .containerignore lets a path to the builder: the last pattern that fits it, or a folder above it, decides."""
    out = False
    for line in (ROOT / ".containerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        again = pattern.startswith("!")
        pattern = pattern.removeprefix("!").removeprefix("**/")
        above = ["/".join(path.split("/")[: count + 1]) for count in range(path.count("/") + 1)]
        if any(fnmatch.fnmatch(part, pattern) or fnmatch.fnmatch(part.rpartition("/")[2], pattern) for part in above):
            out = not again
    return not out


def test_two_stages_on_one_base_that_the_builder_chooses() -> None:
    (base,) = [step.rest for step in steps()[:1]]
    assert steps()[0].word == "ARG"
    assert base.startswith("BASE=")
    assert [rest(stage, "FROM")[0].split()[0] for stage in stages()] == ["${BASE}", "${BASE}"]


def test_the_last_stage_runs_as_nobody_and_nothing_but_the_operator() -> None:
    last = stages()[-1]
    assert rest(last, "USER") == ["65532:65532"]
    assert rest(last, "COPY") == ["--from=build /opt/rljob /opt/rljob"]
    # No step of it runs anything: it has no tool to bring along or to forget.
    assert rest(last, "RUN") == []
    assert rest(last, "ADD") == []
    assert json.loads(rest(last, "ENTRYPOINT")[0]) == ["python", "-m", "rljob_operator"]
    labels = " ".join(rest(last, "LABEL"))
    for name in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{name}=" in labels


def test_compiled_code_is_looked_for_as_it_was_compiled() -> None:
    def numba(stage: list[Step]) -> dict[str, str]:
        return dict(re.findall(r"(NUMBA_\w+)=(\S*)", " ".join(rest(stage, "ENV"))))

    build, last = stages()
    assert numba(build) == numba(last)
    assert numba(last) == {"NUMBA_CACHE_DIR": "/opt/rljob/numba", "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}


def test_no_secret_and_no_host_is_written_into_it() -> None:
    text = CONTAINERFILE.read_text(encoding="utf-8")
    assert not re.search(r"(?i)(password|token|index-url|trusted-host)", text)
    assert set(re.findall(r"[a-z0-9.-]+\.(?:io|com|org|dev)/\S+", text)) == {"docker.io/library/python:3.13-slim"}
    # pip's settings may hold credentials: they are mounted for one step.
    assert "--mount=type=secret,id=pip,target=/etc/pip.conf" in text


def test_what_is_copied_is_there_and_let_through_and_nothing_else_is() -> None:
    for source in copied():
        path = ROOT / source
        assert path.exists(), source
        files = (
            [path] if path.is_file() else [found for found in path.rglob("*.py") if "__pycache__" not in found.parts]
        )
        assert files
        for file in files:
            assert let_through(str(file.relative_to(ROOT))), file
    for kept_out in (".git/config", ".venv/bin/python", "dev/demo/job.yaml", "tests/conftest.py", "docs/cli.md", "kubeconfig",
                     "planner/rljob_planner/__pycache__/a.pyc", "planner/rljob_planner/x.nbc"):  # fmt: skip
        assert not let_through(kept_out), kept_out
    assert (ROOT / ".dockerignore").read_text(encoding="utf-8") == (ROOT / ".containerignore").read_text(
        encoding="utf-8"
    )


def test_all_that_the_wheel_needs_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named = [project["project"]["readme"], *project["project"]["license-files"], "pyproject.toml"]
    packages = [package.split("/")[0] for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
    assert set(named) | set(packages) <= set(copied())


def test_the_last_step_compiles_what_a_process_without_a_home_finds(tmp_path: Path) -> None:
    """The step as the Containerfile runs it, on an environment that borrows its packages from this one."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    for name in ("planner/rljob_planner", "operator/rljob_operator"):
        source = ROOT / name
        shutil.copytree(source, packages / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    (packages / "rljob_planner" / "tests").mkdir()
    borrowed = next(path for path in sys.path if path.endswith("site-packages"))
    # Behind the copies, so that these are the ones that are imported.
    (packages / "borrowed.pth").write_text(f"{borrowed}\n", encoding="utf-8")
    settings = dict(re.findall(r"(NUMBA_\w+)=(\S*)", " ".join(rest(stages()[0], "ENV"))))
    env = {"PATH": os.environ["PATH"], **settings, "NUMBA_CACHE_DIR": str(environment / "numba")}
    python = str(environment / "bin" / "python")
    subprocess.run([python, str(ROOT / "packaging/image/finish.py")], check=True, env=env, capture_output=True)

    assert not (packages / "rljob_planner" / "tests").exists()
    times = {path.stat().st_mtime for path in packages.rglob("*.py")}
    assert times == {1767225600.0}
    assert list(packages.glob("rljob_operator/__pycache__/*.pyc"))
    code = """
import sys
from rljob_planner._native import is_compiled
before = is_compiled()
from rljob_planner.simulate import warm_up
warm_up()
import rljob_planner
print(before, "numba" in sys.modules, rljob_planner.__file__)
"""
    done = subprocess.run(
        [python, "-c", code],
        check=True,
        env={**env, "HOME": "/nonexistent"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["True", "False", str(packages / "rljob_planner/__init__.py")]


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """A builder that works and has the base image; fails where there is none, and says why."""
    if os.environ.get(ASK_VARIABLE) != "1":
        pytest.skip(
            f"an image is built only when it is asked for: set {ASK_VARIABLE}=1 (and {BASE_VARIABLE} for another base)"
        )
    reasons = []
    for name in ENGINES:
        path = shutil.which(name)
        if path is None:
            reasons.append(f"no {name}")
            continue
        base = os.environ.get(BASE_VARIABLE) or steps()[0].rest.partition("=")[2]
        # Of these, buildah alone works without a service; the question of the base image finds out both.
        try:
            done = subprocess.run([path, "pull", base], capture_output=True, text=True, timeout=200, check=False)
        except subprocess.TimeoutExpired:
            reasons.append(f"{name} still pulls {base} after 200 s")
            continue
        if done.returncode == 0:
            yield path
            subprocess.run([path, "rmi", "--force", NAME], capture_output=True, check=False)
            return
        last = (done.stderr.strip() or "no word").splitlines()[-1]
        reasons.append(f"{name} can't have {base}: {last[:200]}")
    pytest.fail("no image can be built here: " + "; ".join(reasons))


@pytest.mark.timeout(1200)
def test_it_builds(engine: str) -> None:
    """With the official base, or the one that RLJOB_IMAGE_BASE names."""
    base = os.environ.get(BASE_VARIABLE)
    chosen = ["--build-arg", f"BASE={base}"] if base else []
    done = subprocess.run(
        [engine, "build", *chosen, "--file", "Containerfile", "--tag", NAME, "."],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    said = subprocess.run([engine, "inspect", NAME], capture_output=True, text=True, check=True).stdout
    assert '"65532:65532"' in said
    assert '"rljob_operator"' in said
