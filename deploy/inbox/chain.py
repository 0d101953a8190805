"""Notices that a message is missing or out of order, by the header Sluicebox-Chain. chain/chain.go has the reasons."""

import re
import threading
from collections import OrderedDict

MAX_CHAINS = 100_000  # a chain that was forgotten is joined again
MAX_HASHES = 10_000  # of a chain; more than any request has


class Chains:
    """The state of each chain, for all messages of a group that come to this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chains: OrderedDict[str, _State] = OrderedDict()

    def accept(self, header: str | None) -> str:
        """Take the header of an accepted message, before the answer: none, follows, repeat, joined or gap."""
        part = (header or "").split(";")
        if len(part) != 4 or not re.fullmatch("[0-9]{1,18}", part[1]):
            return "none"
        name, accepted, before, this = part[0], int(part[1]), part[2], part[3]
        with self._lock:
            state = self._chains.get(name)
            if state is not None:
                self._chains.move_to_end(name)
                return state.accept(accepted, before, this)
            first = accepted == 0 and before == "0"
            self._chains[name] = _State(accepted, not first, [before, this])
            if len(self._chains) > MAX_CHAINS:
                self._chains.popitem(last=False)
            return "follows" if first else "joined"


class _State:
    def __init__(self, accepted: int, joined: bool, known: list[str]) -> None:
        self.accepted, self.joined, self.known = accepted, joined, known

    def accept(self, accepted: int, before: str, this: str) -> str:
        if accepted < self.accepted or accepted == self.accepted and this in self.known:
            return "repeat"
        verdict = "gap"
        if before in self.known:
            verdict = "follows"
            if accepted > self.accepted:
                self.known, self.joined = [before], False
        elif self.joined:
            verdict = "joined"
            if accepted > self.accepted:
                self.known = [before]
        else:
            self.known.append(before)
        self.accepted = accepted
        self.known.append(this)
        if len(self.known) > MAX_HASHES:
            del self.known[: MAX_HASHES // 2]
        return verdict
