"""A pytest plugin (`-p sanitized`): the tests run on the extension that SANITIZED_NATIVE names, not on the installed one."""

import importlib.machinery
import importlib.util
import os
import sys

path = os.environ["SANITIZED_NATIVE"]
loader = importlib.machinery.ExtensionFileLoader("trivium._native", path)
spec = importlib.util.spec_from_file_location("trivium._native", path, loader=loader)
assert spec is not None
module = importlib.util.module_from_spec(spec)
loader.exec_module(module)
sys.modules["trivium._native"] = module
