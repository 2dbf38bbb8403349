"""An ACP agent for tests that behaves, and misbehaves, as the prompt and the options tell it. Standard library only.

The last text block of a prompt is a script: one command a line, or several separated by ` ;; `. A script without any
command is answered by "You said: ...". Paths are relative to the folder of the session.

    say TEXT                 a chunk of the answer              think TEXT          a chunk of a thought
    stream N [SECONDS]       N chunks "word1 ", "word2 ", ...   image               a picture in the answer
    warn TEXT                a chunk before the answer          late TEXT           a chunk after the turn has ended
    tool KIND ARGUMENT       a tool call that succeeds; `read` returns the content of the file
    broken KIND ARGUMENT     a tool call that fails             orphan TITLE        an update of an unknown tool call
    edit FILE TEXT           writes a file and reports a diff   open KIND ARGUMENT  a tool call that never ends
    ask KIND ARGUMENT        asks for permission, then acts: `execute COMMAND`, `edit FILE TEXT`, others only report.
                             Says "allowed by ID", "rejected by ID", "cancelled" or "refused: ...".
    ask_after_cancel K A     waits for the cancel, then asks    ask_first K A       no tool_call before the request
    options NAME             the options of the next requests: see OPTIONS
    tool_id ID               the id of all tool calls from now on     request_id ID   the same for requests
    plan A;B;C               a plan; the first entry is done, the second in progress
    usage IN OUT [COST]      tokens in the result of the prompt, and a usage_update
    write FILE TEXT, append FILE TEXT, run COMMAND      without asking; `run` says the output
    client_read PATH [LINE [LIMIT]], client_write PATH TEXT, client_run COMMAND, client_kill COMMAND
                             by the methods fs/* and terminal/* of the client; says the result
    request METHOD [JSON]    any request; says the answer       notify METHOD [JSON]   any notification
                             The session id is added to the parameters of a request.
    update JSON              any session/update                 raw TEXT            a line as it is
    other TEXT               a chunk for another session id     mode ID             a current_mode_update
    commands, config, title TEXT                        the other updates
    cwd, env NAME, pid, modes, recall, context          says it; recall: the prompts before, context: the other blocks
    sleep SECONDS            or until the cancel                hang                until the cancel
    wait FILE                until the file exists              endless [TEXT]      chunks until the cancel
    garbage, invalid, unknown, huge [MB], flood         what the options of the same name do
    go_on                    runs what the last turn left undone when its process ended, from the command it was in
    stop REASON              ends with this stop reason         fail CODE TEXT      answers with an error
    die, exit CODE TEXT      ends the process; TEXT to stderr   kill                SIGKILL to itself
    fork N                   N children that leave the process group, ignore SIGTERM and hold the pipes

Each `write`, `append`, `edit`, `run`, and each `ask` that was allowed adds a line to `effects.log` in the folder of the
session: the command and its argument. `$HOME/.scripted_agent/` has the sessions, and `received.log`: one line for each
message that came in ("PID METHOD"), after "PID start".

Options are arguments, or are in the variable SCRIPTED_AGENT, separated by spaces:

    ACTION=POINT[,POINT]     silent: never answers. error: answers with an error. die: ends the process.
                             garbage, invalid, unknown, huge: writes that before the answer; only_garbage: instead.
                             endless: updates without end. flood: stderr without end.
                             Points: start initialize authenticate new load resume set_mode set_config_option prompt
                             text (after the first chunk) permission (after a request) cancel eof sigterm
    exit=CODE reason=TEXT    of `die`; `_` in TEXT is a space
    ignore=A,B               cancel, eof, sigterm, permission (acts before it is answered)
    modes=ID,ID | none | opaque | config                the modes that it lists, or a config option instead
    load=no | lossy | strict resume=yes                 strict: an error if the session is loaded already
    auth=required            session/new fails until authenticate was called
    options=NAME             as the command                     second=queue | cancel | error | join
                             A prompt during a prompt waits, ends the first, fails, or is a part of the first: then both
                             are answered together.
    cancel=quick             does not wait for the answer to a permission request, and sends $/cancel_request for it
    steer=yes                takes `_session/steering`, and says "[steered: TEXT]"
    children=N               as `fork`, at the start            version=N           the protocol version it answers
    once                     only the first process in this $HOME misbehaves: actions, ignore and children
    continues                a prompt without a command is `go_on`, if an earlier turn was left undone; so is one after
                             a block that says that the gateway was restarted. A cancelled turn is left undone, too.
    mark=TEXT                nothing: to find the processes
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

Json = Any  # Any: messages are written and read by hand here.

STATE = Path(os.environ.get("HOME", "/tmp")) / ".scripted_agent"  # noqa: S108 - only if there is no home.
MODES = ("ask", "edit", "yolo")
OPAQUE_MODES = ("https://agent.example/modes#ask", "https://agent.example/modes#auto")
EFFECTS = "effects.log"
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
UNANSWERED = {"error": {"code": 0, "message": "cancelled before an answer came"}}
ACTIONS = {"silent", "error", "die", "garbage", "only_garbage", "invalid", "unknown", "huge", "endless", "flood"}

OPTIONS: dict[str, list[tuple[str, str]]] = {
    "default": [("once", "allow_once"), ("always", "allow_always"), ("no", "reject_once")],
    "always_first": [
        ("always", "allow_always"),
        ("once", "allow_once"),
        ("never", "reject_always"),
        ("no", "reject_once"),
    ],
    "twice": [
        ("always-1", "allow_always"),
        ("always-2", "allow_always"),
        ("once-1", "allow_once"),
        ("once-2", "allow_once"),
        ("no-1", "reject_once"),
        ("no-2", "reject_once"),
    ],
    "only_always": [("always", "allow_always"), ("no", "reject_once")],
    "only_allow": [("once", "allow_once")],
    "only_never": [("once", "allow_once"), ("never", "reject_always")],
    "unknown_kind": [("maybe", "allow_sometimes"), ("once", "allow_once"), ("no", "reject_once")],
    "none": [],
}
"""Pairs of id and kind, in the order in which they are offered."""


class Failed(Exception):
    """Answers a request with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Ended(Exception):
    """Ends a turn with a stop reason."""


class Wire:
    """Newline-delimited JSON on stdin and stdout, and the requests of ours that wait for an answer."""

    def __init__(self) -> None:
        self._writing = threading.RLock()  # The handler of SIGTERM may interrupt a write.
        self._answers: dict[Json, tuple[threading.Event, list[Json]]] = {}
        self._last_id = 0
        self.fixed_id: str | None = None

    def line(self, text: str) -> None:
        data = memoryview(text.encode("utf-8", "surrogateescape") + b"\n")
        with self._writing:
            while data:
                try:
                    data = data[os.write(1, data) :]
                except BlockingIOError:  # The other side may have made its end of the pipe non-blocking.
                    select.select([], [1], [])
                except BrokenPipeError:
                    os._exit(0)

    def send(self, **message: Json) -> None:
        self.line(json.dumps({"jsonrpc": "2.0", **message}))

    def request(
        self,
        method: str,
        params: Json,
        on_sent: Callable[[], None] = lambda: None,
        given_up: Callable[[], bool] = lambda: False,
    ) -> Json:
        """Return the answer as it came: a message with `result` or with `error`."""
        self._last_id += 1
        key = self.fixed_id or self._last_id
        answered = threading.Event()
        self._answers[key] = (answered, [])
        answers = self._answers[key][1]
        self.send(id=key, method=method, params=params)
        on_sent()
        while not answered.wait(0.01):
            if given_up():
                self.send(method="$/cancel_request", params={"requestId": key})
                return UNANSWERED
        return answers[0]

    def take_answer(self, message: Json) -> None:
        waiting = self._answers.pop(message.get("id"), None)
        if waiting:
            waiting[1].append(message)
            waiting[0].set()


class Session:
    def __init__(self, key: str, cwd: str, turns: list[dict[str, str]] | None = None) -> None:
        self.key = key
        self.cwd = Path(cwd)
        self.turns = turns or []
        self.mode = ""
        self.undone: list[list[str]] = []
        self.in_turn = threading.Lock()
        self.cancels: list[threading.Event] = []
        """Of the prompts that run and wait."""
        self.joined: list[Json] = []
        self.joining = threading.Lock()

    @staticmethod
    def file(key: str) -> Path:
        return STATE / "sessions" / f"{key}.json"

    def save(self) -> None:
        file = self.file(self.key)
        temporary = file.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        temporary.write_text(json.dumps({"cwd": str(self.cwd), "turns": self.turns, "undone": self.undone}))
        temporary.replace(file)

    @classmethod
    def read(cls, key: str) -> "Session":
        try:
            stored = json.loads(cls.file(key).read_text())
        except (OSError, ValueError) as error:
            raise Failed(-32002, f"there is no session {key}") from error
        session = cls(key, stored["cwd"], stored["turns"])
        session.undone = stored["undone"]
        return session


class Agent:
    def __init__(self, words: list[str]) -> None:
        self.options = {name: value for name, _, value in (word.partition("=") for word in words)}
        self.wire = Wire()
        self.sessions: dict[str, Session] = {}
        self.is_authenticated = False
        (STATE / "sessions").mkdir(parents=True, exist_ok=True)
        if "once" in self.options:
            try:
                (STATE / "once").touch(exist_ok=False)
            except FileExistsError:
                for name in (*ACTIONS, "ignore", "children"):
                    self.options.pop(name, None)

    def has(self, option: str, value: str) -> bool:
        return value in self.options.get(option, "").split(",")

    def log_received(self, what: str) -> None:
        with (STATE / "received.log").open("a") as log:
            log.write(f"{os.getpid()} {what}\n")

    def die(self, code: int | None = None, reason: str | None = None) -> NoReturn:
        said = self.options.get("reason", "").replace("_", " ") if reason is None else reason
        if said:
            os.write(2, said.encode() + b"\n")
        os._exit(int(self.options.get("exit", "1")) if code is None else code)

    def reach(self, point: str, session: str = "") -> bool:
        """Do what the options say for this point. Return whether the point is answered as usual."""
        if self.has("die", point):
            self.die()
        if self.has("flood", point):
            self.flood()
        if self.has("garbage", point) or self.has("only_garbage", point):
            self.garbage()
        if self.has("invalid", point):
            self.invalid()
        if self.has("unknown", point):
            self.unknown(session)
        if self.has("huge", point):
            self.huge(session)
        if self.has("endless", point):
            self.endless(session or "no-session", "and on ", lambda: False)
        if self.has("error", point):
            raise Failed(-32603, self.options.get("reason", "it_failed").replace("_", " "))
        return not (self.has("silent", point) or self.has("only_garbage", point))

    def garbage(self) -> None:
        for line in (
            "",
            "Loading... \x1b[31mplease wait\x1b[0m",
            "{",
            "null",
            "[1, 2]",
            "\udcff\udcfe\udc80",
            '{"jsonrpc": "2.0"',
        ):
            self.wire.line(line)

    def invalid(self) -> None:
        """Write JSON that is not JSON-RPC, or not ACP."""
        for message in (
            [],
            [{"jsonrpc": "2.0", "method": "session/update"}],
            {"jsonrpc": "1.0"},
            {"jsonrpc": "2.0", "id": {"a": 1}, "method": 5},
            {"jsonrpc": "2.0", "id": "never-asked", "result": {}},
            {"jsonrpc": "2.0", "id": 123456, "error": "no object"},
            {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": 7, "update": None}},
            {"jsonrpc": "2.0", "method": "session/update", "params": {"update": {"sessionUpdate": "no_such_update"}}},
            {"jsonrpc": "2.0", "method": "session/update"},
        ):
            self.wire.line(json.dumps(message))

    def unknown(self, session: str) -> None:
        self.wire.send(method="agent/no_such_notification", params={"sessionId": session})
        self.wire.send(id="unknown-1", method="agent/no_such_request", params={})
        self.wire.send(id="unknown-2", method="_vendor/extension", params={})

    def huge(self, session: str, megabytes: int = 100) -> None:
        self.update(session, text_chunk("x" * (megabytes << 20)))

    def flood(self) -> None:
        def write() -> None:
            while True:
                os.write(2, b"This is logged again and again. \x1b[2J\n" * 100)

        threading.Thread(target=write, daemon=True).start()

    def endless(self, session: str, text: str, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self.update(session, text_chunk(text))

    def fork(self, count: int) -> None:
        for _ in range(count):
            if os.fork() == 0:
                os.setsid()
                for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                    signal.signal(each, signal.SIG_IGN)
                while True:
                    time.sleep(1000)

    def update(self, session: str, update: Json) -> None:
        self.wire.send(method="session/update", params={"sessionId": session, "update": update})

    def run(self) -> None:
        self.log_received("start")
        signal.signal(signal.SIGTERM, self.on_sigterm)
        self.fork(int(self.options.get("children", "0")))
        if not self.reach("start"):
            self.pause_for_ever()
        for line in sys.stdin.buffer:
            try:
                message = json.loads(line)
            except ValueError:
                self.wire.send(id=None, error={"code": -32700, "message": "that is not JSON"})
                continue
            self.receive(message)
        self.log_received("eof")
        self.reach("eof")
        if self.has("ignore", "eof"):
            self.pause_for_ever()
        os._exit(0)

    def on_sigterm(self, _number: int, _frame: object) -> None:
        self.log_received("sigterm")
        self.reach("sigterm")
        if not self.has("ignore", "sigterm"):
            os._exit(0)

    def pause_for_ever(self) -> NoReturn:
        while True:
            time.sleep(1000)

    def receive(self, message: Json) -> None:
        method = message.get("method")
        if method is None:
            self.wire.take_answer(message)
            return
        self.log_received(method)
        params = message.get("params") or {}
        if method == "session/prompt" and params.get("sessionId") in self.sessions:
            self.start_prompt(message, self.sessions[params["sessionId"]])
            return
        if method == "session/cancel":
            self.cancel(params)
            return
        handlers: dict[str, Callable[[], Json]] = {
            "initialize": self.initialize,
            "authenticate": self.authenticate,
            "session/new": lambda: self.new(params),
            "session/load": lambda: self.load(params),
            "session/resume": lambda: self.resume(params),
            "session/set_mode": lambda: self.set_mode(params),
            "session/set_config_option": lambda: self.set_config_option(params),
            "session/close": lambda: self.sessions.pop(params["sessionId"], None) and {},
            "session/prompt": lambda: self.session(params),
            "_session/steering": lambda: self.steer(params),
        }
        if "id" in message:
            self.answer(message, handlers.get(method) or self.no_such_method)

    def answer(self, message: Json, handler: Callable[[], Json]) -> None:
        try:
            result = handler()
        except Failed as error:
            self.wire.send(id=message["id"], error={"code": error.code, "message": str(error)})
            return
        if result is not None:  # None: it stays silent.
            late = result.pop("late", None)
            self.wire.send(id=message["id"], result=result)
            if late:
                self.update(message["params"]["sessionId"], text_chunk(late))

    def no_such_method(self) -> Json:
        raise Failed(-32601, "method not found")

    def session(self, params: Json) -> Session:
        found = self.sessions.get(params.get("sessionId"))
        if not found:
            raise Failed(-32602, "that session is not loaded")
        return found

    def initialize(self) -> Json:
        if not self.reach("initialize"):
            return None
        abilities: Json = {"resume": {}} if self.options.get("resume") == "yes" else {}
        return {
            "protocolVersion": int(self.options.get("version", "1")),
            "agentInfo": {"name": "scripted-agent", "title": "Scripted agent", "version": "1.0.0"},
            "agentCapabilities": {
                "loadSession": self.options.get("load") != "no",
                "promptCapabilities": {"image": True, "embeddedContext": True},
                "sessionCapabilities": {"close": {}, **abilities},
            },
            "authMethods": [{"id": "api-key", "name": "API key", "description": "From the environment"}],
        }

    def authenticate(self) -> Json:
        self.is_authenticated = True
        return {} if self.reach("authenticate") else None

    def require_authentication(self) -> None:
        if self.options.get("auth") == "required" and not self.is_authenticated:
            raise Failed(-32000, "Authentication required")

    def listed_modes(self) -> tuple[str, ...]:
        chosen = self.options.get("modes", "")
        known = {"none": (), "opaque": OPAQUE_MODES, "config": MODES, "": MODES}
        return known[chosen] if chosen in known else tuple(chosen.split(","))

    def state(self, session: Session) -> Json:
        """Return the modes as a part of a result."""
        listed = self.listed_modes()
        session.mode = session.mode or (listed[-1] if listed else "")
        if self.options.get("modes") == "config":
            return {"configOptions": self.config_options(session)}
        if not listed:
            return {}
        modes = [{"id": each, "name": f"Mode {number}"} for number, each in enumerate(listed, start=1)]
        return {"modes": {"currentModeId": session.mode, "availableModes": modes}}

    def config_options(self, session: Session) -> Json:
        modes = [{"value": each, "name": each.title()} for each in self.listed_modes()]
        models = [{"value": each, "name": each.title()} for each in ("small", "large")]
        mode = {
            "id": "mode",
            "name": "Mode",
            "category": "mode",
            "type": "select",
            "currentValue": session.mode,
            "options": modes,
        }
        model = {
            "id": "model",
            "name": "Model",
            "category": "model",
            "type": "select",
            "currentValue": "small",
            "options": models,
        }
        return [mode, model]

    def new(self, params: Json) -> Json:
        self.require_authentication()
        session = Session(str(uuid4()), params["cwd"])
        if not self.reach("new", session.key):
            return None
        self.sessions[session.key] = session
        session.save()
        return {"sessionId": session.key, **self.state(session)}

    def load(self, params: Json) -> Json:
        self.require_authentication()
        how = self.options.get("load")
        key = params["sessionId"]
        if how == "no":
            raise Failed(-32601, "method not found")
        if how == "strict" and key in self.sessions:
            raise Failed(-32603, f"session {key} is loaded already")
        session = Session.read(key)
        if not self.reach("load", key):
            return None
        if how == "lossy":
            session.turns = []
        self.sessions[key] = session
        for turn in session.turns:
            self.update(key, {**text_chunk(turn["prompt"]), "sessionUpdate": "user_message_chunk"})
            if turn["said"]:
                self.update(key, text_chunk(turn["said"]))
        return self.state(session)

    def resume(self, params: Json) -> Json:
        self.require_authentication()
        if self.options.get("resume") != "yes":
            raise Failed(-32601, "method not found")
        session = Session.read(params["sessionId"])
        if not self.reach("resume", session.key):
            return None
        self.sessions[session.key] = session
        return self.state(session)

    def set_mode(self, params: Json) -> Json:
        session = self.session(params)
        if not self.reach("set_mode", session.key):
            return None
        if params["modeId"] not in self.listed_modes() or self.options.get("modes") == "config":
            raise Failed(-32602, f"there is no mode {params['modeId']}")
        session.mode = params["modeId"]
        return {}

    def set_config_option(self, params: Json) -> Json:
        session = self.session(params)
        if not self.reach("set_config_option", session.key):
            return None
        if self.options.get("modes") != "config":
            raise Failed(-32602, "there are no options")
        if params["configId"] == "mode":
            if params["value"] not in self.listed_modes():
                raise Failed(-32602, f"there is no mode {params['value']}")
            session.mode = params["value"]
        return {"configOptions": self.config_options(session)}

    def steer(self, params: Json) -> Json:
        """Take more input into the running prompt, as codex-acp does."""
        if self.options.get("steer") != "yes":
            return self.no_such_method()
        session = self.session(params)
        if not session.cancels:
            return {"outcome": "promptRequired"}
        self.update(session.key, text_chunk(f"[steered: {params['prompt'][-1]['text']}]"))
        return {"outcome": "injected"}

    def cancel(self, params: Json) -> None:
        key = params.get("sessionId", "")
        if self.reach("cancel", key) and not self.has("ignore", "cancel") and key in self.sessions:
            for each in self.sessions[key].cancels:
                each.set()

    def start_prompt(self, message: Json, session: Session) -> None:
        """Run a prompt in a thread of its own, so that a cancel can be read while it runs."""
        cancelled = threading.Event()
        with session.joining:
            second = self.options.get("second", "queue") if session.cancels else ""
            if second == "error":
                self.wire.send(id=message["id"], error={"code": -32600, "message": "a prompt is running"})
                return
            if second == "join":
                session.joined.append(message)
                return
            if second == "cancel":
                for each in session.cancels:
                    each.set()
            session.cancels.append(cancelled)
        threading.Thread(target=self.run_prompt, args=(message, session, cancelled), daemon=True).start()

    def run_prompt(self, message: Json, session: Session, cancelled: threading.Event) -> None:
        with session.in_turn:
            answered: list[Json] = []
            result, failure = None, None
            waiting = message
            while waiting:
                answered.append(waiting)
                try:
                    turn = Turn(self, session, waiting["params"]["prompt"], cancelled)
                    result = turn.run() if self.reach("prompt", session.key) else None
                except Failed as error:
                    failure = error
                waiting = self.next_joined(session, cancelled)

        def outcome() -> Json:
            if failure:
                raise failure
            return result and dict(result)

        for each in answered:
            self.answer(each, outcome)

    def next_joined(self, session: Session, cancelled: threading.Event) -> Json:
        with session.joining:
            if session.joined:
                return session.joined.pop(0)
            session.cancels.remove(cancelled)
            return None


def text_chunk(text: str) -> Json:
    return {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}


def parsed(text: str) -> Json:
    return json.loads(text) if text else {}


class Turn:
    """One prompt. Each `do_` method is a command: it gets the rest of its line."""

    def __init__(self, agent: Agent, session: Session, blocks: list[Json], cancelled: threading.Event) -> None:
        self.agent = agent
        self.session = session
        self.cancelled = cancelled
        texts = [block["text"] for block in blocks if block.get("type") == "text"]
        self.script = texts[-1] if texts else ""
        self.other_blocks = blocks[: len(blocks) - 1]
        self.is_restarted = any("I was restarted while you worked" in text for text in texts[:-1])
        self.said = ""
        self.result: Json = {}
        self.offered = agent.options.get("options", "default")
        self.fixed_tool_id = ""

    def run(self) -> Json:
        record = {"prompt": self.script, "said": ""}
        self.before = list(self.session.turns)
        self.session.turns = [*self.before, record]
        lines = [each.strip() for line in self.script.splitlines() for each in line.split(" ;; ")]
        commands = [[name, rest.strip()] for name, _, rest in (line.partition(" ") for line in lines)]
        commands = [command for command in commands if self.knows(command[0])]
        continues = "continues" in self.agent.options
        if continues and self.session.undone and (self.is_restarted or not commands):
            commands = [["go_on", ""]]
        if not commands:
            commands = [["say", f"You said: {self.script}"]]
        if commands[0][0] == "go_on":
            commands = self.session.undone + commands[1:]
        stop = "end_turn"
        try:
            for number, (name, rest) in enumerate(commands):
                self.session.undone = commands[number:]
                self.session.save()
                if name != "ask_after_cancel":
                    self.stop_if_cancelled()
                getattr(self, f"do_{name}")(rest)
            self.stop_if_cancelled()
        except Ended as ended:
            stop = str(ended)
        finally:
            if not (continues and self.cancelled.is_set()):
                self.session.undone = []
            record["said"] = self.said
            self.session.save()
        return {"stopReason": stop, **self.result}

    def knows(self, name: str) -> bool:
        return name.isidentifier() and hasattr(self, f"do_{name}")

    def stop_if_cancelled(self) -> None:
        if self.cancelled.is_set():
            raise Ended("cancelled")

    def wait_for_cancel(self, seconds: float | None = None) -> None:
        if self.cancelled.wait(seconds):
            raise Ended("cancelled")

    def update(self, name: str, /, **fields: Json) -> None:
        self.agent.update(self.session.key, {"sessionUpdate": name, **fields})

    def effect(self, what: str) -> None:
        with (self.session.cwd / EFFECTS).open("a") as log:
            log.write(f"{what}\n")

    # The answer.

    def do_say(self, text: str) -> None:
        self.said += text
        self.agent.update(self.session.key, text_chunk(text))
        self.agent.reach("text", self.session.key)

    def do_warn(self, text: str) -> None:
        self.agent.update(self.session.key, text_chunk(f"Warning: {text}\n\n"))

    def do_stream(self, rest: str) -> None:
        count, pause = [*rest.split(), "0"][:2]
        for number in range(1, int(count) + 1):
            self.do_say(f"word{number} ")
            self.wait_for_cancel(float(pause)) if float(pause) else self.stop_if_cancelled()

    def do_think(self, text: str) -> None:
        self.update("agent_thought_chunk", content={"type": "text", "text": text})

    def do_image(self, _rest: str) -> None:
        self.update("agent_message_chunk", content={"type": "image", "mimeType": "image/png", "data": PICTURE})

    def do_late(self, text: str) -> None:
        self.result["late"] = text

    def do_plan(self, rest: str) -> None:
        states = ["completed", "in_progress"]
        entries = [
            {"content": text, "priority": "medium", "status": states[number] if number < len(states) else "pending"}
            for number, text in enumerate(rest.split(";"))
        ]
        self.update("plan", entries=entries)

    def do_usage(self, rest: str) -> None:
        sent, received, *cost = rest.split()
        total = int(sent) + int(received)
        self.result["usage"] = {"inputTokens": int(sent), "outputTokens": int(received), "totalTokens": total}
        more = {"cost": {"amount": float(cost[0]), "currency": "USD"}} if cost else {}
        self.update("usage_update", used=total, size=100_000, **more)

    def do_mode(self, mode: str) -> None:
        self.session.mode = mode
        self.update("current_mode_update", currentModeId=mode)

    def do_commands(self, _rest: str) -> None:
        self.update("available_commands_update", availableCommands=[{"name": "web", "description": "Search the web"}])

    def do_config(self, _rest: str) -> None:
        self.update("config_option_update", configOptions=self.agent.config_options(self.session))

    def do_title(self, title: str) -> None:
        self.update("session_info_update", title=title)

    def do_update(self, rest: str) -> None:
        self.agent.update(self.session.key, parsed(rest))

    def do_other(self, text: str) -> None:
        self.agent.update("another-session", text_chunk(text))

    def do_notify(self, rest: str) -> None:
        method, _, params = rest.partition(" ")
        self.agent.wire.send(method=method, params=parsed(params))

    def do_raw(self, text: str) -> None:
        self.agent.wire.line(text)

    # What the agent knows.

    def do_cwd(self, _rest: str) -> None:
        self.do_say(str(self.session.cwd))

    def do_env(self, name: str) -> None:
        self.do_say(f"{name}={os.environ.get(name)}")

    def do_pid(self, _rest: str) -> None:
        self.do_say(str(os.getpid()))

    def do_modes(self, _rest: str) -> None:
        self.do_say(self.session.mode)

    def do_recall(self, _rest: str) -> None:
        self.do_say(" | ".join(turn["prompt"] for turn in self.before) or "nothing")

    def do_context(self, _rest: str) -> None:
        self.do_say(json.dumps(self.other_blocks))

    # Tools.

    def do_tool_id(self, key: str) -> None:
        self.fixed_tool_id = key

    def do_request_id(self, key: str) -> None:
        self.agent.wire.fixed_id = key

    def start_tool(self, kind: str, argument: str, **fields: Json) -> str:
        key = self.fixed_tool_id or f"call-{uuid4().hex[:8]}"
        raw = {"command": argument} if kind == "execute" else {"argument": argument}
        self.update(
            "tool_call", toolCallId=key, title=f"{kind} {argument}", kind=kind, status="pending", rawInput=raw, **fields
        )
        return key

    def end_tool(self, key: str, output: str, status: str = "completed") -> None:
        content = [{"type": "content", "content": {"type": "text", "text": output}}]
        self.update("tool_call_update", toolCallId=key, status=status, content=content, rawOutput={"output": output})

    def do_tool(self, rest: str) -> None:
        kind, _, argument = rest.partition(" ")
        key = self.start_tool(
            kind, argument, locations=[{"path": str(self.session.cwd / argument)}] if kind == "read" else []
        )
        self.update("tool_call_update", toolCallId=key, status="in_progress")
        output = f"{kind} done"
        if kind == "read":
            try:
                output = (self.session.cwd / argument).read_text()
            except OSError as error:
                self.end_tool(key, str(error), "failed")
                return
        self.end_tool(key, output)

    def do_broken(self, rest: str) -> None:
        kind, _, argument = rest.partition(" ")
        self.end_tool(self.start_tool(kind, argument), "it did not work", "failed")

    def do_open(self, rest: str) -> None:
        kind, _, argument = rest.partition(" ")
        self.update("tool_call_update", toolCallId=self.start_tool(kind, argument), status="in_progress")

    def do_orphan(self, title: str) -> None:
        self.update(
            "tool_call_update", toolCallId=f"orphan-{uuid4().hex[:8]}", title=title, kind="other", status="completed"
        )

    def do_edit(self, rest: str) -> None:
        key = self.start_tool("edit", rest, content=[self.diff(rest)])
        self.act("edit", rest)
        self.end_tool(key, "edited")

    def diff(self, rest: str) -> Json:
        name, _, text = rest.partition(" ")
        path = self.session.cwd / name
        try:
            old: str | None = path.read_text()
        except OSError:
            old = None
        return {"type": "diff", "path": str(path), "oldText": old, "newText": f"{text}\n"}

    def do_options(self, name: str) -> None:
        self.offered = name

    def do_ask(self, rest: str) -> None:
        self.ask(rest)
        self.stop_if_cancelled()

    def do_ask_first(self, rest: str) -> None:
        self.ask(rest, announces=False)
        self.stop_if_cancelled()

    def ask(self, rest: str, *, announces: bool = True) -> None:
        kind, _, argument = rest.partition(" ")
        content = [self.diff(argument)] if kind == "edit" else []
        key = self.start_tool(kind, argument, content=content) if announces else f"unannounced-{uuid4().hex[:8]}"
        raw = {"command": argument} if kind == "execute" else {"argument": argument}
        call = {"toolCallId": key, "title": f"{kind} {argument}", "kind": kind, "status": "pending", "rawInput": raw}
        options = [{"optionId": each, "name": each.title(), "kind": kind} for each, kind in OPTIONS[self.offered]]
        params = {"sessionId": self.session.key, "toolCall": {**call, "content": content}, "options": options}
        if self.agent.has("ignore", "permission"):
            self.act(kind, argument)
        is_quick = self.agent.options.get("cancel") == "quick"
        answer = self.agent.wire.request(
            "session/request_permission",
            params,
            on_sent=lambda: void(self.agent.reach("permission", self.session.key)),
            given_up=lambda: is_quick and self.cancelled.is_set(),
        )
        if "error" in answer:
            self.end_tool(key, "not asked", "failed")
            self.do_say(f"refused: {answer['error'].get('message')}")
            return
        outcome = answer["result"]["outcome"]
        if outcome["outcome"] == "cancelled":
            self.end_tool(key, "cancelled", "failed")
            self.do_say("cancelled")
            return
        chosen = outcome["optionId"]
        if dict(OPTIONS[self.offered])[chosen].startswith("allow"):
            self.end_tool(key, self.act(kind, argument))
            self.do_say(f"allowed by {chosen}")
        else:
            self.end_tool(key, "rejected", "failed")
            self.do_say(f"rejected by {chosen}")

    def do_ask_after_cancel(self, rest: str) -> None:
        self.cancelled.wait()
        self.ask(rest)
        raise Ended("cancelled")

    def act(self, kind: str, argument: str) -> str:
        self.effect(f"{kind} {argument}")
        if kind == "execute":
            return self.shell(argument)
        if kind == "edit":
            name, _, text = argument.partition(" ")
            (self.session.cwd / name).write_text(f"{text}\n")
        return f"{kind} done"

    def shell(self, command: str) -> str:
        done = subprocess.run(  # noqa: S602 - it is told to.
            command, shell=True, cwd=self.session.cwd, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        return (done.stdout + done.stderr).decode(errors="replace") + f"[exit {done.returncode}]"

    def do_write(self, rest: str) -> None:
        self.put(f"write {rest}", rest, "w")

    def do_append(self, rest: str) -> None:
        self.put(f"append {rest}", rest, "a")

    def put(self, effect: str, rest: str, mode: str) -> None:
        self.effect(effect)
        name, _, text = rest.partition(" ")
        try:
            with (self.session.cwd / name).open(mode) as file:
                file.write(f"{text}\n")
        except OSError as error:
            self.do_say(f"failed: {error.strerror}")

    def do_run(self, command: str) -> None:
        self.effect(f"run {command}")
        self.do_say(self.shell(command))

    # Methods of the client.

    def call(self, method: str, **params: Json) -> Json:
        answer = self.agent.wire.request(method, {"sessionId": self.session.key, **params})
        if "error" in answer:
            raise Failed(answer["error"].get("code", 0), str(answer["error"].get("message")))
        return answer["result"] or {}

    def say_result(self, call: Callable[[], str]) -> None:
        try:
            self.do_say(call())
        except Failed as error:
            self.do_say(f"refused {error.code}: {error}")

    def do_client_read(self, rest: str) -> None:
        path, *window = rest.split()
        numbers = dict(zip(("line", "limit"), map(int, window), strict=False))
        self.say_result(lambda: str(self.call("fs/read_text_file", path=self.absolute(path), **numbers)["content"]))

    def do_client_write(self, rest: str) -> None:
        path, _, text = rest.partition(" ")
        self.say_result(lambda: f"written {self.call('fs/write_text_file', path=self.absolute(path), content=text)}")

    def absolute(self, path: str) -> str:
        return os.path.join(self.session.cwd, path)  # noqa: PTH118 - `..` has to stay.

    def do_client_run(self, command: str) -> None:
        self.say_result(lambda: self.in_terminal(command, kills=False))

    def do_client_kill(self, command: str) -> None:
        self.say_result(lambda: self.in_terminal(command, kills=True))

    def in_terminal(self, command: str, *, kills: bool) -> str:
        made = self.call("terminal/create", command="/bin/sh", args=["-c", command], cwd=str(self.session.cwd))
        terminal = made["terminalId"]
        if kills:
            self.call("terminal/kill", terminalId=terminal)
        ended = self.call("terminal/wait_for_exit", terminalId=terminal)
        output = self.call("terminal/output", terminalId=terminal)
        self.call("terminal/release", terminalId=terminal)
        return f"{output['output']}[exit {ended.get('exitCode')} signal {ended.get('signal')}]"

    def do_request(self, rest: str) -> None:
        method, _, params = rest.partition(" ")
        self.do_say(json.dumps(self.agent.wire.request(method, {"sessionId": self.session.key, **parsed(params)})))

    # Time, and the end.

    def do_sleep(self, seconds: str) -> None:
        self.wait_for_cancel(float(seconds or "1"))

    def do_hang(self, _rest: str) -> None:
        self.wait_for_cancel()

    def do_wait(self, name: str) -> None:
        while not (self.session.cwd / name).exists():
            self.wait_for_cancel(0.01)

    def do_endless(self, text: str) -> None:
        self.agent.endless(self.session.key, text or "and on ", self.cancelled.is_set)

    def do_garbage(self, _rest: str) -> None:
        self.agent.garbage()

    def do_invalid(self, _rest: str) -> None:
        self.agent.invalid()

    def do_unknown(self, _rest: str) -> None:
        self.agent.unknown(self.session.key)

    def do_huge(self, megabytes: str) -> None:
        self.agent.huge(self.session.key, int(megabytes or "100"))

    def do_flood(self, _rest: str) -> None:
        self.agent.flood()

    def do_fork(self, count: str) -> None:
        self.agent.fork(int(count or "1"))

    def do_stop(self, reason: str) -> None:
        raise Ended(reason)

    def do_fail(self, rest: str) -> None:
        code, _, text = rest.partition(" ")
        raise Failed(int(code or "-32603"), text)

    def do_die(self, _rest: str) -> None:
        self.agent.die()

    def do_exit(self, rest: str) -> None:
        code, _, text = rest.partition(" ")
        self.agent.die(int(code or "1"), text)

    def do_kill(self, _rest: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def void(_value: object) -> None:
    """Make a callback of a function that returns something."""


if __name__ == "__main__":
    Agent([*os.environ.get("SCRIPTED_AGENT", "").split(), *sys.argv[1:]]).run()
