"""A bundle that was left alone is good; one in which anything was changed is not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hand_made import record, sample

from trivium import cli
from trivium.bench.bundle import DIGESTS, Evidence, read_bundle, write_bundle
from trivium.bench.errors import BenchError
from trivium.bench.figures import Slo
from trivium.bench.record import Comparison, Record, RunPlan
from trivium.bench.report_html import report_page
from trivium.bench.results import results_of
from trivium.bench.samples import Outcome, RequestSample
from trivium.bench.server_view import Metrics
from trivium.bench.verify import problems_of


def evidence(made: Record | None = None, samples: list[RequestSample] | None = None) -> Evidence:
    made = made or record()
    samples = samples or [
        sample(0, sent=1, text=(10, 20), ended=30, output_tokens=2),
        sample(1, scheduled=50, sent=50, text=(70, 90, 95), ended=99, output_tokens=3),
        sample(2, scheduled=60, sent=61, ended=62, outcome=Outcome.HTTP_ERROR, status=429),
    ]
    metrics = [Metrics("a 1\n", "a 2\n")] * len(made.targets)
    return Evidence(made, samples, results_of(made, samples, metrics), metrics)


def write(folder: Path, one: Evidence | None = None) -> str:
    one = one or evidence()
    page = report_page(one.record, one.samples, one.figures)
    return write_bundle(folder, one, page, {"server.log": "ready\n"})


def sign_again(folder: Path) -> None:
    """What somebody would do who changes a file and its digest."""
    names = sorted(path.name for path in folder.iterdir() if path.name != DIGESTS)
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (folder / DIGESTS).write_text("".join(lines))


def replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return change


def drop_last_sample(folder: Path) -> None:
    lines = (folder / "samples.jsonl").read_text().splitlines(keepends=True)
    (folder / "samples.jsonl").write_text("".join(lines[:-1]))


def test_a_bundle_is_good_as_it_was_written(tmp_path: Path) -> None:
    digest = write(tmp_path / "b")
    assert list(problems_of(tmp_path / "b", digest)) == []
    assert read_bundle(tmp_path / "b") == evidence()


CHANGES = {
    "a sample's time": replace("samples.jsonl", "20000000", "19000000"),
    "a failure made a success": replace("samples.jsonl", '"http"', '"complete"'),
    "a failure left out": drop_last_sample,
    "a figure": replace("figures.json", '"completed": 2', '"completed": 3'),
    "a decimal of a figure": replace("figures.json", '"p50": 14.5', '"p50": 14.4'),
    "a number in the report": replace("report.html", "14.5", "13.5"),
    "the loop of a run": replace("record.json", '"loop": "open"', '"loop": "closed"'),
    "a run that has no samples": replace("record.json", '"runs": [', '"runs": [{"label": "x", "loop": "closed"},'),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("signed", [False, True], ids=["digests left", "digests made again"])
def test_a_change_is_found_with_its_digest_and_without(
    change: Callable[[Path], None], signed: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "b"
    digest = write(folder)
    change(folder)
    if signed:
        sign_again(folder)
    assert list(problems_of(folder))
    assert list(problems_of(folder, digest))


def test_a_change_of_the_metrics_is_found_by_its_digest(tmp_path: Path) -> None:
    digest = write(tmp_path / "b")
    replace("metrics-after.txt", "2", "3")(tmp_path / "b")
    assert list(problems_of(tmp_path / "b")) == ["metrics-after.txt is not the file whose digest was written"]
    sign_again(tmp_path / "b")
    assert list(problems_of(tmp_path / "b", digest))  # nothing follows from them, but the bundle is another


def test_missing_and_added_files_are_named(tmp_path: Path) -> None:
    write(tmp_path / "b")
    (tmp_path / "b" / "metrics-before.txt").unlink()
    (tmp_path / "b" / "more.txt").write_text("")
    assert list(problems_of(tmp_path / "b")) == ["more.txt is not in SHA256SUMS", "metrics-before.txt is missing"]


def test_times_out_of_order_and_requests_told_twice_are_named(tmp_path: Path) -> None:
    twice = [sample(0, text=(5,), ended=6), sample(0, text=(5,), ended=6), sample(1, text=(9,), ended=6)]
    write_bundle(tmp_path / "b", evidence(samples=twice), "", {})
    assert list(problems_of(tmp_path / "b")) == [
        "run 0, request 0: it is there twice",
        "run 0, request 1: its times are not in order",
    ]


def test_verify_is_a_command_with_an_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "b"
    digest = write(folder)
    assert cli.main(["bench", "verify", str(folder), "--digest", digest]) == 0
    replace("figures.json", '"completed": 2', '"completed": 3')(folder)
    assert cli.main(["bench", "verify", str(folder)]) == 1
    assert "figures.runs[0].completed is told as 3, and the samples give 2" in capsys.readouterr().out
    assert cli.main(["bench", "verify", str(tmp_path / "nothing")]) == 1
    assert capsys.readouterr().err.startswith("trivium: ")


def test_a_folder_that_holds_something_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path, tmp_path / "file"):
        with pytest.raises(BenchError, match="new or empty"):
            write(place)


def test_samples_are_lines_of_json_with_nanoseconds(tmp_path: Path) -> None:
    write(tmp_path / "b")
    first, *_ = map(json.loads, (tmp_path / "b" / "samples.jsonl").read_text().splitlines())
    assert (first["sent_ns"], first["text_ns"], first["ended_ns"]) == (1_000_000, [10_000_000, 20_000_000], 30_000_000)


class Page(HTMLParser):
    """Tags that are opened are closed, and nothing is fetched."""

    ALONE = frozenset({"meta"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe")
        assert not {name for name, _ in attributes} & {"src", "href", "onload", "onclick"}
        if tag not in self.ALONE:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def sides() -> list[RunPlan]:
    return [
        RunPlan(label=f"{r} {side}", loop="closed", concurrency=1, side=side, round=r)
        for r in range(2)
        for side in "ab"
    ]


RECORDS = {
    "one run": record(),
    "all failed": record(RunPlan(label="dead", loop="open", rate=1.0)),
    "rates": record(*(RunPlan(label=f"{rate}/s", loop="open", rate=rate) for rate in (1.0, 2.0)), slo=Slo(ttft_ms=5)),
    "prefix": record(*(RunPlan(label=name, loop="closed", concurrency=1) for name in "xy"), mode="prefix"),
    "search": record(
        *(RunPlan(label=f"{r}", loop="open", rate=float(r + 1)) for r in range(9)), mode="slo", slo=Slo(e2e_ms=9)
    ),
    "compare": record(
        *sides(), mode="compare", comparison=Comparison(confidence=0.9, min_effect=0, headline="e2e", seed=1)
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_report_is_one_sound_page_that_fetches_nothing(name: str) -> None:
    made = RECORDS[name]
    dead = name == "all failed"
    samples = [
        sample(
            index,
            run=run,
            text=() if dead else (5, 6 + index),
            ended=9,
            outcome=Outcome.RESET if dead else Outcome.COMPLETE,
        )
        for run in range(len(made.runs))
        for index in range(3)
    ]
    text = report_page(made, samples, results_of(made, samples))
    page = Page(text)
    assert "http" not in text.replace("http://127.0.0.1:1/v1", "")
    assert "hand-made" in page.words and text.count("<svg") >= 3
    assert "nan" not in text.split("</style>")[1].replace("nanosec", "")


def test_what_a_server_says_cannot_become_markup() -> None:
    hostile = record(RunPlan(label="<script>alert(1)</script>", loop="open", rate=1.0), title="<img src=x>")
    samples = [sample(0, text=(5,), ended=9)]
    Page(report_page(hostile, samples, results_of(hostile, samples)))
