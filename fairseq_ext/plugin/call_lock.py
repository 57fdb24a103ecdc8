"""The lock of a Translator's calls, which also detects forks.

A forked process has a copy of the Translator and only the thread that forked. The copy can be used
if no other thread was in a call. Its first call sets torch to one thread, since a call that shares
its work among threads would wait for ever for those of the parent. If another thread was in a call,
the copy is in the middle of that call's search, and is refused.
"""

from __future__ import annotations

import os
import threading

import torch

from fairseq_ext.core.errors import UsageError

PAUSE = 0.1  # seconds between two checks of the lock
loaded_in = os.getpid()  # the process that torch's threads belong to


def use_one_thread_after_a_fork() -> None:
    """Set torch to one thread in a process that was forked after this module was imported."""
    global loaded_in
    if loaded_in != os.getpid():
        torch.set_num_threads(1)
        loaded_in = os.getpid()


class CallLock(type(threading.RLock())):  # type: ignore[misc]
    """A lock that its thread may take again. Ctrl-C cannot leave it taken: the C code of `RLock`
    releases it, and an interrupt does not stop C code.

    Errors: UsageError in a forked process, if a thread of the parent had the lock.
    """

    def __init__(self) -> None:
        use_one_thread_after_a_fork()
        self.process = os.getpid()  # of the last thread that took it

    def __enter__(self) -> bool:
        while not self.acquire(timeout=PAUSE):
            if self.process != os.getpid():
                raise UsageError(
                    "this process was forked while another thread used the Translator: make a "
                    "Translator in this process, or fork while no call is under way"
                )
        try:
            self.process = os.getpid()
            use_one_thread_after_a_fork()
        except BaseException:
            self.release()
            raise
        return True
