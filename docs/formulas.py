"""MathML from LaTeX, with the spacing that TeX would give it.

`latex2mathml` finds the structure. Browsers then space a formula by what each operator
is (an opening bar, a sign, a sum), which LaTeX does not write down: `mathml` does.
"""

import unicodedata
from html import unescape
from itertools import pairwise
from xml.etree.ElementTree import Element, tostring

from latex2mathml.converter import convert_to_element

OPENING = set("([{⟨⌈⌊")
CLOSING = set(")]}⟩⌉⌋")
BARS = set("|‖")
PUNCTUATION = set(",;.")
SIGNS = set("+−±∓")
# latex2mathml takes the former for letters and the latter for operators
SYMBOLS = set("⟨⟩⌈⌉±′:")
LETTERS = set("…∂")
# a sign after one of these, or at the beginning, belongs to what follows it
BEFORE_SIGN = {"start", "opening", "operator", "punctuation"}

# the first child is what the others are attached to
SCRIPTS = {"msub", "msup", "msubsup", "munder", "mover", "munderover"}
# elements whose children stand side by side
ROWS = {"math", "mrow", "mstyle", "mtd", "msqrt"}
# Chromium puts what follows a letter at its width, and these lean beyond theirs
LEANING = set("FPTVWY")
LEAN = "0.1em"
THIN = "0.167em"
MEDIUM = "0.222em"


def mathml(latex: str, *, display: bool) -> str:
    """The formula as an element `math`, which browsers show without any script."""
    # two names of one environment, and latex2mathml knows this one
    latex = latex.replace("{aligned}", "{split}")
    formula = convert_to_element(latex, display="block" if display else "inline")
    for element in formula.iter():
        _letters(element)
        _lower_prime(element)
        if element.tag == "mtable":
            _align(element)
    _space(formula, in_script=False)
    for element in list(formula.iter()):
        _clear(element)
    return tostring(formula, encoding="unicode")


def _letters(element: Element) -> None:
    """Characters in place of references, and the alphabet that the formula asks for."""
    if element.text:
        # the asterisk of a keyboard is raised, and would be raised twice
        element.text = unescape(element.text).replace("*", "∗")
    text = element.text or ""
    word = len(text) > 1 and text.isalpha()
    if element.tag == "mi" and text in SYMBOLS:
        element.tag = "mo"
        element.set("stretchy", "false")
    elif element.tag == "mo" and (text in LETTERS or word):
        element.tag = "mi"
    elif element.tag == "mi" and _is_greek_capital(text):
        # TeX sets the capitals upright and the small letters in italics
        element.set("mathvariant", "normal")
    variant = element.get("mathvariant")
    if variant in {"fraktur", "script"} and text:
        # `normal` is the only variant of MathML Core: others are letters of their own
        del element.attrib["mathvariant"]
        element.text = "".join(_letter(variant, letter) for letter in text)


def _lower_prime(element: Element) -> None:
    """A prime stands beside its letter: the character itself is small and raised."""
    if element.tag == "msup" and element[1].text in {"′", "&#x02032;"}:
        element.tag = "mrow"
        element[1].attrib.update(form="postfix", lspace="0", rspace="0")


def _align(table: Element) -> None:
    """Columns as the environment wants them, in CSS: MathML Core has no attributes."""
    adjacent = table.get("columnspacing", "").startswith("0em")
    for cell in table.iter("mtd"):
        if align := cell.attrib.pop("columnalign", None):
            # Chromium moves rows of MathML by its own keyword only; others skip that
            style = f"text-align: {align}; text-align: -webkit-{align}"
            cell.set("style", style + (f"; padding-{align}: 0" if adjacent else ""))


def _clear(element: Element) -> None:
    """Room for the arm of a leaning letter, below a superscript or a parenthesis."""
    if element.tag in {"msup", "msubsup"} and element[0].text in LEANING:
        raised = element[-1]
        element.remove(raised)
        element.append(_row(Element("mspace", width=LEAN), raised))
    if element.tag in ROWS:
        for left, right in pairwise(list(element)):
            if left.text in LEANING and _core(right).get("form") == "postfix":
                element.insert(
                    list(element).index(right), Element("mspace", width=LEAN)
                )


def _row(*children: Element) -> Element:
    row = Element("mrow")
    row.extend(children)
    return row


def _is_greek_capital(text: str) -> bool:
    return len(text) == 1 and unicodedata.name(text, "").startswith("GREEK CAPITAL")


def _letter(variant: str, letter: str) -> str:
    """The mathematical letter of that alphabet; a few lie in an older block."""
    case = "CAPITAL" if letter.isupper() else "SMALL"
    older = {"fraktur": "BLACK-LETTER", "script": "SCRIPT"}[variant]
    for alphabet in (f"MATHEMATICAL {variant.upper()}", older):
        try:
            return unicodedata.lookup(f"{alphabet} {case} {letter.upper()}")
        except KeyError:
            continue
    return letter


def _space(element: Element, *, in_script: bool) -> None:
    """Tell the operators of a formula what they are, from the outside in."""
    if element.tag in ROWS:
        _space_row(element, in_script=in_script)
    for position, child in enumerate(element):
        attached = element.tag in SCRIPTS and position > 0
        _space(child, in_script=in_script or attached)


def _space_row(row: Element, *, in_script: bool) -> None:
    before = "start"
    bars: list[str] = []
    for child in list(row):
        if child.tag == "mspace":
            before = "space" if before not in BEFORE_SIGN else before
            continue
        kind = _kind(_core(child), before, bars)
        _mark(_core(child), kind, before, in_script=in_script)
        if _needs_thin_space(before, kind):
            row.insert(list(row).index(child), Element("mspace", width=THIN))
        before = kind


def _core(element: Element) -> Element:
    """What carries the scripts."""
    return _core(element[0]) if element.tag in SCRIPTS else element


def _kind(core: Element, before: str, bars: list[str]) -> str:
    """What an element is to its neighbours; `bars` are the bars that are still open."""
    text = core.text or ""
    if core.tag == "mi":
        return "function" if len(text) > 1 and text.isalpha() else "ordinary"
    if core.tag != "mo":
        return "ordinary"
    if text in BARS:
        if bars[-1:] == [text] and before not in BEFORE_SIGN:
            bars.pop()
            return "closing"
        bars.append(text)
        return "bar"
    for kind, characters in (
        ("opening", OPENING),
        ("closing", CLOSING),
        ("punctuation", PUNCTUATION),
    ):
        if text in characters:
            return kind
    return "sum" if text in set("∑∏∫") else "operator"


def _mark(core: Element, kind: str, before: str, *, in_script: bool) -> None:
    text = core.text or ""
    if kind in {"opening", "bar", "closing"}:
        core.set("form", "postfix" if kind == "closing" else "prefix")
        if size := core.attrib.pop("minsize", None):
            # \bigl and the like: Chromium leaves a gap beside what it stretches
            del core.attrib["maxsize"]
            core.attrib.update(stretchy="false", mathsize=size)
        elif text in BARS and "stretchy" not in core.attrib:
            # \lVert and \rVert have one size
            core.set("stretchy", "false")
    elif text in SIGNS and before in BEFORE_SIGN:
        core.set("form", "prefix")
    elif text in {"/", "."} or (kind == "operator" and in_script):
        _surround(core, "0")
    elif text in {"∘", ":"}:
        _surround(core, MEDIUM)


def _surround(core: Element, width: str) -> None:
    core.set("lspace", width)
    core.set("rspace", width)


def _needs_thin_space(left: str, right: str) -> bool:
    """`2 sin x`, but `sin(x)` and `-sin x`."""
    return (left == "function" and right in {"ordinary", "function", "bar"}) or (
        right == "function" and left in {"ordinary", "closing"}
    )
