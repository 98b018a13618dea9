"""Several ranks on devices that have no collectives: refused before any rank waits for another."""

import pytest
import torch

from sbpipe.errors import DeviceError
from sbpipe.trainer.ranks.group import Group


def test_ranks_on_a_device_without_collectives_are_refused_with_the_way_out() -> None:
    with pytest.raises(
        DeviceError, match=r"nothing that carries them for sim devices. Set train.device = 'cpu'"
    ):
        Group(0, 2, torch.device("sim", 0), batch_size=16, wait_s=5.0)
