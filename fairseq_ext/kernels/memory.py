"""Memory of large pages, for weights that every step reads from start to end: with small ones the
processor looks up an address every 4 KiB, and its own prefetching stops there."""

from __future__ import annotations

import mmap
import threading
import weakref
from typing import Any

import torch
from torch import Tensor

PAGE, CHUNK, LINE = 2 << 20, 32 << 20, 64  # bytes: a large page, a chunk, alignment


class Chunks:
    """Tensors side by side in chunks, since most weights are smaller than a page. A chunk lives as
    long as one of its tensors, and only the pages that they fill take memory."""

    def __init__(self) -> None:
        self.lock, self.used = threading.Lock(), 0
        self.last: Any = lambda: None  # a weak reference

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a contiguous tensor in large pages, or itself where the system has none."""
        size = tensor.numel() * tensor.element_size()
        if not hasattr(mmap, "MADV_HUGEPAGE") or not size:
            return tensor
        with self.lock:
            chunk = self.last()
            if chunk is None or self.used + size > len(chunk):
                room = max(size + PAGE, CHUNK)
                try:
                    chunk = mmap.mmap(-1, room, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                    chunk.madvise(mmap.MADV_HUGEPAGE)
                except OSError:  # a kernel without large pages, or a limit of address space
                    return tensor
                self.last = weakref.ref(chunk)
                start = torch.frombuffer(chunk, dtype=torch.uint8).data_ptr()
                self.used = -start % PAGE
            at, self.used = self.used, self.used + size + -size % LINE
        made = torch.frombuffer(chunk, dtype=tensor.dtype, count=tensor.numel(), offset=at)
        return made.view(tensor.shape).copy_(tensor)


in_large_pages = Chunks().copy
