import torch

from tests.helpers import SEED_VARIABLE, new_generator


def test_the_option_seed_changes_every_draw(monkeypatch):
    """`--seed 1` draws other numbers than `--seed 0`, and the same ones in each run."""

    def drawn(seed: int, option: int) -> list[float]:
        monkeypatch.setenv(SEED_VARIABLE, str(option))
        return torch.randn(4, generator=new_generator(seed)).tolist()

    assert drawn(0, 0) != drawn(0, 1)
    assert drawn(0, 1) == drawn(0, 1)
    assert drawn(1, 0) != drawn(0, 1)
