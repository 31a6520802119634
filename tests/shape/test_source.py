"""Promises about the source itself: what is never called, and what the API process never loads."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trivium.config.environment import KNOWN

SOURCE = Path(__file__).resolve().parents[2] / "src" / "trivium"
BANNED_CALLS = {
    "eval",
    "exec",
    "pickle.load",
    "pickle.loads",
    "pickle.dump",
    "pickle.dumps",
    "marshal.loads",
    "yaml.load",
    "os.system",
}


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def violations(source: str) -> list[str]:
    found = []
    for name, call in calls(ast.parse(source)):
        if name in BANNED_CALLS:
            found.append(f"line {call.lineno}: {name}")
        if name == "torch.load" and not any(keyword.arg == "weights_only" for keyword in call.keywords):
            found.append(f"line {call.lineno}: torch.load without weights_only")
        if any(keyword.arg == "shell" and ast.unparse(keyword.value) == "True" for keyword in call.keywords):
            found.append(f"line {call.lineno}: shell=True")
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_file_calls_what_runs_data_as_code(path: Path) -> None:
    assert violations(path.read_text()) == []


def test_the_check_of_banned_calls_finds_them() -> None:
    source = "eval('1')\npickle.loads(b'')\nsubprocess.run('x', shell=True)\ntorch.load(f)"
    assert len(violations(source)) == 4


def test_only_platforms_and_kernels_name_a_device() -> None:
    named = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if path.relative_to(SOURCE).parts[0] not in ("platform", "kernels") and "cuda" in path.read_text().lower()
    ]
    assert named == []


DEVICE_CALLS = re.compile(
    r"torch\.(cuda|npu|mlu|musa|xpu|mps)\b|\bis_(cuda|npu|mlu|musa|xpu|rocm|hip|nvidia|ascend)\w*\b"
)


def device_calls(source: str) -> list[str]:
    """Uses of a vendor's part of torch, and questions after a vendor."""
    return [match[0] for match in DEVICE_CALLS.finditer(source)]


def test_only_platforms_and_kernels_ask_for_a_vendor() -> None:
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] not in ("platform", "kernels"):
            assert device_calls(path.read_text()) == [], path


def test_the_check_of_device_calls_finds_them() -> None:
    assert len(device_calls("torch.cuda.synchronize(); x.is_cuda; is_npu(); torch.mlu.init()")) == 4


def test_every_environment_variable_that_is_read_is_in_the_schema() -> None:
    known = {variable.name for variable in KNOWN}
    for path in SOURCE.rglob("*.py"):
        named = set(re.findall(r"[\"']?(TRIVIUM_[A-Z]+(?:_[A-Z]+)*)\b", path.read_text()))
        assert named <= known, path


@pytest.mark.parametrize(
    "module", ["trivium", "trivium.cli", "trivium.llm.async_llm", "trivium.serve.app", "trivium.commands.doctor"]
)
def test_the_api_process_never_loads_torch(module: str) -> None:
    script = f"import sys, {module}; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
