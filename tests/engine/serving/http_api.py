# SPDX-License-Identifier: Apache-2.0
"""The HTTP face: the routes of SGLang that deployments and tests use, with its status codes and JSON names."""
from __future__ import annotations

import http.server
import json
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serving.launcher import Engine

_MAX_BODY_BYTES = 1 << 20
_GENERATE_TIMEOUT_SECONDS = 600.0
_STREAM_TOKENS = 3


class BadRequest(ValueError):
    """A request body that is refused with 400; the text is the answer's message."""


def read_generate(body: Any, vocabulary_limit: int = 1 << 20) -> tuple[list[int], int]:
    """Body of /generate -> (input_ids, max_new_tokens). BadRequest names the field and the rule."""
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    input_ids = body.get("input_ids")
    if not isinstance(input_ids, list) or not input_ids or len(input_ids) > 4096 or not all(
            isinstance(token, int) and not isinstance(token, bool) and 0 <= token < vocabulary_limit
            for token in input_ids):
        raise BadRequest("input_ids must be a list of 1 to 4096 token ids (there is no tokenizer here)")
    parameters = body.get("sampling_params") or {}
    count = parameters.get("max_new_tokens", 16) if isinstance(parameters, dict) else None
    if not isinstance(count, int) or not 1 <= count <= 4096:
        raise BadRequest("sampling_params.max_new_tokens must be between 1 and 4096")
    return input_ids, count


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: "Engine"

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path in ("/health", "/health_generate"):
            self._send(200 if self.engine.healthy() else 503, None)
        elif path == "/flush_cache":
            self._send(200, None)
        elif path in ("/get_model_info", "/model_info"):
            self._send(200, {"model_path": self.engine.flags.model_path, "is_generation": True})
        elif path == "/metrics" and self.engine.flags.enable_metrics:
            self._metrics()
        elif path in ("/get_server_info", "/server_info"):
            flags = self.engine.flags
            self._send(200, {"tp_size": flags.ranks, "ep_size": flags.ep_size, "version": "test-engine",
                             "mem_fraction_static": flags.mem_fraction_static})
        else:
            self._send(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        path = self.path.split("?")[0]
        length = int(self.headers.get("Content-Length") or 0)
        if length > _MAX_BODY_BYTES:
            self.close_connection = True
            self._send(413, {"error": {"message": f"body over {_MAX_BODY_BYTES} bytes"}})
            return
        raw = self.rfile.read(length)
        if path == "/flush_cache":
            self._send(200, None)
        elif path == "/generate":
            with self.engine.request() as taken:
                self._generate(raw) if taken else self._send(503, {"error": {"message": "the server is shutting down"}})
        elif path == "/abort_request":
            self._abort(raw)
        else:
            self._send(404, {"detail": "Not Found"})

    def _generate(self, raw: bytes) -> None:
        try:
            body = json.loads(raw)
            input_ids, count = read_generate(body)
        except (BadRequest, json.JSONDecodeError) as error:
            self._send(400, {"error": {"message": str(error)}})
            return
        if body.get("stream") is True:
            self._stream(str(body.get("rid", "")), input_ids, count)
            return
        started = time.monotonic()
        tokens = self.engine.generate(input_ids, count, _GENERATE_TIMEOUT_SECONDS)
        if tokens is None:
            self._send(500, {"error": {"message": "a rank did not answer"}})
            return
        self._send(200, {"text": "", "output_ids": tokens, "meta_info": {
            "prompt_tokens": len(input_ids), "completion_tokens": len(tokens),
            "e2e_latency": time.monotonic() - started, "finish_reason": {"type": "length", "length": count}}})

    def _abort(self, raw: bytes) -> None:
        try:
            rid = json.loads(raw)["rid"]
        except (ValueError, KeyError, TypeError):
            self._send(400, {"error": {"message": "rid is missing"}})
            return
        self.engine.aborted.add(str(rid))
        self._send(200, None)

    def _stream(self, rid: str, input_ids: list[int], count: int) -> None:
        """Server-sent events as SGLang's: all ids so far in each; the verify steps are counted in the last one alone.
        Prefill gives one token, then each chunk is one request of _STREAM_TOKENS to the ranks."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        given, steps = [], 0
        while len(given) < count and rid not in self.engine.aborted:
            time.sleep(self.engine.faults.number("slow_stream", 0.5) or 0.0)
            wanted = 1 if not given else min(_STREAM_TOKENS, count - len(given))
            tokens = self.engine.generate((input_ids + given)[-4096:], wanted, _GENERATE_TIMEOUT_SECONDS)
            if tokens is None:
                self._event({"error": {"message": "a rank did not answer"}})
                return
            steps += 1 if given else 0
            given += tokens
            self._event({"text": "", "output_ids": given, "meta_info": {
                "id": rid, "prompt_tokens": len(input_ids), "completion_tokens": len(given), "finish_reason": None}})
        self._event({"text": "", "output_ids": given, "meta_info": {
            "id": rid, "prompt_tokens": len(input_ids), "completion_tokens": len(given), "spec_verify_ct": steps,
            "finish_reason": {"type": "abort" if len(given) < count else "length"}}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, value: dict) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def _metrics(self) -> None:
        """Seconds between two tokens of a request, and tokens a step, as far as rank 0 has told."""
        done = self.engine.ranks[0].progress or {"step_seconds": 0.0, "tokens": 0, "accepted": 0.0}
        values = {"inter_token_latency_seconds_sum": done["step_seconds"], "inter_token_latency_seconds_count": done["tokens"],
                  "spec_accept_length": done["accepted"]}
        text = "".join(f'sglang:{name}{{model_name="test"}} {value}\n' for name, value in values.items()).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _send(self, status: int, body: dict | None) -> None:
        payload = b"" if body is None else json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """uvicorn's access line."""
        print(f'INFO:     {self.client_address[0]}:{self.client_address[1]} - "{self.requestline}" {int(code)}',
              file=sys.stdout, flush=True)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class _Server6(_Server):
    address_family = socket.AF_INET6


def make_server(engine: "Engine") -> http.server.ThreadingHTTPServer:
    """A bound server, not yet serving."""
    handler = type("Handler", (_Handler,), {"engine": engine})
    kind = _Server6 if ":" in engine.flags.host else _Server
    return kind((engine.flags.host, engine.flags.port), handler)
