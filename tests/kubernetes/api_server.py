"""The API server, as far as gpupool-kubernetes uses it: objects in memory, over HTTP.

What is sent must be valid by the models of the package kubernetes, which know no other fields. Updates need the present
resourceVersion. Like the real one, it leaves out `allowMultipleAllocations` if the feature is off.
"""
import base64
import http.server
import json
import re
import threading
import urllib.parse
import uuid

from kubernetes import client

RESOURCE = "/apis/resource.k8s.io/v1"
PATHS = (  # pattern, kind, model
    (rf"{RESOURCE}/resourceslices(?:/(?P<name>[^/]+))?", "ResourceSlice", client.V1ResourceSlice),
    (rf"{RESOURCE}/resourceclaims", "ResourceClaim", client.ResourceV1ResourceClaim),
    (rf"{RESOURCE}/namespaces/(?P<space>[^/]+)/resourceclaims/(?P<name>[^/]+)", "ResourceClaim", client.ResourceV1ResourceClaim),
    (r"/api/v1/namespaces/(?P<space>[^/]+)/pods/(?P<name>[^/]+)", "Pod", client.V1Pod),
    (r"/api/v1/namespaces/(?P<space>[^/]+)/secrets/(?P<name>[^/]+)", "Secret", client.V1Secret),
    (r"/api/v1/namespaces/(?P<space>[^/]+)/events", "Event", client.CoreV1Event),
)
TOKEN = "service-account"


class ApiServer:
    """Serves for the duration of `with`; stop() and start() are a restart on the same port."""

    def __init__(self, consumable_capacity=True):
        self.consumable_capacity = consumable_capacity
        self.objects = {}  # (kind, namespace, name) -> object
        self.faults = []  # invalid requests
        self.version = 0
        self.lock = threading.Lock()
        self.port = 0
        self.server = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def handle_any(self):
                length = int(self.headers.get("Content-Length") or 0)
                status, answer = owner.answer(self.command, self.path, self.headers, self.rfile.read(length))
                text = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_DELETE = handle_any

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self):
        if self.server:
            self.server.shutdown()
            self.server.server_close()
            self.server = None

    def answer(self, method, path, headers, body):
        url = urllib.parse.urlsplit(path)
        if headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.failure(401, "Unauthorized")
        for pattern, kind, model in PATHS:
            match = re.fullmatch(pattern, url.path)
            if match:
                parts = {name: urllib.parse.unquote(value or "") for name, value in match.groupdict().items()}
                with self.lock:
                    return self.answer_for(method, kind, model, parts, urllib.parse.parse_qs(url.query), body)
        return self.fault(404, f"{method} {path}: no such resource")

    def answer_for(self, method, kind, model, parts, query, body):
        space, name = parts.get("space", ""), parts.get("name", "")
        if method in ("POST", "PUT"):
            return self.write(method, kind, model, space, name, body)
        present = self.objects.get((kind, space, name))
        if not name and method == "GET":
            return 200, self.page(kind, query)
        if present is None:
            return self.failure(404, f"{kind} {name} not found")
        if method == "DELETE":
            del self.objects[kind, space, name]
        return 200, present

    def page(self, kind, query):
        """Returns at most two objects a page, so that a caller that forgets the rest is noticed."""
        found = [one for (of, _, _), one in sorted(self.objects.items()) if of == kind]
        for term in ",".join(query.get("fieldSelector", [])).split(","):
            if term.startswith("spec.driver="):
                found = [one for one in found if one["spec"]["driver"] == term.partition("=")[2]]
        start = int(query.get("continue", ["0"])[0])
        more = {"continue": str(start + 2)} if start + 2 < len(found) else {}
        return {"metadata": more, "items": found[start:start + 2]}

    def write(self, method, kind, model, space, name, body):
        try:
            sent = json.loads(body)
            model.model_validate(sent)
        except ValueError as wrong:
            return self.fault(422, f"{kind} is invalid: {wrong}")
        key = (kind, space, sent["metadata"]["name"])
        if method == "POST" and key in self.objects:
            return self.failure(409, f"{kind} {key[2]} already exists")
        if method == "PUT":
            if key[2] != name or key not in self.objects:
                return self.failure(404, f"{kind} {name} not found")
            if sent["metadata"].get("resourceVersion") != self.objects[key]["metadata"]["resourceVersion"]:
                return self.failure(409, "the object has been modified")
        return (200 if method == "PUT" else 201), self.store(key, sent)

    def store(self, key, one):
        self.version += 1
        one.setdefault("metadata", {})["resourceVersion"] = str(self.version)
        if key[0] == "ResourceSlice":
            for device in one["spec"].get("devices", []):
                if not self.consumable_capacity:
                    device.pop("allowMultipleAllocations", None)
                    for capacity in device["capacity"].values():
                        capacity.pop("requestPolicy", None)
                for capacity in device["capacity"].values():  # as Kubernetes writes quantities
                    if capacity["value"].endswith("000"):
                        capacity["value"] = capacity["value"][:-3] + "k"
        self.objects[key] = one
        return one

    def failure(self, status, message):
        return status, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": status}

    def fault(self, status, message):
        self.faults.append(message)
        return self.failure(status, message)

    # What the tests do and see.

    def put(self, kind, space, name, one):
        with self.lock:
            one.setdefault("metadata", {}).update({"name": name, **({"namespace": space} if space else {})})
            one["metadata"].setdefault("uid", str(uuid.uuid4()))
            return self.store((kind, space, name), one)

    def delete(self, kind, space, name):
        with self.lock:
            self.objects.pop((kind, space, name), None)

    def all(self, kind):
        with self.lock:
            return [json.loads(json.dumps(one)) for (of, _, _), one in sorted(self.objects.items()) if of == kind]

    def put_secret(self, space, token, name="gpupool-token"):
        self.put("Secret", space, name, {"data": {"token": base64.b64encode(token.encode()).decode()}})

    def events(self, claim):
        return [event for event in self.all("Event") if event["involvedObject"]["uid"] == claim["metadata"]["uid"]]
