"""Keys and certificates of the test cluster, by openssl: one authority, one certificate a role."""

import base64
import json
import secrets
import subprocess
from pathlib import Path

_DAYS = "2"  # a test cluster does not live longer


class Authority:
    """A certificate authority with its folder; what is there already is not made again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate = folder / "ca.crt"
        self.key = folder / "ca.key"
        if self.certificate.exists():
            return
        folder.mkdir(mode=0o700, parents=True)
        _key(self.key)
        _openssl("req", "-x509", "-new", "-key", self.key, "-out", self.certificate,
                 "-days", _DAYS, "-subj", "/CN=kfp-tfjob-test-ca")  # fmt: skip

    @property
    def trusted(self) -> str:
        """Its certificate, as a `caBundle`."""
        return _base64(self.certificate)

    def issue(
        self, name: str, subject: str, addresses: tuple[str, ...] = (), hosts: tuple[str, ...] = ()
    ) -> tuple[Path, Path]:
        """Issue a certificate; return it and its key."""
        key, certificate = self.folder / f"{name}.key", self.folder / f"{name}.crt"
        if certificate.exists():
            return certificate, key
        request, extension = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        _key(key)
        _openssl("req", "-new", "-key", key, "-subj", subject, "-out", request)
        names = [f"IP:{a}" for a in addresses] + [f"DNS:{h}" for h in hosts]
        extension.write_text(
            "extendedKeyUsage=clientAuth,serverAuth\n"
            + (f"subjectAltName={','.join(names)}\n" if names else "")
        )
        _openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key,
                 "-set_serial", str(secrets.randbits(64)), "-days", _DAYS, "-extfile", extension,
                 "-out", certificate)  # fmt: skip
        return certificate, key

    def signing_pair(self, name: str) -> tuple[Path, Path]:
        """Make a key that signs tokens; returns the private and the public key."""
        private, public = self.folder / f"{name}.key", self.folder / f"{name}.pub"
        if public.exists():
            return private, public
        _key(private)
        _openssl("pkey", "-in", private, "-pubout", "-out", public)
        return private, public

    def kubeconfig(self, name: str, subject: str, server: str) -> Path:
        path = self.folder / f"{name}.conf"
        if path.exists():
            return path
        certificate, key = self.issue(name, subject)
        user = {
            "client-certificate-data": _base64(certificate),
            "client-key-data": _base64(key),
        }
        return write_kubeconfig(path, server, self.certificate, user)


def write_kubeconfig(path: Path, server: str, authority: Path, user: dict[str, str]) -> Path:
    """Write a kubeconfig for one user of one server, with the credentials as it has them."""
    cluster = {"server": server, "certificate-authority-data": _base64(authority)}
    path.touch(mode=0o600)
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "test", "cluster": cluster}],
                "users": [{"name": "user", "user": user}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
                "current-context": "test",
            }
        )
    )
    return path


def _key(path: Path) -> None:
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
