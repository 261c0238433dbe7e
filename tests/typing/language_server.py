"""A small client for language servers, which sends the requests of an editor.

A message is a JSON object with a header that gives its length. A request is a message with a number, which the response
repeats; both sides may send requests. A notification expects no response.
"""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self, TypeAlias

Message: TypeAlias = dict[str, Any]

PATIENCE = 180.0
"""Seconds until a server is ended that has not done its work."""

# What the server may send in answers; without it, names come without documentation.
CAPABILITIES: Message = {
    "workspace": {"configuration": True, "workspaceFolders": True},
    "textDocument": {
        "publishDiagnostics": {"relatedInformation": False},
        "hover": {"contentFormat": ["plaintext"]},
        "completion": {
            "completionItem": {
                "documentationFormat": ["plaintext"],
                "resolveSupport": {"properties": ["documentation", "detail"]},
            }
        },
        "signatureHelp": {
            "signatureInformation": {
                "documentationFormat": ["plaintext"],
                "parameterInformation": {"labelOffsetSupport": False},
                "activeParameterSupport": True,
            }
        },
    },
}


class Signature(NamedTuple):
    """What an editor shows of the function that is being called."""

    label: str
    documentation: str
    parameters: dict[str, str]
    """What is said of each parameter."""
    active: str
    """The parameter that is being typed."""


class LanguageServer:
    """A server over its standard streams, in a folder; to be used in a ``with`` statement.

    Args:
      command: starts the server.
      folder: its workspace.
      settings: what the user has set, by section; the server asks for it.
      language: of the files.
    """

    def __init__(self, command: list[str], folder: Path, settings: Message, language: str = "python") -> None:
        self._folder = folder
        self._settings = settings
        self._language = language
        self._number = 0
        self._found: dict[str, list[Message]] = {}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=folder, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        self._watch = threading.Timer(PATIENCE, self._process.kill)  # so that no test waits for ever

    def __enter__(self) -> Self:
        self._watch.start()
        uri = self._folder.as_uri()
        folders = [{"uri": uri, "name": self._folder.name}]
        given = {"processId": None, "rootUri": uri, "workspaceFolders": folders, "capabilities": CAPABILITIES}
        self.request("initialize", given)
        self._notify("initialized", {})
        self._notify("workspace/didChangeConfiguration", {"settings": self._settings})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.request("shutdown", None)
                self._notify("exit", None)
                self._process.wait(timeout=10)
        finally:
            self._watch.cancel()
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()

    # --- what an editor asks

    def open(self, path: Path, text: str) -> None:
        """Tells the server that a file is being edited, and what is in it; it need not be on disk."""
        self._found.pop(path.as_uri(), None)
        document = {"uri": path.as_uri(), "languageId": self._language, "version": 1, "text": text}
        self._notify("textDocument/didOpen", {"textDocument": document})

    def diagnostics(self, path: Path) -> list[Message]:
        """What the server finds wrong in a file that was opened; waits until it says so."""
        while path.as_uri() not in self._found:
            self._take(self._receive())
        return self._found[path.as_uri()]

    def completions(self, path: Path, cursor: tuple[int, int]) -> dict[str, Message]:
        """The names that are offered at a place."""
        invoked = {"context": {"triggerKind": 1}}  # by the user, not by a character
        found = self.request("textDocument/completion", {**_place(path, cursor), **invoked})
        items: list[Message] = found["items"] if isinstance(found, dict) else found or []
        return {item["label"]: item for item in items}

    def documentation(self, item: Message) -> str:
        """What is said of a name that was offered, with its type."""
        resolved = self.request("completionItem/resolve", item)
        return _text(resolved.get("documentation"))

    def signature(self, path: Path, cursor: tuple[int, int]) -> Signature | None:
        """The function that is being called at a place."""
        found = self.request("textDocument/signatureHelp", _place(path, cursor))
        if not found or not found["signatures"]:
            return None
        signature = found["signatures"][found.get("activeSignature") or 0]
        parameters = {
            p["label"] if isinstance(p["label"], str) else signature["label"][slice(*p["label"])]: _text(
                p.get("documentation")
            )
            for p in signature["parameters"]
        }
        active = signature.get("activeParameter", found.get("activeParameter"))
        named = list(parameters)
        return Signature(
            signature["label"],
            _text(signature.get("documentation")),
            parameters,
            named[active] if active is not None and 0 <= active < len(named) else "",
        )

    def hover(self, path: Path, cursor: tuple[int, int]) -> str:
        """What is shown of the name at a place; empty where nothing is."""
        found = self.request("textDocument/hover", _place(path, cursor))
        return _text(found["contents"]) if found else ""

    def definitions(self, path: Path, cursor: tuple[int, int]) -> list[tuple[int, int]]:
        """Where the name at a place is defined in the same file, as lines and columns."""
        found = self.request("textDocument/definition", _place(path, cursor)) or []
        return [_cursor(item["range"]["start"]) for item in found if item["uri"] == path.as_uri()]

    def rename(self, path: Path, cursor: tuple[int, int], name: str) -> list[tuple[int, int]]:
        """Where a name would be written if the one at a place is renamed, in the same file."""
        found = self.request("textDocument/rename", {**_place(path, cursor), "newName": name})
        (changes,) = found["documentChanges"]
        assert changes["textDocument"]["uri"] == path.as_uri()
        return sorted(_cursor(edit["range"]["start"]) for edit in changes["edits"])

    # --- messages

    def request(self, method: str, params: Any) -> Any:
        """Asks the server, and answers what it asks meanwhile."""
        self._number += 1
        number = self._number
        self._send({"id": number, "method": method, "params": params})
        while True:
            message = self._receive()
            if "method" in message:
                self._take(message)
            elif message.get("id") == number:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                return message.get("result")

    def _take(self, message: Message) -> None:
        """The server asks for settings, says what it can do, and what it finds."""
        if message.get("method") == "textDocument/publishDiagnostics":
            self._found[message["params"]["uri"]] = message["params"]["diagnostics"]
        if "id" not in message:
            return
        result = None
        if message["method"] == "workspace/configuration":
            result = [self._settings.get(item.get("section")) for item in message["params"]["items"]]
        self._send({"id": message["id"], "result": result})

    def _notify(self, method: str, params: Any) -> None:
        self._send({"method": method, "params": params})

    def _send(self, message: Message) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        stream = self._stream(self._process.stdin)
        stream.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        stream.flush()

    def _receive(self) -> Message:
        stream = self._stream(self._process.stdout)
        length = 0
        while (line := stream.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        assert length, "the language server has ended"
        received: Message = json.loads(stream.read(length))
        return received

    @staticmethod
    def _stream(stream: IO[bytes] | None) -> IO[bytes]:
        assert stream is not None
        return stream


def _place(path: Path, cursor: tuple[int, int]) -> Message:
    line, column = cursor
    return {"textDocument": {"uri": path.as_uri()}, "position": {"line": line, "character": column}}


def _cursor(position: Message) -> tuple[int, int]:
    return position["line"], position["character"]


def _text(documentation: Any) -> str:
    return str(documentation["value"] if isinstance(documentation, dict) else documentation or "")
