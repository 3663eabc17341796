"""Checks the message of a commit: `python -m tools.commit_message FILE`.

Git's hook `commit-msg` calls it, as `.pre-commit-config.yaml` says, with the file that
holds the message.
"""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

LONGEST = 72
# a line of the body; `git log` indents it by four columns
WIDEST = 96
# an area, such as "nn", "_backend/c" or "nn, optim", and what the commit does
TITLE = re.compile(r"[\w./-]+(, [\w./-]+)*: \S.*[^.\s]")
# a word with one of these endings is no imperative, except for verbs such as "bring"
ENDING = re.compile(
    r"(?!(bring|need|feed|speed|embed|bias|focus)\b)\w+(ed|ing|[^s]s)\b"
)
# beginnings of the titles that git writes itself
OWN = ("Merge ", "Revert ", "fixup! ", "squash! ")
# changes to these folders say what they cost or gain
MEASURED = ("src/isometry/_backend/", "src/isometry/linalg/")


def errors(message: str, files: Iterable[str]) -> list[str]:
    """What is wrong with the message of a commit.

    Args:
        message: the message, with the comments of git.
        files: the files that the commit changes.

    Returns:
        Sentences, or an empty list.
    """
    # below the scissors, `git commit --verbose` shows the changes
    text = message.partition("# ------------------------ >8")[0]
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    title, *body = "\n".join(lines).strip().splitlines() or [""]
    if title.startswith(OWN):
        return []
    sentences = []
    if len(title) > LONGEST:
        sentences.append(
            f"The title must have at most {LONGEST} characters; got {len(title)}."
        )
    if not TITLE.fullmatch(title):
        sentences.append(
            f"The title must be `area: imperative`, without a full stop; got {title!r}."
        )
    elif ENDING.match(verb := title.partition(": ")[2]):
        sentences.append(
            f"After the area, the title must be an imperative, such as 'fix the "
            f"error'; got {verb!r}."
        )
    widest = max(map(len, body), default=0)
    if widest > WIDEST:
        sentences.append(
            f"A line of the body must have at most {WIDEST} characters; got {widest}."
        )
    measured = sorted({f for f in files if f.startswith(MEASURED)})
    if measured and not any(line.strip() for line in body):
        sentences.append(
            f"The message must have a body that says why, with the numbers before and "
            f"after; it changes {measured[0]}."
        )
    return sentences


def main(arguments: list[str]) -> int:
    """Print what is wrong with the message of the commit that is being made."""
    staged = ["git", "diff", "--cached", "--name-only"]
    files = subprocess.check_output(staged, text=True).splitlines()
    sentences = errors(Path(arguments[0]).read_text(), files)
    for sentence in sentences:
        print(sentence, file=sys.stderr)
    return bool(sentences)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
