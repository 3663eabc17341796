"""What a mistyped word was meant to be."""

import difflib
from collections.abc import Iterable


def suggestion(word: str, known: Iterable[str]) -> str:
    """A question about the closest known word, with a space before it.

    Args:
        word: what was typed.
        known: the words that would have been right.

    Returns:
        Such as " Do you mean lag?"; empty if none is close.
    """
    # capitals are mistyped, too
    folded = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), folded, n=1)
    return f" Do you mean {folded[close[0]]}?" if close else ""
