"""The errors of the laboratory that users see, with or without a traceback."""

# name of the attribute with which `require_traceback` marks an error
_TRACEBACK = "isometry_needs_traceback"


class RunError(Exception):
    """A run cannot begin, continue or be read. The message says why, and what to do."""


def require_traceback(error: Exception, origin: str) -> None:
    """Mark an error that the user's own code raised, and add a note about its origin.

    Most errors are about options, and the command line prints only their messages. For
    an error in the user's code, the traceback must be printed as well, since the
    message does not say which line is wrong.

    Args:
        error: the error.
        origin: what raised it, such as "raised by the import of mine".
    """
    error.add_note(f"isometry: {origin}")
    setattr(error, _TRACEBACK, True)


def needs_traceback(error: Exception) -> bool:
    """True if `require_traceback` has marked the error."""
    return hasattr(error, _TRACEBACK)
