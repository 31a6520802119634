"""A hub on this machine: the two routes that `huggingface_hub` asks for a model's files, over real HTTP."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class LocalHub:
    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.promised_sha256: dict[str, str] = {}  # by file; the true one unless set
        self.downloads: list[str] = []
        self.endpoint = ""


@contextmanager
def serve_hub() -> Iterator[LocalHub]:
    hub = LocalHub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            path = self.path.partition("?")[0].strip("/")
            if path.startswith("api/models/"):
                repo = "/".join(path.split("/")[2:4])
                if repo in hub.repos:
                    return self.send(json.dumps(describe(repo, hub)).encode(), {}, body)
            else:
                owner, name, _, _, file = path.split("/", 4)
                data = hub.repos.get(f"{owner}/{name}", {}).get(file)
                if data is not None:
                    if body:
                        hub.downloads.append(file)
                    etag = hashlib.sha256(data).hexdigest()
                    return self.send(data, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, body)
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def send(self, data: bytes, headers: dict[str, str], body: bool) -> None:
            self.send_response(200)
            for key, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(key, value)
            self.end_headers()
            if body:
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def describe(repo: str, hub: LocalHub) -> dict[str, object]:
    siblings: list[dict[str, object]] = []
    for name, data in hub.repos[repo].items():
        one: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": "0" * 40}
        if name.endswith((".safetensors", ".gguf", ".bin")):
            sha256 = hub.promised_sha256.get(name, hashlib.sha256(data).hexdigest())
            one["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": 134}
        siblings.append(one)
    return {"id": repo, "sha": COMMIT, "siblings": siblings, "private": False, "tags": [], "downloads": 0, "likes": 0}
