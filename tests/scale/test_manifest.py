"""The RayService manifest: Ray accepts its configuration, and our builder its arguments. No cluster is started."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from foretell.errors import ForetellError, RequestError

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed; run make test-ray"),
]
MANIFEST = Path(__file__).parents[2] / "deploy" / "rayservice.yaml"


def read() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the manifest, and the configuration of Serve in it."""
    import yaml

    manifest = yaml.safe_load(MANIFEST.read_text())
    return manifest, yaml.safe_load(manifest["spec"]["serveConfigV2"])


def build(**args: Any) -> Any:
    from foretell.scale import build

    return build(args)


def test_ray_accepts_the_configuration() -> None:
    from ray.serve.schema import ServeDeploySchema

    _, config = read()
    deployed = ServeDeploySchema.model_validate(config)
    (application,) = deployed.applications
    module, _, name = application.import_path.partition(":")
    assert callable(getattr(import_module(module), name))
    assert deployed.http_options.port == 8000
    with pytest.raises(ValueError, match="import_paht"):
        ServeDeploySchema.model_validate({"applications": [{"name": "x", "import_paht": "a:b"}]})


def test_the_application_is_built_from_its_arguments() -> None:
    from ray.serve import Application

    manifest, config = read()
    assert isinstance(build(**config["applications"][0]["args"]), Application)
    cluster = manifest["spec"]["rayClusterConfig"]
    (group,) = cluster["workerGroupSpecs"]
    args = config["applications"][0]["args"]
    assert group["maxReplicas"] >= args["max_replicas"]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert int(limits["cpu"]) >= args["cpus"]
    assert int(limits["nvidia.com/gpu"]) >= 1


def test_what_replicas_get(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options, limits and the key reach the deployments of the application."""
    from foretell.scale.routing import BALANCE
    from foretell.scale.serve import SPARE

    monkeypatch.setenv("FORETELL_API_KEY", "secret")
    made = build(model="tiny", replicas=2, max_replicas=5, cpus=4, max_batch=6, max_waiting=9, hosts=["me"], silence=7)
    front = made._bound_deployment
    replica = front.init_args[0]._bound_deployment
    options, recipes, limits, key, patience, grace = replica.init_args
    assert (options.model, options.threads, recipes, key, grace) == ("tiny", 4, [], "secret", 30.0)
    assert (limits.max_batch, limits.max_waiting, patience.silence) == (6, 9, 7)
    assert (replica.max_ongoing_requests, replica.max_queued_requests) == (8 + SPARE, 9)
    scaling = replica._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas, scaling.target_ongoing_requests) == (2, 5, 6)
    assert replica.ray_actor_options["num_cpus"] == 4
    assert replica.ray_actor_options["num_gpus"] == 0
    router = replica._deployment_config.request_router_config
    assert router.request_router_class.endswith("GroupRouter")
    assert router.request_router_kwargs == {"capacity": 8, "balance": BALANCE}
    assert front.init_args[2].hosts == ("me",)
    on_gpu = build(model="tiny", device="cuda")._bound_deployment.init_args[0]._bound_deployment
    assert on_gpu.ray_actor_options["num_gpus"] == 1


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({}, "args needs a model"),
        ({"model": "tiny", "replica": 2}, "did you mean 'replicas'"),
        ({"model": "tiny", "replicas": 0}, "replicas must be at least 1"),
        ({"model": "tiny", "replicas": 3, "max_replicas": 2}, "max_replicas must be at least 3"),
        ({"model": "tiny", "cpus": -1}, "cpus must be from 0"),
        ({"model": "tiny", "gpus": -1}, "gpus must be from 0"),
        ({"model": "tiny", "balance": 0.5}, "balance must be from 1"),
        ({"model": "tiny", "max_batch": 0}, "max_batch must be at least 1"),
        ({"model": "tiny", "recipes": ["swiftt"]}, "unknown recipe 'swiftt'"),
        ({"model": "tiny", "recipes": ["missing.json"]}, "missing.json"),
    ],
)
def test_wrong_arguments_are_refused_at_once(args: dict[str, Any], says: str) -> None:
    with pytest.raises(ForetellError, match=says):
        build(**args)


def test_a_certified_file_is_sent_with_its_text(tmp_path: Path) -> None:
    from foretell.scale.serve import _pack, _unpack

    stored = Path(__file__).parents[1] / "stored" / "0.2.0" / "tuned.json"
    packed = _pack(str(stored))
    assert packed == (stored.name, stored.read_text())
    unpacked = Path(_unpack(packed, tmp_path))
    assert (unpacked.parent, unpacked.read_text()) == (tmp_path, stored.read_text())
    assert _pack("swift") == _unpack("swift", tmp_path) == "swift"
    with pytest.raises(RequestError, match="must be a text or a file"):
        _pack(3)  # type: ignore[arg-type]
