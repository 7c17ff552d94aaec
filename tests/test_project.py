"""The project as a whole: the README's file map and examples, what the wheel holds, and what importing costs."""

import importlib.util
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from worldmodels.checkpoints import bundled

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("worldmodels", "rlvr_envs", "planners", "training")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def python_files():
    """Paths of all modules of the four packages, relative to the root."""
    return {path.relative_to(ROOT).as_posix() for name in PACKAGES for path in (ROOT / name).rglob("*.py")}


def mapped_files():
    """Paths named in the README's file map, and their descriptions."""
    (block,) = re.findall(r"```text\n(.*?)```", README, flags=re.DOTALL)
    folders, found = [], {}
    for line in block.splitlines():
        indent, name, text = re.fullmatch(r"( *)(\S+) {2,}(\S.*)", line).groups()
        folders[len(indent) // 2 :] = [name] if name.endswith("/") else []
        if not name.endswith("/"):
            found["".join(folders) + name] = text
    return found


def test_the_file_map_names_every_module_and_nothing_else():
    mapped = set(mapped_files())
    assert python_files() - mapped == set()  # add a line to the README's file map
    assert mapped - python_files() == set()  # remove these lines


def test_the_tables_are_those_of_the_results():
    spec = importlib.util.spec_from_file_location("readme", ROOT / "benchmarks" / "readme.py")
    readme = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(readme)
    assert readme.filled(README) == README  # else run benchmarks/readme.py
    assert len(readme.BLOCK.findall(README)) >= 5


def test_results_say_where_they_come_from():
    files = list((ROOT / "benchmarks" / "results").glob("*.json"))
    assert files
    for file in files:
        manifest = json.loads(file.read_text())["manifest"]
        assert {"protocol", "protocol_sha256", "versions", "hardware", "date"} <= set(manifest), file.name
        assert not re.search(r'"/[a-z]+/', json.dumps(manifest)), file.name  # no path of one machine


def blocks():
    """Python examples of the README that are meant to be run, with the line they start at."""
    found = []
    for match in re.finditer(r"(<!-- not run: [^\n]*-->\n)?```python\n(.*?)```", README, flags=re.DOTALL):
        line = README[: match.start(2)].count("\n") + 1
        if match.group(1) is None:
            found.append(pytest.param(match.group(2), id=f"line-{line}"))
    return found


@pytest.mark.parametrize("code", blocks())
def test_examples_of_the_readme_run(code, tmp_path):
    # An environment without a named model takes its default one.
    needed = set(re.findall(r'"(pusht-\w+)"', code)) | ({"pusht-rlvr"} if "PushT-v0" in code else set())
    if missing := needed - set(bundled()):
        pytest.skip(f"the checkpoints {', '.join(sorted(missing))} are not bundled yet")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("package", "heavy"),
    [
        ("rlvr_envs", ("torch", "pymunk", "pygame", "cv2", "mujoco", "worldmodels")),
        ("worldmodels", ("torch", "gymnasium", "transformers", "rlvr_envs", "planners", "training")),
    ],
)
def test_importing_is_light(package, heavy):
    code = f"import sys, {package}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_commands_of_the_readme_exist():
    from training.__main__ import COMMANDS

    used = set(re.findall(r"rlvr-world ([a-z]+)", README))
    assert used == set(COMMANDS)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert set(re.findall(r"^make ([a-z]+)", README, flags=re.MULTILINE)) <= targets


@pytest.mark.slow
def test_the_wheel_holds_the_four_packages_and_their_assets(tmp_path):
    pytest.importorskip("hatchling", reason="building a wheel without a network needs hatchling installed")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], cwd=ROOT, check=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)
    assert python_files() <= set(names)
    assert {f"{name}/py.typed" for name in PACKAGES} <= set(names)
    assets = {path.relative_to(ROOT).as_posix() for path in (ROOT / "rlvr_envs" / "assets").iterdir()}
    assert assets
    assert assets <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.endswith(".partial")]
