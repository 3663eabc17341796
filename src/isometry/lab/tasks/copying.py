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
    r"""Remember a word for a long time, and say it when asked.

    A word of $K$ symbols out of $N$ is followed by blanks (0), then by a marker
    ($N + 1$), in $L + 2K$ time steps. The answer is blank, except for the word in the
    last $K$ time steps. Without memory the best cross-entropy is
    $K \ln N / (L + 2K)$.

    Args:
        lag: $L$.
        length: $K$, the length of the word.
        symbols: $N$.
        answer: the first symbol is due "at-marker" (the paper) or in the time step
            "after-marker" (the systems that it compares with).
        held_out: sequences for validation, and as many for test.

    References:
        [LM19] section 5.1; [ASB16].
    """

    name: ClassVar[str] = "copying"
    last_only: ClassVar[bool] = False
    metric: ClassVar[str] = "accuracy"
    # the paper's figure has the loss
    reported: ClassVar[str | None] = "loss"

    lag: int = 1000
    length: int = 10
    symbols: int = 8
    answer: Literal["at-marker", "after-marker"] = "at-marker"
    held_out: int = 1000

    def __post_init__(self) -> None:
        check_positive(
            lag=self.lag,
            length=self.length,
            symbols=self.symbols,
            held_out=self.held_out,
        )

    @property
    def recipe(self) -> str:
        """The paper's copying task."""
        return "copying"

    def title(self) -> tuple[str, str, frozenset[str]]:
        """A task for each lag."""
        heading = f"Copying memory, lag {self.lag}"
        return f"copying-{self.lag}", heading, frozenset({"lag"})

    @property
    def input_size(self) -> int:
        """Blank, symbols and marker."""
        return self.symbols + 2

    @property
    def output_size(self) -> int:
        """Blank and symbols."""
        return self.symbols + 1

    @property
    def steps(self) -> int:
        """$T = L + 2K$."""
        return self.lag + 2 * self.length

    @property
    def baseline(self) -> float:
        r"""$K \ln N / T$: blanks are known, symbols are guessed."""
        return self.length * math.log(self.symbols) / self.steps

    def draw(self, rng: "np.random.Generator", size: int) -> Batch:
        """Sequences `x` and answers `y`, both of classes (time, batch)."""
        import torch

        # (batch, K): a longer draw begins with the words of a shorter one
        drawn = rng.integers(1, self.symbols + 1, (size, self.length))
        word = torch.from_numpy(drawn).T
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

        # classes first: along a short last axis torch's softmax is four times slower
        classes = outputs.flatten(0, 1).mT.contiguous()
        return cross_entropy(classes[None], batch.y.flatten()[None])

    def metrics(self, outputs: "Tensor", batch: Batch) -> dict[str, float]:
        """Fraction of the symbols of the word that are right."""
        said = outputs[-self.length :].argmax(-1)
        right = said == batch.y[-self.length :]
        return {"accuracy": right.float().mean().item()}
