"""Serve W&B on loopback, as far as sweeps and runs need it: our reading of the protocol of wandb 0.31.

A test that passes here shows that the real client and agent work with our commands and files; it does not show that
W&B's cloud would accept everything that this server does.
"""

import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from typing import Any

import yaml

ENTITY, PROJECT = "team", "fssl"
KEY = "0" * 40


@dataclass(kw_only=True)
class Run:
    """A run as the server knows it."""

    config: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    group: str = ""
    tags: list[str] = field(default_factory=list)
    lines: dict[int, dict[str, Any]] = field(default_factory=dict)  # history by its number
    exit_code: int | None = None
    preempting: bool = False

    @property
    def history(self) -> list[dict[str, Any]]:
        return [line for _, line in sorted(self.lines.items())]


class Server:
    """Start it with `with`; `environment` is what makes clients come here."""

    # What goes wrong.
    drops = 0  # so many requests of file streams are cut off
    deleted = False  # heartbeats get status 404
    duplicate = False  # every cell is handed out twice
    stop_first = False  # the first run is told to stop once it has a line of history, and then handed out again
    exit_first = False  # the agent is told to exit, once, as soon as its run has a line of history

    def __init__(self, **faults: Any) -> None:
        vars(self).update(faults)
        self.runs: dict[str, Run] = {}
        self.sweep: dict[str, Any] = {}
        self.handed_out: list[dict[str, Any]] = []
        self._waiting: list[dict[str, Any]] = []
        self._stopped = False
        self._lock = threading.RLock()
        server = self

        class Handler(_Handler):
            of = server

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "WANDB_BASE_URL": self.url,
            "WANDB_API_KEY": KEY,
            "WANDB_ENTITY": ENTITY,
            "WANDB_PROJECT": PROJECT,
            "WANDB_ERROR_REPORTING": "false",
        }

    def __enter__(self) -> "Server":
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *args: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def begin(self, sweep: dict[str, Any]) -> None:
        """Queue every cell of the grid, like `wandb sweep`."""
        with self._lock:
            self.sweep = sweep
            parameters = sweep["parameters"]
            lists = [entry.get("values", [entry.get("value")]) for entry in parameters.values()]
            for values in product(*lists):
                arguments = {name: {"value": value} for name, value in zip(parameters, values, strict=True)}
                for _ in range(2 if self.duplicate else 1):
                    self._waiting.append(arguments)

    def answer(self, operation: str, variables: dict[str, Any]) -> Any:
        """Return the data of a GraphQL answer, or None for an unknown operation."""
        with self._lock:
            return getattr(self, f"on_{operation}", lambda given: None)(variables)

    def on_ServerFeaturesQuery(self, given: dict[str, Any]) -> Any:
        return {"serverInfo": {"features": []}}

    def on_CreateAgent(self, given: dict[str, Any]) -> Any:
        return {"createAgent": {"agent": {"id": "agent"}}}

    def on_Viewer(self, given: dict[str, Any]) -> Any:
        teams = {"edges": [{"node": {"name": ENTITY}}]}
        return {"viewer": {"id": "me", "entity": ENTITY, "username": "me", "email": "", "flags": "{}", "teams": teams}}

    def _project(self) -> dict[str, Any]:
        return {"id": "project", "name": PROJECT, "entity": {"id": "entity", "name": ENTITY}}

    def on_UpsertSweep(self, given: dict[str, Any]) -> Any:
        if given.get("config"):
            self.begin(yaml.safe_load(given["config"]))
        return {"upsertSweep": {"sweep": {"name": "s1", "project": self._project()}, "configValidationWarnings": []}}

    def on_GetSweep(self, given: dict[str, Any]) -> Any:
        empty = ("description", "displayName", "bestLoss", "controller", "scheduler", "updatedAt", "runCountExpected")
        named = {"__typename": "Sweep", "id": "s1", "name": "s1", "method": "grid", "state": "RUNNING"}
        sweep = {
            **dict.fromkeys(empty),
            **named,
            "earlyStopJobRunning": False,
            "config": yaml.safe_dump(self.sweep),
            "createdAt": "2026-01-01T00:00:00Z",
            "runCount": len(self.handed_out),
            "runs": {"edges": []},
        }
        return {"project": {"sweep": sweep}}

    on_SweepWithRuns = on_GetSweep

    def on_Heartbeat(self, given: dict[str, Any]) -> Any:
        running = [name for name, is_running in json.loads(given["runState"]).items() if is_running]
        commands: list[dict[str, Any]] = []
        if running:
            begun = bool(self.runs.get(running[0], Run()).lines)
            if begun and self.exit_first:
                self.exit_first = False
                commands = [{"type": "exit"}]
            elif begun and self.stop_first and not self._stopped:
                self._stopped = True
                commands = [{"type": "stop", "run_id": running[0]}]
                self._waiting.append({"run_id": running[0], **self.handed_out[-1]["args"]})
        elif self._waiting:
            arguments = dict(self._waiting.pop(0))
            run_id = arguments.pop("run_id", None)
            kind = "resume" if run_id else "run"
            run_id = run_id or f"run{len(self.handed_out)}"
            command = {"type": kind, "run_id": run_id, "program": self.sweep.get("program"), "args": arguments}
            self.handed_out.append(command)
            commands = [command]
        else:
            commands = [{"type": "exit"}]
        return {"agentHeartbeat": {"agent": {"id": "agent"}, "commands": json.dumps(commands)}}

    def on_UpsertBucket(self, given: dict[str, Any]) -> Any:
        name = given["name"] or given["id"]
        inserted = name not in self.runs
        run = self.runs.setdefault(name, Run())
        run.config = {**run.config, **json.loads(given.get("config") or "{}")}
        run.name, run.group = given.get("displayName") or run.name, given.get("groupName") or run.group
        run.tags = given.get("tags") or run.tags
        bucket = {
            "id": name,
            "name": name,
            "displayName": run.name,
            "description": "",
            "config": json.dumps(run.config),
            "sweepName": "s1",
            "project": self._project(),
            "historyLineCount": len(run.lines),
        }
        return {"upsertBucket": {"bucket": bucket, "inserted": inserted}}

    def on_RunResumeStatus(self, given: dict[str, Any]) -> Any:
        run = self.runs.get(given["name"])
        bucket = None
        if run is not None and run.lines:
            bucket = {
                "id": given["name"],
                "name": given["name"],
                "summaryMetrics": json.dumps({"_step": run.history[-1]["_step"]}),
                "displayName": run.name,
                "logLineCount": 0,
                "historyLineCount": len(run.lines),
                "eventsLineCount": 0,
                "historyTail": json.dumps([json.dumps(run.history[-1])]),
                "eventsTail": json.dumps([json.dumps({"_runtime": 1})]),
                "config": json.dumps(run.config),
                "tags": run.tags,
                "notes": None,
                "wandbConfig": json.dumps({"t": 1}),
            }
        return {"model": {**self._project(), "bucket": bucket}}

    def on_CreateRunFiles(self, given: dict[str, Any]) -> Any:
        files = [{"name": name, "uploadUrl": f"{self.url}/put/{name}"} for name in given["files"]]
        return {"createRunFiles": {"runID": given["run"], "uploadHeaders": [], "files": files}}

    def stream(self, name: str, content: dict[str, Any]) -> None:
        """Store a part of a run's history."""
        with self._lock:
            run = self.runs.setdefault(name, Run())
            part = content.get("files", {}).get("wandb-history.jsonl", {})
            for number, line in enumerate(part.get("content", []), start=part.get("offset", 0)):
                run.lines[number] = json.loads(line)
            run.preempting = run.preempting or bool(content.get("preempting"))
            if content.get("complete"):
                run.exit_code = content.get("exitcode")


class _Handler(BaseHTTPRequestHandler):
    of: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        """Print nothing on the terminal."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, answer = 200, dict[str, Any]()
        if self.path == "/graphql":
            status, answer = self._graphql(json.loads(body))
        elif found := re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", self.path):
            if self.of.drops > 0:
                self.of.drops -= 1
                self.close_connection = True
                return
            self.of.stream(found.group(1), json.loads(body))
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_PUT = do_GET = do_POST  # files

    def _graphql(self, request: dict[str, Any]) -> tuple[int, Any]:
        found = re.search(r"(?:query|mutation)\s+(\w+)", request["query"])
        operation = found.group(1) if found else ""
        if operation == "Heartbeat" and self.of.deleted:
            return 404, {"errors": [{"message": "sweep not found"}]}
        data = self.of.answer(operation, request.get("variables") or {})
        return 200, {"data": data} if data is not None else {"errors": [{"message": f"no {operation}"}]}
