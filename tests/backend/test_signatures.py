"""The tables with which Python calls C have the types of the C sources."""

import ctypes
import re
from typing import Any

from isometry._backend import library, native
from tests.helpers import ROOT

SOURCES = ROOT / "src" / "isometry" / "_backend" / "c"


def letter(declaration: str) -> str:
    """The letter of `_SIGNATURES` for the declaration of an argument or a field."""
    if "*" in declaration or "gemm_t" in declaration:
        return "p"
    return {"long": "l", "double": "d"}[declaration.split(maxsplit=1)[0]]


def test_arguments_have_the_types_of_the_c_functions():
    """The types in `_SIGNATURES` are those in C; others are undefined behaviour."""
    text = "".join(path.read_text() for path in sorted(SOURCES.glob("*.h")))
    functions = re.findall(r"^void NAME\((\w+)\)\(([^{]*)\)\s*\{", text, re.MULTILINE)
    signatures = {
        name: "".join(map(letter, arguments.split(",")))
        for name, arguments in functions
    }
    assert signatures == library._SIGNATURES


def test_the_struct_has_the_fields_of_the_c_struct():
    text = re.sub(r"/\*.*?\*/", "", (SOURCES / "scan.h").read_text(), flags=re.DOTALL)
    (body,) = re.findall(r"typedef struct \{([^}]*)\} NAME\(recurrence_t\)", text)
    fields = []
    for declaration in filter(str.strip, body.split(";")):
        kind, _, names = declaration.strip().removeprefix("const ").partition(" ")
        fields += [(n.strip(" *"), letter(f"{kind} {n}")) for n in names.split(",")]
    types: dict[Any, str] = {
        ctypes.c_void_p: "p",
        ctypes.c_long: "l",
        ctypes.c_double: "d",
    }
    ours = [(field[0], types[field[1]]) for field in native.CRecurrence._fields_]
    assert ours == fields


def test_a_table_has_the_order_of_the_c_arguments():
    """`evaluate` and `pull_back` take the fields of a `PolynomialTable` one by one."""
    text = (SOURCES / "polynomial.h").read_text()
    tails = re.findall(r"const REAL \*table,\s*([^)]*), long n\)", text)
    names = [re.findall(r"long (\w+)", tail) for tail in tails]
    assert names == [[*native.PolynomialTable._fields[1:]]] * 2
