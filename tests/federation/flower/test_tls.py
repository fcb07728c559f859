"""TLS with a certificate of a private authority, and authenticated nodes, end to end."""

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

from refiner.federation import CheckpointConfig, Experiment, FederatedSettings
from refiner.federation.flower.app_files import (
    run_config_for,
    write_app,
    write_clients,
    write_server_settings,
)
from refiner.federation.flower.deployment import Deployment
from refiner.federation.flower.engine import follow_run

pytestmark = pytest.mark.flower

PEM, UNENCRYPTED = serialization.Encoding.PEM, serialization.NoEncryption()


def write_private_key(key: ec.EllipticCurvePrivateKey, path: Path, form: serialization.PrivateFormat) -> Path:
    path.write_bytes(key.private_bytes(PEM, form, UNENCRYPTED))
    path.chmod(0o600)
    return path


def make_certificates(folder: Path) -> tuple[Path, Path, Path]:
    """An authority, a certificate that it issued for the loopback address, and the certificate's key."""
    now = datetime.datetime.now(datetime.UTC)
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "refiner tests")])

    def certify(name: x509.Name, key: ec.EllipticCurvePrivateKey, ca: bool) -> x509.Certificate:
        builder = x509.CertificateBuilder(issuer, name, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        if not ca:
            loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            builder = builder.add_extension(x509.SubjectAlternativeName([loopback]), critical=False)
        # Python's TLS verification requires the key identifiers.
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
        builder = builder.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        )
        builder = builder.add_extension(signer, critical=False)
        return builder.sign(authority, hashes.SHA384())

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    ca, certificate = folder / "ca.pem", folder / "server.pem"
    ca.write_bytes(certify(issuer, authority, ca=True).public_bytes(PEM))
    certificate.write_bytes(certify(subject, server, ca=False).public_bytes(PEM))
    key = write_private_key(server, folder / "server.key", serialization.PrivateFormat.PKCS8)
    return ca, certificate, key


def make_node_key(path: Path) -> Path:
    """A node's key pair in OpenSSH's format; the path of the private key."""
    key = ec.generate_private_key(ec.SECP384R1())
    openssh = serialization.PublicFormat.OpenSSH
    path.with_suffix(".pub").write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, openssh)
    )
    return write_private_key(key, path, serialization.PrivateFormat.OpenSSH)


def test_only_registered_nodes_with_the_right_authority_can_join(
    tmp_path: Path, running: Callable[[Path], list[str]]
) -> None:
    ca, certificate, key = make_certificates(tmp_path)
    known, unknown = make_node_key(tmp_path / "known"), make_node_key(tmp_path / "unknown")
    tls = ["--ssl-ca-certfile", str(ca), "--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)]
    client, stranger, out = tmp_path / "client", tmp_path / "stranger", tmp_path / "out"
    experiment = Experiment(data="sample", training=FederatedSettings(rounds=1, clients=1, batch=8, lr=0.1))
    write_clients(experiment, [client])
    write_clients(experiment, [stranger])
    write_server_settings(experiment, out)
    with Deployment(
        tmp_path / "deployment",
        options=[*tls, "--enable-supernode-auth"],
        connection=f"root-certificates = {json.dumps(str(ca))}",
        environment={"OMP_NUM_THREADS": "1"},
    ) as deployment:
        deployment.flwr("supernode", "register", str(known.with_suffix(".pub")), "here", "--format", "json")
        with_ca = ["--root-certificates", str(ca)]
        node = deployment.add_node(client, [*with_ca, "--auth-supernode-private-key", str(known)])
        rejected = {
            "Failed to activate SuperNode": [*with_ca, "--auth-supernode-private-key", str(unknown)],
            "All SuperNodes must be registered": with_ca,  # no key
            "disconnected without sending|reset by peer": ["--insecure", "--max-retries", "1"],
            "CERTIFICATE_VERIFY_FAILED": ["--max-retries", "1"],  # another authority
        }
        strangers = {message: deployment.add_node(stranger, options) for message, options in rejected.items()}
        config = run_config_for(experiment, out, deadline=90.0, node_timeout=90.0)
        app = write_app(tmp_path / "app", replace(config, clients=1))
        follow_run(deployment, deployment.submit(app), CheckpointConfig(out))
        end = time.monotonic() + 60
        while any(each.exit_code() is None for each in strangers.values()) and time.monotonic() < end:
            time.sleep(0.2)
        for message, process in strangers.items():
            assert process.exit_code() not in (None, 0), message
            assert re.search(message, process.log(10**6)), message
        assert node.exit_code() is None
        nodes = deployment.flwr("supernode", "list", "here", "--format", "json")["nodes"]
        assert len(nodes) == 1
    assert json.loads((out / "rounds.jsonl").read_text())["used"] == 1
    assert running(tmp_path) == []
