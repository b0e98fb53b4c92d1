"""A certificate of its own making for 127.0.0.1, and the server's side of TLS with it."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path


def self_signed(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """The certificate, which is its own authority, and a context to serve with."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    options = "-x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=mock"
    names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    argv = ["openssl", "req", *options.split(), *names, *files]
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return certificate, context
