"""Certificates and kubeconfigs of a local plane.

Components authenticate with client certificates under the names that Kubernetes' own RBAC bootstrap policy knows, so
that each has the rights it has in a real cluster and no more. Keys are elliptic-curve: they are made in a
millisecond, where RSA would take a tenth of a second each.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY = datetime.timedelta(days=30)
"""How long a certificate is good for: longer than any plane runs."""

SERVICE_IP = "10.0.0.1"
"""Address of the ``kubernetes`` service: the first of the service range."""


@dataclass(frozen=True)
class KeyPair:
    """A certificate and its private key, as PEM files."""

    cert: Path
    key: Path


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a directory of its own."""

    directory: Path
    files: KeyPair
    _certificate: x509.Certificate
    _key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, directory: Path) -> Authority:
        """Make a new authority whose files lie in ``directory``."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("rljob-local-ca", ())
        certificate = (
            _builder(name, name, key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_key_usage(ca=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        files = KeyPair(directory / "ca.crt", directory / "ca.key")
        _write(files.cert, certificate.public_bytes(serialization.Encoding.PEM))
        _write(files.key, _private_pem(key))
        return cls(directory, files, certificate, key)

    @classmethod
    def open(cls, directory: Path) -> Authority:
        """The authority that ``create`` made in a directory, to issue more certificates."""
        files = KeyPair(directory / "ca.crt", directory / "ca.key")
        key = serialization.load_pem_private_key(files.key.read_bytes(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{files.key} holds no key of ours")
        return cls(directory, files, x509.load_pem_x509_certificate(files.cert.read_bytes()), key)

    def serving(self, name: str, hosts: Sequence[str]) -> KeyPair:
        """Issue a server certificate for DNS names and IP addresses."""
        return self._issue(name, _name(name, ()), ExtendedKeyUsageOID.SERVER_AUTH, hosts)

    def client(self, file_name: str, user: str, groups: Sequence[str] = ()) -> KeyPair:
        """Issue a client certificate: Kubernetes reads the user from CN and the groups from O."""
        return self._issue(file_name, _name(user, groups), ExtendedKeyUsageOID.CLIENT_AUTH, ())

    def _issue(self, file_name: str, subject: x509.Name, usage: x509.ObjectIdentifier, hosts: Sequence[str]) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(subject, self._certificate.subject, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
            )
        files = KeyPair(self.directory / f"{file_name}.crt", self.directory / f"{file_name}.key")
        _write(files.cert, builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        _write(files.key, _private_pem(key))
        return files


def service_account_keys(directory: Path) -> KeyPair:
    """Make the key pair that signs and checks service-account tokens; ``cert`` is the bare public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    files = KeyPair(directory / "sa.pub", directory / "sa.key")
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    _write(files.cert, public)
    _write(files.key, _private_pem(key))
    return files


def write_kubeconfig(
    path: Path,
    *,
    server: str,
    ca_file: Path,
    client: KeyPair | None = None,
    token: str | None = None,
    user: str,
    namespace: str = "default",
) -> Path:
    """Write a kubeconfig for one user, who shows either a client certificate or a token; returns ``path``."""
    credentials: dict[str, str] = {}
    if client is not None:
        credentials = {"client-certificate": str(client.cert), "client-key": str(client.key)}
    if token is not None:
        credentials = {"token": token}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": {"server": server, "certificate-authority": str(ca_file)}}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": user, "namespace": namespace}}],
        "current-context": "local",
    }
    _write(path, yaml.safe_dump(config, sort_keys=False).encode())
    return path


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of containers on the same machine can differ a little.
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + VALIDITY)
    )


def _name(common_name: str, organizations: Sequence[str]) -> x509.Name:
    return x509.Name(
        [
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization) for organization in organizations),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=ca, crl_sign=ca, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(content)
