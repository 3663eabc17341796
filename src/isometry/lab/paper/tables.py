"""The tables of the paper as data, and what its text says about its figures.

The numbers are from [LM19]. The paper rounds the numbers of parameters (`params`).
Three of these do not agree with the formulas of the networks' authors: see
`COUNTS_NOTE`.
"""

from dataclasses import dataclass

SOURCE = (
    "M. Lezcano-Casado, D. Martínez-Rubio, Cheap Orthogonal Constraints in Neural "
    "Networks, ICML 2019"
)


@dataclass(frozen=True)
class PaperRow:
    """A row of a table in the paper.

    Attributes:
        model: name of the network in our registry.
        hidden_size: the number in the column n of the table.
        params: the number of parameters, as printed.
        result: the accuracy or error of the network, as printed; None for a dash.
    """

    model: str
    hidden_size: int
    params: str
    result: str | None


@dataclass(frozen=True)
class PaperTable:
    """A table or figure in the paper.

    Attributes:
        where: its number in the paper, such as "Table 2".
        words: how its numbers were measured; for a figure, first what the paper says
            about it.
        rows: the rows of the table; empty for a figure.
        selects_on_test: whether the numbers are the best test results of the runs.
    """

    where: str
    words: str
    rows: tuple[PaperRow, ...] = ()
    selects_on_test: bool = False

    def row(self, model: str, hidden_size: int | None) -> PaperRow | None:
        """The row for a network of this size; None if the table has no such row."""
        key = (model, hidden_size)
        return next((r for r in self.rows if (r.model, r.hidden_size) == key), None)


# Table 1: model, n, parameters, accuracy on MNIST, accuracy on permuted MNIST
_PIXELS = (
    ("exprnn", 170, "16K", "0.980", "0.949"),
    ("exprnn", 360, "69K", "0.984", "0.962"),
    ("exprnn", 512, "137K", "0.987", "0.966"),
    ("scornn", 170, "16K", "0.972", "0.948"),
    ("scornn", 360, "69K", "0.981", "0.959"),
    ("scornn", 512, "137K", "0.982", "0.965"),
    ("lstm", 128, "68K", "0.819", "0.795"),
    ("lstm", 256, "270K", "0.888", "0.888"),
    ("lstm", 512, "1058K", "0.919", "0.918"),
    ("rgd", 116, "9K", "0.947", "0.925"),
    ("rgd", 512, "137K", "0.973", "0.947"),
    ("urnn", 512, "9K", "0.976", "0.945"),
    ("urnn", 2170, "69K", "0.984", "0.953"),
    ("eurnn", 512, "9K", None, "0.937"),
)

# Table 2: for each model and number of parameters, n and the test MSE at the epoch with
# the lowest validation MSE
_SPEECH_PARAMS = ("83K", "135K", "200K")
_SPEECH = {
    "exprnn": ((224, "5.30"), (322, "4.38"), (425, "5.48")),
    "scornn": ((224, "8.50"), (322, "7.82"), (425, "7.36")),
    "lstm": ((84, "14.30"), (120, "12.95"), (158, "12.62")),
    "eurnn": ((158, "18.51"), (256, "15.31"), (378, "15.15")),
    "rgd": ((128, "14.58"), (192, "14.50"), (256, "14.69")),
}

COUNTS_NOTE = (
    "According to the formulas of the networks' authors, uRNN 512 has 16,394 "
    "parameters, and RGD 116 and 512 have 16,366 and 274,954; the paper prints 9K, 9K "
    "and 137K."
)

_COPYING_PROTOCOL = "Batches of 128, 4000 iterations, every sequence fresh."
_PIXEL_PROTOCOL = (
    "Batches of 128, 70 epochs; the largest test accuracy over all epochs. The paper "
    f"quotes the rows of EURNN, RGD and uRNN from other papers. {COUNTS_NOTE}"
)


def _table1(where: str, *, permuted: bool) -> PaperTable:
    """Half of Table 1: the accuracies on MNIST or on permuted MNIST."""
    rows = tuple(
        PaperRow(model, n, params, on_permuted if permuted else on_mnist)
        for model, n, params, on_mnist, on_permuted in _PIXELS
    )
    return PaperTable(where, _PIXEL_PROTOCOL, rows, selects_on_test=True)


PAPER = {
    "copying-1000": PaperTable(
        "Figure 1, left",
        f"ExpRNN converges smoothly; scoRNN is unstable. {_COPYING_PROTOCOL}",
    ),
    "copying-2000": PaperTable(
        "Figure 1, right",
        "ExpRNN is the only one that converges to the correct answer. "
        + _COPYING_PROTOCOL,
    ),
    "mnist": _table1("Table 1, MNIST", permuted=False),
    "pmnist": _table1("Table 1, P-MNIST", permuted=True),
    "timit": PaperTable(
        "Table 2",
        "The test error at the epoch with the lowest validation error. All rows except "
        "those of ExpRNN are quoted from another paper. Their errors are probably "
        "divided by the padded length, which makes them smaller. In the authors' "
        "program, the target appears to be the previous frame, not the next.",
        tuple(
            PaperRow(model, n, params, error)
            for model, cells in _SPEECH.items()
            for params, (n, error) in zip(_SPEECH_PARAMS, cells, strict=True)
        ),
    ),
}
