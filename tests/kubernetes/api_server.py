"""The API server, as far as gpupool-kubernetes uses it: objects in memory, over HTTP.

What is sent must be valid by the models of the package kubernetes, which know no other fields. Updates need the present
resourceVersion. Like the real one, it leaves out `allowMultipleAllocations` if the feature is off, and lets accounts do only
what their roles say.
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
RESOURCES = {"ResourceSlice": "resourceslices", "ResourceClaim": "resourceclaims", "Pod": "pods", "Secret": "secrets", "Event": "events"}
PATHS = (  # pattern, kind, model
    (rf"{RESOURCE}/resourceslices(?:/(?P<name>[^/]+))?", "ResourceSlice", client.V1ResourceSlice),
    (rf"{RESOURCE}/resourceclaims", "ResourceClaim", client.ResourceV1ResourceClaim),
    (rf"{RESOURCE}/namespaces/(?P<space>[^/]+)/resourceclaims/(?P<name>[^/]+)", "ResourceClaim", client.ResourceV1ResourceClaim),
    (r"/api/v1/namespaces/(?P<space>[^/]+)/pods/(?P<name>[^/]+)", "Pod", client.V1Pod),
    (r"/api/v1/namespaces/(?P<space>[^/]+)/secrets/(?P<name>[^/]+)", "Secret", client.V1Secret),
    (r"/api/v1/namespaces/(?P<space>[^/]+)/events(?:/(?P<name>[^/]+))?", "Event", client.CoreV1Event),
)
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def group_of(kind):
    return RESOURCE.split("/")[2] if kind.startswith("Resource") else ""


def allows(granted, kind, verb, space, name):
    """Returns whether rules (chart.py's rules_of) allow a request."""
    return any(of in (None, space) and group_of(kind) in rule["apiGroups"] and RESOURCES[kind] in rule["resources"] and verb in rule["verbs"] and
               name in rule.get("resourceNames", [name]) for of, rule in granted)


class ApiServer:
    """Serves for the duration of `with`; stop() and start() are a restart on the same port."""

    def __init__(self, accounts, consumable_capacity=True):
        """`accounts`: token -> rules."""
        self.accounts = accounts
        self.consumable_capacity = consumable_capacity
        self.objects = {}  # (kind, namespace, name) -> object
        self.faults = []  # invalid requests
        self.denied = []  # requests that their account's roles do not allow
        self.written = []  # (kind, object) as sent, of all that was stored
        self.requests = []  # "METHOD /path" of all
        self.has_resource_api = True  # knows resource.k8s.io/v1
        self.misses = {}  # key of an object -> how many further reads do not find it
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
                is_text = isinstance(answer, str)
                text = (answer if is_text else json.dumps(answer)).encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain" if is_text else "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

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
        granted = self.accounts.get((headers.get("Authorization") or "").removeprefix("Bearer "))
        if granted is None:
            return self.failure(401, "Unauthorized", "Unauthorized")
        with self.lock:
            self.requests.append(f"{method} {url.path}")
        if url.path.startswith(RESOURCE) and not self.has_resource_api:
            return self.unknown_path()
        for pattern, kind, model in PATHS:
            match = re.fullmatch(pattern, url.path)
            if match:
                parts = {name: urllib.parse.unquote(value or "") for name, value in match.groupdict().items()}
                space, name = parts.get("space", ""), parts.get("name", "")
                verb = VERBS.get(method) or ("get" if name else "list")
                with self.lock:
                    if not allows(granted, kind, verb, space, name):
                        self.denied.append(f"{verb} {RESOURCES[kind]} {space}/{name}")
                        return self.failure(403, f"{self.denied[-1]} is forbidden", "Forbidden", kind=RESOURCES[kind], name=name)
                    if method == "PATCH":
                        return self.patch((kind, space, name), model, headers.get("Content-Type"), body)
                    return self.answer_for(method, kind, model, parts, urllib.parse.parse_qs(url.query), body)
        self.faults.append(f"{method} {path}: no such resource")
        return self.unknown_path()

    def answer_for(self, method, kind, model, parts, query, body):
        space, name = parts.get("space", ""), parts.get("name", "")
        if method in ("POST", "PUT"):
            return self.write(method, kind, model, space, name, body, dry=query.get("dryRun") == ["All"])
        present = self.objects.get((kind, space, name))
        if not name and method == "GET":
            return 200, self.page(kind, query)
        if method == "GET" and self.misses.get((kind, space, name)):
            self.misses[kind, space, name] -= 1
            present = None
        if present is None:
            return self.not_found(kind, name)
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

    def write(self, method, kind, model, space, name, body, dry):
        try:
            sent = json.loads(body)
            model.model_validate(sent)
        except ValueError as wrong:
            return self.fault(422, f"{kind} is invalid: {wrong}")
        key = (kind, space, sent["metadata"]["name"])
        if method == "POST" and key in self.objects:
            return self.failure(409, f"{kind} {key[2]} already exists", "AlreadyExists")
        if method == "PUT":
            if key[2] != name or key not in self.objects:
                return self.not_found(kind, name)
            if sent["metadata"].get("resourceVersion") != self.objects[key]["metadata"]["resourceVersion"]:
                return self.failure(409, "the object has been modified", "Conflict")
        status = 200 if method == "PUT" else 201
        if dry:
            return status, self.kept(kind, sent)
        self.written.append((kind, json.loads(body)))
        return status, self.store(key, sent)

    def patch(self, key, model, form, body):
        """Applies a merge patch of members that are no objects."""
        kind, _, name = key
        if key not in self.objects:
            return self.not_found(kind, name)
        if form != "application/merge-patch+json":
            return self.fault(415, f"a patch of {kind} {name} has the type {form}")
        try:
            changed = {**self.objects[key], **json.loads(body)}
            model.model_validate(changed)
        except ValueError as wrong:
            return self.fault(422, f"{kind} is invalid: {wrong}")
        return 200, self.store(key, changed)

    def store(self, key, one):
        self.version += 1
        one.setdefault("metadata", {})["resourceVersion"] = str(self.version)
        self.objects[key] = self.kept(key[0], one)
        return one

    def kept(self, kind, one):
        """Returns what is kept of an object."""
        if kind == "ResourceSlice":
            for device in one["spec"].get("devices", []):
                if not self.consumable_capacity:
                    device.pop("allowMultipleAllocations", None)
                    for capacity in device["capacity"].values():
                        capacity.pop("requestPolicy", None)
                for capacity in device["capacity"].values():  # as Kubernetes writes quantities
                    if capacity["value"].endswith("000"):
                        capacity["value"] = capacity["value"][:-3] + "k"
        return one

    def failure(self, status, message, reason, **details):
        return status, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "reason": reason,
                        "details": details, "code": status}

    def not_found(self, kind, name):
        """An object that is missing, in contrast to unknown_path()."""
        group, resource = group_of(kind), RESOURCES[kind]
        return self.failure(404, f'{resource}{"." + group if group else ""} "{name}" not found', "NotFound", name=name, kind=resource,
                            **({"group": group} if group else {}))

    def unknown_path(self):
        """The real one answers so for an API that it does not have, or does not serve yet."""
        return 404, "404 page not found\n"

    def fault(self, status, message):
        self.faults.append(message)
        return self.failure(status, message, "Invalid")

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

    def miss(self, kind, space, name, times):
        """Has the next reads of an object not find it."""
        with self.lock:
            self.misses[kind, space, name] = times

    def count(self, method, end):
        """Returns the number of requests for paths with this end."""
        with self.lock:
            return sum(one.startswith(method + " ") and one.endswith(end) for one in self.requests)

    def put_secret(self, space, token, name="gpupool-token"):
        self.put("Secret", space, name, {"data": {"token": base64.b64encode(token.encode()).decode()}})

    def events(self, claim):
        return [event for event in self.all("Event") if event["involvedObject"]["uid"] == claim["metadata"]["uid"]]
