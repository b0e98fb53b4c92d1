"""A server for tests: speaks just enough of the OpenAI API, or fails in the way it is told to.

Run as a script with the standard library alone, so that it starts within 0.1 s.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fake_server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", "--model", dest="model", required=True)
    parser.add_argument("--say", default="", help="print this at start")
    parser.add_argument("--exit", type=int, help="then end with this code")
    parser.add_argument("--deaf", action="store_true", help="run without ever listening")
    parser.add_argument(
        "--chatter-s", type=float, default=0.0, help="print a line every 50 ms for so long, then listen"
    )
    parser.add_argument("--unhealthy", action="store_true", help="answer 503 on /health for ever")
    parser.add_argument("--serve", help="serve another model's name")
    parser.add_argument(
        "--orphan", choices=["setsid", "scrubbed", "titled"], help="leave a grandchild in its own session"
    )
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--flood-mb", type=int, default=0, help="print so many MB of lines before listening")
    parser.add_argument("--die-at-request", type=int, default=0, help="SIGKILL ourselves at the nth completion")
    parser.add_argument("--fail-requests", action="store_true", help="answer every completion with 500")
    parser.add_argument("--fail-after", type=int, help="answer completions after the nth with 500")
    parser.add_argument("--stall-after", type=int, help="never answer a completion after the nth")
    parser.add_argument("--say-bytes", default="", help="print these bytes at start, written as hexadecimal digits")
    parser.add_argument("--reuse-port", action="store_true", help="share the port with others, as engines do")
    parser.add_argument("--healthy-when", help="answer 503 on /health until this file is there")
    parser.add_argument("--stall-requests", action="store_true", help="never answer a completion")
    parser.add_argument("--api-key", help="answer 401 below /v1 to everybody who does not bear it")
    parser.add_argument("--token-ms", type=float, default=1.0)
    return parser.parse_args()


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else the kernel joins tokens and none of them has a time of its own
    asked: argparse.Namespace
    requests = 0

    def log_message(self, format: str, *args: Any) -> None:
        say(f"INFO: {format % args}")

    def do_GET(self) -> None:
        if self.path == "/health":
            waits = self.asked.healthy_when is not None and not Path(self.asked.healthy_when).exists()
            self._answer(503 if self.asked.unhealthy or waits else 200, {})
        elif not self._knows_key():
            self._answer(401, {})
        elif self.path == "/v1/models":
            self._answer(200, {"object": "list", "data": [{"id": self.asked.serve or self.asked.model}]})
        else:
            self._answer(404, {})

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        if not self._knows_key():
            self._answer(401, {})
            return
        if self.path != "/v1/completions":
            self._answer(404, {})
            return
        body = json.loads(sent)
        type(self).requests += 1
        if self.requests == self.asked.die_at_request:
            os.kill(os.getpid(), signal.SIGKILL)
        asked, number = self.asked, self.requests
        while asked.stall_requests or (asked.stall_after is not None and number > asked.stall_after):
            time.sleep(1.0)
        if asked.fail_requests or (asked.fail_after is not None and number > asked.fail_after):
            self._answer(500, {"error": "out of luck"})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        count = body["max_tokens"]
        for n in range(count):
            last = n == count - 1
            self._event({"choices": [{"index": 0, "text": "x ", "finish_reason": "length" if last else None}]})
            time.sleep(self.asked.token_ms / 1000)
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": count, "total_tokens": count}
        self._event({"choices": [], "usage": usage})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _knows_key(self) -> bool:
        return self.asked.api_key is None or self.headers.get("authorization") == f"Bearer {self.asked.api_key}"

    def _event(self, content: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps({"id": "1", "object": "text_completion", **content}).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def leave_orphan(kind: str) -> None:
    """A child in a session of its own that nobody waits for; its pid goes to the file `orphan`."""
    if kind == "titled":  # a program that wrote its title over its environment: only the folder is left
        child = subprocess.Popen(["/bin/sleep", "600"], env={}, start_new_session=True)
    elif kind == "scrubbed":  # neither the mark nor the folder is left, only the ancestry
        child = subprocess.Popen(["/bin/sleep", "600"], env={}, cwd="/", start_new_session=True)
    else:
        child = subprocess.Popen(["/bin/sh", "-c", "trap '' TERM; sleep 600 & wait"], start_new_session=True)
    Path("orphan").write_text(str(child.pid))


def main() -> None:
    asked = arguments()
    Path("pid").write_text(str(os.getpid()))
    if asked.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if asked.say:
        say(asked.say)
    if asked.say_bytes:
        sys.stdout.buffer.write(bytes.fromhex(asked.say_bytes) + b"\n")
        sys.stdout.buffer.flush()
    if asked.orphan:
        leave_orphan(asked.orphan)
    for _ in range(asked.flood_mb * 16):
        sys.stdout.write(("flood " * 10 + "\n") * 1074)
    sys.stdout.flush()
    if asked.exit is not None:
        sys.exit(asked.exit)
    until = time.monotonic() + asked.chatter_s
    while time.monotonic() < until:
        say("loading")
        time.sleep(0.05)
    while asked.deaf:
        time.sleep(1.0)
    Handler.asked = asked
    ThreadingHTTPServer.allow_reuse_port = asked.reuse_port
    ThreadingHTTPServer((asked.host, asked.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
