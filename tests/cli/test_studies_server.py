"""`autotune ui FOLDER`: one page of all studies, what it refuses, and what it stops."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, needs_browser
from sims import racing, simulate

from autotune.cli import main
from autotune.cli.studies_server import TOKEN, StudiesServer
from autotune.errors import UserError
from autotune.evaluation import studies
from autotune.storage import driver_process
from autotune.storage.journal import JOURNAL, Journal

_DRIVER = """
import sys, time
from pathlib import Path
from autotune.storage.journal import Journal
with Journal(Path(sys.argv[1])):
    try:
        print("locked", flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        print("ended in order", flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three studies: two with results, one that cannot be read."""
    simulate(racing([1.0, 0.5]), tmp_path / "first", 3)
    simulate(racing([0.01]), tmp_path / "unreached", 1)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "experiment.json").write_text("{")
    (tmp_path / "no study").mkdir()
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Iterator[StudiesServer]:
    with StudiesServer(folder) as made:
        work = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
        work.start()
        yield made
        made.shutdown()
        work.join()


@pytest.fixture
def driver(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the first study's journal, as a driver does."""
    command = [sys.executable, "-c", _DRIVER, str(folder / "first")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def ask(server: StudiesServer, method: str, path: str, **headers: str) -> tuple[int, str]:
    port = server.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    given = {"Host": f"127.0.0.1:{port}", **{k.replace("_", "-"): v for k, v in headers.items()}}
    connection.request(method, path, headers=given)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_each_study_in_a_few_words(folder: Path) -> None:
    damaged, first, unreached = (studies.overview(place) for place in studies.found(folder))
    assert "cannot be read" in damaged.fault
    assert (first.state, first.done, first.planned, first.fault) == ("done", 3, 3, "")
    assert first.best.startswith("trial ")
    assert unreached.best.startswith("none; nearest: trial 0 came to ")
    with Journal(folder / "first"):
        assert studies.overview(folder / "first").state == "running"
    whole = (folder / "first" / JOURNAL).read_bytes()
    (folder / "first" / JOURNAL).write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 1])
    assert studies.overview(folder / "first").state == studies.KILLED


def test_studies_are_read_again_only_where_something_changed(folder: Path) -> None:
    overviews = studies.Overviews(folder)
    before = {own.folder: own for own in overviews.read()}
    assert all(own is before[own.folder] for own in overviews.read())
    (folder / "damaged" / "experiment.json").unlink()
    assert [own.folder.name for own in overviews.read()] == ["first", "unreached"]


def test_the_page_its_data_and_reports(server: StudiesServer) -> None:
    status, page = ask(server, "GET", "/")
    assert (status, server.token in page) == (200, False), "the token is not given away"
    status, text = ask(server, "GET", "/studies.json")
    rows = {row["key"]: row for row in json.loads(text)}
    assert status == 200
    assert list(rows) == ["damaged", "first", "unreached"]
    assert rows["first"]["mlflow"] == {"state": "off"}
    status, report = ask(server, "GET", f"/{rows['first']['place']}/report.html")
    assert status == 200
    assert "Leaderboard" in report
    for path in ("/study/none/report.html", "/study/..%2Ffirst/report.html", "/etc/passwd"):
        assert ask(server, "GET", path)[0] == 404
    assert ask(server, "GET", "/study/damaged/report.html")[0] == 409


def test_other_names_other_origins_and_requests_without_the_token_are_refused(
    server: StudiesServer, driver: subprocess.Popen[str]
) -> None:
    stop, token = "/study/first/stop", server.token
    for host in ("evil.example:80", "127.0.0.1.evil.example", "[", "[::1", ""):
        assert ask(server, "GET", "/studies.json", Host=host)[0] == 403, host
    assert ask(server, "POST", stop)[0] == 403
    assert ask(server, "POST", stop, **{TOKEN: "wrong"})[0] == 403
    for origin in ("http://evil.example", "http://[", "null", ""):
        assert ask(server, "POST", stop, Origin=origin, **{TOKEN: token})[0] == 403, origin
    assert ask(server, "GET", "//[")[0] == 404
    assert ask(server, "POST", stop, Content_Length="1000000", **{TOKEN: token})[0] == 413
    assert ask(server, "GET", stop)[0] == 404, "only a POST changes anything"
    assert driver.poll() is None


def test_any_name_of_a_folder_is_shown_and_reached(folder: Path, server: StudiesServer) -> None:
    odd = ["<b>&x", "a b#c?d%20e", os.fsdecode(b"bad\xff"), "quote\"s'", "new\nline"]
    for name in odd:
        (folder / "first").rename(folder / name)
        rows = {row["key"]: row for row in json.loads(ask(server, "GET", "/studies.json")[1])}
        place = rows[name]["place"]
        assert place.isascii()
        assert ask(server, "GET", f"/{place}/report.html")[0] == 200, name
        own = ask(server, "POST", f"/{place}/stop", **{TOKEN: server.token})
        assert own[0] == 409, "no driver runs it"
        (folder / name).rename(folder / "first")
    odd_folder = folder / odd[2]
    odd_folder.mkdir()
    (folder / "first").rename(odd_folder / "first")
    server.folder = odd_folder
    assert ask(server, "GET", "/")[0] == 200


def test_a_study_is_stopped_by_its_driver_alone(
    server: StudiesServer, folder: Path, driver: subprocess.Popen[str]
) -> None:
    assert driver_process.find(folder / "first") == driver.pid
    assert driver_process.find(folder / "unreached") is None
    own = {"Origin": f"http://127.0.0.1:{server.server_address[1]}", TOKEN: server.token}
    assert ask(server, "POST", "/study/first/stop", **own) == (200, "{}")
    assert driver.communicate(timeout=60)[0] == "ended in order\n"
    status, why = ask(server, "POST", "/study/first/stop", **own)
    assert (status, why) == (409, f"no driver runs the study in {folder / 'first'}")
    with Journal(folder / "first"), pytest.raises(UserError, match="cannot be stopped from here"):
        driver_process.stop(folder / "first")  # it is this process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_it_ends_in_order_with_its_terminal(number: signal.Signals, folder: Path) -> None:
    """Or the MLflow UIs that it has started would stay behind."""
    code = "import sys; from autotune.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "ui", str(folder), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("studies: ")
        process.send_signal(number)
        assert process.wait(60) == 0


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["ui", str(tmp_path)]) == main.USER
    assert "holds no study" in capsys.readouterr().err
    simulate(racing([1.0]), tmp_path / "one", 1)
    for words, why in (
        (["--port", "70000"], "--port 70000"),
        (["--host", "no.such.host.invalid"], "cannot listen on --host no.such.host.invalid"),
    ):
        assert main.main(["ui", str(tmp_path), *words]) == main.USER
        assert why in capsys.readouterr().err
    assert main.main(["ui", str(tmp_path / "one"), "--port", "1"]) == main.USER
    assert "are for a folder of studies" in capsys.readouterr().err


@needs_browser
@pytest.mark.parametrize(
    ("width", "phone"),
    [
        pytest.param(1280, False, id="desktop", marks=pytest.mark.slow),
        pytest.param(390, True, id="phone"),
    ],
)
def test_the_page_shows_and_stops_studies(
    server: StudiesServer, driver: subprocess.Popen[str], width: int, phone: bool
) -> None:
    state = "document.querySelector('#studies li.running .state')?.textContent"
    with Browser() as browser:
        browser.size(width, 900, phone=phone)
        browser.open(server.address.partition("#")[0])
        browser.until(f"{state} === 'running'")
        stop = "[...document.querySelectorAll('button')].find(b => b.textContent === 'Stop' "
        stop += "&& !b.hidden)"
        assert browser.says(f"{stop}.disabled"), "without the token it only shows"
        browser.open("about:blank")
        browser.open(server.address)
        browser.until(f"{state} === 'running' && !{stop}.disabled")
        assert browser.says("location.hash") == "", "the token is not left in the address"
        assert browser.says("document.documentElement.scrollWidth") <= width
        browser.says(f"window.confirm = () => true; {stop}.click()")
        assert driver.wait(60) == 0
        browser.until("!document.querySelector('#studies li.running')")
        assert browser.errors == []
