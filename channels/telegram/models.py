"""What this channel uses of aiogram's models, built before it is used: see `loading`."""

from typing import Any

from aiogram import methods
from aiogram.methods import Response, TelegramMethod
from aiogram.types import (
    BotCommand,
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    LinkPreviewOptions,
    Message,
    ReactionTypeEmoji,
    ReplyParameters,
    Update,
    User,
)
from pydantic import BaseModel

__all__ = ["build_models"]

# What holds others comes after them: pydantic takes those as they are then.
_SAID: tuple[type[BaseModel], ...] = (
    User,
    Message,
    Update,
    BotCommand,
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    LinkPreviewOptions,
    ReactionTypeEmoji,
    ReplyParameters,
)
_ASKED: tuple[type[TelegramMethod[Any]], ...] = (  # Any: each returns something else.
    methods.GetMe,
    methods.GetUpdates,
    methods.SendMessage,
    methods.SendMessageDraft,
    methods.SendChatAction,
    methods.EditMessageText,
    methods.SetMessageReaction,
    methods.AnswerCallbackQuery,
    methods.SetMyCommands,
    methods.GetFile,
    methods.SendPhoto,
    methods.SendDocument,
    methods.SetWebhook,
    methods.GetWebhookInfo,
    methods.DeleteWebhook,
)


def build_models() -> list[type[BaseModel]]:
    """Let pydantic build now, in a thread, what it would build on the event loop when it is first used.

    Returns the models of answers, which whoever wants them has to keep: pydantic forgets them at once, and would build
    them for each answer.
    """
    for model in (*_SAID, *_ASKED):
        model.model_rebuild()
    return [_answer_to(method) for method in _ASKED]


def _answer_to(method: type[TelegramMethod[Any]]) -> type[BaseModel]:
    answer: type[BaseModel] = Response[method.__returning__]  # type: ignore[name-defined]  # It is a type.
    answer.model_rebuild()
    return answer
