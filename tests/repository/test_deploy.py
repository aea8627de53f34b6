"""What stands in the compose file of MLflow's server; it is not started here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"
SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|KEY")


def compose() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def volumes(service: dict[str, Any]) -> dict[str, str]:
    """The places of a service that outlive it, by what is kept there."""
    return dict(volume.split(":")[:2] for volume in service["volumes"])


def test_only_loopback_reaches_the_server() -> None:
    services = compose()["services"]
    assert services.keys() == {"postgres", "mlflow"}
    assert "ports" not in services["postgres"], "the database is reached by the server only"
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert published == ["127.0.0.1:5000:5000"]
    assert not any("network_mode" in service for service in services.values())


def test_no_secret_stands_in_it() -> None:
    """Each comes from the environment, and the start is refused without it."""
    text = (DEPLOY / "compose.yaml").read_text()
    secrets = {
        f"{service}/{name}": value
        for service, service_settings in compose()["services"].items()
        for name, value in service_settings["environment"].items()
        if SECRET.search(name)
    }
    assert len(secrets) == 4, sorted(secrets)
    asked = {name: re.fullmatch(r"\$\{(\w+):\?.+\}", value) for name, value in secrets.items()}
    assert all(asked.values()), asked
    assert not re.search(r"//[^\s/@]*:[^\s/@]*@", text), "nor does one stand in an address"
    examples = dict(
        line.partition("=")[::2]
        for line in (DEPLOY / "env.example").read_text().splitlines()
        if "=" in line and not line.startswith("#")
    )
    assert {match[1] for match in asked.values() if match} <= examples.keys()


def test_artifacts_are_kept_apart_from_the_database() -> None:
    composed = compose()
    database, server = (volumes(composed["services"][name]) for name in ("postgres", "mlflow"))
    assert server["artifacts"] == "/artifacts"
    assert "--artifacts-destination /artifacts" in composed["services"]["mlflow"]["command"]
    assert not database.keys() & server.keys()
    assert {*database, "artifacts", "users"} <= composed["volumes"].keys()
    for place in server:
        assert not place.startswith(".") or (DEPLOY / place).is_file(), place
