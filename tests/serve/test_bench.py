"""`trivium bench` against real servers: each mode leaves a bundle that holds."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from delay_proxy import delay_proxy
from server_process import PATIENCE, ServerProcess, children_of, wait_for

from trivium import cli
from trivium.bench.bundle import Evidence, read_bundle
from trivium.bench.verify import problems_of

TRACES = Path(__file__).parents[1] / "unit" / "bench" / "traces"
REQUESTS, PROMPT, OUTPUT = 8, 100, 6
WORKLOAD = (
    "--requests",
    f"{REQUESTS}",
    "--prompt-tokens",
    f"{PROMPT}",
    "--output-tokens",
    f"{OUTPUT}",
    "--warmup",
    "1",
)
DELAY = 1.0  # seconds; answers of the tiny model take a small part of it


def bench(folder: Path, *arguments: str) -> Evidence:
    """The words of each test are its own, and always the same."""
    assert cli.main(["bench", *arguments, "--words", folder.parent.name, "--output", str(folder)]) == 0
    assert list(problems_of(folder)) == []
    return read_bundle(folder)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_an_open_loop_counts_what_the_server_counts(server: ServerProcess, tmp_path: Path, endpoint: str) -> None:
    folder = tmp_path / "b"
    flags = ("--rate", "20,40", "--ttft-ms", "60000", "--endpoint", endpoint)
    evidence = bench(folder, "serve", "--base-url", server.url, *WORKLOAD, *flags)
    assert [plan.rate for plan in evidence.record.runs] == [20.0, 40.0]
    for plan, figures in zip(evidence.record.runs, evidence.figures.runs, strict=True):
        assert (figures.completed, figures.output_tokens) == (REQUESTS, REQUESTS * OUTPUT)
        assert figures.prompt_tokens == pytest.approx(REQUESTS * PROMPT, rel=0.15)
        assert figures.offered_rate == pytest.approx(plan.rate)
        assert figures.lag_ms is not None and figures.within_slo == 1.0
    before, after = (
        {
            line.partition("{")[0]: float(line.rpartition(" ")[2])
            for line in (folder / f"metrics-{when}.txt").read_text().splitlines()
            if line[0] != "#"
        }
        for when in ("before", "after")
    )
    assert [one.what for one in evidence.figures.agreements] == ["TTFT", "per token", "E2E"]
    first = evidence.figures.agreements[0]
    assert 0 < first.server_ms <= first.client_ms  # the server's time lies within the client's
    name = "trivium_generated_tokens_total"
    assert after[name] - before[name] == 2 * REQUESTS * OUTPUT  # without what was asked to warm up


def test_a_closed_loop_keeps_its_number_under_way(server: ServerProcess, tmp_path: Path) -> None:
    evidence = bench(tmp_path / "b", "serve", "--base-url", f"{server.url}/v1", *WORKLOAD, "--concurrency", "3")
    (figures,) = evidence.figures.runs
    assert (figures.completed, figures.peak_in_flight, figures.offered_rate) == (REQUESTS, 3, None)


def test_throughput_sends_all_at_once(server: ServerProcess, tmp_path: Path) -> None:
    (figures,) = bench(tmp_path / "b", "throughput", "--base-url", server.url, *WORKLOAD).figures.runs
    assert (figures.completed, figures.peak_in_flight) == (REQUESTS, REQUESTS)


def test_latency_asks_one_after_the_other(server: ServerProcess, tmp_path: Path) -> None:
    flags = ("--lengths", "uniform", "--seed", "7")
    evidence = bench(tmp_path / "b", "latency", "--base-url", server.url, *WORKLOAD, *flags)
    (figures,) = evidence.figures.runs
    assert (figures.completed, figures.peak_in_flight) == (REQUESTS, 1)
    assert all(sample.output_tokens == sample.planned_output_tokens for sample in evidence.samples)


def test_shared_prefixes_are_found_in_the_cache(server: ServerProcess, tmp_path: Path) -> None:
    flags = ("--prefix-tokens", "300", "--prefixes", "2", "--concurrency", "1")
    evidence = bench(tmp_path / "b", "prefix", "--base-url", server.url, *WORKLOAD, *flags)
    alone, shared = evidence.figures.runs
    assert alone.completed == shared.completed == REQUESTS
    assert alone.cached_share < 0.2 < 0.4 < shared.cached_share  # six of eight find 300 of 400 tokens


@pytest.mark.parametrize("trace", ["azure_conv.csv", "mooncake_conversation.jsonl"])
def test_a_trace_is_replayed(server: ServerProcess, tmp_path: Path, trace: str) -> None:
    limits = ("--speed", "100", "--max-prompt-tokens", "200", "--max-output-tokens", "4", "--warmup", "0")
    evidence = bench(tmp_path / "b", "replay", str(TRACES / trace), "--base-url", server.url, *limits)
    (figures,) = evidence.figures.runs
    assert figures.completed == 12
    assert any("shortened" in note for note in evidence.record.notes)


def test_a_search_finds_the_rate_that_the_limits_allow(server: ServerProcess, tmp_path: Path) -> None:
    search = ("--start-rate", "20", "--max-rate", "40", "--max-runs", "2")
    easy = bench(tmp_path / "easy", "slo", "--base-url", server.url, *WORKLOAD, "--e2e-ms", "60000", *search)
    assert easy.figures.slo_rate == 40.0
    hard = bench(tmp_path / "hard", "slo", "--base-url", server.url, *WORKLOAD, "--e2e-ms", "0.001", *search)
    assert hard.figures.slo_rate is None and [plan.rate for plan in hard.record.runs] == [20.0, 10.0]


COMPARED = (
    *("--requests", "4", "--prompt-tokens", "50", "--output-tokens", "4", "--concurrency", "4"),
    *("--rounds", "6", "--min-effect", "0.5"),
)


def test_a_server_is_not_shown_to_differ_from_itself(server: ServerProcess, tmp_path: Path) -> None:
    # Six rounds by chance five times as long on one side: a busy machine does not do that.
    evidence = bench(tmp_path / "b", "compare", server.url, server.url, *COMPARED, "--min-effect", "4")
    assert [plan.side for plan in evidence.record.runs[:4]] == ["a", "b", "b", "a"]
    compared = evidence.figures.compared
    assert compared is not None and compared.rounds == 6
    assert compared.verdict == "no difference shown"


def test_a_server_behind_a_delay_is_shown_to_be_slower(server: ServerProcess, tmp_path: Path) -> None:
    with delay_proxy(server.port, DELAY) as url:
        evidence = bench(tmp_path / "b", "compare", server.url, url, *COMPARED, "--warmup", "0")
    compared = evidence.figures.compared
    assert compared is not None and compared.verdict == "slower"
    late = [sample for sample in evidence.samples if evidence.record.runs[sample.run].side == "b"]
    assert all(sample.ttft_ns >= 0.99 * DELAY * 1e9 for sample in late)


def test_an_experiment_does_not_find_the_words_of_an_earlier_one(server: ServerProcess, tmp_path: Path) -> None:
    shares = []
    for number, words in enumerate(("", "", "the same", "the same")):  # without a name, new ones
        flags = ("--base-url", server.url, *WORKLOAD, "--words", words)
        assert cli.main(["bench", "latency", *flags, "--output", str(tmp_path / f"{number}")]) == 0
        shares.append(read_bundle(tmp_path / f"{number}").figures.runs[0].cached_share)
    assert max(shares[:3]) < 0.4 < 0.7 < shares[3]


def test_a_server_is_started_for_the_measurement_and_stopped_after(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "b"
    options = f"--num-threads 1 --state-dir {tmp_path / 'state'} --api-key sk-hidden"
    flags = ("--server-options", options, "--api-key", "sk-hidden")
    evidence = bench(folder, "latency", str(tiny_model), *WORKLOAD, *flags)
    (target,) = evidence.record.targets
    assert target.started_with is not None and target.started_with[:3] == ["trivium", "serve", str(tiny_model)]
    assert target.max_model_len == 8192
    assert "ready" in (folder / "server.log").read_text()
    assert all(b"sk-hidden" not in path.read_bytes() for path in folder.iterdir())
    assert (folder / "metrics-after.txt").exists()
    with socket.socket() as sock:
        assert sock.connect_ex(("127.0.0.1", int(target.base_url.split(":")[2].partition("/")[0]))) != 0


def test_a_measurement_that_is_stopped_stops_its_server(tiny_model: Path, tmp_path: Path) -> None:
    options = f"--num-threads 1 --state-dir {tmp_path / 'state'}"
    flags = ("--requests", "2000", "--rate", "5", "--server-options", options, "--output", str(tmp_path / "b"))
    process = subprocess.Popen(
        [sys.executable, "-m", "trivium", "bench", "serve", str(tiny_model), *flags],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # as a shell does for its background
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert any(line.startswith("warm-up: 2/2") for line in process.stderr)
        (server,) = children_of(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 130
        wait_for(lambda: None if Path(f"/proc/{server}").exists() else True)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    assert not (tmp_path / "b").exists()


def test_no_server_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        assert cli.main(["bench", "latency", "--base-url", url, "--output", str(tmp_path / "b")]) == 1
    assert "no server answers there" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("slo",),
        ("serve", "some-model", "--base-url", "http://127.0.0.1:1"),
        ("slo", "--ttft-ms", "5", "--rate", "1"),
        ("serve", "--requests", "0"),
        ("serve", "--rate", "fast"),
        ("serve", "--rate", "1,0"),
        ("serve", "--rate", "1", "--concurrency", "1"),
        ("throughput", "--concurrency", "0"),
        ("prefix", "--rate", "1,2"),
        ("compare", "http://127.0.0.1:1", "http://127.0.0.1:1", "--b-options", "x"),
        ("compare", "one-server-only"),
    ],
)
def test_a_wrong_command_line_starts_nothing(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = cli.main(["bench", *arguments])
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert capsys.readouterr().err
