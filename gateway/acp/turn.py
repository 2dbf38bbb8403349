"""A turn of a coding agent: sends the prompt, and yields what the program does as the events of a turn."""

import base64
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing

import msgspec
from acp import schema

from gateway.acp.acp_session import Start
from gateway.acp.agent import CodingAgent, Permission
from gateway.acp.handover import build_prompt
from gateway.acp.pool import CodingTurn, TurnHooks
from gateway.acp.updates import TurnUpdates, token_usage
from gateway.agent.protocol import Event, ToolFinished, ToolStarted
from gateway.agent.senders import with_sender
from gateway.conversation import Message, ToolCall, ToolOutcome, UserMessage
from gateway.sessions.turn_progress import INTERRUPTED

_ASKED_BEFORE = (
    "The gateway was restarted before the agent got the answer, which was {answer}. The agent has been told."
)
_CANNOT_ALLOW = (
    "{name} asked for a permission that can't be given for this one time only, so I said no. With `{kind}` in "
    "agents.{name}.always_allow I would ask you."
)

Block = schema.TextContentBlock | schema.ImageContentBlock

_ENDINGS = {
    "max_tokens": "The agent stopped because its model reached the limit of tokens. Say “go on” if it should continue.",
    "max_turn_requests": "The agent stopped after too many steps. Say “go on” if it should continue.",
    "refusal": "The agent refused to go on.",
    "cancelled": "The agent cancelled its work.",
}


async def run_coding_turn(
    turn: CodingTurn, using: AbstractAsyncContextManager[tuple[CodingAgent, Start]], hooks: TurnHooks
) -> AsyncGenerator[Event, None]:
    """Run a turn with the program that `using` yields.

    Nothing happens until the caller asks for the next event, so that it can commit each one first. It can be closed at
    any point: the program is told to cancel. Raises `AgentFailed`, `ProviderFailed` and `Refused`.
    """
    # The program that has asked is gone. The person answers first, so that no program runs while they think, and before
    # any result is recorded: from then on the turn counts as running, and would not wait for them after a restart.
    asked = [call for call in turn.open_calls if call.id == turn.asked]
    decided = [(call, await hooks.ask(call, None)) for call in asked]
    outputs = {call.id: _ASKED_BEFORE.format(answer="yes" if is_approved else "no") for call, is_approved in decided}
    for call in turn.open_calls:
        outcome = ToolOutcome(id=call.id, output=outputs.get(call.id, INTERRUPTED), is_error=True)
        yield ToolFinished(call=call, outcome=outcome)

    async with using as (program, start):
        name = program.launch.agent
        if turn.is_resumed:
            await hooks.tell(_restart_notice(name, start))
        elif start is Start.NEW and turn.before:
            await hooks.tell(f"{name} has no record of this session, so I gave it the transcript.")
        texts = build_prompt(
            turn.messages,
            before=turn.before,
            knows_history=start is not Start.NEW,
            is_resumed=turn.is_resumed,
            decided=decided,
            system=turn.system,
            instructions=turn.instructions,
        )
        updates = TurnUpdates()
        answers = {_identity(call): is_approved for call, is_approved in decided}
        prompts = deque([_blocks(texts, turn.messages, with_images=program.session.takes_images)])
        ending = ""
        while prompts:
            async with aclosing(program.prompt(prompts.popleft())) as items:
                async for item in items:
                    match item:
                        case Permission():
                            for event in updates.ask(item.call):
                                yield event
                            call = updates.call_of(item.call)
                            known = answers.pop(_identity(call), None)
                            option = await _decide(item, call, known=known, name=name, hooks=hooks)
                            if not _allows(option):
                                updates.deny(item.call)
                            # Recorded first: after a restart, an answer that the program may have got counts no more.
                            yield ToolStarted(call=call)
                            if not item.answer.done():
                                item.answer.set_result(option.option_id if option is not None else None)
                        case schema.PromptResponse():
                            for event in updates.close_calls():
                                yield event
                            # After the results: the answer that follows has the usage in the transcript.
                            if (usage := program.count_usage(token_usage(item)) or updates.take_usage()) is not None:
                                hooks.charge(usage)
                            ending = _ENDINGS.get(item.stop_reason, "")
                        case _:
                            for event in updates.add(item):
                                yield event
                                if isinstance(event, ToolFinished) and program.launch.preset.steers:
                                    prompts += await _steer(program, await hooks.new_messages())
        yield updates.finish(ending)


async def _decide(
    asked: Permission, call: ToolCall, *, known: bool | None, name: str, hooks: TurnHooks
) -> schema.PermissionOption | None:
    """Return the option that answers a permission request. A person is asked, unless the decision is `known`."""
    may_always = hooks.may_always(call)
    if not _allows(choose_option(asked.options, is_approved=True, may_always=may_always)):
        await hooks.tell(_CANNOT_ALLOW.format(name=name, kind=call.name))
        is_approved = False
    else:
        is_approved = known if known is not None else await hooks.ask(call, asked.is_over)
    return choose_option(asked.options, is_approved=is_approved, may_always=may_always)


async def _steer(program: CodingAgent, messages: Sequence[Message]) -> list[list[Block]]:
    """Hand over messages that have come while the program works. Return what it could not take, as another prompt."""
    texts = [with_sender(message) for message in messages if isinstance(message, UserMessage)]
    if not texts:
        return []
    blocks = _blocks(["\n\n".join(texts)], messages, with_images=program.session.takes_images)
    return [] if await program.steer(blocks) else [blocks]


def choose_option(
    options: Iterable[schema.PermissionOption], *, is_approved: bool, may_always: bool
) -> schema.PermissionOption | None:
    """Return the option for a decision, by its kind: agents list them in any order, and some kinds twice.

    An approval is for once: what people allow for good is a grant of our own. None if no option fits.
    """
    by_kind: dict[str, schema.PermissionOption] = {}
    for option in options:
        by_kind.setdefault(option.kind, option)
    kinds = ["reject_once", "reject_always"]
    if is_approved:
        kinds = ["allow_once", *(["allow_always"] if may_always else []), *kinds]
    return next((by_kind[kind] for kind in kinds if kind in by_kind), None)


def _allows(option: schema.PermissionOption | None) -> bool:
    return option is not None and option.kind.startswith("allow")


def _restart_notice(name: str, start: Start) -> str:
    if start is Start.NEW:
        return f"I was restarted while {name} was working. It has the transcript of this session now, and goes on."
    return f"I was restarted while {name} was working. It has loaded this session, and goes on."


def _identity(call: ToolCall) -> str:
    return f"{call.name} {msgspec.json.encode(call.input, order='deterministic').decode()}"


def _blocks(texts: Sequence[str], messages: Sequence[Message], *, with_images: bool) -> list[Block]:
    blocks: list[Block] = [schema.TextContentBlock(type="text", text=text) for text in texts]
    if with_images:
        blocks += [
            schema.ImageContentBlock(
                type="image", data=base64.b64encode(picture.data).decode(), mime_type=picture.media_type
            )
            for message in messages
            if isinstance(message, UserMessage)
            for picture in message.pictures
            if picture.data
        ]
    return blocks
