"""The web page's files and the live endpoint over plain HTTP; test_browser.py opens the page itself."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

import httpx
import pytest
from server_process import ServerProcess, wait_for
from tiny_model import ENDLESS, MODEL

SITE = resources.files("trivium.serve.page").joinpath("site")
NAMES = sorted(entry.name for entry in SITE.iterdir())
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


def test_a_browser_gets_the_page_and_ollamas_clients_the_words_they_look_for(server: ServerProcess) -> None:
    page = server.get("/", headers=BROWSER)
    assert page.status_code == 200
    assert page.headers["content-type"] == TYPES["html"]
    assert page.text.startswith("<!doctype html>")
    for accept in ("*/*", "application/json"):
        probe = server.get("/", headers={"accept": accept})
        assert (probe.status_code, probe.text) == (200, "Ollama is running")
        assert probe.headers["content-type"].startswith("text/plain")
        assert probe.headers["vary"] == "accept"  # so no cache gives the one to who wants the other
    assert httpx.head(server.url + "/", timeout=60).status_code == 200


@pytest.mark.parametrize("name", NAMES)
def test_each_file_has_its_type_and_a_policy_that_lets_nothing_else_in(server: ServerProcess, name: str) -> None:
    answer = server.get(f"/page/{name}")
    assert answer.status_code == 200
    assert answer.content == SITE.joinpath(name).read_bytes()
    assert answer.headers["content-type"] == TYPES[name.rpartition(".")[2]]
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = dict(directive.split(" ", 1) for directive in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_a_file_that_the_browser_has_is_not_sent_again(server: ServerProcess) -> None:
    first = server.get("/page/app.js")
    tag = first.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = server.get("/page/app.js", headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert server.get("/page/app.js", headers={"if-none-match": '"other"'}).status_code == 200
    assert server.get("/page/base.css").headers["etag"] != tag


@pytest.mark.parametrize(
    "name", ["nothing.js", "__init__.py", "..%2ffiles.py", "..%2f..%2f..%2f..%2fetc%2fpasswd", "%00"]
)
def test_what_is_no_file_of_the_page_is_not_found(server: ServerProcess, name: str) -> None:
    answer = server.get(f"/page/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "route_not_found"


def test_all_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"/page/([\w.]+)", SITE.joinpath("index.html").read_text()))
    for name in NAMES:
        text = SITE.joinpath(name).read_text()
        named |= set(re.findall(r'from "\./([\w.]+)"', text)) | set(re.findall(r"/page/([\w.]+)", text))
    assert named == set(NAMES) - {"index.html"}


def test_no_script_can_turn_a_text_into_markup() -> None:
    for name in NAMES:
        text = SITE.joinpath(name).read_text()
        for sink in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "srcdoc",
        ):
            assert sink not in text, f"{sink} in {name}"
    html = SITE.joinpath("index.html").read_text()
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\son\w+=|\sstyle=", html)


def live(server: ServerProcess) -> dict[str, Any]:
    answer = server.get("/v1/engine")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


def test_the_live_view_tells_the_model_the_cache_and_the_counts(server: ServerProcess) -> None:
    server.wait_until_idle()
    before = live(server)
    body = {"model": MODEL, "prompt": "the quick brown fox " * 20, "max_tokens": 24, "ignore_eos": True, "stream": True}
    assert server.post("/v1/completions", body).status_code == 200
    server.wait_until_idle()
    after = live(server)
    assert after["state"] == "ready" and after["time"] > before["time"]
    model = after["model"]
    assert model["name"] == MODEL and model["num_blocks"] > 0 and model["kernels"]
    blocks = after["live"]["kv"]
    assert sum(blocks.values()) == model["num_blocks"] and blocks["held"] == 0 and blocks["cached"] > 0
    old, new = before["live"]["totals"], after["live"]["totals"]
    assert new["generated_tokens"] - old["generated_tokens"] == 24
    assert new["completed"] - old["completed"] == 1
    for wait in after["latency"].values():
        assert 0 < wait["p50"] <= wait["p95"] and wait["count"] > 0


def test_the_live_view_shows_who_runs_and_what_prompts_share_but_no_word_of_them(endless: ServerProcess) -> None:
    secret = "naïve café " * 40
    body = {"prompt": [secret + "one", secret + "two"], "max_tokens": ENDLESS, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", endless.url + "/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()  # when it goes, so does the request
        next(lines)

        def both_run() -> dict[str, Any] | None:
            view = live(endless)
            return view if view["live"]["running"] == 2 and view["live"]["prefixes"] else None

        view = wait_for(both_run)
    assert set(view["live"]) == {
        "running", "waiting", "kv", "totals", "sequences", "prefixes", "prefixes_are_whole",
    }  # fmt: skip
    for sequence in view["live"]["sequences"]:
        assert all(isinstance(value, int) for value in sequence.values())
        assert sequence["row"] >= 0 and sequence["prompt"] > 64 and sequence["max_generated"] == ENDLESS
    shared = [chain for chain in view["live"]["prefixes"] if chain["parent"] == -1 and chain["held"]]
    assert len(shared) == 1 and shared[0]["blocks"] >= 4  # held by both, once
    assert all(isinstance(value, int) for chain in view["live"]["prefixes"] for value in chain.values())
    endless.wait_until_idle()
