"""A Hugging Face hub on this machine, small enough to read: the model list, files, and its ways of refusing."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serves the repositories under `folder` ("owner/name/…"); owner "gated" is gated, "busy" answers 503. Yields the
    address and a list that collects the paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            asked.append(self.path)
            path = self.path.partition("?")[0].strip("/")
            parts = path.split("/")
            if path.startswith("api/models/"):
                repo = folder / parts[2] / parts[3]
                if not repo.is_dir():
                    return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)
                if "tree" in parts:
                    return self._send(200, json.dumps(_tree(repo)).encode(), {}, body)
                files = [{"rfilename": file["path"], "size": file["size"]} for file in _tree(repo)]
                listed = {"id": f"{parts[2]}/{parts[3]}", "sha": COMMIT, "siblings": files}
                return self._send(200, json.dumps(listed).encode(), {}, body)
            if parts[0] == "gated":
                return self._send(403, b"{}", {"X-Error-Code": "GatedRepo"}, body)
            if parts[0] == "busy":
                return self._send(400, b"{}", {}, body)
            if not (folder / parts[0] / parts[1]).is_dir():
                return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)
            file = folder / parts[0] / parts[1] / "/".join(parts[4:])
            if not file.is_file():
                return self._send(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, body)
            content = file.read_bytes()
            headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
            return self._send(200, content, headers, body)

        def _send(self, status: int, content: bytes, headers: dict[str, str], body: bool) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _tree(repo: Path) -> list[dict[str, object]]:
    return [
        {
            "type": "file",
            "path": path.name,
            "size": path.stat().st_size,
            "oid": hashlib.sha1(path.name.encode()).hexdigest(),
        }
        for path in sorted(repo.iterdir())
    ]
