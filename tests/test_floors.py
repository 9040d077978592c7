"""The rooms of the house: imports go down only, there are no cycles, and TensorFlow's insides, the environment and broad excepts stay where they belong."""

from __future__ import annotations

import ast
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator

import pytest

import tfmp

PACKAGE = pathlib.Path(tfmp.__file__).parent

# From the ground up. A module may import what is on a floor below its own, and its own room; rooms on one floor do not know each other.
FLOORS = (
    ("errors",),
    ("dtypes",),
    ("measured", "oplists", "slow_kernels", "tf_api", "tf_callbacks", "tf_marks", "user_rules"),
    ("tf_saved_model", "tf_sessions"),
    ("settings", "graph", "layer_marks"),
    ("program",),
    ("colouring", "fusion"),
    ("rewriting",),
    ("conversion",),
    ("engine",),
    ("reports", "numerics", "optimizers"),
    ("startup",),
    ("hooks", "launch", "files"),
    ("cli",),
    ("__main__",),
)

# Imports that go up, each with the reason; all of them are inside functions.
UPWARDS = {("startup", "hooks"): "it waits for TensorFlow to be imported, and then brings the hooks"}

TENSORFLOWS_INSIDES = {"tf_api", "tf_callbacks", "tf_marks", "tf_saved_model", "tf_sessions"}
ENVIRONMENT = {
    "startup": "decides, before anything can be imported, whether to do anything at all",
    "hooks.activation": "hands it to the parser in settings",
    "cli": "hands it to launch, which sets the switch for the program it starts",
    "files.compared": "a script of its own, without tfmp, that switches off what the user's environment switches on",
}
BROAD_EXCEPT = ("hooks.", "startup")
PRINTERS = {"cli", "launch"}


@dataclasses.dataclass(frozen=True)
class Import:
    """One import statement's module, as far as it is one, and whether it runs when the importing module is imported."""

    importer: str
    imported: str
    at_once: bool


def module_name(path: pathlib.Path) -> str:
    """Returns "graph.view" for tfmp/graph/view.py, "graph" for its __init__, and "" for tfmp's own."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def tree(module: str) -> ast.Module:
    """Returns the syntax tree of a module."""
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def imports(module: str) -> Iterator[Import]:
    """Yields every import in a module, those for type checkers only left out."""
    later = {id(inner) for node in ast.walk(tree(module)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for inner in ast.walk(node)}
    for_checkers = {id(inner) for node in tree(module).body if _is_for_checkers(node) for inner in ast.walk(node)}
    for node in ast.walk(tree(module)):
        if id(node) not in for_checkers:
            for name in _imported(node):
                yield Import(module, name, id(node) not in later)


def _is_for_checkers(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def own(name: str) -> str | None:
    """Returns the module of tfmp that an imported name is or is in, or None if it is not tfmp's."""
    if name.partition(".")[0] != "tfmp":
        return None
    parts = name.split(".")[1:]
    while ".".join(parts) not in MODULES:
        parts.pop()
    return ".".join(parts)


def room(module: str) -> str:
    """Returns the part of a module's name that FLOORS knows."""
    return module.partition(".")[0]


FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names}
EVERYTHING_BUT_THE_DOOR = [module for module in MODULES if module]


def test_every_module_has_a_floor_and_every_room_is_there() -> None:
    assert {room(module) for module in EVERYTHING_BUT_THE_DOOR} == set(FLOOR)


@pytest.mark.parametrize("module", EVERYTHING_BUT_THE_DOOR)
def test_imports_go_down(module: str) -> None:
    found = {(room(module), room(target), one.at_once) for one in imports(module) if (target := own(one.imported))}
    wrong = {(here, there) for here, there, at_once in found if here != there and FLOOR[there] >= FLOOR[here] and (at_once or (here, there) not in UPWARDS)}
    assert wrong == set()


def test_every_exception_is_needed() -> None:
    found = {(room(module), room(target)) for module in EVERYTHING_BUT_THE_DOOR for one in imports(module) if (target := own(one.imported))}
    assert found >= set(UPWARDS)
    assert {module for module in MODULES if _reads_environment(module)} == set(ENVIRONMENT)


def test_there_are_no_cycles() -> None:
    edges = {module: {target for one in imports(module) if one.at_once and (target := own(one.imported)) not in (None, module)} for module in MODULES}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module not in done:
            for target in edges[module]:
                visit(target, (*path, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())


def _reads_environment(module: str) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb") for node in ast.walk(tree(module)))


def _imports_tensorflows_insides(module: str) -> bool:
    return any(one.imported.startswith(("tensorflow.python", "tensorflow.core")) for one in imports(module))


def _asserts(module: str) -> bool:
    return any(isinstance(node, ast.Assert) for node in ast.walk(tree(module)))


def _prints(module: str) -> bool:
    return any(isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print" for node in ast.walk(tree(module)))


def _catches_everything(module: str) -> bool:
    """A handler that ends by raising again lets everything through."""
    handlers = [node for node in ast.walk(tree(module)) if isinstance(node, ast.ExceptHandler)]
    broad = [h for h in handlers if h.type is None or (isinstance(h.type, ast.Name) and h.type.id in ("Exception", "BaseException"))]
    return any(not isinstance(handler.body[-1], ast.Raise) for handler in broad)


@pytest.mark.parametrize(
    ("does", "may"),
    [
        (_imports_tensorflows_insides, lambda module: module in TENSORFLOWS_INSIDES),
        (_reads_environment, lambda module: module in ENVIRONMENT),
        (_catches_everything, lambda module: module.startswith(BROAD_EXCEPT)),
        (_prints, lambda module: module in PRINTERS),
        (_asserts, lambda module: False),
    ],
    ids=lambda value: value.__name__.strip("_") if value.__name__ != "<lambda>" else "",
)
def test_only_those_do_it_that_may(does: Callable[[str], bool], may: Callable[[str], bool]) -> None:
    assert [module for module in MODULES if does(module) and not may(module)] == []


@pytest.mark.parametrize(
    ("does", "source"),
    [
        (_imports_tensorflows_insides, "def f():\n    from tensorflow.core.framework import graph_pb2\n"),
        (_reads_environment, "import os\nx = os.getenv('A')\n"),
        (_catches_everything, "try:\n    pass\nexcept BaseException:\n    raise ValueError\n    x = 1\n"),
        (_prints, "if True:\n    print(1)\n"),
        (_asserts, "def f(x):\n    assert x\n"),
    ],
)
def test_what_is_looked_for_is_found(does: Callable[[str], bool], source: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bad.py"
    path.write_text(source, encoding="utf-8")
    monkeypatch.setitem(MODULES, f"bad_{does.__name__}", path)
    assert does(f"bad_{does.__name__}")


def test_no_file_or_function_is_too_long() -> None:
    long_files = [module for module, path in MODULES.items() if len(path.read_text(encoding="utf-8").splitlines()) > 500]
    functions = ((module, node) for module in MODULES for node in ast.walk(tree(module)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    long_functions = [f"{module}.{node.name}" for module, node in functions if (node.end_lineno or 0) - node.lineno >= 60]
    assert (long_files, long_functions) == ([], [])


def test_there_is_no_drawer_for_odds_and_ends() -> None:
    assert [module for module in MODULES if module.rpartition(".")[2] in ("utils", "util", "helpers", "misc", "common")] == []
