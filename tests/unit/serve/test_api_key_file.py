from __future__ import annotations

from pathlib import Path

import pytest

from trivium.serve.access.keyring import Keyring
from trivium.serve.access.keys import key_of
from trivium.types.errors import ConfigError

ENTRY = '[[key]]\nname = "a"\nkey = "hush-hush"\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "key"),
        ("[[key", "TOML"),
        (ENTRY + 'color = "red"\n', "color"),
        (ENTRY + "priority = 1.5\n", "priority"),
        (ENTRY + "requests_per_minute = 0\n", "requests_per_minute"),
        (ENTRY + ENTRY, "same name"),
        (ENTRY + ENTRY.replace('"a"', '"b"'), "same secret"),
        (ENTRY + 'sha256 = "' + "0" * 64 + '"\n', "either a key or a sha256"),
        ('[[key]]\nname = "a"\n', "either a key or a sha256"),
        ('[[key]]\nname = "a"\nkey = ""\n', "not empty"),
        ('[[key]]\nname = "a"\nkey = "hush-hush now"\n', "without spaces"),
        ('[[key]]\nname = "a b"\nkey = "hush-hush"\n', "name"),
    ],
)
def test_mistakes_in_a_key_file_are_said_without_the_secret(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "keys.toml").write_text(text)
    with pytest.raises(ConfigError) as failed:
        Keyring(file=tmp_path / "keys.toml")
    assert told in str(failed.value)
    assert "hush-hush" not in str(failed.value)


def test_a_key_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        Keyring(file=tmp_path / "keys.toml")


def test_a_name_is_one_keys_whether_it_stands_in_the_file_or_not(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(ENTRY)
    with pytest.raises(ConfigError, match="same name"):
        Keyring([key_of("other", "a")], tmp_path / "keys.toml")


def test_a_caller_is_found_by_any_of_the_secrets_it_sent() -> None:
    keyring = Keyring([key_of("one", "first"), key_of("two", "second")])
    caller = keyring.caller_of(["wrong", "two"])
    assert caller is not None and caller.name == "second"
    assert keyring.caller_of(["wrong"]) is None
    assert keyring.caller_of([]) is None


def test_a_key_file_that_others_can_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(ENTRY)
    path.chmod(0o600)
    Keyring(file=path)
    assert not caplog.records
    path.chmod(0o644)
    Keyring(file=path)
    (warning,) = caplog.messages
    assert str(path) in warning and "hush-hush" not in warning
