"""The manifests: valid by the real schemas, closed, consistent, and every command in them is ours."""

import copy
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.deployed import flags_of, parse_command

from sbpipe.errors import ConfigError
from sbpipe.link.keyring import Keyring
from sbpipe.link.keys import load_keys, make_keys

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
FILES = sorted(KUBERNETES.glob("*.yaml"))
README = (KUBERNETES / "README.md").read_text(encoding="utf-8")
ROLES = ("trainer", "selector")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((KUBERNETES / name).read_text(encoding="utf-8")))


def job_specs(name: str) -> dict[str, Any]:
    """The specification of each role's Job, in either form."""
    found = documents(name)
    if found[0]["kind"] == "JobSet":
        return {job["name"]: job["template"]["spec"] for job in found[0]["spec"]["replicatedJobs"]}
    return {
        each["metadata"]["name"].removeprefix("sbpipe-"): each["spec"]
        for each in found
        if each["kind"] == "Job"
    }


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in ("jobset.yaml", "jobs.yaml"):
        for role, spec in job_specs(name).items():
            yield role, spec["template"]["spec"]


def environment_of(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"]}


# --- the real schemas -----------------------------------------------------------------------------


def strictly(schema: Any) -> Any:
    """A structural schema of a CRD as JSON schema; what it does not name is refused."""
    if isinstance(schema, list):
        return [strictly(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strictly(value) for key, value in schema.items()}
    if made.get("x-kubernetes-int-or-string") is True:
        made.pop("type", None)
    if made.get("type") == "object" and "properties" in made:
        made.setdefault("additionalProperties", False)
    return made


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_kubernetes_own_schemas_accept_every_object(path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate").validate
    for each in documents(path.name):
        if each["kind"] == "JobSet":
            # Its jobs are ordinary ones.
            for name, spec in job_specs(path.name).items():
                job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
                validate(job, "1.31.0", strict=True)
        else:
            validate(each, "1.31.0", strict=True)


def test_jobsets_own_schema_accepts_the_set() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="pip install jsonschema")
    place = os.environ.get("JOBSET_CRD")
    if not place:
        pytest.skip("set JOBSET_CRD to jobset.x-k8s.io_jobsets.yaml of a JobSet release")
    definition = yaml.safe_load(Path(place).read_text(encoding="utf-8"))
    schema = strictly(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    (jobset,) = documents("jobset.yaml")
    jsonschema.validate(jobset, schema)
    wrong = copy.deepcopy(jobset)
    wrong["spec"]["sucessPolicy"] = wrong["spec"].pop("successPolicy")
    with pytest.raises(jsonschema.ValidationError, match="sucessPolicy"):
        jsonschema.validate(wrong, schema)


def test_jobsets_own_python_client_reads_the_set() -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="pip install kubeflow-trainer-api")
    (jobset,) = documents("jobset.yaml")
    kind = models.JobsetV1alpha2JobSet
    assert lost(jobset, kind.from_dict(jobset).to_dict()) == []
    # What it does not know is not read: so nothing that was read had a wrong name.
    jobset["spec"]["sucessPolicy"] = jobset["spec"].pop("successPolicy")
    assert lost(jobset, kind.from_dict(jobset).to_dict()) == ["/spec/sucessPolicy"]


def lost(given: Any, read: Any, place: str = "") -> list[str]:
    """Where what was given is not in what was read, which may have defaults besides."""
    if isinstance(given, dict) and isinstance(read, dict):
        return [fault for key in given for fault in lost(given[key], read.get(key), f"{place}/{key}")]
    if isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        pairs = enumerate(zip(given, read, strict=True))
        return [fault for number, pair in pairs for fault in lost(*pair, f"{place}/{number}")]
    return [] if given == read else [place]


def test_kubectl_reads_every_file(tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl: https://kubernetes.io/docs/tasks/tools")
    for path in FILES:
        shutil.copy(path, tmp_path)
    names = [path.name for path in FILES if path.name != "jobs.yaml"]
    for chosen in (names, ["common.yaml", "jobs.yaml"]):
        (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({"resources": chosen}))
        done = subprocess.run(
            [kubectl, "kustomize", str(tmp_path)], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        kinds = [each["kind"] for each in yaml.safe_load_all(done.stdout)]
        assert len(kinds) == sum(len(documents(name)) for name in chosen)


def test_kubectls_own_types_take_every_object() -> None:
    """Without a server: a command that only changes objects in memory decodes them, as its own types."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl: https://kubernetes.io/docs/tasks/tools")
    for names in (["common.yaml", "jobs.yaml"], ["jobset.yaml"]):
        files = [word for name in names for word in ("-f", str(KUBERNETES / name))]
        words = [kubectl, "label", "--local", *files, "checked=yes", "-o", "json"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count('"checked": "yes"') == sum(len(documents(name)) for name in names)


def test_the_secrets_of_the_readme_are_made_by_kubectl(tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl: https://kubernetes.io/docs/tasks/tools")
    make_keys(tmp_path / "keys")
    made = {}
    for line in re.findall(r"^kubectl create (secret generic .*)$", README, re.MULTILINE):
        words = line.split(" --dry-run")[0].split()
        done = subprocess.run(
            [kubectl, "create", *words, "--dry-run=client", "-o", "json"],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        secret = json.loads(done.stdout)
        made[secret["metadata"]["name"]] = set(secret["data"])
    assert made == {
        "sbpipe-trainer": {"trainer.key"},
        "sbpipe-selector": {"selector.key"},
        "sbpipe-allowed": {"selector.pub"},
    }


# --- what they promise ----------------------------------------------------------------------------


def test_no_pod_has_rights_it_does_not_need() -> None:
    for _, pod in pods():
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
        for container in [*pod["initContainers"], *pod["containers"]]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_a_role_runs_as_the_images_user() -> None:
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    (user,) = re.findall(r"^ARG USER_ID=(\d+)$", dockerfile, re.MULTILINE)
    for _, pod in pods():
        context = pod["securityContext"]
        assert {context[key] for key in ("runAsUser", "runAsGroup", "fsGroup")} == {int(user)}


def test_a_selector_never_sees_the_trainers_key() -> None:
    for role, pod in pods():
        secrets = {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
        assert secrets == (
            {"sbpipe-selector"} if role == "selector" else {"sbpipe-trainer", "sbpipe-allowed"}
        )


def test_both_ways_start_the_same_pods_but_for_the_trainers_address() -> None:
    one, other = job_specs("jobset.yaml"), job_specs("jobs.yaml")
    links = []
    for specs in (one, other):
        for variable in specs["selector"]["template"]["spec"]["containers"][0]["env"]:
            if variable["name"] == "SBPIPE_LINK":
                links.append(variable.pop("value"))
    assert one == other
    assert links == ["tcp://sbpipe-trainer-0-0.sbpipe:5570", "tcp://sbpipe-trainer:5570"]


def test_the_address_is_the_one_that_the_set_or_the_service_gives() -> None:
    (jobset,) = documents("jobset.yaml")
    name = jobset["metadata"]["name"]
    assert jobset["spec"]["replicatedJobs"][0]["name"] == "trainer"
    assert jobset["spec"]["network"]["enableDNSHostnames"] is True
    assert f"tcp://{name}-trainer-0-0.{name}:5570" in (KUBERNETES / "jobset.yaml").read_text(encoding="utf-8")
    (service,) = (each for each in documents("jobs.yaml") if each["kind"] == "Service")
    assert service["metadata"]["name"] == "sbpipe-trainer"
    labels = job_specs("jobs.yaml")["trainer"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert [port["port"] for port in service["spec"]["ports"]] == [5570, 5571]


def test_the_trainer_decides_and_a_mistake_is_not_tried_again() -> None:
    (jobset,) = documents("jobset.yaml")
    assert jobset["spec"]["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["trainer"]}
    for name in ("jobset.yaml", "jobs.yaml"):
        rules = job_specs(name)["trainer"]["podFailurePolicy"]["rules"]
        (codes,) = (rule["onExitCodes"]["values"] for rule in rules if rule["action"] == "FailJob")
        assert codes == [ConfigError.exit_code]
        assert job_specs(name)["selector"]["template"]["spec"]["restartPolicy"] == "OnFailure"


@pytest.mark.parametrize("role", ROLES)
def test_the_commands_and_settings_are_ours(role: str) -> None:
    script = (ROOT / "docker" / "role.sh").read_text(encoding="utf-8")
    health = (ROOT / "docker" / "healthcheck.py").read_text(encoding="utf-8")
    for which, pod in pods():
        (container,) = pod["containers"]
        if which != role:
            continue
        assert container["command"] == ["sbpipe-role"]
        variables = environment_of(container)
        assert all(name in script or name in health for name in variables)
        words = [word for each in variables["SBPIPE_SET"].split() for word in ("--set", each)]
        parsed = parse_command(["sbpipe", *container["args"], *words])
        assert parsed.command == role
        assert container["livenessProbe"]["exec"]["command"] == ["sbpipe-health", role]


def test_every_mount_has_its_volume_and_every_path_that_the_image_uses_is_writable_or_given() -> None:
    for _, pod in pods():
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounts = [
            mount for each in [*pod["initContainers"], *pod["containers"]] for mount in each["volumeMounts"]
        ]
        assert {mount["name"] for mount in mounts} == volumes
        (container,) = pod["containers"]
        paths = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert {"/runs", "/tmp", "/dev/shm", "/keys", "/config.toml"} <= paths


def test_without_gpus_nothing_of_them_is_left() -> None:
    """The line of the README that makes a file for clusters without GPUs."""
    (expression,) = set(re.findall(r"sed '([^']+)' deploy/kubernetes/jobset.yaml", README))
    for name in ("jobset.yaml", "jobs.yaml"):
        path = str(KUBERNETES / name)
        done = subprocess.run(
            ["sed", expression, path], capture_output=True, text=True, check=True, timeout=60
        )
        assert len(list(yaml.safe_load_all(done.stdout))) == len(documents(name))
        assert "nvidia" not in done.stdout
        assert "cuda" not in done.stdout


# --- keys, as a Secret's volume holds them --------------------------------------------------------


def secret_volume(folder: Path, files: dict[str, str], stamp: str) -> None:
    """A volume as the kubelet writes it: links through ..data, which is replaced as a whole."""
    version = folder / f"..{stamp}"
    version.mkdir(parents=True)
    version.chmod(0o755)
    for name, text in files.items():
        (version / name).write_text(text)
        (version / name).chmod(0o440)
    (folder / "..new").symlink_to(version.name)
    (folder / "..new").rename(folder / "..data")


def init_command(role: str, folder: Path) -> list[str]:
    """What the init container runs, with the volumes in `folder`."""
    (command,) = {tuple(pod["initContainers"][0]["command"]) for which, pod in pods() if which == role}
    return [re.sub(r"/(?=secret|keys|allowed)(?<!s/)(?<![\w}])", f"{folder}/", word) for word in command]


def test_a_key_in_a_secret_is_refused_and_the_copy_of_the_init_container_is_taken(tmp_path: Path) -> None:
    made = tmp_path / "made"
    make_keys(made)
    (tmp_path / "keys").mkdir()
    for role in ROLES:
        secret_volume(tmp_path / "secret", {f"{role}.key": (made / f"{role}.key").read_text()}, role)
        (tmp_path / "secret" / f"{role}.key").symlink_to(f"..data/{role}.key")
        with pytest.raises(ConfigError, match="has mode 0440, so others may read it"):
            load_keys(tmp_path / "secret", role)
        subprocess.run(init_command(role, tmp_path), check=True, timeout=60)
        assert load_keys(tmp_path / "keys", role) == load_keys(made, role)


def test_a_key_that_leaves_the_secret_is_revoked_while_the_trainer_runs(tmp_path: Path) -> None:
    made = tmp_path / "made"
    make_keys(made)
    public = {"selector.pub": (made / "allowed" / "selector.pub").read_text()}
    (tmp_path / "keys").mkdir()
    secret_volume(tmp_path / "secret", {"trainer.key": (made / "trainer.key").read_text()}, "1")
    (tmp_path / "secret" / "trainer.key").symlink_to("..data/trainer.key")
    secret_volume(tmp_path / "allowed", public, "1")
    subprocess.run(init_command("trainer", tmp_path), check=True, timeout=60)
    keyring = Keyring(load_keys(tmp_path / "keys", "trainer"), tmp_path / "keys")
    assert list(keyring.allowed.values()) == ["selector"]
    secret_volume(tmp_path / "allowed", {}, "2")
    assert keyring.refresh() is True
    assert keyring.allowed == {}


def test_the_readme_names_the_flags_that_we_have() -> None:
    assert flags_of(README)
