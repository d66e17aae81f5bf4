from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import tomllib  # type: ignore[import-not-found,unused-ignore]

import tree
from outboard.protocol.release import release

PROJECT = tomllib.loads((tree.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
#: Absolute, these would mean whatever else is on sys.path under that name.
OURS = {"outboard", "protocol", "engine", "tests"}
COMFYUI = {"comfy", "comfy_api", "execution", "folder_paths", "latent_preview", "nodes", "server"}


def python(*arguments: str, cwd: Path) -> str:
    run = subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree under a name that is no Python name, as a user may clone it."""
    folder = tmp_path_factory.mktemp("custom_nodes") / "ComfyUI-Out.board"
    unwanted = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "golden")
    shutil.copytree(tree.ROOT, folder, ignore=unwanted)
    return folder


def build(clone: Path, kind: str, into: Path) -> Path:
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(into)!r}))"
    return into / python("-c", code, cwd=clone).splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names inside a wheel that was built from an unpacked sdist of the clone."""
    folder = tmp_path_factory.mktemp("dist")
    with tarfile.open(build(clone, "sdist", folder)) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    return set(zipfile.ZipFile(build(unpacked, "wheel", folder)).namelist())


def test_the_wheel_holds_every_source_file(wheel: set[str]) -> None:
    assert {f"outboard/{tree.name(path)}" for path in tree.sources()} - wheel == set()
    assert not [name for name in wheel if name.startswith(("outboard/tests", "outboard/scripts", "tests"))]


def test_the_wheel_holds_what_is_not_source(wheel: set[str]) -> None:
    folders = [tree.ROOT / "web", tree.ROOT / "workflows", tree.ROOT / "engine" / "demo" / "assets"]
    data = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    single = ["protocol/SPEC.md", "py.typed", "requirements.txt", "engine/requirements.txt"]
    assert {f"outboard/{name}" for name in [*map(tree.name, data), *single]} - wheel == set()


def test_a_clone_under_any_name_runs_from_where_it_lies(clone: Path, tmp_path: Path) -> None:
    shown = python(str(clone / "engine" / "start.py"), "setup", "--dry-run", cwd=tmp_path)
    assert str(clone / "engine" / "requirements.txt") in shown


def test_comfyui_can_import_the_pack_under_its_mangled_name(clone: Path, tmp_path: Path) -> None:
    code = f"""
import importlib, importlib.util, sys
name = {str(clone)!r}.replace(".", "_x_")
spec = importlib.util.spec_from_file_location(name, {str(clone / "__init__.py")!r})
module = importlib.util.module_from_spec(spec)
sys.modules[name] = module
spec.loader.exec_module(module)
client = importlib.import_module(name + ".protocol.client")
assert client.Client.__module__.startswith(name), client
assert module.WEB_DIRECTORY and callable(module.comfy_entrypoint)
assert not {{"outboard", "torch", "comfy"}} & set(sys.modules)
"""
    python("-c", code, cwd=tmp_path)


def test_importing_the_package_and_its_commands_needs_no_torch(tmp_path: Path) -> None:
    code = """
import importlib, sys
import outboard, outboard.protocol.client, outboard.engine.launch, outboard.engine.supervisor
from outboard.engine.cli import COMMANDS
for name in COMMANDS:
    importlib.import_module(f"outboard.engine.commands.{name}")
assert not {"torch", "numpy", "comfy", "diffusers"} & set(sys.modules)
"""
    python("-c", code, cwd=tmp_path)


def test_imports_inside_the_package_are_relative() -> None:
    found = {tree.name(path): set(tree.absolute_imports(path)) & OURS for path in tree.sources()}
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("room", "foreign"),
    [("engine", COMFYUI), ("protocol", COMFYUI), ("nodes", {"diffusers", "transformers", "accelerate"})],
)
def test_rooms_keep_to_their_side(room: str, foreign: set[str]) -> None:
    found = {tree.name(path): set(tree.absolute_imports(path)) & foreign for path in tree.sources(room)}
    assert {name: names for name, names in found.items() if names} == {}


def test_the_protocol_needs_torch_in_one_file_alone() -> None:
    users = [tree.name(path) for path in tree.sources("protocol") if "torch" in tree.absolute_imports(path)]
    assert users == ["protocol/torch.py"]


def test_comfyui_installs_three_small_libraries_and_pins_none() -> None:
    lines = (tree.ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert lines == PROJECT["project"]["dependencies"]
    assert [re.fullmatch(r"(\w+)>=[\d.]+", line)[1] for line in lines] == ["pyzmq", "msgpack", "pydantic"]  # type: ignore[index]


def test_the_engine_pins_nothing() -> None:
    lines = (tree.ROOT / "engine" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not re.fullmatch(r"[\w-]+>=[\d.]+", line)] == []


def test_every_folder_with_code_is_a_declared_package() -> None:
    folders = {path.parent.relative_to(tree.ROOT) for path in tree.sources()}
    packages = {".".join(("outboard", *folder.parts)) for folder in folders}
    assert packages == set(PROJECT["tool"]["setuptools"]["packages"])


def test_the_version_is_written_once() -> None:
    version = PROJECT["project"]["version"]
    assert release() == version
    again = [tree.name(path) for path in tree.sources() if f'"{version}"' in path.read_text(encoding="utf-8")]
    assert again == []


def test_the_changelog_knows_this_version() -> None:
    assert f"## [{release()}]" in (tree.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_continuous_integration_runs_the_commands_of_the_readme() -> None:
    readme = (tree.ROOT / "README.md").read_text(encoding="utf-8")
    lines = (tree.ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if line.startswith("scripts/")]
    assert len(commands) == 2
    assert [command for command in commands if command not in readme] == []
