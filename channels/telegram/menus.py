"""Command menus: each chat is offered only the commands that its person may use."""

import asyncio

import structlog

from channels.telegram.api import BotApi
from channels.telegram.wire import command_menu
from gateway.contract import Address, ChannelContext, Inbound, PeerKind, Sender
from gateway.errors import ChannelError, Transient

log = structlog.get_logger()

MENU_RETRY_DELAYS = (5.0, 60.0, 600.0, 3_600.0)
MAX_CHECKED = 10_000
"""Chats whose menus are remembered as right. Beyond that, all are checked again."""
_FACT = "menu/"
"""The prefix of the facts about chats with their own menu."""
_STRANGER = Sender(id="0")


class CommandMenus:
    """Registers one menu for all direct chats, one for groups, and one for each direct chat that differs.

    An owner's chat differs, since it has the commands for owners. Telegram keeps a chat's menu until it is replaced,
    so the chats that have one are stored: a person who is no longer an owner loses theirs, also after a restart.
    Roles change at any time, so the menus are compared with them at each command.
    """

    def __init__(self, api: BotApi, context: ChannelContext) -> None:
        self._api = api
        self._context = context
        self._common: dict[str, str] = {}
        self._of_groups: dict[str, str] = {}
        self._own: set[int] = set()
        """Direct chats with their own menu."""
        self._checked: dict[int, int] = {}
        """The hashes of the menus that direct chats have, by chat."""

    async def register(self) -> None:
        """Register the common menus, with a few retries. The commands work without them."""
        for delay in MENU_RETRY_DELAYS:
            try:
                facts = await self._context.notebook.read()
                self._own = {int(name.removeprefix(_FACT)) for name in facts if name.startswith(_FACT)}
                await self._set_common()
            except Transient as error:
                log.warning("menu_not_set", channel=self._context.name, reason=str(error))
                await asyncio.sleep(delay if error.retry_after is None else error.retry_after)
            except ChannelError as refusal:  # A rejected token also shows up while receiving.
                log.warning("menu_not_set", channel=self._context.name, reason=str(refusal))
                return
            else:
                return

    def is_due(self, inbound: Inbound) -> bool:
        """Return whether the menu of a direct chat has to be checked: at its first message, and with each command."""
        is_direct = inbound.address.kind is PeerKind.DIRECT
        chat = int(inbound.address.peer) if is_direct else 0
        return is_direct and bool(self._common) and (chat not in self._checked or inbound.text.startswith("/"))

    async def update(self, inbound: Inbound) -> None:
        """Give a direct chat its own menu if its person may use other commands than most, and take it away if not."""
        chat = int(inbound.address.peer)
        menu = command_menu(self._context.browser.commands(inbound.address, inbound.sender))
        try:
            if self._common != self._menu(PeerKind.DIRECT) or self._of_groups != self._menu(PeerKind.GROUP):
                await self._set_common()
            before, now = self._checked.get(chat), hash(tuple(menu.items()))
            if before is None and len(self._checked) >= MAX_CHECKED:
                self._checked.clear()
            self._checked[chat] = now
            is_own = menu != self._common
            if is_own == (chat in self._own) and not (is_own and before != now):
                return
            if is_own:
                await self._context.notebook.write({f"{_FACT}{chat}": "own"})
                await self._api.set_menu(menu, chat=chat)
                self._own.add(chat)
            else:
                await self._api.delete_menu(chat)
                await self._context.notebook.write({f"{_FACT}{chat}": None})
                self._own.discard(chat)
        except ChannelError as error:  # The menu stays as it was. The next command tries again.
            self._checked.pop(chat, None)
            log.debug("menu_not_set", channel=self._context.name, reason=str(error))

    async def _set_common(self) -> None:
        common, of_groups = self._menu(PeerKind.DIRECT), self._menu(PeerKind.GROUP)
        before, before_of_groups = self._common, self._of_groups
        # Set before the calls: a chat that writes during them gets its own menu.
        self._common, self._of_groups = common, of_groups
        try:
            if common != before:
                await self._api.set_menu(common)
            # Without a menu of their own, groups have the common one.
            if of_groups != (before_of_groups or common) or of_groups != common:
                await self._api.set_group_menu(of_groups)
        except BaseException:
            self._common, self._of_groups = before, before_of_groups
            raise

    def _menu(self, kind: PeerKind) -> dict[str, str]:
        """Return the menu of a person without special rights in a chat of this kind."""
        address = Address(
            channel=self._context.name, account=self._context.account, kind=kind, peer=f"{kind} without members"
        )
        return command_menu(self._context.browser.commands(address, _STRANGER))
