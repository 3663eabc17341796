"""Rules of the house that a linter cannot check."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version

import pytest
import torch

import isometry
from tests.helpers import ROOT, relative_path

SOURCES = sorted(
    path
    for folder in ("src", "tests", "benchmarks", "tools", "docs")
    for path in (ROOT / folder).rglob("*.py")
)


def public_modules() -> list[str]:
    """Dotted names of isometry and of its modules without a leading underscore."""
    modules = pkgutil.walk_packages(isometry.__path__, prefix="isometry.")
    inner = [module.name for module in modules]
    return ["isometry", *(name for name in inner if "._" not in name)]


def exported(module: str) -> list[str]:
    return getattr(importlib.import_module(module), "__all__", [])


def test_import_leaves_torch_alone():
    """`import isometry` does not import torch, which takes seconds."""
    code = "import isometry, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_library_needs_torch_and_numpy_alone():
    """Every public module but the laboratory imports without other packages."""
    modules = [name for name in public_modules() if ".lab" not in name]
    lines = ["import sys", "sys.modules['jaxtyping'] = None"]
    lines += [f"import {name}" for name in modules]
    lines += ["import torch; isometry.linalg.householder(torch.eye(2))"]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {line.partition(">")[0] for line in project["dependencies"]}
    assert names == {"torch", "numpy"}


def test_poisoned_empty_is_nan():
    """The autouse fixture works: without it most of these numbers are zeros."""
    assert torch.empty(1000).isnan().all()


@pytest.mark.parametrize("module", public_modules())
def test_every_exported_name_resolves(module):
    for name in exported(module):
        assert getattr(importlib.import_module(module), name) is not None


@pytest.mark.parametrize("module", public_modules())
def test_every_exported_name_is_documented(module):
    for name in exported(module):
        assert getattr(importlib.import_module(module), name).__doc__, name


@pytest.mark.errors
def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'orthogonl'"):
        _ = isometry.orthogonl  # pyright: ignore[reportAttributeAccessIssue]


def test_dir_shows_what_is_exported():
    assert set(exported("isometry")) <= set(dir(isometry))


@pytest.mark.parametrize("package", ["isometry", "isometry.lab"])
def test_type_checkers_see_the_names_that_are_imported_on_first_use(package):
    """The block `if TYPE_CHECKING` imports all public names from their own modules."""
    module = importlib.import_module(package)
    tree = ast.parse(inspect.getsource(module))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    places = {alias.name: node.module for node in imports for alias in node.names}
    assert places.keys() == set(module.__all__)
    for name, place in places.items():
        there = importlib.import_module(f"{place}")
        assert getattr(module, name) is getattr(there, name)


def test_few_public_names():
    """A module has few public names, since a reader meets them all at once."""
    places = set(public_modules())
    for module in places:
        names = {f"{module}.{name}" for name in exported(module)}
        assert len(names - places) <= 20, module


@pytest.mark.parametrize("module", ["isometry", "isometry.lab"])
def test_every_name_that_dir_lists_is_there(module):
    """All names that `dir` lists can be read; `isometry.lab.tasks` used to raise."""
    program = f"import {module} as m\nfor name in dir(m): getattr(m, name)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_version_is_the_same_everywhere():
    assert version("isometry") == isometry.__version__
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {isometry.__version__}\n" in citation


@pytest.mark.parametrize("path", SOURCES, ids=relative_path)
def test_one_concept_per_file(path):
    assert len(path.read_text().splitlines()) <= 400


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its signature and its docstring."""
    start, end = function.body[0].lineno, function.end_lineno
    if ast.get_docstring(function) is not None:
        start = function.body[0].end_lineno
    assert start is not None
    assert end is not None
    return end - start + 1


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if p.is_relative_to(ROOT / "src")], ids=relative_path
)
def test_functions_are_short(path):
    functions = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert [f.name for f in functions if code_lines(f) > 40] == []


def test_no_tracked_file_names_this_machine():
    """No file contains a path of the author's machine or the host of a registry."""
    folders = "work|tmp|root|home|Users|opt|farm"
    # brackets around one character keep the pattern from matching itself
    forbidden = re.compile(
        rf"(?<![\w.])/(?:{folders})/[A-Za-z]|index[-]url|//registry[.]|/simple[/]"
    )
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    hits = []
    for name in filter(None, listed):
        path = ROOT / name
        # git still lists a file that the next commit removes
        if not path.is_file():
            continue
        text = path.read_bytes().decode(errors="ignore")
        hits += [f"{name}: {hit.group()}" for hit in forbidden.finditer(text)]
    assert hits == []


def test_names_of_maps_are_not_compared():
    """A name becomes a map where a user passes it; inside, maps are objects.

    There used to be 37 comparisons of names in 15 files.
    """
    names = {"exp", "cayley", "polar", "qr", "householder"}
    comparisons = []
    for path in SOURCES:
        # the methods of `linalg.expm_skew` are algorithms, some with the same names
        if not relative_path(path).startswith("src/") or "/linalg/" in relative_path(
            path
        ):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare | ast.match_case):
                words = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
                comparisons += [
                    (relative_path(path), word) for word in words if word in names
                ]
    assert comparisons == []


def documented() -> Iterator[tuple[str, str]]:
    """Every docstring of the library and of its tests, with its place."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    paths = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    for path in sorted(paths):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                yield f"{relative_path(path)}:{getattr(node, 'lineno', 1)}", text


def test_a_docstring_makes_sense_alone():
    """In a tooltip nobody sees what "that", "those" or "it" would point to."""
    beginnings = ("Of ", "That ", "Those ", "The same", "And ", "Also ")
    beginnings += ("It ", "Its ", "They ", "Their ")
    stumbles = [place for place, text in documented() if text.startswith(beginnings)]
    assert stumbles == []


PARTICIPLES = {"found", "given", "kept", "told", "wanted", "mine", "said"}


def test_variables_say_what_they_hold():
    """No variable or argument of the library has a name such as `found` or `kept`."""
    places = [
        f"{relative_path(path)}:{node.lineno} {name}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Name | ast.arg)
        and (name := node.id if isinstance(node, ast.Name) else node.arg) in PARTICIPLES
    ]
    assert places == []


def definitions(module: ast.Module) -> Iterator[str]:
    """The classes, aliases and constants of a module, without `__all__` and `_log`."""
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts = (part for target in targets for part in ast.walk(target))
            names = [part.id for part in parts if isinstance(part, ast.Name)]
        else:
            continue
        yield from set(names) - {"__all__", "_log"}


def test_no_name_is_defined_twice():
    """A class, an alias or a constant has the same meaning in every module."""
    places: dict[str, set[str]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for name in definitions(ast.parse(path.read_text())):
            places.setdefault(name, set()).add(relative_path(path))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def bases_of_all_classes() -> dict[str, list[str]]:
    """The names of the bases of every class of the library, without their modules."""
    return {
        node.name: [ast.unparse(b).split("[")[0].split(".")[-1] for b in node.bases]
        for path in sorted((ROOT / "src").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }


def test_classes_are_abstract_or_final():
    """Only two classes inherit from a class whose name is not `Abstract...`.

    `NativeBackend` overrides methods of `Backend`, for the reasons in its docstring.
    `ResolvedTraining` has no methods: four of its options can no longer be None.
    Autograd functions may inherit from each other too, since torch calls their static
    methods and makes no objects of them. A `TypedDict` has no methods at all.
    """
    bases = bases_of_all_classes()

    def ancestors(name: str) -> set[str]:
        return {name}.union(*map(ancestors, bases.get(name, [])))

    pairs = {
        (name, base)
        for name, names in bases.items()
        for base in names
        if base in bases and not base.startswith("Abstract")
        if not ancestors(name) & {"Function", "TypedDict"}
    }
    assert pairs == {("NativeBackend", "Backend"), ("ResolvedTraining", "Training")}


def has_abstract_method(definition: ast.ClassDef) -> bool:
    """Whether the body of a class has a method that is marked as abstract."""
    methods = (node for node in definition.body if isinstance(node, ast.FunctionDef))
    marks = (ast.unparse(mark) for m in methods for mark in m.decorator_list)
    return "abstractmethod" in marks


def test_classes_with_abstract_methods_are_abstract():
    """A subclass that lacks a method cannot be instantiated.

    `abstractmethod` has no effect in a class that does not derive from `ABC`: a cell
    without `scan` used to return None.
    """
    for path in sorted((ROOT / "src" / "isometry").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and has_abstract_method(node):
                name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
                abstract = getattr(importlib.import_module(name), node.name)
                assert inspect.isabstract(abstract), abstract
