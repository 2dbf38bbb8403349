"""Imports aiogram without building all of its pydantic models, and builds the few that this channel uses.

aiogram describes the whole Bot API in about six hundred models. It declares them with `defer_build`, so that pydantic
builds each one on first use, but then rebuilds all of them at the end of its import. That costs four seconds and a
hundred megabytes.
"""

import importlib
import sys
import threading
from typing import Any

from pydantic import BaseModel

# Several accounts may connect at the same time, each in its own thread.
_LOAD_LOCK = threading.Lock()

# `Any`: a classmethod of pydantic is replaced below, which a type checker reports as a mistake.
_model_rebuild: Any = BaseModel.__dict__["model_rebuild"]


def load_aiogram() -> None:
    """Import aiogram with its models unbuilt. Does nothing if aiogram is already imported.

    Blocks for a second or more, so call it in a thread.
    """

    def rebuild_others_only(cls: type[BaseModel], /, **options: Any) -> bool | None:  # noqa: ANN401 - pydantic's options
        # Other threads may import modules with pydantic models while this patch is active. Theirs are built as usual.
        return None if cls.__module__.startswith("aiogram.") else _rebuild(cls, **options)

    with _LOAD_LOCK:
        if "aiogram" in sys.modules:
            return
        BaseModel.model_rebuild = classmethod(rebuild_others_only)  # type: ignore[assignment,method-assign]  # See above.
        try:
            importlib.import_module("aiogram")
        finally:
            BaseModel.model_rebuild = _model_rebuild  # type: ignore[method-assign]  # See above.

        # aiogram's models refer to each other by name. Its own rebuild would have passed these names to pydantic; a
        # model that is built later, on first use, needs them as well.
        types, methods = importlib.import_module("aiogram.types"), importlib.import_module("aiogram.methods.base")
        names = {**vars(types), "Default": importlib.import_module("aiogram.client.default").Default, "List": list}

        def rebuild_with_names(
            cls: type[BaseModel], /, *, force: bool = False, raise_errors: bool = True, **_: object
        ) -> bool | None:
            return _rebuild(cls, force=force, raise_errors=raise_errors, _types_namespace=names)

        for base in (types.TelegramObject, methods.TelegramMethod, methods.Response):
            base.model_rebuild = classmethod(rebuild_with_names)


def build_models() -> list[type[BaseModel]]:
    """Build the models that this channel uses, so that pydantic doesn't build them later on the event loop.

    Returns the models of Telegram's responses. Keep them: pydantic holds them by weak references only, and would
    otherwise build them again for every response.
    """
    from aiogram import methods, types  # noqa: PLC0415 - this module is imported before aiogram is
    from aiogram.methods import Response, TelegramMethod  # noqa: PLC0415 - as above

    # The order matters: a model comes after the models it contains, because pydantic copies their current schemas.
    used_types: tuple[type[BaseModel], ...] = (
        types.User,
        types.Message,
        types.Update,
        types.BotCommand,
        types.BotCommandScopeAllGroupChats,
        types.BotCommandScopeChat,
        types.InlineKeyboardButton,
        types.InlineKeyboardMarkup,
        types.LinkPreviewOptions,
        types.ReactionTypeEmoji,
        types.ReplyParameters,
    )
    used_methods: tuple[type[TelegramMethod[Any]], ...] = (  # `Any`: each method returns a different type.
        methods.GetMe,
        methods.GetUpdates,
        methods.SendMessage,
        methods.SendMessageDraft,
        methods.SendChatAction,
        methods.EditMessageText,
        methods.SetMessageReaction,
        methods.AnswerCallbackQuery,
        methods.SetMyCommands,
        methods.DeleteMyCommands,
        methods.GetFile,
        methods.SendPhoto,
        methods.SendDocument,
        methods.SetWebhook,
        methods.GetWebhookInfo,
        methods.DeleteWebhook,
    )
    for model in (*used_types, *used_methods):
        model.model_rebuild()
    responses: list[type[BaseModel]] = []
    for method in used_methods:
        response: type[BaseModel] = Response[method.__returning__]  # type: ignore[name-defined]  # It is a type.
        response.model_rebuild()
        responses.append(response)
    return responses


def _rebuild(cls: type[BaseModel], **options: Any) -> bool | None:  # noqa: ANN401 - pydantic's options
    """Call pydantic's original `model_rebuild`."""
    is_built: bool | None = _model_rebuild.__func__(cls, **options)
    return is_built
