"""The commands as a user types them."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from server_process import wait_for

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def trivium(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trivium", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        env={**ENVIRONMENT, **environment},
    )


def test_help_names_every_command() -> None:
    result = trivium("--help")
    assert result.returncode == 0
    for command in ("serve", "chat", "run", "pull", "list", "show", "rm", "bench"):
        assert f"\n    {command} " in result.stdout
        assert trivium(command, "--help").returncode == 0


def test_help_loads_neither_torch_nor_the_web() -> None:
    script = "import sys, trivium.cli as c; c.build_parser(); print(sorted({'torch','starlette','zmq','jinja2'} & {*sys.modules}))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_version_is_told() -> None:
    assert trivium("--version").stdout.startswith("trivium ")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("no-such-command",),
        ("serve", "--port", "99999"),
        ("serve", "--max-model-len", "0"),
        ("run", "x", "--dtype", "int9"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    result = trivium(*arguments)
    assert result.returncode == 2
    assert result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("chat",), ("run", "hello", "--model")])
def test_a_model_that_is_not_there_is_one_sentence(command: tuple[str, ...], tmp_path: Path) -> None:
    result = trivium(*command, "no-such-model", TRIVIUM_HOME=str(tmp_path))
    assert result.returncode == 1
    assert result.stderr.startswith("trivium: no-such-model: ")
    assert result.stderr.count("\n") == 1


def test_a_damaged_model_is_one_sentence(tiny_model: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in tiny_model.iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    (damaged / "model.safetensors").write_bytes(b"\xff" * 100)
    result = trivium("serve", str(damaged), "--port", "0")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith("trivium: ")


def test_run_streams_an_answer_to_standard_output(tiny_model: Path) -> None:
    flags = ("--model", str(tiny_model), "--temperature", "0", "--max-tokens", "12")
    result = trivium("run", "Hello", *flags)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip()
    rendered = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert trivium("run", "-", "--raw", *flags, stdin=rendered).stdout == result.stdout


def test_an_empty_prompt_is_refused(tiny_model: Path) -> None:
    result = trivium("run", "-", "--model", str(tiny_model))
    assert (result.returncode, result.stderr) == (1, "trivium: the prompt is empty\n")


def test_chat_over_a_pipe_keeps_its_history_until_it_is_reset(tiny_model: Path) -> None:
    flags = ("--temperature", "0", "--max-tokens", "8", "--stop", "\n")  # an answer is one line
    lines = ["Hello", "Hello", "/reset", "Hello", "/system Be brief.", "Hello", "", "/nonsense", "/exit", "never asked"]
    result = trivium("chat", str(tiny_model), *flags, stdin="\n".join(lines))
    assert result.returncode == 0, result.stderr
    first, second, after_reset, with_system = result.stdout.removesuffix("\n").split("\n")
    assert first == after_reset
    assert len({first, second, with_system}) == 3
    assert result.stderr.count("/reset forgets") == 1


def test_ctrl_c_stops_the_answer_and_not_the_chat(tiny_model: Path) -> None:
    parent, child = pty.openpty()
    flags = ["--temperature", "0", "--repetition-penalty", "1.01"]
    process = subprocess.Popen(
        [sys.executable, "-m", "trivium", "chat", str(tiny_model), *flags],
        stdin=child, stdout=child, stderr=child, env={**ENVIRONMENT, "TERM": "dumb"}, start_new_session=True,
    )  # fmt: skip
    os.close(child)
    os.set_blocking(parent, False)
    shown = bytearray()

    def read() -> bytes:
        with contextlib.suppress(OSError):
            shown.extend(os.read(parent, 65536))
        return bytes(shown)

    try:
        wait_for(lambda: read().endswith(b"> ") or None)
        os.write(parent, b"Hello\n")
        asked = len(shown)
        wait_for(lambda: len(read()) > asked + 40 or None)
        process.send_signal(signal.SIGINT)
        wait_for(lambda: read().endswith(b"\n> ") or None)
        os.write(parent, b"/exit\n")
        assert wait_for(lambda: (read() and process.poll() is not None) or None)
        assert process.returncode == 0
        assert b"Traceback" not in shown
    finally:
        process.kill()
        process.wait()
        os.close(parent)


def test_the_store_is_seen_and_changed_by_its_commands(tiny_model: Path, tmp_path: Path) -> None:
    home = {"TRIVIUM_HOME": str(tmp_path)}
    assert "nothing is stored" in trivium("list", **home).stdout
    assert trivium("pull", str(tiny_model), "--name", "mine", **home).returncode == 0
    assert trivium("list", **home).stdout.startswith("mine ")
    shown = trivium("show", "mine", **home).stdout
    assert "LlamaForCausalLM" in shown and "8192 tokens" in shown
    assert trivium("run", "Hello", "--model", "mine", "--max-tokens", "2", **home).returncode == 0
    assert trivium("rm", "mine", **home).stdout == "mine: removed\n"
    missing = trivium("show", "mine", **home)
    assert missing.returncode == 1 and missing.stderr.startswith("trivium: mine: ")
