"""The other nodes of a cluster: asks each of them about itself, for answers that concern all nodes."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec
from aiohttp import web
from msgspec import Struct

from gateway.contract import Caller
from gateway.http.forwarding import Forwarder

_T = TypeVar("_T", bound=Struct)


class OtherNodes:
    """Without a cluster, there are none: `forwarder` is None, and `addresses` returns nothing."""

    def __init__(self, name: str, forwarder: Forwarder | None, addresses: Callable[[], Mapping[str, str]]) -> None:
        self.name = name
        """This node; empty without a cluster."""
        self._forwarder = forwarder
        self.addresses = addresses

    async def ask(self, caller: Caller, path: str, kind: type[_T]) -> dict[str, _T]:
        """Return the answers of the other nodes to a GET, by name. Nodes that don't answer in time are left out."""
        if self._forwarder is None:
            return {}
        addresses = self.addresses()
        found = await asyncio.gather(*(self._forwarder.fetch(each, path, caller) for each in addresses.values()))
        return {
            name: msgspec.json.decode(answer, type=kind)
            for name, answer in zip(addresses, found, strict=True)
            if answer is not None
        }

    async def ask_one(self, caller: Caller, name: str, request: web.Request) -> bytes | None:
        """Return the answer of one node to the same request, which must be about that node itself."""
        address = self.addresses().get(name)
        if self._forwarder is None or address is None:
            return None
        return await self._forwarder.fetch(address, request.rel_url.raw_path_qs, caller)
