"""Errors that a user or a client is meant to read. Each message is one sentence that names the numbers."""

from __future__ import annotations


class TriviumError(Exception):
    """Base of every error with a message for a person; the command line prints it without a traceback."""


class ModelFileError(TriviumError):
    """A model file or directory is missing, damaged, or of a kind that cannot be read."""


class StoreDiskError(ModelFileError):
    """The disk on which models are stored failed; nothing is said of the model."""


class UnsupportedModelError(TriviumError):
    """The files are sound, but the architecture or a tensor type is not one we run."""


class ConfigError(TriviumError):
    """The options cannot work together, with this model, or on this platform."""


class InvalidRequestError(TriviumError):
    """The request itself is wrong; sending it again cannot help."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class NeverFitsError(InvalidRequestError):
    """The request can never be served by this engine: refused before it queues, with the three numbers."""

    def __init__(self, num_prompt_tokens: int, num_new_tokens: int, limit: int, param: str = "prompt") -> None:
        super().__init__(
            f"this model's maximum context length is {limit} tokens, but the request needs {num_prompt_tokens + num_new_tokens}"
            f" ({num_prompt_tokens} in the prompt, {num_new_tokens} to generate)",
            param=param,
            code="context_length_exceeded",
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.num_new_tokens = num_new_tokens
        self.limit = limit


class OverloadedError(TriviumError):
    """The queue is full; the same request may be sent again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RateLimitedError(OverloadedError):
    """The server has room, but this caller has had its share; it may ask again after `retry_after` seconds."""


class EngineDeadError(TriviumError):
    """The engine process ended while the request was in its hands."""


class DeviceUnfitError(EngineDeadError):
    """No process can use the device any more."""


class NotReadyError(TriviumError):
    """The model is there, but its engine is being started."""


class NoSuchModelError(TriviumError):
    """No model of that name is served here."""


class ModelLoadError(TriviumError):
    """A model that was asked for by name could not be loaded."""


class NoRoomError(TriviumError):
    """A model does not fit in memory: never (`retry_after` is None), or not beside those that are in use now."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestFailedError(TriviumError):
    """The engine lives, but this one request failed inside it."""


class StorageError(TriviumError):
    """What the server keeps for its clients cannot be read or written."""
