"""Lines of code by folder: `python -m tools.lines [folder]`.

Blank lines, comments and docstrings are not code. Every physical line with any other
token counts once, so a call over three lines counts three times.
"""

import ast
import sys
import tokenize
from collections import Counter
from pathlib import Path

_LAYOUT = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def lines_of_code(path: Path) -> int:
    """Number of lines of code in a Python file."""
    with path.open("rb") as file:
        tokens = list(tokenize.tokenize(file.readline))
    lines = {
        line
        for token in tokens
        if token.type not in _LAYOUT
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - _docstring_lines(path.read_text()))


def _docstring_lines(source: str) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            text = node.body[0]
            lines |= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return lines


def table(root: Path) -> list[tuple[str, int, int]]:
    """Rows (folder, number of files, lines of code); the last one has the sums."""
    files, lines = Counter[str](), Counter[str]()
    for path in root.rglob("*.py"):
        folder = path.parent.relative_to(root).as_posix()
        files[folder] += 1
        lines[folder] += lines_of_code(path)
    rows = [(folder, files[folder], lines[folder]) for folder in sorted(files)]
    return [*rows, ("all", files.total(), lines.total())]


def main(arguments: list[str]) -> None:
    """Print the table of a folder, by default of the library."""
    default = Path(__file__).parents[1] / "src" / "isometry"
    rows = table(Path(arguments[0]) if arguments else default)
    width = max(len(folder) for folder, _, _ in rows)
    print(f"{'folder':{width}}  files  lines of code")
    for folder, files, lines in rows:
        print(f"{folder:{width}}  {files:5}  {lines:13}")


if __name__ == "__main__":
    main(sys.argv[1:])
