"""Studies submitted to a real Ray head that wants a token, and ended there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import heads
import pytest
import services

from autotune.algorithms.samplers.trained_policy import network
from autotune.cli import main
from autotune.cli.given import SubmitArguments, taken
from autotune.cli.jobs import archive, checks
from autotune.cli.jobs import client as jobs_api
from autotune.cli.jobs import commands as jobs
from autotune.cli.jobs import submission as submit
from autotune.errors import UserError
from autotune.storage import journal
from autotune.storage.journal import Closed, Opened
from autotune.study.options import StudyOptions
from autotune.trial import Ended, Saved, State, fold

RECIPE = "job_recipe.py:study"
PLACED = "job_recipe.py:placed"
RAY = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS")
JOB_SECONDS = 1500.0


@pytest.fixture(scope="module")
def head() -> Iterator[heads.Head]:
    with heads.head() as started:
        yield started


class Desk:
    """A person's machine: a working directory, and a command line with an environment."""

    def __init__(self, folder: Path, head: heads.Head) -> None:
        self.project = folder / "project"
        self.project.mkdir()
        shutil.copy(heads.ROOT / "tests" / "support" / "job_recipe.py", self.project)
        self.home = folder / "home"
        self.home.mkdir()
        self.head = head
        self.log = folder / "log"
        self.token: dict[str, str] = {"RAY_AUTH_TOKEN_PATH": str(head.token_file)}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        where = [] if arguments[0] == "resume" else ["--address", self.head.address]
        kept = {k: v for k, v in os.environ.items() if k not in RAY}
        path = os.pathsep.join([str(heads.ROOT), os.environ.get("PYTHONPATH", "")]).strip(":")
        own = {"HOME": str(self.home), "PYTHONPATH": path, "JOB_RECIPE_LOG": str(self.log)}
        command = [sys.executable, "-m", "autotune", *arguments]
        return subprocess.Popen(
            [*command, *where],
            cwd=self.project,
            env={**kept, **own, **self.token},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def type(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=JOB_SECONDS)
        return process.returncode, out, err

    def starts(self) -> list[list[int]]:
        """The steps at which the trainer began, each with the trial's seed."""
        return [[int(word) for word in row.split()] for row in self.log.read_text().splitlines()]


@pytest.fixture
def desk(tmp_path: Path, head: heads.Head) -> Desk:
    return Desk(tmp_path, head)


def until(ready: Callable[[], Any]) -> Any:
    end = time.monotonic() + JOB_SECONDS
    while time.monotonic() < end:
        if found := ready():
            return found
        time.sleep(0.1)
    raise AssertionError("waited in vain")


def saved(folder: Path, step: int) -> bool:
    """Whether the study's first trial has a checkpoint of that step."""
    if not (folder / "journal.jsonl").is_file():
        return False
    events = [e for e in journal.read(folder) if isinstance(e, Saved)]
    return bool(events) and events[-1].checkpoint.step >= step


def trials(folder: Path) -> dict[int, Any]:
    return fold([e for e in journal.read(folder) if not isinstance(e, Opened | Closed)])


def wrote(stream: Any) -> tuple[list[str], threading.Thread]:
    """The lines of a stream as they come."""
    lines: list[str] = []
    reader = threading.Thread(target=lambda: [lines.append(x) for x in stream], daemon=True)
    reader.start()
    return lines, reader


SHARED = ("--trials", "2", "--sampler", "random", "--pruner", "none", "--tracking-uri", "off")


@pytest.mark.slow
def test_a_study_is_submitted_refused_cancelled_and_gone_on_with(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On shared storage. The second submission goes on from the checkpoint of the first."""
    folder = desk.project.parent / "shared" / "study"
    submission = ("submit", RECIPE, *SHARED, "--out", str(folder), "--env", "JOB_RECIPE_LOG")
    desk.log.with_name("slow").touch()
    follower = desk.start(*submission, "--follow")
    shown, reader = wrote(follower.stdout)
    until(lambda: saved(folder, 5) or follower.poll() is not None)
    assert follower.poll() is None, follower.communicate()
    until(lambda: any("started" in line for line in shown) or follower.poll() is not None)

    code, out, err = desk.type(*submission)
    assert (code, out) == (2, "")
    assert f"another process is running the study in {folder}" in err
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", desk.head.token)
    cluster = submit.Cluster(desk.head.address)
    again = submit.Submission("submitted", ["run", RECIPE], str(folder), folder)
    with pytest.raises(UserError, match=r"job submitted-1 is running the study 'submitted' in /"):
        cluster.submit(again, archive.select(desk.project))

    code, _, err = desk.type("cancel", "submitted-1")
    assert code == 0, err
    assert "submit the study again to go on with it" in err
    assert follower.wait(30) == main.INTERRUPTED
    reader.join(10)
    entries = journal.read(folder)
    assert isinstance(entries[-1], Closed)
    assert entries[-1].reason == "interrupted", "the driver left by itself"
    left = trials(folder)[0]
    assert (left.state, left.reason) == (State.CENSORED, "interrupted")
    assert left.checkpoint is not None
    assert left.checkpoint.step == left.reports[-1].step

    desk.log.with_name("slow").unlink()
    code, out, err = desk.type(*submission, "--follow")
    assert code == 0, err
    assert "time to val_accuracy 1" in out, "the job's own last words came through"
    done = trials(folder)
    assert [t.state for t in done.values()] == [State.REACHED, State.REACHED]
    steps = [r.step for r in done[0].reports]  # the checkpoint's own is reported twice
    assert sorted(set(steps)) == list(range(steps[-1] + 1))
    first = [step for seed, step in desk.starts() if seed == done[0].seed]
    assert first == [0, left.checkpoint.step], "it went on, and did not start over"
    assert [e.trial for e in entries if isinstance(e, Ended)] == [0]

    words = out.splitlines()[-1]
    code, out, err = desk.type("logs", "submitted-2")
    assert (code, err) == (0, "")
    assert words in out.splitlines(), "what the driver wrote can be read once it has ended"
    assert desk.type("logs", "submitted-2", "--follow")[:2] == (0, out)

    code, out, _ = desk.type("jobs", "--json")
    listed = {job["id"]: job for job in json.loads(out)}
    mine = [listed[f"submitted-{n}"] for n in (1, 2)]
    assert [(job["status"], job["code"]) for job in mine][1] == ("SUCCEEDED", 0)
    assert mine[0]["status"] == "STOPPED"
    assert {job["home"] for job in mine} == {str(folder)}
    assert desk.head.token not in "".join([*shown, out, err, *commands()])


@pytest.mark.slow
def test_a_cancelled_study_goes_on_elsewhere_from_mlflow(
    desk: Desk, mlflow_server: services.Tracking
) -> None:
    """No shared storage: the job's folder is its own, and MLflow keeps what resume needs."""
    from mlflow import MlflowClient

    client = MlflowClient(mlflow_server.uri)

    def runs() -> dict[str, Any]:
        experiment = client.get_experiment_by_name("submitted")
        found = client.search_runs([experiment.experiment_id]) if experiment else []
        return {run.info.run_name: run for run in found}

    desk.log.with_name("slow").touch()
    flags = ("--trials", "2", "--sampler", "random", "--pruner", "none")
    uri = ("--tracking-uri", mlflow_server.uri)
    code, out, err = desk.type("submit", RECIPE, *flags, *uri, "--env", "JOB_RECIPE_LOG", "--json")
    assert code == 0, err
    job = json.loads(out)["job"]

    def accuracy() -> float:
        first = runs().get("trial-0000")
        return first.data.metrics.get("val_accuracy", 0.0) if first is not None else 0.0

    until(lambda: accuracy() >= 0.9)
    until(lambda: "autotune.mirrored" in runs()["submitted"].data.tags)
    code, _, err = desk.type("cancel", job)
    assert code == 0, err
    before = runs()
    assert before["submitted"].info.status == "KILLED"
    assert desk.starts()[0][1] == 0

    desk.log.with_name("slow").unlink()
    folder = desk.project / "here"
    code, out, err = desk.type(
        "resume", "submitted", "--from-mlflow", mlflow_server.uri, "--out", str(folder)
    )
    assert code == 0, err
    assert "fetched the study 'submitted' from MLflow" in err
    done = trials(folder)
    assert [t.state for t in done.values()] == [State.REACHED, State.REACHED]
    began = [step for seed, step in desk.starts() if seed == done[0].seed]
    assert len(began) == 2
    assert began[1] >= 9, "it went on from its checkpoint"
    steps = sorted({r.step for r in done[0].reports})
    assert steps == list(range(steps[-1] + 1))
    after = runs()
    assert {n: r.info.run_id for n, r in before.items()}.items() <= {
        n: r.info.run_id for n, r in after.items()
    }.items()
    assert sorted(after) == ["submitted", "trial-0000", "trial-0001"]
    assert {run.info.status for run in after.values()} == {"FINISHED"}
    points = client.get_metric_history(after["trial-0000"].info.run_id, "val_accuracy")
    assert sorted(p.step for p in points) == sorted({r.step for r in done[0].reports if r.metrics})
    code, out, err = desk.type(
        "resume", "submitted", "--from-mlflow", mlflow_server.uri, "--out", "here"
    )
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "here exists: name a new folder with --out" in err


PACKAGE = {
    "tiny.py": "ACCURACY = 1.0\n",
    "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
    "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "tiny-1.0.dist-info/RECORD": "tiny.py,,\ntiny-1.0.dist-info/METADATA,,\n",
}
IMPORTS = """
    from dataclasses import replace

    import job_recipe
    import ray
    import tiny

    import autotune as at


    def train(config):
        with open(config["log"], "a") as log:
            log.write(f"{ray.cluster_resources()['driver']} ")
            log.write(f"{ray.available_resources().get('driver', 0.0)}\\n")
        yield at.Milestone(0, dict)
        yield at.Milestone(1, lambda: {"val_accuracy": tiny.ACCURACY})


    def imports():
        return replace(job_recipe.study(), train=train)
"""


@pytest.mark.slow
@pytest.mark.soak
def test_the_cluster_installs_requirements_and_reserves_what_the_driver_asks_for(
    desk: Desk,
) -> None:
    """Ray copies the whole environment for the job, which takes most of the time."""
    wheel = desk.home / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in PACKAGE.items():
            archive.writestr(name, text)
    (desk.project / "requirements.txt").write_text(f"{wheel}\n")
    (desk.project / "imports_recipe.py").write_text(textwrap.dedent(IMPORTS))
    recipe, folder = "imports_recipe.py:imports", desk.project.parent / "shared" / "study"
    submission = ("submit", recipe, *SHARED, "--out", str(folder), "--env", "JOB_RECIPE_LOG")
    code, _, err = desk.type(*submission)
    assert code == 2
    assert "No module named 'tiny'" in err

    installs = (*submission, "--pip", "requirements.txt", "--driver-cpus", "1")
    code, out, err = desk.type(*installs, "--driver-resources", "driver=2", "--json")
    assert code == 0, err
    assert "the recipe is not checked here" in err
    waiting = json.loads(out)["job"]
    code, _, err = desk.type(*installs, "--driver-resources", "driver=1")
    assert code == 2, "a job that waits for its driver's resources is alive"
    assert f"job {waiting} is running the study" in err
    code, _, err = desk.type("cancel", waiting)
    assert code == 0
    assert f"job {waiting} has not begun: it ends as soon as" in err

    folder = folder.with_name("other")
    installs = (*installs, "--driver-resources", "driver=1", "--out", str(folder))
    code, out, err = desk.type(*installs, "--follow")
    assert code == 0, (out, err)
    assert [t.state for t in trials(folder).values()] == [State.REACHED, State.REACHED]
    assert desk.log.read_text() == "1.0 0.0\n1.0 0.0\n", "the driver holds what there is"


def test_requirements_with_a_password_are_refused(tmp_path: Path) -> None:
    """They become part of the job; what pip takes from the node's environment does not."""
    file = tmp_path / "requirements.txt"
    for line in ("--extra-index-url https://me:Pa55w@host", "x @ https://${ME}:Pa55w@host/x.whl"):
        file.write_text(f"torch>=2\n{line}\n")
        with pytest.raises(UserError, match="--pip: line 2 of ") as refused:
            checks.requirements(file)
        assert "Pa55w" not in str(refused.value)
    plain = ("${ME}:${PASS}", "me:${PASS}", "${TOKEN}")
    file.write_text("".join(f"--extra-index-url https://{who}@host\n" for who in plain))
    assert checks.requirements(file) == file
    file.write_text("torch==2.13.0 --hash=sha256:0123abcd\n./wheels/x.whl\ngit+https://host/x\n")
    assert checks.requirements(file) == file
    for content in (b"\x89PNG\xff", b"hf_Abc0123456789abcdefghij\n"):
        file.write_bytes(content)
        with pytest.raises(UserError, match="--pip: ") as refused:
            checks.requirements(file)
        assert "\n" not in str(refused.value)
        assert "Abc0" not in str(refused.value)


def commands() -> list[str]:
    """The command lines of all processes, which everyone on a machine can read."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_text(errors="replace"))
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_the_token_is_ray_s_own(desk: Desk) -> None:
    """Missing, wrong, in each of its three places: and never shown."""
    wrong, secret = "0" * 64, desk.head.token
    desk.token = {}
    code, out, err = desk.type("jobs")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "wants a token: set RAY_AUTH_TOKEN" in err
    desk.token = {"RAY_AUTH_TOKEN": wrong, "RAY_AUTH_MODE": "token"}
    code, out, err = desk.type("submit", RECIPE, "--out", str(desk.home / "s"))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "refuses the token of RAY_AUTH_TOKEN" in err
    assert wrong not in err
    assert not (desk.home / "s").exists()
    (desk.home / ".ray").mkdir()
    (desk.home / ".ray" / "auth_token").write_text(f"{secret}\n")
    desk.token = {}
    code, out, err = desk.type("jobs")
    assert (code, err) == (0, "")
    assert out.startswith("JOB ")
    assert secret not in out


MISTAKES: list[tuple[list[str], str]] = [
    (
        ["submit", "job_recipe.py:stuty", "--out", "/s"],
        "unknown function 'stuty'; did you mean 'study'?",
    ),
    (["submit", "nowhere.py:study", "--out", "/s"], "recipe file 'nowhere.py' does not exist"),
    (["submit", "../outside.py:study", "--out", "/s"], "below the working directory"),
    (["submit", RECIPE], "needs --out DIR on storage that all nodes share, or the --tracking-uri"),
    (["submit", RECIPE, "--out", "studies/x"], "--out must be an absolute path"),
    (["submit", RECIPE, "--out", "/s", "--from", "old"], "--from must be an absolute path"),
    (["submit", PLACED, "--out", "/s", "--with", "data=x"], "--with data must be an absolute path"),
    (["submit", PLACED, "--out", "/s"], "needs --with data=PATH"),
    (
        ["submit", RECIPE, "--out", "/s", "--sampler", "policy:own.npz"],
        "policy weights own.npz: No such file",
    ),
    (
        [
            *("submit", RECIPE, "--out", "/s", "--address", "http://127.0.0.1:1"),
            *("--pruner", "policy(weights='/not/here.npz')", "--sampler", "policy:/not/here.npz"),
        ],
        "no Ray dashboard answers",
    ),
    (["submit", RECIPE, "--tracking-uri", "http://me:pw@host"], "holds a password"),
    (["submit", RECIPE, "--out", "/s", "--tracking-uri", "htp://x"], "unknown scheme 'htp'"),
    (["submit", RECIPE, "--out", "/s", "--pip", "none.txt"], "'none.txt' does not exist"),
    (["submit", RECIPE, "--out", "/s", "--env", "MLFLOW_TRACKING_PASSWORD=x"], "can be read by"),
    (["submit", RECIPE, "--out", "/s", "--env", "A_URI=http://me:pw@host"], "holds credentials"),
    (["submit", RECIPE, "--out", "/s", "--env", "NOT_SET_HERE"], "it is not set here"),
    (["submit", RECIPE, "--out", "/s", "--env", "1=2"], "must be like NAME=VALUE"),
    (["submit", RECIPE, "--out", "/s", "--driver-cpus", "-1"], "--driver-cpus must be a number"),
    (["submit", RECIPE, "--out", "/s", "--driver-resources", "a"], "must be like head=1,disk=0.5"),
    (["submit", RECIPE, "--out", "/s", "--json", "--ray-address", "x"], "'--ray-address'"),
    (["jobs", "--address", "head:8265"], "must be the dashboard's, like http://HEAD:8265"),
    (["jobs", "--address", "ray://head:10001"], "must be the dashboard's"),
    (["jobs", "--address", "http://me:pw@head:8265"], "without user and password"),
    (["jobs", "--address", "http://127.0.0.1:1"], "no Ray dashboard answers at http://127.0.0.1:1"),
    (["jobs", "--address", "http://127.0.0.1:99999"], "must be the dashboard's"),
    (["jobs", "--address", "http://[::1"], "must be the dashboard's"),
    (["jobs", "--address", "http://a..b"], "no Ray dashboard answers"),
    (["jobs", "--address", ""], "--address: must not be empty"),
    (["submit", RECIPE, "--out", "/s", "--driver-resources", ""], "must not be empty"),
    (["submit", RECIPE, "--out", "/caf\udce9"], "a job takes UTF-8 text only"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), MISTAKES, ids=[" ".join(a)[:70] for a, _ in MISTAKES]
)
def test_a_mistake_gets_one_clear_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And nothing is sent: nothing answers at this address."""
    (tmp_path / "outside.py").write_text("")
    project = tmp_path / "project"
    project.mkdir()
    shutil.copy(heads.ROOT / "tests" / "support" / "job_recipe.py", project)
    monkeypatch.chdir(project)
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    where = [] if "--address" in arguments else ["--address", "http://127.0.0.1:1"]
    assert main.main([*arguments, *where]) == main.USER
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert "me:pw" not in err


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["logs"], ["cancel"], ["logs", "--follow"]], ids=" ".join)
def test_an_unknown_job_gets_one_clear_line(
    arguments: list[str],
    desk: Desk,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", desk.head.token)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    given = [*arguments, "nothing-like-it", "--address", desk.head.address]
    assert main.main(given) == main.USER
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "nothing-like-it'" in err


@pytest.mark.slow
def test_an_address_that_is_no_dashboard(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A web server that is not Ray's."""
    (port,) = heads.free_ports(1)
    server = subprocess.Popen(
        [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"],
        cwd=desk.project,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    try:
        until(lambda: _answers(f"http://127.0.0.1:{port}"))
        with pytest.raises(UserError, match=f"http://127.0.0.1:{port}") as caught:
            submit.Cluster(f"http://127.0.0.1:{port}")
        assert "\n" not in str(caught.value)
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()


def _answers(address: str) -> bool:
    try:
        jobs_api._reach(address)
    except UserError:
        return False
    return True


def test_the_near_id_is_named() -> None:
    """What `logs` says is what `unknown` says; here, of ids."""
    assert submit._next_id("study", []) == "study-1"
    assert submit._next_id("Größe & co", ["gr-e-co-4", "gr-e-co-x"]) == "gr-e-co-5"
    assert submit._next_id("!!!", ["study-2"]) == "study-3"


@pytest.mark.slow
def test_a_recipe_whose_data_is_elsewhere(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(desk.project)
    chosen = archive.select(Path.cwd())
    assert jobs._study("job_recipe.py:no_data", StudyOptions(), chosen) == "no_data"
    assert "not checked here: recipe 'job_recipe.py:no_data': FileNotFoundError" in (
        capsys.readouterr().err
    )


HARMLESS = """
    COMPASS_DIR MONKEY KEYBOARD TOKENIZERS_PARALLELISM BYPASS PASSES PWD OLDPWD AUTHOR PATH PATTERN
    AUTOTUNE_DATA NCCL_SOCKET_IFNAME OMP_NUM_THREADS RAY_AUTH_MODE TURKEY_DATA keyword COOKIECUTTER
    SORT_KEYS SORT_KEY PUBLIC_KEY NUM_PASS MAX_TOKENS
"""
SECRET = """
    SSH_KEY PRIVATE_KEY HF_KEY WANDB_KEY WANDB_API_KEY APIKEY AWS_ACCESS_KEY_ID AWSACCESSKEYID KEY
    MLFLOW_TRACKING_PASSWORD PGPASSWORD SSH_PASSPHRASE DB_PASS PGPASS MYSQL_PWD HF_TOKEN hf_token
    AUTHTOKEN API_TOKENS CLIENT_SECRET SECRETS CREDENTIALS AUTHORIZATION PROXY_AUTHORIZATION
    BASIC_AUTH GITHUB_PAT SESSION_COOKIE CI_JOB_JWT wandbKey sshkey
"""
CREDENTIALS = [
    "http://me:Pa55w@host",
    "https://Pa55w@host/simple",
    "git+https://Pa55w@host/simple",
    "postgresql://me:Pa/55w@host/db",
    "redis://:Pa55w@host",
    "http://one:1,http://me:Pa55w@two:1",
    "--extra-index-url https://me:Pa55w@host",
    "http://host/?api_key=Pa55w",
    "http://host/?password=Pa55w",
    "http://me:Pa55w@[host",
    "me:Pa55w@proxy:3128",
    "host=db password=Pa55w",
    "Endpoint=a;AccountKey=Pa55w",
    "Authorization: Basic Pa55w",
    "Bearer Pa55w",
    '{"private_key": "Pa55w"}',
    "-----BEGIN OPENSSH PRIVATE KEY-----Pa55w",
    "hf_Pa55wAbCdEfGhIjKlMn",
    "--token ghp_Pa55w0123456789abcdef",
    "github_pat_Pa55w0123456789_abcdef",
    "sk-Pa55w0123456789abcdef",
    "x=sk-proj-Pa55w-0123456789abcdef",
    "AKIAPA55W0123456789A",
    "xoxb-Pa55w-0123456789",
    "glpat-Pa55w0123456789abc",
    "eyJPa55wAbCdEf.eyJ0123456789abc.sig",
]
PLAIN = [
    "",
    "http://host:5000",
    "http://host:5000/users/@me",
    "postgresql://me@host/db",
    "s3://bucket/key/token",
    "git@host:project.git",
    "/data/keys:/data/token",
    "registry:5000/image@sha256:0123",
    "--xla_gpu_autotune_level=2 --size=3",
    "12:30",
    "12:30@UTC",
    '{"key": "lr", "tokens": 512}',
    "--max_tokens=512 --sort_key=a",
    "lib:/opt/openssl@3/lib",
    "localhost:5000/x@y",
    "C:\\data@x",
    "hf_transfer_is_on_for_all_of_this",
    "/data/sk-image-classification-v2",
    "disk-0123456789abcdefghij",
    "eyJhbGciOi",
]


@pytest.mark.parametrize("name", SECRET.split())
def test_a_variable_whose_name_says_secret_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"--env {name}: .*can be read by everyone") as caught:
        checks.environment([f"{name}=Pa55w"])
    assert "Pa55w" not in str(caught.value)


@pytest.mark.parametrize("value", CREDENTIALS)
@pytest.mark.parametrize("given", ["here", "there"])
def test_a_value_with_credentials_is_refused(
    value: str, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its name; also where the value is taken from the environment."""
    monkeypatch.setenv("PLACE", value)
    with pytest.raises(UserError, match="--env PLACE: its value holds credentials") as caught:
        checks.environment(["PLACE" if given == "there" else f"PLACE={value}"])
    assert "55w" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_harmless_variables_are_sent() -> None:
    named = dict.fromkeys(HARMLESS.split(), "x")
    valued = {f"PLACE_{n}": value for n, value in enumerate(PLAIN)}
    given = {**named, **valued}
    assert checks.environment([f"{name}={value}" for name, value in given.items()]) == given


@pytest.mark.parametrize(("flag", "name", "file"), [
    ("recipe", "left/out.py:study", "left/out.py"),
    ("recipe", "./left/../left/out.py:study", "left/out.py"),
    ("recipe", "left.out:study", "left/out.py"),
    ("recipe", "linked/job_recipe.py:study", "linked/job_recipe.py"),
    ("--pruner", "left/out.py:rule", "left/out.py"),
    ("--controller", "left/out.py:rule", "left/out.py"),
    ("--sampler", "policy:left/own.npz", "left/own.npz"),
    ("--pruner", "policy(weights='left/own.npz')", "left/own.npz"),
])  # fmt: skip
def test_what_would_not_be_sent_is_refused(
    flag: str,
    name: str,
    file: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything is: nothing answers at this address."""
    (tmp_path / "left").mkdir()
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to("real")
    source = heads.ROOT / "tests" / "support" / "job_recipe.py"
    for to in ("job_recipe.py", "real/job_recipe.py", "left/out.py"):
        shutil.copy(source, tmp_path / to)
    (tmp_path / "left" / "own.npz").write_bytes(network.shipped_bytes())
    (tmp_path / ".gitignore").write_text("left/\n")
    monkeypatch.chdir(tmp_path)
    given = ["submit", name] if flag == "recipe" else ["submit", RECIPE, flag, name]
    more = ["--out", "/s", "--address", "http://127.0.0.1:1"]
    assert main.main([*given, *more]) == main.USER
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert f"{flag} {name!r}: " in err
    assert f"{file} is left out of what is sent" in err.replace("./left/../", "")
    (tmp_path / ".gitignore").unlink()
    (tmp_path / "linked").unlink()
    (tmp_path / "linked").mkdir()
    shutil.copy(source, tmp_path / "linked" / "job_recipe.py")
    assert main.main([*given, *more]) == main.USER
    assert "no Ray dashboard answers" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--pruner", "--controller"])
@pytest.mark.parametrize("place", ["../outside.py", "{}/inside.py", "../here/inside.py"])
def test_a_rule_of_another_place_is_refused(
    flag: str,
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An absolute path names nothing on the cluster, wherever the file is here."""
    here = tmp_path / "here"
    here.mkdir()
    shutil.copy(heads.ROOT / "tests" / "support" / "job_recipe.py", here)
    (tmp_path / "outside.py").touch()
    (here / "inside.py").touch()
    monkeypatch.chdir(here)
    name = f"{place.format(here)}:rule"
    given = ["submit", RECIPE, flag, name, "--out", "/s", "--address", "http://127.0.0.1:1"]
    assert main.main(given) == main.USER
    said = f"{flag} {name!r} must be a path below the working directory to be sent"
    assert said in capsys.readouterr().err


def test_a_study_in_mlflow_has_one_home_however_its_server_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its home a second submission is refused."""
    shutil.copy(heads.ROOT / "tests" / "support" / "job_recipe.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    homes = set()
    for uri in ("http://h:5000", "http://h:5000/", "http://H:5000", "HTTP://h:5000"):
        given = taken(SubmitArguments, main._parse(["submit", RECIPE, "--tracking-uri", uri]))
        homes.add(jobs._submission(given, archive.select(Path.cwd())).home)
    assert homes == {"http://h:5000 as submitted"}


@pytest.mark.slow
def test_a_job_gets_its_settings_and_no_secret(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` with the same flags, quoted for the shell; a secret is in none of it."""
    monkeypatch.chdir(desk.project)
    monkeypatch.setenv("AUTOTUNE_DATA", "/data")
    given = [
        "--out",
        "/s x",
        "--trials",
        "7",
        "--pruner",
        "asha(reduction=4)",
        "--env",
        "AUTOTUNE_DATA",
    ]
    given += ["--racing", "0"]  # which is not what a long search does by itself
    more = ["--driver-cpus", "1", "--driver-resources", "head=1,disk=0.5"]
    given += ["--with", "data=/d e"]
    wanted = taken(SubmitArguments, main._parse(["submit", PLACED, *given, *more]))
    made = submit._request(
        jobs._submission(wanted, archive.select(Path.cwd())), "n-1", Path("w.zip")
    )
    assert made["entrypoint"] == (
        f"exec python -m autotune run {PLACED} --trials=7 '--pruner=asha(reduction=4)' "
        "--racing=0.0 '--with=data=/d e' --ray-address auto --out '/s x'"
    )
    assert (made["entrypoint_num_cpus"], made["submission_id"]) == (1.0, "n-1")
    assert made["entrypoint_resources"] == {"head": 1.0, "disk": 0.5}
    assert made["runtime_env"]["env_vars"]["AUTOTUNE_DATA"] == "/data"
    assert made["metadata"]["autotune.home"] == "/s x"
