"""The web page as a person has it, in a real Chromium without a window. Each test also promises that nothing is
reported to the console as an error and that no request leaves the server's origin."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import httpx
import parrot_server
import pytest
from browser import CHROMIUM
from parrot_server import save_parrot, spoken
from server_process import ServerProcess

from trivium.observe.request_account import MEANINGS

sync_api = pytest.importorskip("playwright.sync_api")
Browser, Page, expect = sync_api.Browser, sync_api.Page, sync_api.expect

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine; make test-browser fetches one"),
]

KEY = "open-sesame"
PHONE = {"width": 360, "height": 740}
DESK = {"width": 1280, "height": 800}
LONG = (
    "All work and no play makes a dull day. " * 48
)  # 1,872 tokens of the parrot, one for each byte: a minute of slow speech

expect.set_options(timeout=30_000)

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[Open]:
    """Opens a server's page in a fresh profile; at the end, looks back at what it did."""
    problems: list[str] = []
    contexts = []

    def open_it(server: ServerProcess, path: str = "/", expected: str = "", **options: object) -> Page:
        """`expected`: a console message that belongs to the test."""
        context = chromium.new_context(**{"viewport": DESK, "reduced_motion": "reduce", **options})
        context.set_default_timeout(30_000)
        contexts.append(context)
        page = context.new_page()

        def on_console(message: sync_api.ConsoleMessage) -> None:
            if message.type in ("error", "warning") and not (expected and expected in message.text):
                problems.append(f"console: {message.text}")

        def on_request(request: sync_api.Request) -> None:
            if not request.url.startswith(server.url + "/"):
                problems.append(f"request to {request.url}")

        page.on("console", on_console)
        page.on("pageerror", lambda error: problems.append(f"uncaught: {error}"))
        page.on("request", on_request)
        page.goto(server.url + path)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert problems == []


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send", exact=True).click()


def answers(page: Page) -> sync_api.Locator:
    return page.locator(".turn.assistant")


def test_a_chat_streams_over_several_turns_and_tells_its_figures(parrot: ServerProcess, open_page: Open) -> None:
    page = open_page(parrot)
    expect(page.locator(".served")).to_contain_text("parrot")
    ask(page, spoken("Hello " * 160))
    expect(answers(page).locator(".prose")).to_contain_text("Hello")
    expect(answers(page).locator(".figures")).to_contain_text("961 tokens")
    ask(page, spoken("And again."))
    expect(answers(page).nth(1).locator(".prose")).to_have_text("And again.")
    expect(answers(page).nth(1).locator(".figures")).to_contain_text("cached")
    page.reload()
    expect(answers(page).nth(1).locator(".prose")).to_have_text("And again.")


def test_markdown_and_code_are_shown_and_markup_stays_text(parrot: ServerProcess, open_page: Open) -> None:
    page = open_page(parrot)
    # Marks without end, as a model writes them that repeats itself, must not hold the page up.
    ask(page, spoken("**a " * 200 + "`b " * 100))
    expect(answers(page).locator(".figures")).to_be_visible()
    page.get_by_role("button", name="New chat").click()
    hostile = '<img src=x onerror="alert(1)"> <script>alert(2)</script> [link](javascript:alert(3))'
    ask(
        page,
        spoken(
            "# Title\n\nSome **bold** and `code`, see https://example.org/a.\n\n1. one\n2. two\n   - nested\n\n"
            "| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\ndef f():\n    return '<b>'  # note\n```\n\n" + hostile
        ),
    )
    answer = answers(page)
    expect(answer.locator(".figures")).to_be_visible()
    expect(answer.locator("h1")).to_have_text("Title")
    expect(answer.locator("strong")).to_have_text("bold")
    expect(answer.locator("ol > li")).to_have_count(2)
    expect(answer.locator("ol ul > li")).to_have_text("nested")
    expect(answer.locator("table td")).to_have_text(["1", "2"])
    expect(answer.locator("pre code")).to_have_text("def f():\n    return '<b>'  # note")
    expect(answer.locator(".code-keyword")).to_have_text(["def", "return"])
    expect(answer.locator(".prose img, .prose script")).to_have_count(0)
    expect(answer.locator(".prose a")).to_have_attribute("href", "https://example.org/a")
    expect(answer.locator(".prose")).to_contain_text(hostile)


def test_reasoning_is_folded_away_from_the_answer(parrot: ServerProcess, open_page: Open) -> None:
    page = open_page(parrot)
    ask(page, spoken("<think>Let me see.</think>Four."))
    expect(answers(page).locator(".prose")).to_have_text("Four.")
    expect(answers(page).locator(".reasoning div")).to_be_hidden()
    page.get_by_text("Thoughts").click()
    expect(answers(page).locator(".reasoning div")).to_have_text("Let me see.")


def test_stop_cancels_and_the_engine_gives_everything_back(parrot: ServerProcess, open_page: Open) -> None:
    page = open_page(parrot)
    page.get_by_label("Longest answer, in tokens").fill("2000")
    before = parrot.wait_until_idle()
    ask(page, spoken(LONG, slowly=True))
    expect(answers(page).locator(".prose")).to_contain_text("All work")  # words are there long before the end
    page.get_by_role("button", name="Stop").click()
    expect(answers(page)).to_contain_text("You stopped this answer.")
    after = parrot.wait_until_idle()
    cancelled = 'trivium_requests_ended_total{end="cancelled"}'
    assert after[cancelled] - before[cancelled] == 1
    expect(page.locator("#pulse")).to_have_attribute("data-state", "ready")
    page.get_by_role("button", name="Try again").click()
    expect(answers(page)).to_have_count(1)
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.keyboard.press("Escape")
    expect(answers(page)).to_contain_text("You stopped this answer.")
    parrot.wait_until_idle()


def test_an_answer_says_where_its_time_went(parrot: ServerProcess, open_page: Open) -> None:
    page = open_page(parrot, expected="404 (Not Found)")  # the account may be closed a moment after the answer
    ask(page, spoken("Quick."))
    page.get_by_role("button", name="Timing").click()
    expect(answers(page).locator(".account")).to_contain_text("from the first byte to the last")
    for cause, meaning in MEANINGS.items():
        told = answers(page).locator(f".account dt[data-cause={cause}] + dd")
        if told.count():
            expect(told).to_contain_text(meaning)
    expect(answers(page).locator(".account dt[data-cause=decode]")).to_be_visible()
    expect(answers(page).locator(".cause-bar [data-cause=decode]")).to_be_visible()


def test_a_refusal_is_told_and_can_be_tried_again(parrot: ServerProcess, open_page: Open) -> None:
    page = open_page(parrot, expected="400 (Bad Request)")
    ask(page, spoken("word " * 2000))
    expect(page.get_by_role("alert")).to_contain_text("maximum context length is 4096 tokens")
    expect(page.get_by_role("button", name="Try again")).to_be_visible()


def test_an_answer_without_a_word_says_so(parrot: ServerProcess, open_page: Open) -> None:
    page = open_page(parrot)
    ask(page, spoken(""))
    expect(answers(page)).to_contain_text("The model ended its answer without a word.")
    expect(answers(page).locator(".figures")).to_have_text(re.compile(r"^1 token\b"))
    ask(page, spoken("Now I speak."))
    expect(answers(page).nth(1)).to_contain_text("Now I speak.")
    expect(answers(page).nth(1)).not_to_contain_text("without a word")


def test_a_schema_is_obeyed(server: ServerProcess, open_page: Open) -> None:
    page = open_page(server)
    page.get_by_role("radio", name="Schema").check()
    editor = page.get_by_label("JSON schema", exact=True)
    editor.fill('{"type": ')
    expect(page.locator(".verdict.is-bad")).to_be_visible()
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}, "amount": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["colour", "amount"],
        "additionalProperties": False,
    }
    editor.fill(json.dumps(schema))
    ask(page, "A colour?")
    expect(answers(page).locator(".figures")).to_be_visible()
    answer = json.loads(answers(page).locator("pre code").inner_text())
    assert set(answer) == {"colour", "amount"}
    assert answer["colour"] in ("red", "green") and 1 <= answer["amount"] <= 9


def test_a_tool_is_called_and_its_result_goes_back(server: ServerProcess, open_page: Open) -> None:
    page = open_page(server)
    page.get_by_label("Let the model call tools").check()
    page.get_by_role("radio", name="Required").check()
    # A model of random weights would go on for long by itself, and with each draw say something else.
    page.get_by_label("Longest answer, in tokens").fill("300")
    page.get_by_label("Seed").fill("1")
    ask(page, "What is the weather?")
    call = page.get_by_role("region", name="Call of get_weather")
    expect(answers(page).locator(".figures")).to_be_visible()
    arguments = json.loads(call.locator("pre").inner_text())
    assert set(arguments) == {"city", "unit"} and arguments["unit"] in ("celsius", "fahrenheit")
    call.get_by_label("What get_weather answers").fill('{"degrees": 20}')
    page.get_by_role("button", name="Send the result").click()
    expect(call).to_contain_text('{"degrees": 20}')
    expect(answers(page)).to_have_count(2)
    expect(answers(page).nth(1).locator(".figures")).to_be_visible()


def test_the_live_view_moves_with_the_engine(parrot: ServerProcess, open_page: Open) -> None:
    parrot.wait_until_idle()
    page = open_page(parrot, "/#engine")

    def tile(label: str) -> sync_api.Locator:
        return page.locator(".tile", has_text=label).locator("b")

    expect(tile("Running")).to_have_text("0")
    body = {"prompt": spoken(LONG, slowly=True), "n": 2, "max_tokens": 2000, "stream": True}
    with httpx.stream("POST", parrot.url + "/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()  # when it goes, so does the request
        next(lines)
        expect(tile("Running")).to_have_text("2")
        expect(page.locator(".lane")).to_have_count(2)
        expect(page.locator(".prefix-map .runner").first).to_be_attached()
        expect(tile("Tokens per second")).to_have_text(re.compile(r"[1-9]"))
        expect(tile("First token")).to_have_text(re.compile(r"[1-9].* m?s"))
        expect(page.locator("#pulse")).to_contain_text("2 running")
        expect(page.locator(".time-chart").first.locator("path.line").first).to_have_attribute("d", re.compile("L"))
    parrot.wait_until_idle()
    expect(tile("Running")).to_have_text("0")
    expect(page.locator(".lane")).to_have_count(0)
    expect(page.locator(".requests tbody tr").first).to_contain_text("cancelled")


def test_settings_and_theme_are_kept_between_visits(parrot: ServerProcess, open_page: Open) -> None:
    page = open_page(parrot)
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_role("slider", name="Temperature").fill("1.5")
    page.get_by_role("button", name="Theme: auto").click()
    page.reload()
    expect(page.get_by_label("System prompt")).to_have_value("Be brief.")
    expect(page.get_by_role("slider", name="Temperature")).to_have_value("1.5")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.get_by_role("button", name="Restore the defaults").click()
    expect(page.get_by_label("System prompt")).to_have_value("")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
def test_no_layout_is_wider_than_its_window(
    parrot: ServerProcess, open_page: Open, viewport: dict[str, int], scheme: str
) -> None:
    page = open_page(parrot, viewport=viewport, color_scheme=scheme)

    def widths() -> list[int]:
        views = page.locator("html, #thread-scroll, #view-engine, #settings-body, .composer, .top").all()
        return [view.evaluate("element => element.scrollWidth - element.clientWidth") for view in views]

    ask(
        page,
        spoken(
            "Unbreakable" * 40 + "\n\n```\n" + "wide " * 60 + "\n```\n\n| a | b |\n|--|--|\n| " + "c " * 90 + "| d |"
        ),
    )
    expect(answers(page).locator(".figures")).to_be_visible()
    assert max(widths()) <= 0
    if viewport is PHONE:
        page.get_by_role("button", name="Settings", exact=True).click()
        expect(page.get_by_label("System prompt")).to_be_in_viewport()
        page.keyboard.press("Escape")
        expect(page.get_by_label("System prompt")).not_to_be_in_viewport()
    page.get_by_role("link", name="Engine", exact=True).click()
    expect(page.locator(".tile b").first).to_have_text("0")
    assert max(widths()) <= 0
    background = page.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", background)[:3])) / 3
    assert brightness < 60 if scheme == "dark" else brightness > 200


def test_every_control_has_a_name_and_the_keyboard_reaches_the_chat(parrot: ServerProcess, open_page: Open) -> None:
    page = open_page(parrot)
    expect(page.locator("#pulse")).to_have_attribute("data-state", "ready")
    page.get_by_label("Let the model call tools").check()
    nameless = page.locator("button, input, select, textarea, a").evaluate_all(
        """elements => elements.filter(element => element.checkVisibility()
             && !element.ariaLabel && !element.textContent.trim() && !element.labels?.length).map(e => e.outerHTML)"""
    )
    assert nameless == []
    page.get_by_label("Message", exact=True).focus()
    page.keyboard.type(spoken("Typed."))
    page.keyboard.press("Enter")
    expect(answers(page).locator(".prose")).to_have_text("Typed.")


@pytest.fixture(scope="module")
def aviary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Two parrots behind a key."""
    directory = save_parrot(tmp_path_factory.mktemp("models") / "parrot")
    server = ServerProcess(
        f"polly={directory}",
        "--api-key",
        KEY,
        more_models=(f"jack={directory}",),
        program=(parrot_server.__file__,),
    )
    yield server
    assert server.stop() == 0


def test_a_server_with_keys_shows_its_page_and_asks_for_one(aviary: ServerProcess, open_page: Open) -> None:
    page = open_page(aviary, expected="401 (Unauthorized)")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Not now").click()
    expect(page.locator("#pulse")).to_contain_text("needs a key")
    ask(page, spoken("Inside."))
    for key in ("wrong", KEY):
        dialog.get_by_label("API key", exact=True).fill(key)
        dialog.get_by_role("button", name="Use the key").click()
    expect(answers(page).locator(".prose")).to_have_text("Inside.")
    expect(dialog).to_be_hidden()
    expect(page.locator("#pulse")).to_contain_text("ready")
    page.reload()
    expect(dialog).to_be_visible()  # it was not to be kept


def test_of_several_models_the_chosen_one_answers_and_is_watched(aviary: ServerProcess, open_page: Open) -> None:
    page = open_page(aviary, expected="401 (Unauthorized)")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("API key", exact=True).fill(KEY)
    dialog.get_by_label("Keep it in this browser").check()
    dialog.get_by_role("button", name="Use the key").click()
    expect(page.locator(".served")).to_contain_text("polly")
    page.get_by_label("Model", exact=True).select_option("jack")
    expect(page.locator(".served")).to_contain_text("jack")
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, spoken("Squawk."))
    assert asked.value.post_data_json["model"] == "jack"
    expect(answers(page).locator(".prose")).to_have_text("Squawk.")
    page.reload()  # the key and the choice are kept
    expect(page.get_by_label("Model", exact=True)).to_have_value("jack")
    page.get_by_role("link", name="Engine", exact=True).click()
    expect(page.locator(".facts")).to_contain_text("jack")
    page.get_by_role("link", name="Chat", exact=True).click()
