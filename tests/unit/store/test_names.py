"""A name is never a path, and two names never share a directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.store.names import ModelName
from trivium.types.errors import ModelFileError

GOOD = ["smollm2", "org/name", "name:tag", "org/name:Q4_K_M", "org/name:file.gguf", "Qwen3-0.6B", "a", "1.5b"]
BAD = ["", ".", "..", "../x", "/x", "x/", "a/b/c", "a//b", "a/../b", "..a", "a..b", "a--b", ":tag", "a:", "a:b:c"]
BAD += ["a b", "a\n", "a\0", "~", "~/x", "a\\b", "é", "-a", ".a", "a+b", "a@b", "x" * 161]


@pytest.mark.parametrize("text", GOOD)
def test_good_names_are_names(text: str) -> None:
    assert ModelName.parse(text).text == text


@pytest.mark.parametrize("text", BAD)
def test_bad_names_are_refused(text: str) -> None:
    with pytest.raises(ModelFileError, match="is not a model name"):
        ModelName.parse(text)


@given(st.text(st.sampled_from("ab./:-_@~\\\0 "), max_size=12))
def test_whatever_is_accepted_is_one_component_below_the_root(text: str) -> None:
    try:
        directory = ModelName.parse(text).directory
    except ModelFileError:
        return
    assert Path("/root", directory).resolve().parent == Path("/root")


@pytest.mark.parametrize("other", ["a-b", "a.b", "a_b", "a:b", "ab", "b/a", "a/b:c"])
def test_a_name_in_an_organisation_shares_no_directory_with_its_look_alikes(other: str) -> None:
    assert ModelName.parse("a/b").directory != ModelName.parse(other).directory


@given(st.lists(st.from_regex(r"[ab]([-._ab]{0,3}[ab])?(/[ab]{1,2})?(:[ab]{1,2})?", fullmatch=True), max_size=20))
def test_different_names_have_different_directories(texts: list[str]) -> None:
    names = set()
    for text in texts:
        try:
            names.add(ModelName.parse(text))
        except ModelFileError:
            continue
    assert len({name.directory for name in names}) == len(names)


@given(st.text(max_size=200))
def test_a_suggested_name_is_a_name(text: str) -> None:
    try:
        suggested = ModelName.suggest(text)
    except ModelFileError as error:
        assert "give one" in str(error)
    else:
        assert ModelName.parse(suggested.text) == suggested
