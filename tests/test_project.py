"""The project files: versions are pinned by name alone, and the wheel holds what the checkout holds."""

import email
import importlib.metadata
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from vitrail.pages.render import template_environment

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONSTRAINTS = sorted((ROOT / "constraints").glob("*.txt"))
PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[0-9][0-9A-Za-z.]*)")
FOREIGN = re.compile(r"://|sha256|--|@|(^|\s)/|\.(com|org|net|io|dev)\b")


def faults(text: str) -> list[str]:
    """The lines of a constraints file that are neither a comment without an address nor one `name==version`."""
    seen: set[str] = set()
    wrong = []
    for line in text.splitlines():
        pin = PIN.fullmatch(line)
        name = canonicalize_name(pin["name"]) if pin else ""
        comment = not line or line.startswith("#")
        if FOREIGN.search(line) or not (pin or comment) or name in seen:
            wrong.append(line)
        if name:
            seen.add(name)
    return wrong


def pins(path: Path) -> dict[str, Version]:
    matches = [PIN.fullmatch(line) for line in path.read_text().splitlines()]
    return {canonicalize_name(pin["name"]): Version(pin["version"]) for pin in matches if pin}


def own_requirements() -> list[Requirement]:
    """What pyproject.toml asks for: the build, the core and every extra, without vitrail itself."""
    groups: list[Iterable[str]] = [PROJECT["build-system"]["requires"], PROJECT["project"]["dependencies"]]
    groups += PROJECT["project"]["optional-dependencies"].values()
    asked = [Requirement(line) for group in groups for line in group]
    return [requirement for requirement in asked if requirement.name != "vitrail"]


def reached(start: Iterable[Requirement]) -> set[str]:
    """The installed packages that `start` needs on this machine, directly or through others."""
    waiting, seen, found = list(start), set(), set()
    while waiting:
        requirement = waiting.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            lines = importlib.metadata.requires(requirement.name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(key[0])
        for needed in map(Requirement, lines):
            extras = ["", *requirement.extras]
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(needed)
    return found


def test_there_are_constraints() -> None:
    assert CONSTRAINTS


def test_constraints_are_names_and_versions() -> None:
    assert [line for path in CONSTRAINTS for line in faults(path.read_text())] == []


def test_other_lines_are_faults() -> None:
    for line in (
        "torch",
        "torch>=2.11",
        "torch==2.12.*",
        "torch==2.12.1+cpu",
        "torch==2.12.1 ; python_version < '3.12'",
        "torch @ https://example.org/torch.whl",
        "torch @ file:///wheels/torch.whl",
        "-e .",
        "-r other.txt",
        "--index-url https://example.org/simple",
        "# from https://example.org/simple",
        "# from packages.example.org",
        "torch==2.12.1 --hash=sha256:00",
        "PyYAML==6.0.3\npyyaml==6.0.2",
    ):
        assert faults(line) != [], line


def test_every_dependency_is_pinned_to_a_version_that_is_allowed() -> None:
    asked = own_requirements()
    assert len(asked) > 20
    for pinned in map(pins, CONSTRAINTS):
        assert [str(r) for r in asked if canonicalize_name(r.name) not in pinned] == []
        assert [str(r) for r in asked if not r.specifier.contains(pinned[canonicalize_name(r.name)])] == []


def test_every_package_that_is_installed_for_us_is_pinned() -> None:
    found = reached(own_requirements())
    assert {"numpy", "sympy", "iniconfig"} <= found  # sympy comes through torch, iniconfig through pytest
    for path in CONSTRAINTS:
        missing = found - pins(path).keys()
        assert not missing, f"add {sorted(missing)} to {path.name}, with the versions that `pip freeze` gives"


def test_every_dependency_has_a_floor() -> None:
    assert [str(r) for r in own_requirements() if not any(s.operator == ">=" for s in r.specifier)] == []


def test_installed_metadata_is_that_of_this_checkout() -> None:
    """Goes red after a change of pyproject.toml until `make install` is called."""
    assert importlib.metadata.version("vitrail") == PROJECT["project"]["version"]


def test_the_changelog_knows_this_version() -> None:
    assert f"## [{PROJECT['project']['version']}]" in (ROOT / "CHANGELOG.md").read_text()


def build_wheel(root: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    built = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


def on_disk(root: Path) -> set[str]:
    source = root / "src"
    files = [path for path in (source / "vitrail").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(source).as_posix() for path in files}


def packed(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))) as opened:
        yield opened


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    assert packed(wheel) == on_disk(ROOT)
    assert "vitrail/py.typed" in packed(wheel)


def test_a_planted_omission_from_the_wheel_is_found(tmp_path: Path) -> None:
    """A pattern of .gitignore that is too wide keeps a folder out of the wheel; that must not pass unseen."""
    root = tmp_path / "project"
    (root / "src/vitrail/pages").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (root / name).write_bytes((ROOT / name).read_bytes())
    (root / "src/vitrail/__init__.py").touch()
    (root / "src/vitrail/pages/page.css").touch()
    (root / ".gitignore").write_text("pages/\n")
    with zipfile.ZipFile(build_wheel(root, tmp_path / "wheel")) as opened:
        assert on_disk(root) - packed(opened) == {"vitrail/pages/page.css"}


def test_the_wheel_holds_what_the_pages_are_made_of(wheel: zipfile.ZipFile) -> None:
    names = [name for name in packed(wheel) if name.startswith("vitrail/pages/")]
    assert {".py", ".css", ".js"} <= {Path(name).suffix for name in names}
    assert {f"vitrail/pages/templates/{name}" for name in template_environment().list_templates()} <= set(names)


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    (info,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    metadata = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert {"digits", "compat", "dev"} <= set(metadata.get_all("Provides-Extra"))
    assert "vitrail = vitrail.cli:main" in wheel.read(f"{info}/entry_points.txt").decode()
    assert b"Copyright 2026 the vitrail authors" in wheel.read(f"{info}/licenses/LICENSE")


def test_ci_is_a_bash_script_that_can_be_started() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


def test_make_knows_its_targets() -> None:
    targets = ["install", "demo", "test", "soak", "lint", "types", "docs", "check", "clean"]
    answer = subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
