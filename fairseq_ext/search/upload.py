"""Numbers of the host on their way to a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def upload(values: Any, device: torch.device) -> Tensor:
    """Return a list, an array or a tensor of the host as a tensor of a device, without waiting for all that the device still has to do,
    as `torch.tensor(values, device=device)` would."""
    return (torch.from_numpy(values) if isinstance(values, np.ndarray) else torch.as_tensor(values)).to(device, non_blocking=True)
