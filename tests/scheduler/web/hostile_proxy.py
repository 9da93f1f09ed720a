"""A server between browser and scheduler that passes on everything but the pool's state, into which it puts hostile names of any length:
more than a scheduler would accept. Headers stay the scheduler's."""
import http.client
import http.server
import json
import threading

OWNED = "document.title='owned'"
HOSTILE = (f"<img src=x onerror=\"{OWNED}\">", f"<script>{OWNED}</script>", f"'\"><svg onload={OWNED}>", f"javascript:{OWNED}", "a/../b?q=c#d%2F%00",
           "\u202egnirts\u202c", "\u0000\u001b[2J", "x" * 4096, "__proto__", "constructor", "")
STAYS = ("Content-Type", "Content-Security-Policy", "X-Content-Type-Options", "X-Frame-Options", "Cache-Control")


def spoil(state):
    """Renames nodes, tenants, programs, labels and reasons."""
    for at, node in enumerate(state["nodes"]):
        old, node["name"] = node["name"], f"{HOSTILE[at % len(HOSTILE)]}{at}"
        for gpu in node["gpus"]:
            gpu["node"], gpu["model"] = node["name"], HOSTILE[at % 8]
        for lease in state["leases"]:
            for part in lease["parts"]:
                part["node"] = node["name"] if part["node"] == old else part["node"]
        node["because"] = node["rack"] = HOSTILE[(at + 1) % 3]
    for at, tenant in enumerate(state["tenants"]):
        for lease in state["leases"]:
            lease["tenant"] = f"{HOSTILE[at]}{at}" if lease["tenant"] == tenant["name"] else lease["tenant"]
        tenant["name"] = f"{HOSTILE[at]}{at}"
    for at, lease in enumerate(state["leases"]):
        lease["program"] = lease["host"] = lease["end_reason"] = HOSTILE[at % len(HOSTILE)]
        lease["labels"] = list(HOSTILE)
    for at, waiting in enumerate(state["waiting"]):
        waiting["why"] = waiting["request"]["program"] = " ".join(HOSTILE)
        waiting["request"]["labels"] = list(HOSTILE)
    state["pool"]["version"] = HOSTILE[0]
    return state


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        upstream.request("GET", self.path, headers={"Host": "localhost"})
        answer = upstream.getresponse()
        body = answer.read()
        if self.path == "/pool.json" and answer.status == 200:
            body = json.dumps(spoil(json.loads(body))).encode()
        if self.path == "/history.json" and answer.status == 200:
            history = json.loads(body)
            history["tenants"] = [HOSTILE[at % len(HOSTILE)] for at in range(len(history["tenants"]))]
            body = json.dumps(history).encode()
        if self.path == "/events.json" and answer.status == 200:
            body = json.dumps([{"at_ms": 1, "event": text, "lease": text, "node": text, "reason": text, text: text} for text in HOSTILE]).encode()
        self.send_response(answer.status)
        for name in STAYS:
            if value := answer.getheader(name):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class HostileProxy:
    def __init__(self, port):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.port = port
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
