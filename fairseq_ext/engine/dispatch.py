"""Which requests wait, and which worker has which (`Dispatch`).

Requests wait in one queue; the worker with the least work gets the next one. Those of a worker that
died, the suspects, get a worker to themselves, so that the one that killed it is found.
"""

from __future__ import annotations

from collections import OrderedDict

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.process_pool import Worker
from fairseq_ext.engine.tickets import Ticket

AHEAD = 1.25  # times as many requests as a worker decodes at once are with it


class Dispatch:
    """The requests of an engine that are not answered, and its workers.

    Every method is called with the engine's lock.
    """

    def __init__(self) -> None:
        self.waiting: OrderedDict[int, Ticket] = OrderedDict()
        self.suspects: OrderedDict[int, Ticket] = OrderedDict()  # that were in a worker that died
        self.workers: list[Worker] = []
        self.width = 0  # sentences that a worker decodes at once, 0 while no model is loaded

    def __len__(self) -> int:
        return (
            len(self.waiting)
            + len(self.suspects)
            + sum(len(worker.requests) for worker in self.workers)
        )

    def give_out(self) -> None:
        """Give waiting requests to workers that have room."""
        ready = [worker for worker in self.workers if worker.ready]
        while self.suspects and (
            idle := next((worker for worker in ready if not worker.requests), None)
        ):
            self.give(self.suspects.popitem(last=False)[1], idle)
        alone = [w for w in ready if any(ticket.deaths for ticket in w.requests.values())]
        if self.suspects and not alone:  # a worker is kept free for them
            alone = [min(ready, key=lambda w: w.load)] if ready else []
        free = [w for w in ready if w not in alone]
        while self.waiting and (room := [w for w in free if len(w.requests) < AHEAD * self.width]):
            self.give(self.waiting.popitem(last=False)[1], min(room, key=lambda w: w.load))

    def give(self, ticket: Ticket, worker: Worker) -> None:
        """Give a request to a worker."""
        worker.requests[ticket.number] = ticket
        worker.load += ticket.size
        ticket.worker = worker
        try:
            worker.send(("add", ticket.number, ticket.job))
        except Exception as error:
            self.take(ticket)
            ticket.tell(
                UsageError(
                    f"the request cannot be sent to a process ({error}): give text and numbers"
                )
            )

    def take(self, ticket: Ticket) -> None:
        """Take a request out of wherever it is."""
        self.waiting.pop(ticket.number, None)
        self.suspects.pop(ticket.number, None)
        worker, ticket.worker = ticket.worker, None
        if worker is not None and worker.requests.pop(ticket.number, None) is not None:
            worker.load -= ticket.size

    def cancel(self, number: int) -> bool:
        """Take a request out, and tell the worker that has it; whether there is such a request."""
        places = [self.waiting, self.suspects, *(worker.requests for worker in self.workers)]
        ticket = next((place[number] for place in places if number in place), None)
        if ticket is None:
            return False
        worker = ticket.worker
        self.take(ticket)
        if worker is not None:
            worker.send(("cancel", number))
        return True

    def retry(self, worker: Worker) -> list[Ticket]:
        """The requests of a worker that is gone are suspects; those that were in two such workers
        are taken out and returned."""
        given_up = []
        for ticket in list(worker.requests.values()):
            self.take(ticket)
            ticket.deaths += 1
            if ticket.deaths < 2:
                self.suspects[ticket.number] = ticket
            else:
                given_up.append(ticket)
        return given_up

    def clear(self) -> list[Ticket]:
        """Take out the requests that no worker has; they are returned."""
        left = [*self.waiting.values(), *self.suspects.values()]
        self.waiting.clear()
        self.suspects.clear()
        return left
