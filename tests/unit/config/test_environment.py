"""Environment variables: what nobody reads is refused by name, with the nearest that somebody does."""

import pytest

from trivium.config.environment import check_environment, check_plugin_environment
from trivium.types.errors import ConfigError


def no_plugins() -> list[str]:
    return []


def test_what_is_read_passes_and_what_is_not_ours_is_no_matter() -> None:
    check_environment({"TRIVIUM_HOME": "/x", "PATH": "/bin", "MY_TRIVIUM_THING": "1"}, no_plugins)


def test_a_slip_is_told_with_what_was_meant() -> None:
    with pytest.raises(ConfigError, match="TRIVIUM_HOEM is read by nobody: did you mean TRIVIUM_HOME"):
        check_environment({"TRIVIUM_HOEM": "/x"}, no_plugins)


def test_what_resembles_nothing_is_told_with_all_there_are() -> None:
    with pytest.raises(ConfigError, match="TRIVIUM_XYZZY_PLUGH is read by nobody: there are TRIVIUM_HOME"):
        check_environment({"TRIVIUM_XYZZY_PLUGH": "1"}, no_plugins)


def test_a_plugins_variables_are_its_own_to_check() -> None:
    variables = {"TRIVIUM_MY_CHIP_VISIBLE": "0"}
    check_environment(variables, lambda: ["my-chip"])
    check_plugin_environment(variables, "my-chip", ["TRIVIUM_MY_CHIP_VISIBLE"])
    with pytest.raises(
        ConfigError, match="TRIVIUM_MY_CHIP_VISIBEL is read by nobody: did you mean TRIVIUM_MY_CHIP_VIS"
    ):
        check_plugin_environment({"TRIVIUM_MY_CHIP_VISIBEL": "0"}, "my-chip", ["TRIVIUM_MY_CHIP_VISIBLE"])


def test_plugins_are_looked_for_only_when_a_variable_is_strange() -> None:
    def search() -> list[str]:
        raise AssertionError("not needed")

    check_environment({"TRIVIUM_HOME": "/x"}, search)
