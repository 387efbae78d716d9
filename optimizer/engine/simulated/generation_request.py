"""Reading the JSON of a completion or chat request; what is wrong with it comes back as an `ApiError`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from optimizer.engine.simulated.settings import EngineSettings

Endpoint = Literal["completion", "chat"]

_DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for completions; a chat answer may fill the context."""


@dataclass(frozen=True, slots=True)
class ApiError:
    """An answer that is no success, in the shape of vLLM's error bodies."""

    status: int
    kind: str
    message: str

    def body(self) -> dict[str, object]:
        """The JSON body."""
        error = {"message": self.message, "type": self.kind, "param": None, "code": self.status}
        return {"error": error}


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request that the engine can run.

    Attributes:
        endpoint: Which of the two APIs it came through.
        prompt: Token ids.
        max_tokens: Output length; already cut to the context.
        include_usage: A last chunk with the usage and no choices.
        continuous_usage: Usage on every chunk.
        return_token_ids: Token ids beside the text.
        cache_salt: Only requests of the same salt share what the prefix cache holds; empty stands for none.
    """

    endpoint: Endpoint
    model: str
    prompt: list[int]
    max_tokens: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    cache_salt: str = ""


def parse_request(
    body: object, endpoint: Endpoint, settings: EngineSettings, max_model_len: int, model_names: tuple[str, ...]
) -> GenerationRequest | ApiError:
    """Reads one request. Sampling parameters are accepted and ignored: the tokens are fixed anyway."""
    if not isinstance(body, dict):
        return _bad_request("the body is no JSON object")
    model = body.get("model", model_names[0])
    if model not in model_names:
        return ApiError(404, "NotFoundError", f"The model `{model}` does not exist.")
    if body.get("n", 1) != 1:
        return _bad_request("the simulated engine gives one answer a request: n must be 1")
    prompt = _prompt_token_ids(body, endpoint, settings)
    if isinstance(prompt, ApiError):
        return prompt
    max_tokens = _max_tokens(body, endpoint, len(prompt), max_model_len)
    if isinstance(max_tokens, ApiError):
        return max_tokens
    options = body.get("stream_options") or {}
    forced = settings.force_include_usage
    include_usage = bool(options.get("include_usage")) or forced
    return GenerationRequest(
        endpoint=endpoint,
        model=str(model),
        prompt=prompt,
        max_tokens=max_tokens,
        stream=bool(body.get("stream")),
        include_usage=include_usage,
        continuous_usage=include_usage and (bool(options.get("continuous_usage_stats")) or forced),
        return_token_ids=bool(body.get("return_token_ids")),
        cache_salt=str(body.get("cache_salt") or ""),
    )


def _bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequestError", message)


def _prompt_token_ids(body: dict[str, object], endpoint: Endpoint, settings: EngineSettings) -> list[int] | ApiError:
    prompt = _chat_text(body.get("messages")) if endpoint == "chat" else body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list | str):
        prompt = prompt[0]
    if isinstance(prompt, str):
        if settings.skip_tokenizer_init:
            return _bad_request("text needs a tokenizer, and `skip_tokenizer_init` is set: send token ids")
        prompt = list(prompt.encode())
    if not isinstance(prompt, list) or not prompt or not all(type(token) is int for token in prompt):
        return _bad_request("expected one non-empty text or list of token ids")
    vocab_size = settings.shape.vocab_size
    if not all(0 <= token < vocab_size for token in prompt):
        return _bad_request(f"Token id {max(prompt)} is out of vocabulary ({vocab_size})")
    return prompt


def _chat_text(messages: object) -> str | None:
    """The messages as one text, in the plainest of chat templates; None when they are malformed."""
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        return None
    return "".join(f"{message.get('role')}: {message.get('content')}\n" for message in messages) + "assistant: "


def _max_tokens(body: dict[str, object], endpoint: Endpoint, prompt_tokens: int, max_model_len: int) -> int | ApiError:
    room = max_model_len - prompt_tokens
    default = room if endpoint == "chat" else min(_DEFAULT_MAX_TOKENS, room)
    wanted = body.get("max_completion_tokens") or body.get("max_tokens")
    max_tokens = default if wanted is None else wanted
    if type(max_tokens) is not int or (wanted is not None and max_tokens < 1):
        return _bad_request(f"max_tokens must be at least 1, got {wanted}.")
    if room < 1 or max_tokens > room:
        return _bad_request(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested {max_tokens} "
            f"output tokens and your prompt contains {prompt_tokens} input tokens. Please reduce the length of the "
            f"input prompt or the number of requested output tokens."
        )
    return max_tokens
