"""The one error that a user can fix; everything else is a bug and keeps its traceback."""


class RcdiagError(Exception):
    """What was wrong and where (`message`), and the way out (`hint`)."""

    def __init__(self, message: str, hint: str = "") -> None:
        # Both go to the base class, so that the error survives pickling.
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message
