# SPDX-License-Identifier: Apache-2.0
"""Formats, TLS, passwords, sockets: as other programs see them (prometheus_client, OpenSSL, curl, Prometheus' own promtool)."""
from __future__ import annotations

import base64
import crypt
import http.client
import os
import re
import socket
import ssl
import subprocess
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from conftest import ROOT, Agent, built
from test_agent import RANK

# What Prometheus 2.42 sends.
PROMETHEUS = ("application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
              "text/plain;version=0.0.4;q=0.5,*/*;q=0.1")


def scrape(agent: Agent, accept: str) -> tuple[str, str]:
    """Content type and body."""
    request = urllib.request.Request(f"http://127.0.0.1:{agent.port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=5) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def samples(families: object) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    def label(pair: tuple[str, str]) -> tuple[str, str]:
        return (pair[0], str(float(pair[1]))) if pair[0] == "le" else pair  # 1 and 1.0 are one bound
    return {(sample.name, frozenset(map(label, sample.labels.items()))): sample.value for family in families for sample in family.samples}


def test_both_formats_say_the_same(agent: Agent) -> None:
    agent.configure(ranks=4)
    agent.gpus({"gpus": {str(i): {"utilization": 10 * i, "gpm": {"5": 1.5}} for i in range(8)}, "xids": [{"id": 1, "gpu": 0, "xid": 31}]})
    agent.publish(RANK % {"rank": 0})
    agent.start()
    agent.until(lambda: agent.value("kdtree_moe_peak_load_ratio") and agent.family("kdtree_gpu_xid_errors_total"), "all is seen")
    plain_type, plain = scrape(agent, "text/plain")
    kind, body = scrape(agent, PROMETHEUS)
    assert plain_type.startswith("text/plain; version=0.0.4")
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    families = list(parse_openmetrics(body))  # a strict parser: units, suffixes, bounds, # EOF
    assert {family.type for family in families} == {"gauge", "counter", "histogram"}
    assert {family.name: family.unit for family in families}["kdtree_gpu_energy_joules"] == "joules"
    assert set(samples(families)) == set(samples(parse_text(plain)))


def test_prometheus_itself_asks_for_openmetrics(agent: Agent) -> None:
    agent.start()
    assert scrape(agent, "")[0].startswith("text/plain; version=0.0.4"), "who asks for nothing gets text"


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """A folder with a CA, a server's certificate for 127.0.0.1 and a client's."""
    folder = tmp_path / "tls"
    folder.mkdir()

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=test CA",
            "-keyout", "ca.key", "-out", "ca.pem")
    for name, extension in (("agent", "subjectAltName=IP:127.0.0.1"), ("client", "extendedKeyUsage=clientAuth")):
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key",
                "-out", f"{name}.csr")
        (folder / "extension").write_text(extension)
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
                "-extfile", "extension", "-out", f"{name}.pem")
    return folder


def hashed(password: str) -> str:
    return crypt.crypt(password, "$2b$04$" + "abcdefghijklmnopqrstuu")


def start_with(agent: Agent, web: Path, listen: str | None = None) -> subprocess.Popen:
    command = [built("kdtree-agent"), "--root", agent.root, "--nvml", built("libnvidia-ml.so.1"), "--web-config", web,
               "--listen", listen or f"127.0.0.1:{agent.port}"]
    with agent.log.open("w") as log:
        agent.process = subprocess.Popen([str(part) for part in command], env={**os.environ, "KDTREE_FAKE_NVML": str(agent.orders)}, stderr=log)
    agent.until(lambda: agent.process.poll() is not None or "serving" in agent.log.read_text(), "it serves or ends")
    return agent.process


def secure(agent: Agent, ca: Path, user: str = "", certificate: tuple[Path, Path] | None = None, newest: ssl.TLSVersion | None = None) -> int:
    """Status of GET /metrics over TLS; 0 where TLS fails."""
    context = ssl.create_default_context(cafile=str(ca))
    if certificate:
        context.load_cert_chain(*map(str, certificate))
    if newest:
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = newest
        context.set_ciphers("ALL:@SECLEVEL=0")
    connection = http.client.HTTPSConnection("127.0.0.1", agent.port, context=context, timeout=10)
    headers = {"Authorization": "Basic " + base64.b64encode(user.encode()).decode()} if user else {}
    try:
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except (ssl.SSLError, ConnectionError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def test_tls_and_a_password(agent: Agent, authority: Path) -> None:
    web = authority / "web.yml"
    web.write_text("tls_server_config:\n  cert_file: agent.pem\n  key_file: agent.key\n"
                   f"basic_auth_users:\n  prometheus: {hashed('secret')}\n")
    start_with(agent, web)
    assert "serving https://" in agent.log.read_text(), agent.log.read_text()
    assert secure(agent, authority / "ca.pem", "prometheus:secret") == 200
    assert secure(agent, authority / "ca.pem", "prometheus:wrong") == 401
    assert secure(agent, authority / "ca.pem", "nobody:secret") == 401
    assert secure(agent, authority / "ca.pem") == 401
    assert secure(agent, authority / "ca.pem", "prometheus:secret", newest=ssl.TLSVersion.TLSv1_1) == 0
    with pytest.raises(ConnectionError):
        agent.get("/metrics")  # no plain HTTP
    assert agent.stop() == 0


def test_a_new_password_is_in_force_at_once_and_a_broken_file_closes_the_door(agent: Agent, authority: Path) -> None:
    web, tls = authority / "web.yml", "tls_server_config: {cert_file: agent.pem, key_file: agent.key}\n"
    web.write_text(tls + f"basic_auth_users: {{prometheus: '{hashed('old')}'}}\n")
    start_with(agent, web)
    assert secure(agent, authority / "ca.pem", "prometheus:old") == 200
    web.write_text(tls + f"basic_auth_users: {{prometheus: '{hashed('new')}'}}\n")
    agent.until(lambda: secure(agent, authority / "ca.pem", "prometheus:new") == 200, "the new password works")
    assert secure(agent, authority / "ca.pem", "prometheus:old") == 401
    web.write_text(tls + "basic_auth_users: {prometheus: plain}\n")
    agent.until(lambda: secure(agent, authority / "ca.pem", "prometheus:new") == 500, "nobody is let in")
    agent.until(lambda: "basic_auth_users.prometheus" in agent.log.read_text(), "the log says why")
    web.write_text(tls + f"basic_auth_users: {{prometheus: '{hashed('new')}'}}\n")
    agent.until(lambda: secure(agent, authority / "ca.pem", "prometheus:new") == 200, "the repaired file is read")


def test_client_certificates(agent: Agent, authority: Path) -> None:
    web = authority / "web.yml"
    web.write_text("tls_server_config: {cert_file: agent.pem, key_file: agent.key, client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.pem}\n")
    start_with(agent, web)
    ours = (authority / "client.pem", authority / "client.key")
    assert secure(agent, authority / "ca.pem", certificate=ours) == 200
    assert secure(agent, authority / "ca.pem") == 403
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=stranger",
                    "-keyout", "stranger.key", "-out", "stranger.pem"], cwd=authority, check=True, capture_output=True)
    stranger = (authority / "stranger.pem", authority / "stranger.key")
    assert secure(agent, authority / "ca.pem", certificate=stranger) in (0, 403)


def test_beyond_loopback_only_closed(agent: Agent, authority: Path) -> None:
    """0.0.0.0 is refused plain, with a password alone and with TLS alone."""
    web = authority / "web.yml"
    tls = "tls_server_config: {cert_file: agent.pem, key_file: agent.key}\n"
    users = f"basic_auth_users: {{prometheus: '{hashed('x')}'}}\n"
    for text in ("", users, tls):
        web.write_text(text)
        assert start_with(agent, web, f"0.0.0.0:{agent.port}").wait(20) == 3
        told = agent.log.read_text()
        assert "beyond loopback" in told and told.count("\n") == 1, told
    web.write_text(tls + users)
    start_with(agent, web, f"0.0.0.0:{agent.port}")
    assert secure(agent, authority / "ca.pem", "prometheus:x") == 200


@pytest.mark.parametrize(("text", "said"), [
    ("tls_server_config: {cert_file: agent.pem, key_file: client.key}", "HTTPS"),
    ("tls_server_config: {cert_file: none.pem, key_file: agent.key}", "none.pem"),
    ("basic_auth_users: {a: b}", "basic_auth_users.a"),
    ("tls_config: {}", "tls_config"),
    (":", "line 1"),
])
def test_a_web_configuration_that_is_wrong_gets_one_line(agent: Agent, authority: Path, text: str, said: str) -> None:
    web = authority / "web.yml"
    web.write_text(text)
    assert start_with(agent, web).wait(20) == 2
    told = agent.log.read_text()
    assert said in told and told.count("\n") == 1, told


def test_the_shipped_example_is_refused_until_it_has_a_hash(agent: Agent, authority: Path) -> None:
    example = (ROOT / "dashboards/web-config.yml").read_text()
    web = authority / "web.yml"
    web.write_text(example)
    assert start_with(agent, web).wait(20) == 2 and "basic_auth_users.prometheus" in agent.log.read_text()
    web.write_text(example.replace("put the hash here", hashed("secret")))
    start_with(agent, web)
    assert secure(agent, authority / "ca.pem", "prometheus:secret") == 200


def test_a_unix_socket(agent: Agent, tmp_path: Path) -> None:
    path = Path("/tmp") / f"kdtree-test-{os.getpid()}.sock"
    try:
        for _ in range(2):  # the second finds the first one's socket
            agent_on(agent, path)
            done = subprocess.run(["curl", "-s", "--unix-socket", str(path), "http://agent/healthz"], capture_output=True, text=True, timeout=20)
            assert done.stdout == "ok\n"
            assert path.stat().st_mode & 0o777 == 0o660
            agent.process.kill()
            agent.process.wait()
    finally:
        path.unlink(missing_ok=True)


def agent_on(agent: Agent, path: Path) -> None:
    command = [built("kdtree-agent"), "--root", agent.root, "--nvml", built("libnvidia-ml.so.1"), "--listen", f"unix:{path}"]
    with agent.log.open("w") as log:
        agent.process = subprocess.Popen([str(part) for part in command], env={**os.environ, "KDTREE_FAKE_NVML": str(agent.orders)}, stderr=log)
    agent.until(lambda: "serving unix:" in agent.log.read_text(), "it serves")


def test_no_hanging_client_and_no_hung_gpu_holds_up_a_scrape(agent: Agent) -> None:
    agent.gpus({"gpus": {"3": {"fail": "hung"}}})
    agent.start()
    slow = [socket.create_connection(("127.0.0.1", agent.port)) for _ in range(8)]
    for connection in slow:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
    assert agent.get("/metrics")[0] == 200
    for connection in slow:
        connection.close()


def test_the_metric_page_is_what_the_agent_says() -> None:
    """dashboards/METRICS.md is written by the agent; after a change: kdtree-agent --list-metrics=markdown > dashboards/METRICS.md."""
    made = subprocess.run([built("kdtree-agent"), "--list-metrics=markdown"], capture_output=True, text=True, check=True).stdout
    assert made == (ROOT / "dashboards/METRICS.md").read_text()
    assert len(re.findall("^### ", made, re.M)) > 90
