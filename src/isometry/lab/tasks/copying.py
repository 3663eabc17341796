"""The copying memory task."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from isometry.lab.task import AbstractEndlessTask, Batch, check_positive

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@dataclass(frozen=True)
class CopyingTask(AbstractEndlessTask):
    r"""Remember a word for a long time, and repeat it when asked.

    A sequence has $L + 2K$ time steps. It begins with a word of $K$ symbols, each of
    which is drawn from an alphabet of $N$. All later inputs are blank (0), except for a
    marker ($N + 1$) that asks for the word. The answer is blank until the last $K$ time
    steps, where it is the word. Without memory, the best cross-entropy is
    $K \ln N / (L + 2K)$.

    Args:
        lag: $L$, the number of time steps between the word and the answer.
        length: $K$, the length of the word.
        symbols: $N$, the size of the alphabet.
        answer: when the first symbol of the answer is due: "at-marker", at the time
            step of the marker (as in the paper), or "after-marker", one time step later
            (as in the papers whose results the paper compares with its own).
        held_out: number of validation sequences, and also of test sequences.

    References:
        [LM19] section 5.1; [ASB16].
    """

    name: ClassVar[str] = "copying"
    metric: ClassVar[str] = "accuracy"
    # reports compare the loss, because the figure of the paper shows the loss
    reported: ClassVar[str | None] = "loss"
    settings_of: ClassVar[str] = "copying"

    lag: int = 1000
    length: int = 10
    symbols: int = 8
    answer: Literal["at-marker", "after-marker"] = "at-marker"
    held_out: int = 1000

    def __post_init__(self) -> None:
        check_positive(self, "lag", "length", "symbols", "held_out")

    def title(self) -> tuple[str, str, frozenset[str]]:
        """How reports name the task: by its lag."""
        heading = f"Copying memory, lag {self.lag}"
        return f"copying-{self.lag}", heading, frozenset({"lag"})

    @property
    def input_size(self) -> int:
        """Number of classes of an input: blank, symbols and marker."""
        return self.symbols + 2

    @property
    def output_size(self) -> int:
        """Number of classes of an output: blank and symbols."""
        return self.symbols + 1

    @property
    def steps(self) -> int:
        """Number of time steps, $T = L + 2K$."""
        return self.lag + 2 * self.length

    @property
    def baseline(self) -> float:
        r"""Loss of the best answer without memory, $K \ln N / (L + 2K)$."""
        return self.length * math.log(self.symbols) / self.steps

    def draw(self, rng: "np.random.Generator", size: int) -> Batch:
        """Draw sequences `x` and answers `y`, both class indices (time, batch)."""
        import torch

        # Draw with the batch axis first. Then a larger `held_out` keeps the sequences
        # of a smaller one, and adds more.
        words = rng.integers(1, self.symbols + 1, (size, self.length))
        word = torch.from_numpy(words).T
        x = torch.zeros(self.steps, size, dtype=torch.int64)
        y = torch.zeros_like(x)
        x[: self.length] = word
        y[-self.length :] = word
        first = self.steps - self.length
        x[first - (self.answer == "after-marker")] = self.symbols + 1
        return Batch(x, y)

    def loss(self, outputs: "Tensor", batch: Batch) -> "Tensor":
        """Mean cross-entropy over all time steps."""
        from torch.nn.functional import cross_entropy

        # Move the classes from the last axis to the first, because torch's softmax is
        # much slower along a short last axis.
        classes = outputs.flatten(0, 1).mT.contiguous()
        return cross_entropy(classes[None], batch.y.flatten()[None])

    def metrics(self, outputs: "Tensor", batch: Batch) -> dict[str, float]:
        """Accuracy: the fraction of the word's symbols that are correct."""
        word = outputs[-self.length :].argmax(-1)
        right = word == batch.y[-self.length :]
        return {"accuracy": right.float().mean().item()}
