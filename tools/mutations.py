"""The small changes that make mutants of the library, for `tools.mutants`."""

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

PACKAGE = Path("src", "isometry")
SCOPES = (ast.FunctionDef, ast.ClassDef)
SWAPS = {"+": "-", "*": "/", "<": "<=", ">": ">=", "==": "!=", "is": "is not"}
SWAPS |= {"and": "or"}
SWAPS |= {after: before for before, after in SWAPS.items()}
# the operator after an operand, and what may stand between the two
OPERATOR = re.compile(
    rb"(?:[\s()\\]|#[^\n]*)*(is not\b|is\b|and\b|or\b|[=!<>]=|[-+*/<>](?![*/<>]))"
)


@dataclass(frozen=True)
class Mutant:
    """One change of a file: the bytes from `start` to `end` become `text`.

    The tests that execute one of `lines` run against the mutant. These are the lines of
    the changed statement. If it runs on import, as a default argument does, they are
    the lines of the function, class or file around it.
    """

    path: Path
    start: int
    end: int
    text: str
    lines: range

    def source(self) -> bytes:
        """The file with the change."""
        source = self.path.read_bytes()
        return source[: self.start] + self.text.encode() + source[self.end :]

    def __str__(self) -> str:
        source = self.path.read_bytes()
        line = source.count(b"\n", 0, self.start) + 1
        column = self.start - source.rfind(b"\n", 0, self.start)
        before = " ".join(source[self.start : self.end].decode().split())
        return f"{self.path}:{line}:{column}  {before} -> {self.text or 'nothing'}"


class Reader:
    """Finds the mutants of a file, outside annotations, decorators and errors."""

    def __init__(self, path: Path) -> None:
        self.path, self.source = path, path.read_bytes()
        self.lengths = [len(line) for line in self.source.splitlines(keepends=True)]

    def mutants(self) -> Iterator[Mutant]:
        """All mutants, in the order of the file."""
        lines = range(1, len(self.lengths) + 1)
        yield from self._visit(ast.parse(self.source), lines, in_function=False)

    def _visit(self, node: Any, lines: range, *, in_function: bool) -> Iterator[Mutant]:
        if is_left_out(node):
            return
        if isinstance(node, SCOPES) or (in_function and isinstance(node, ast.stmt)):
            lines = range(node.lineno, last_line(node) + 1)
        if isinstance(node, SCOPES):
            in_function = isinstance(node, ast.FunctionDef)
        for start, end, text in self._changes(node):
            yield Mutant(self.path, start, end, text, lines)
        for child in children(node):
            yield from self._visit(child, lines, in_function=in_function)

    def _changes(self, node: ast.AST) -> Iterator[tuple[int, int, str]]:
        for operand in operands(node):
            operator = OPERATOR.match(self.source, self._span(operand)[1])
            if operator is not None:
                yield *operator.span(1), SWAPS[operator[1].decode()]
        if isinstance(node, ast.expr | ast.stmt):
            start, end = self._span(node)
            text = replacement(node, self.source[start:end].decode())
            if text is not None:
                yield start, end, text

    def _span(self, node: Any) -> tuple[int, int]:
        start = sum(self.lengths[: node.lineno - 1]) + node.col_offset
        return start, sum(self.lengths[: node.end_lineno - 1]) + node.end_col_offset


def is_left_out(node: ast.AST) -> bool:
    """True for code without mutants: errors, f-strings, `TYPE_CHECKING`, `__all__`."""
    if isinstance(node, ast.If | ast.Assign):
        return re.match("if TYPE_CHECKING|__all__ =", ast.unparse(node)) is not None
    return isinstance(node, ast.Raise | ast.JoinedStr)


def last_line(node: Any) -> int:
    """Where a statement ends; a loop or branch ends before its body."""
    last: int = node.end_lineno or node.lineno
    is_whole = isinstance(node, SCOPES) or not hasattr(node, "body")
    return last if is_whole else max(node.lineno, node.body[0].lineno - 1)


def children(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node, without annotations and decorators."""
    for name, value in ast.iter_fields(node):
        if name not in {"annotation", "returns", "decorator_list", "bases"}:
            parts = value if isinstance(value, list) else [value]
            yield from (part for part in parts if isinstance(part, ast.AST))


def operands(node: ast.AST) -> list[ast.expr]:
    """The operands that are followed by an operator."""
    match node:
        case ast.BinOp(left=operand) | ast.AugAssign(target=operand):
            return [operand]
        case ast.BoolOp(values=values):
            return values[:-1]
        case ast.Compare(left=left, comparators=others):
            return [left, *others[:-1]]
    return []


def replacement(node: ast.AST, text: str) -> str | None:
    """What to write in the place of a constant, a `not`, a call or a `return`."""
    new = None
    match node:
        case ast.UnaryOp(op=ast.Not()):
            new = text.removeprefix("not")
        case ast.Constant(value=bool(value)):
            new = str(not value)
        case ast.Constant(value=int(value)):
            new = str(value + 1)
        case ast.Constant(value=float(value)) if value != 0:
            new = repr(2 * value)
        case ast.Expr(value=ast.Call()):
            new = "pass"
        case ast.Return(value=ast.expr() as value):
            new = None if isinstance(value, ast.JoinedStr) else "return None"
    return new


def draw(folder: str, count: int, seed: int) -> list[Mutant]:
    """Random mutants of the files in a folder of the library, and in its subfolders.

    A mutant whose bytecode is the same as the original's is left out, so there may be
    fewer than `count`.
    """
    paths = sorted((PACKAGE / folder).rglob("*.py"))
    mutants = [mutant for path in paths for mutant in Reader(path).mutants()]
    random.Random(f"{seed} {folder}").shuffle(mutants)
    different = (
        mutant
        for mutant in mutants
        if bytecode(mutant.source()) != bytecode(mutant.path.read_bytes())
    )
    return [mutant for _, mutant in zip(range(count), different, strict=False)]


def bytecode(source: bytes | CodeType) -> tuple[object, ...]:
    """What Python executes of a source, without the positions of lines."""
    code = source if isinstance(source, CodeType) else compile(source, "", "exec")
    constants = [
        bytecode(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts
    ]
    return code.co_code, code.co_names, code.co_varnames, *constants
