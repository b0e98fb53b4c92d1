"""`python -m tests.workers.tiny_engine` with the fake server's arguments; GET /constants and /constants/child."""

from __future__ import annotations

from http.server import ThreadingHTTPServer

from tests.workers.fake_server import Handler, arguments
from tests.workers.tiny_engine.steps import constants, constants_of_a_child


class ConstantsHandler(Handler):
    def do_GET(self) -> None:
        if self.path == "/constants":
            self._answer(200, constants())
        elif self.path == "/constants/child":
            self._answer(200, constants_of_a_child())
        else:
            super().do_GET()


if __name__ == "__main__":
    asked = arguments()
    ConstantsHandler.asked = asked
    ThreadingHTTPServer((asked.host, asked.port), ConstantsHandler).serve_forever()
