"""TLS with a certificate of our own and nodes that prove who they are, end to end."""

import datetime
import ipaddress
import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from refiner.federation import Experiment, Keeping, Training
from refiner.federation.flower.deployment import Deployment
from refiner.federation.flower.study import follow, rules_of, write_app, write_clients, write_study

pytestmark = pytest.mark.flower

PEM, NONE = serialization.Encoding.PEM, serialization.NoEncryption()


def private(key: ec.EllipticCurvePrivateKey, path: Path, form: serialization.PrivateFormat) -> Path:
    path.write_bytes(key.private_bytes(PEM, form, NONE))
    path.chmod(0o600)
    return path


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """An authority, a certificate of it for the loopback, and the certificate's key."""
    now = datetime.datetime.now(datetime.UTC)
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "refiner tests")])

    def made(name: x509.Name, key: ec.EllipticCurvePrivateKey, ca: bool) -> x509.Certificate:
        held = x509.CertificateBuilder(issuer, name, key.public_key(), x509.random_serial_number())
        held = held.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
        held = held.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        if not ca:
            here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            held = held.add_extension(x509.SubjectAlternativeName([here]), critical=False)
        # Python's own checks want to know which key signed.
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
        held = held.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        held = held.add_extension(signer, critical=False)
        return held.sign(authority, hashes.SHA384())

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    ca, certificate = folder / "ca.pem", folder / "server.pem"
    ca.write_bytes(made(issuer, authority, ca=True).public_bytes(PEM))
    certificate.write_bytes(made(subject, server, ca=False).public_bytes(PEM))
    key = private(server, folder / "server.key", serialization.PrivateFormat.PKCS8)
    return ca, certificate, key


def node_key(path: Path) -> Path:
    key = ec.generate_private_key(ec.SECP384R1())
    openssh = serialization.PublicFormat.OpenSSH
    path.with_suffix(".pub").write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, openssh)
    )
    return private(key, path, serialization.PrivateFormat.OpenSSH)


def test_encrypted_and_authenticated(tmp_path: Path, gone: Callable[[Path], list[str]]) -> None:
    ca, certificate, key = certificates(tmp_path)
    known, unknown = node_key(tmp_path / "known"), node_key(tmp_path / "unknown")
    tls = ["--ssl-ca-certfile", str(ca), "--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)]
    home, other, out = tmp_path / "client", tmp_path / "stranger", tmp_path / "out"
    experiment = Experiment(data="sample", training=Training(rounds=1, clients=1, batch=8, lr=0.1))
    write_clients(experiment, [home])
    write_clients(experiment, [other])
    write_study(experiment, out)
    with Deployment(
        tmp_path / "deployment",
        options=[*tls, "--enable-supernode-auth"],
        connection=f"root-certificates = {json.dumps(str(ca))}",
        environment={"OMP_NUM_THREADS": "1"},
    ) as deployment:
        deployment.flwr("supernode", "register", str(known.with_suffix(".pub")), "here", "--format", "json")
        trusting = ["--root-certificates", str(ca)]
        node = deployment.add_node(home, [*trusting, "--auth-supernode-private-key", str(known)])
        refused = {
            "Failed to activate SuperNode": [*trusting, "--auth-supernode-private-key", str(unknown)],
            "All SuperNodes must be registered": trusting,  # no key
            "disconnected without sending|reset by peer": ["--insecure", "--max-retries", "1"],
            "CERTIFICATE_VERIFY_FAILED": ["--max-retries", "1"],  # another authority
        }
        strangers = {told: deployment.add_node(other, options) for told, options in refused.items()}
        rules = rules_of(experiment, out, deadline=90.0, patience=90.0)
        app = write_app(tmp_path / "app", replace(rules, clients=1))
        follow(deployment, deployment.submit(app), out, Keeping(out))
        end = time.monotonic() + 60
        while any(each.code() is None for each in strangers.values()) and time.monotonic() < end:
            time.sleep(0.2)
        for told, stranger in strangers.items():
            assert stranger.code() not in (None, 0), told
            assert re.search(told, stranger.log(10**6)), told
        assert node.code() is None
        nodes = deployment.flwr("supernode", "list", "here", "--format", "json")["nodes"]
        assert len(nodes) == 1
    assert json.loads((out / "rounds.jsonl").read_text())["used"] == 1
    assert gone(tmp_path) == []
