"""The requests and responses of OpenAI's API, as far as the door supports them.

Fields of requests that are not here, such as `temperature`, are accepted and have no effect. docs/openai.md lists them.
"""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType, field

# Requests.


class ImageUrl(Struct, frozen=True):
    url: str


class ContentPart(Struct, frozen=True, kw_only=True):
    """A part of the content of a message. Which fields count depends on `type`."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | str | None = None


Content = str | list[ContentPart] | None


class FunctionCall(Struct, frozen=True, kw_only=True):
    name: str
    arguments: str = ""


class RequestedToolCall(Struct, frozen=True, kw_only=True):
    """A tool call in the history that the client sends."""

    id: str
    type: str = "function"
    function: FunctionCall | None = None


class ChatMessage(Struct, frozen=True, kw_only=True):
    role: str
    content: Content = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: list[RequestedToolCall] | None = None
    function_call: FunctionCall | None = None
    tool_call_id: str | None = None


class FunctionDefinition(Struct, frozen=True, kw_only=True):
    name: str
    description: str | None = None
    parameters: dict[str, object] | None = None


class ChatTool(Struct, frozen=True, kw_only=True):
    type: str
    function: FunctionDefinition | None = None


class ResponseFormat(Struct, frozen=True, kw_only=True):
    type: str = "text"


class StreamOptions(Struct, frozen=True, kw_only=True):
    include_usage: bool | None = None


class ChatRequest(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    model: str
    messages: list[ChatMessage]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[ChatTool] | None = None
    tool_choice: object = None
    functions: list[FunctionDefinition] | None = None
    function_call: object = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
    # These are refused if they ask for something that the door cannot do.
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    audio: object = None
    modalities: list[str] | None = None
    response_format: ResponseFormat | None = None
    web_search_options: object = None


class InputItem(Struct, frozen=True, kw_only=True):
    """An item of the `input` of a response: a message, a function call or its output."""

    type: str = "message"
    role: str | None = None
    content: Content = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Content = None


class ResponseTool(Struct, frozen=True, kw_only=True):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, object] | None = None


class ConversationRef(Struct, frozen=True):
    id: str


class TextSettings(Struct, frozen=True, kw_only=True):
    format: ResponseFormat | None = None


class ResponseRequest(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/responses`."""

    model: str
    input: str | list[InputItem]
    instructions: str | None = None
    stream: bool | None = None
    store: bool | None = None
    conversation: str | ConversationRef | None = None
    previous_response_id: str | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: object = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
    truncation: str | None = None
    # These are only returned.
    metadata: dict[str, str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    parallel_tool_calls: bool | None = None
    # These are refused if they ask for something that the door cannot do.
    background: bool | None = None
    prompt: object = None
    text: TextSettings | None = None
    top_logprobs: int | None = None


# Responses of all routes. A field that is `UNSET` is left out.


class ModelObject(Struct, frozen=True, kw_only=True):
    id: str
    created: int
    object: Literal["model"] = "model"
    owned_by: str = "gatehouse"


class ModelList(Struct, frozen=True, kw_only=True):
    data: list[ModelObject]
    object: Literal["list"] = "list"


class ErrorInfo(Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorEvent(Struct, frozen=True, kw_only=True):
    """Ends a stream of chunks that has begun."""

    error: ErrorInfo


# Chat completions.


class PromptTokensDetails(Struct, frozen=True, kw_only=True):
    cached_tokens: int = 0
    audio_tokens: int = 0


class CompletionTokensDetails(Struct, frozen=True, kw_only=True):
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class CompletionUsage(Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails = field(default_factory=CompletionTokensDetails)


class ToolCallOut(Struct, frozen=True, kw_only=True):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class ToolCallDelta(Struct, frozen=True, kw_only=True):
    index: int
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class AssistantOut(Struct, frozen=True, kw_only=True):
    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    annotations: tuple[()] = ()
    tool_calls: list[ToolCallOut] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET


class ChoiceDelta(Struct, frozen=True, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    refusal: UnsetType | None = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET


class Choice(Struct, frozen=True, kw_only=True):
    message: AssistantOut
    finish_reason: str
    index: int = 0
    logprobs: None = None


class ChunkChoice(Struct, frozen=True, kw_only=True):
    delta: ChoiceDelta
    finish_reason: str | None = None
    index: int = 0
    logprobs: None = None


class ChatCompletion(Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: CompletionUsage
    object: Literal["chat.completion"] = "chat.completion"
    service_tier: Literal["default"] = "default"
    system_fingerprint: None = None


class ChatCompletionChunk(Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    service_tier: Literal["default"] = "default"
    system_fingerprint: None = None


# The Responses API.


class InputTokensDetails(Struct, frozen=True, kw_only=True):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(Struct, frozen=True, kw_only=True):
    reasoning_tokens: int = 0


class ResponseUsage(Struct, frozen=True, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    total_tokens: int
    output_tokens_details: OutputTokensDetails = field(default_factory=OutputTokensDetails)


class OutputText(Struct, frozen=True, kw_only=True):
    text: str
    type: Literal["output_text"] = "output_text"
    annotations: tuple[()] = ()
    logprobs: tuple[()] = ()


ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputMessage(Struct, frozen=True, kw_only=True):
    id: str
    status: ItemStatus
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"
    type: Literal["message"] = "message"


class OutputFunctionCall(Struct, frozen=True, kw_only=True):
    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus
    type: Literal["function_call"] = "function_call"


OutputItem = OutputMessage | OutputFunctionCall


class ResponseError(Struct, frozen=True, kw_only=True):
    code: str
    message: str


class IncompleteDetails(Struct, frozen=True, kw_only=True):
    reason: str


class ResponseObject(Struct, frozen=True, kw_only=True):
    id: str
    created_at: int
    status: str
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    completed_at: int | None = None
    instructions: str | None = None
    conversation: ConversationRef | None = None
    previous_response_id: str | None = None
    store: bool = True
    tools: list[ResponseTool] = field(default_factory=list)
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    truncation: str = "disabled"
    metadata: dict[str, str] = field(default_factory=dict)
    object: Literal["response"] = "response"
    background: Literal[False] = False


class InputText(Struct, frozen=True, kw_only=True):
    text: str
    type: Literal["input_text"] = "input_text"


class InputMessage(Struct, frozen=True, kw_only=True):
    id: str
    content: list[InputText]
    role: Literal["user"] = "user"
    status: Literal["completed"] = "completed"
    type: Literal["message"] = "message"


class InputItemList(Struct, frozen=True, kw_only=True):
    data: list[InputMessage]
    first_id: str | None
    last_id: str | None
    has_more: bool = False
    object: Literal["list"] = "list"


class DeletedResponse(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True
