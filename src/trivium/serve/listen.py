"""The listening socket, taken before anything slow begins: a port that is in use is said at once."""

from __future__ import annotations

import errno
import ipaddress
import socket

from trivium.types.checks import Check, CheckState
from trivium.types.errors import ConfigError


def listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, OverflowError, UnicodeError):
        raise ConfigError(f"cannot listen on {host}:{port}: there is no such address") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"port {port} on {host} is in use by another program; choose one with --port") from None
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


def check_port(host: str, port: int, is_asked_for: bool) -> Check:
    """By taking it. `is_asked_for`: by the user; else another program there keeps only a server from starting."""
    try:
        listen(host, port).close()
    except ConfigError as error:
        state: CheckState = "fail" if is_asked_for else "warn"
        return Check(
            "port", state, str(error), f"{host}:{port} free", "end that program, or choose another with --port"
        )
    return Check("port", "ok", f"{host}:{port}", "free", "")


def is_local(listener: socket.socket) -> bool:
    """Whether only programs on this machine can reach it."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
