"""The adding problem."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from isometry.lab.task import AbstractEndlessTask, Batch, check_positive, last

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@dataclass(frozen=True)
class AddingTask(AbstractEndlessTask):
    r"""Add the two marked numbers of a sequence.

    The first feature is a random number, uniformly distributed in $[0, 1)$. The second
    feature marks two numbers: it is 1 at one time step in each half of the sequence,
    and 0 elsewhere. The answer is due at the last time step. The best constant answer,
    1, has a mean squared error of $2/12$.

    Args:
        length: number of time steps of a sequence.
        held_out: number of validation sequences, and also of test sequences.

    References:
        [ASB16] section 5.2. [LM19] does not use the adding problem.
    """

    name: ClassVar[str] = "adding"
    last_only: ClassVar[bool] = True
    metric: ClassVar[str] = "mse"
    metric_is_loss: ClassVar[bool] = True
    # the features are a number and its marker
    input_size: ClassVar[int] = 2
    output_size: ClassVar[int] = 1
    # loss of the best constant answer: the variance of the sum, 2/12
    baseline: ClassVar[float] = 1 / 6

    length: int = 400
    held_out: int = 1000

    def __post_init__(self) -> None:
        check_positive(self, "held_out")
        if self.length < 2:
            raise ValueError(
                f"`length` must be at least 2, a time step for each number; "
                f"got {self.length}. Usual lengths are 100, 200, 400 and 750."
            )

    def title(self) -> tuple[str, str, frozenset[str]]:
        """How reports name the task: by its length."""
        heading = f"Adding problem, length {self.length}"
        return f"adding-{self.length}", heading, frozenset({"length"})

    def draw(self, rng: "np.random.Generator", size: int) -> Batch:
        """Draw sequences (time, batch, 2) and the sums to predict (batch, 1)."""
        import numpy as np
        import torch

        half = self.length // 2
        values = rng.random((size, self.length), dtype=np.float32)
        first = rng.integers(0, half, (size, 1))
        second = rng.integers(half, self.length, (size, 1))
        places = np.concatenate((first, second), axis=1)
        markers = np.zeros_like(values)
        np.put_along_axis(markers, places, 1, axis=1)
        y = np.take_along_axis(values, places, axis=1).sum(1, keepdims=True)
        x = np.stack((values.T, markers.T), axis=-1)
        return Batch(torch.from_numpy(x), torch.from_numpy(y))

    def loss(self, outputs: "Tensor", batch: Batch) -> "Tensor":
        """Mean squared error."""
        from torch.nn.functional import mse_loss

        return mse_loss(last(outputs), batch.y)

    def metrics(self, outputs: "Tensor", batch: Batch) -> dict[str, float]:
        """The loss under its usual name, "mse"."""
        return {"mse": self.loss(outputs, batch).item()}
