"""The house's import rule: nothing imports upward, and the face never takes torch in."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = {"torch", "transformers", "safetensors", "gguf"}
FORBIDDEN = {
    "engines": {"kvtui", "probes"},
    "probes": {"kvtui"},
    "kvtui": HEAVY,
}


def imported(path: Path) -> set[str]:
    """Full names of all modules that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            assert node.module is not None
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("room", FORBIDDEN)
def test_nothing_imports_upward(room):
    for path in (ROOT / room).rglob("*.py"):
        tops = {name.split(".")[0] for name in imported(path)}
        assert not tops & FORBIDDEN[room], path


def modules_after(code: str) -> set[str]:
    """What is loaded after `code` in a fresh interpreter."""
    code += "\nimport sys; print(' '.join(sys.modules))"
    return set(
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True).stdout.decode().split()
    )


def test_the_command_line_is_light():
    loaded = modules_after("import kvtui.cli")
    assert not loaded & (HEAVY | {"numpy", "textual", "rich"})


def test_everything_that_the_face_takes_from_the_engines_is_light():
    taken = sorted(
        {name for path in (ROOT / "kvtui").rglob("*.py") for name in imported(path) if name.startswith("engines.")}
    )
    tries = "\n".join(
        f"try: importlib.import_module({name!r})\nexcept ModuleNotFoundError as fault:\n"
        f"    assert {name!r}.startswith(fault.name.rpartition('.')[0])  # a name in a module, not a module"
        for name in taken
    )
    assert taken
    assert not modules_after(f"import importlib\n{tries}") & HEAVY


def test_the_engines_package_itself_is_cheap():
    assert not modules_after("import engines") & (HEAVY | {"numpy"})
    assert not modules_after("import engines.worker, engines.race") & HEAVY
