"""The node that scripts/maintainers/benchmarks.d/start-pods measures: its API server, container runtime and CNI files."""

import base64
import concurrent.futures
import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import threading
import time
import urllib.request
from datetime import datetime
from pathlib import Path

STATE = Path("/var/lib/linkerd2-cni-cluster")
CONFLIST = Path("/etc/cni/net.d/10-bridge.conflist")
# Results of ADD, which libcni keeps until DEL.
RESULTS = Path("/var/lib/cni/results")
# The container runtime's metrics are off by default. The node has a network of its own, so any port is free.
METRICS = "127.0.0.1:10300"
SOCKET = "/run/linkerd2-cni-cluster/containerd.sock"
NAMESPACE = "benchmark"
# Latest time, in seconds after kubelet removed sandboxes, at which a run begins.
RUN = 30
PATIENCE = 300


class Failed(Exception):
    """A run that did not measure what it says."""


def output(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, **options)
    if done.returncode:
        raise Failed(f"{' '.join(command)}: status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def wait_for(what, condition, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise Failed(f"{what}: not after {seconds} s")
        time.sleep(0.2)
    return found


def has_ended(pid):
    """Whether a process has ended, also if nobody has waited for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


class Api:
    """The API server, as the cluster's administrator."""

    def __init__(self):
        server = output("kubectl", "config", "view", "-o", "jsonpath={.clusters[0].cluster.server}")
        self.address = server.removeprefix("https://")
        self.tls = ssl.create_default_context(cafile=STATE / "pki/ca.crt")
        self.tls.load_cert_chain(STATE / "pki/admin.crt", STATE / "pki/admin.key")
        self.local = threading.local()

    def connect(self):
        return http.client.HTTPSConnection(self.address, context=self.tls, timeout=PATIENCE)

    def request(self, method, path, body=None):
        """Sends a request on this thread's connection."""
        if not hasattr(self.local, "connection"):
            self.local.connection = self.connect()
        text = body and json.dumps(body)
        self.local.connection.request(method, path, text, {"Content-Type": "application/json"})
        response = self.local.connection.getresponse()
        found = json.loads(response.read())
        if response.status >= 300:
            raise Failed(f"{method} {path}: {found.get('message')}")
        return found

    def pods(self):
        return self.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")

    def start(self, pods):
        """Creates the pods at once. Returns the times of the creation and of readiness for each name."""
        created, ready = {}, {}

        def create(pod):
            begin = time.monotonic()
            self.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod)
            created[pod["metadata"]["name"]] = begin

        watch = self.connect()
        version = self.pods()["metadata"]["resourceVersion"]
        watch.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods?watch=1&resourceVersion={version}")
        events = watch.getresponse()
        with concurrent.futures.ThreadPoolExecutor(4) as workers:
            creations = [workers.submit(create, pod) for pod in pods]
            end = time.monotonic() + PATIENCE
            while len(ready) < len(pods):
                try:
                    line = events.readline()
                except TimeoutError:
                    line = b""
                if not line or time.monotonic() > end:
                    raise Failed(f"{len(pods) - len(ready)} of {len(pods)} pods are not ready")
                pod = json.loads(line)["object"]
                if is_ready(pod):
                    ready.setdefault(pod["metadata"]["name"], time.monotonic())
            for creation in creations:
                creation.result()
        watch.close()
        return created, ready


def is_ready(pod):
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


class Runtime:
    """containerd: its log, its metrics, and its calls of CNI plugins."""

    LINE = re.compile(r'time="([^"]+)" level=info msg="((?:[^"\\]|\\.)*)"')

    def __init__(self):
        config = STATE / "conf/containerd.toml"
        if "[metrics]" not in config.read_text():
            config.write_text(f'{config.read_text()}[metrics]\naddress = "{METRICS}"\n')
            self.restart(config)
        self.log = STATE / "log/containerd"
        self.removed = 0.0

    @staticmethod
    def containers():
        """The containers and sandboxes of pods, also of those that were deleted."""
        command = ["ctr", "--address", SOCKET, "--namespace", "k8s.io", "containers", "list", "--quiet"]
        return output(*command, f'labels."io.kubernetes.pod.namespace"=={NAMESPACE}').split()

    def await_removals(self):
        """Waits unless the next removals are far enough for a run: kubelet removes the sandboxes of deleted pods all at
        once, a minute after the last time."""
        if time.monotonic() - self.removed > RUN:
            wait_for("kubelet has removed the deleted pods' sandboxes", lambda: not self.containers())
            self.removed = time.monotonic()

    def removals(self, offset):
        """The number of sandboxes that were removed since the offset in the log."""
        return sum(text.startswith("RemovePodSandbox for ") for _, text in self.lines(offset))

    @staticmethod
    def restart(config):
        """Starts containerd again, as scripts/cluster starts it."""
        file = STATE / "pid/containerd"
        pid = int(file.read_text())
        os.kill(pid, signal.SIGTERM)
        wait_for("containerd has ended", lambda: has_ended(pid), 20)
        with open(STATE / "log/containerd", "a") as log:
            command = ["containerd", "--config", str(config)]
            started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        file.write_text(f"{started.pid}\n")
        wait_for("containerd has metrics", lambda: network_setups() is not None, 30)

    def lines(self, offset):
        """The time and the text of each message since the offset in the log."""
        with open(self.log) as log:
            log.seek(offset)
            for line in log:
                if found := self.LINE.match(line):
                    # Python reads microseconds, and the log has nanoseconds.
                    at = datetime.fromisoformat(re.sub(r"(\.\d{6})\d*Z", r"\1+00:00", found[1]))
                    yield at.timestamp(), found[2].replace('\\"', '"')

    def sandboxes(self, offset):
        """The times at which each sandbox of a pod was begun and done, and at which the last container was started."""
        begun, done, ours, last = {}, {}, set(), None
        name = re.compile(r"RunPodSandbox for &PodSandboxMetadata\{Name:([^,]+),.*Namespace:" + NAMESPACE + ",Attempt:([0-9]+)")
        for at, text in self.lines(offset):
            if found := name.match(text):
                if found[2] != "0":
                    raise Failed(f"the first try to start {found[1]} failed")
                if returned := re.search(r'returns sandbox id "([0-9a-f]+)"', text):
                    done[found[1]] = at
                    ours.add(returned[1])
                elif text.endswith(",}"):
                    begun[found[1]] = at
                else:
                    raise Failed(text)
            elif found := re.match(r'CreateContainer within sandbox "([0-9a-f]+)" .*returns container id "([0-9a-f]+)"', text):
                if found[1] in ours:
                    ours.add(found[2])
            elif found := re.match(r'StartContainer for "([0-9a-f]+)" returns successfully', text):
                last = at if found[1] in ours else last
        return begun, done, last


def network_setups():
    """The number of pod networks that containerd set up, and the seconds that this took. None if it has no metrics."""
    try:
        with urllib.request.urlopen(f"http://{METRICS}/v1/metrics", timeout=5) as response:
            text = response.read().decode()
    except OSError:
        return None
    metric = r'^containerd_cri_network_plugin_operations_duration_seconds_seconds_{}{{.*"set_up_pod".*}} (\S+)$'
    found = [re.search(metric.format(kind), text, re.MULTILINE) for kind in ("count", "sum")]
    return [float(one[1]) if one else 0.0 for one in found]


def networks():
    """For each pod: the plugins that its ADD called, its address and its netns."""
    found = {}
    for path in RESULTS.glob("*-eth0"):
        try:
            cached = json.loads(path.read_text())
        except FileNotFoundError:
            continue
        arguments = dict(cached["cniArgs"])
        if arguments["K8S_POD_NAMESPACE"] == NAMESPACE:
            config, result = json.loads(base64.b64decode(cached["config"])), cached["result"]
            found[arguments["K8S_POD_NAME"]] = {
                "plugins": [plugin["type"] for plugin in config["plugins"]],
                "address": result["ips"][0]["address"].split("/")[0],
                "netns": next(one["sandbox"] for one in result["interfaces"] if one.get("sandbox")),
            }
    return found


def rules(netns):
    return output("nsenter", f"--net={netns}", "nft", "list", "ruleset")


def write_conflist(config):
    """Replaces the network config by a rename, as primary CNIs do."""
    new = CONFLIST.with_suffix(".tmp")
    new.write_text(json.dumps(config, indent=2))
    new.rename(CONFLIST)


def busy_seconds():
    """Processor time that this machine has used."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
