# SPDX-License-Identifier: Apache-2.0
"""Stands in for SGLang's HTTP face where a test wants verify steps of a known length: streamed /generate, /abort_request,
/health. As there, verify steps are counted in the last chunk alone. Each step takes `step_s` and gives `accept` tokens; tokens are 1, 2, 3, ..."""
import contextlib
import http.server
import json
import threading
import time
from collections.abc import Iterator


class StreamServer:
    """url: where it listens; step_s, accept, status: may be changed while it runs; posts: (path, body) as received."""

    def __init__(self, step_s: float = 0.004, accept: int = 3):
        self.step_s, self.accept, self.status = step_s, accept, 200
        self.speculates = True
        self.posts: list[tuple[str, dict]] = []
        self._aborted: set[str] = set()
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def chunks(self, body: dict) -> Iterator[dict]:
        """Answers of one request, as SGLang streams them: all ids so far, and the counters."""
        wanted, done, steps = body["sampling_params"]["max_new_tokens"], 1, 0
        rid = body.get("rid", "")
        while True:
            meta = {"id": rid, "prompt_tokens": len(body["input_ids"]), "completion_tokens": done, "finish_reason": None}
            last = done >= wanted or rid in self._aborted
            if last:
                meta["finish_reason"] = {"type": "abort" if rid in self._aborted else "length"}
                if self.speculates and steps:
                    meta |= {"spec_verify_ct": steps, "spec_accept_length": done / steps}
            yield {"text": "", "output_ids": list(range(1, done + 1)), "meta_info": meta}
            if last:
                return
            time.sleep(self.step_s)
            done, steps = min(wanted, done + self.accept), steps + 1

    @contextlib.contextmanager
    def running(self) -> Iterator["StreamServer"]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class _Handler(http.server.BaseHTTPRequestHandler):
    owner: StreamServer

    def do_GET(self) -> None:
        self._head(self.owner.status if self.path == "/health" else 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "{}")
        self.owner.posts.append((self.path, body))
        if self.path == "/abort_request":
            self.owner._aborted.add(body["rid"])
            self._head(200)
        elif self.path == "/generate" and self.owner.status == 200:
            self._head(200, "text/event-stream")
            for chunk in self.owner.chunks(body):
                self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
                self.wfile.flush()
            self.wfile.write(b"data: [DONE]\n\n")
        else:
            self._head(self.owner.status if self.path == "/generate" else 404)

    def _head(self, status: int, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass
