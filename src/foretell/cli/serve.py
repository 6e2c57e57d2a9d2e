"""`foretell serve`: run a model as a server that OpenAI clients use unchanged."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from foretell.cli.audit import read_supervision, report
from foretell.cli.generate import CLIMB
from foretell.cli.model import Device, Dtype, Model, Packed, Revision, Threads, at_revision
from foretell.cli.usage import REQUESTS, RISK
from foretell.errors import RequestError, whole, within

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from foretell.certify.supervise import Supervisor
    from foretell.engine.engine import Engine
    from foretell.serve import Access, Limits

KEY = "FORETELL_API_KEY"
KEEP_ALIVE = 75  # seconds; longer than clients keep a connection that is idle, so that none is closed while they use it
NETWORK = "Network"
SCALE = "Several replicas"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
ANYWHERE = ("", "0.0.0.0", "::")  # noqa: S104  compared with, not bound to
HINT = "find a faster recipe for your prompts with: foretell tune {}, then serve it with --recipe tuned.json"


def serve(
    model: Model,
    host: Annotated[
        str, Option(help="Address to listen on; 0.0.0.0 for all networks.", rich_help_panel=NETWORK)
    ] = "127.0.0.1",
    port: Annotated[int, Option(help="Port to listen on; 0 for any free one.", rich_help_panel=NETWORK)] = 8000,
    api_key: Annotated[
        str | None,
        Option(help=f"Key that clients have to send (default: the variable {KEY}, or none).", rich_help_panel=NETWORK),
    ] = None,
    recipe: Annotated[
        list[str] | None,
        Option(
            "--recipe",
            "-r",
            help="Recipe or certified .json file that clients may choose; the first is the default. Repeatable.",
        ),
    ] = None,
    window: Annotated[
        int | None, Option(help="Length of the response window in tokens (default: the model's layout).")
    ] = None,
    max_batch: Annotated[
        int, Option(help="Largest number of requests decoded together.", rich_help_panel=REQUESTS)
    ] = 8,
    max_waiting: Annotated[
        int, Option(help="Number of requests that may wait; others get status 429.", rich_help_panel=REQUESTS)
    ] = 256,
    max_tokens: Annotated[int, Option(help="Largest number of tokens in an answer.", rich_help_panel=REQUESTS)] = 4096,
    timeout: Annotated[float, Option(help="Time limit of a request in seconds.", rich_help_panel=REQUESTS)] = 600.0,
    grace: Annotated[
        float, Option(help="Time for running requests at shutdown, in seconds.", rich_help_panel=REQUESTS)
    ] = 30.0,
    revision: Revision = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    packed: Packed = None,
    risk: Annotated[float | None, Option(help=CLIMB, rich_help_panel=RISK)] = None,
    confidence: Annotated[
        float | None, Option(help="Probability with which --risk holds (default: 0.95).", rich_help_panel=RISK)
    ] = None,
    loss: Annotated[
        str | None, Option(help="Loss for --risk: answer (default), text or tokens.", rich_help_panel=RISK)
    ] = None,
    explore: Annotated[
        float | None,
        Option(help="Share of requests on which --risk tests recipes (default: 0.2).", rich_help_panel=RISK),
    ] = None,
    pilot: Annotated[
        int | None,
        Option(
            help="Number of requests before --risk chooses the recipes to test (default: 100).", rich_help_panel=RISK
        ),
    ] = None,
    ahead: Annotated[
        int | None,
        Option(help="Number of recipes that --risk tests at the same time (default: all).", rich_help_panel=RISK),
    ] = None,
    state: Annotated[
        Path | None,
        Option(help="File in which --risk keeps its results (default: MODEL.climb.jsonl).", rich_help_panel=RISK),
    ] = None,
    audit: Annotated[
        float | None,
        Option(
            help="Share of requests that are also decoded in full, to check the promised risk.", rich_help_panel=RISK
        ),
    ] = None,
    audit_log: Annotated[
        Path | None, Option(help="Log of the audits (default: MODEL.audit.jsonl).", rich_help_panel=RISK)
    ] = None,
    on_drift: Annotated[
        str | None,
        Option(
            help="If audits show that the risk is too high: warn (default) or full (decode in full).",
            rich_help_panel=RISK,
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        Option(help="Number of replicas of the model, on a Ray cluster (docs/scale.md).", rich_help_panel=SCALE),
    ] = None,
    max_replicas: Annotated[
        int | None,
        Option(
            help="Number of replicas that Ray may start if requests wait (default: --replicas).", rich_help_panel=SCALE
        ),
    ] = None,
    ray: Annotated[
        str | None,
        Option(
            help="Ray cluster of the replicas: auto, local (default: a new one on this machine) or an address.",
            rich_help_panel=SCALE,
        ),
    ] = None,
    cpus: Annotated[float | None, Option(help="CPUs per replica (default: 1).", rich_help_panel=SCALE)] = None,
    gpus: Annotated[
        float | None, Option(help="GPUs per replica (default: 1 if the cluster has any).", rich_help_panel=SCALE)
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        Option(help="Host name that clients use, besides localhost and --host. Repeatable.", rich_help_panel=NETWORK),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        Option(help="Origin of a page on another host that may call the server. Repeatable.", rich_help_panel=NETWORK),
    ] = None,
) -> None:
    """Serve a model to OpenAI clients, with a page that shows each step.

    foretell serve tiny
    """
    run(dict(locals()))


def run(given: dict[str, Any]) -> None:
    """Check everything, load the model, and serve until SIGTERM or Ctrl-C."""
    from foretell.extras import require_extra  # noqa: PLC0415

    require_extra("server")
    from foretell.serve import Access  # noqa: PLC0415

    whole("--port", given["port"], 0, 65535, RequestError)
    within("--grace", given["grace"], 0.0, 1e6, RequestError)
    key = given["api_key"] or os.environ.get(KEY) or None
    recipes = tuple(given["recipe"] or ())
    limits = _limits(given)
    check_recipes(recipes)
    supervision = read_supervision(_with_logs(given))
    if _wants_ray(given):
        _serve_on_ray(given, recipes, limits, Access(key, _hosts(given), tuple(given["cors_origin"] or ())))
        return

    from foretell.cli.model import check_rows, introduce, open_engine  # noqa: PLC0415

    name = at_revision(given["model"], given["revision"])
    engine = open_engine(name, given["device"], given["dtype"], given["threads"], packed=given["packed"])
    introduce(engine)
    check_rows(engine, limits.max_batch, engine.template(max_new_tokens=limits.window).layout.length)
    with ExitStack() as stack:
        supervisor = None
        if supervision is not None:
            supervisor = stack.enter_context(_supervise(supervision, engine, recipes, limits))
        from foretell.serve import app  # noqa: PLC0415

        made = app(
            engine,
            recipes=recipes,
            limits=limits,
            access=Access(key, _hosts(given), tuple(given["cors_origin"] or ())),
            supervisor=supervisor,
            report=report,
            grace=given["grace"],
        )
        listen(made, given["host"], given["port"], given["grace"], greet=lambda port: _greet(made, given, port, key))


def _wants_ray(given: dict[str, Any]) -> bool:
    """Return whether to serve on Ray. Raises RequestError for options that do not go together."""
    if given["replicas"] is None and given["ray"] is None:
        for name in ("max_replicas", "cpus", "gpus"):
            if given[name] is not None:
                raise RequestError(f"--{name.replace('_', '-')} is for replicas: give --replicas, or --ray, too")
        return False
    if given["risk"] is not None or given["audit"] is not None:
        raise RequestError(
            "--risk and --audit need all requests in one process: leave out --replicas and --ray, or serve a recipe "
            "that foretell tune has certified"
        )
    if given["replicas"] is not None:
        whole("--replicas", given["replicas"], 1, error=RequestError)
    return True


def _serve_on_ray(given: dict[str, Any], recipes: tuple[str, ...], limits: Limits, access: Access) -> None:
    """Serve with replicas until SIGTERM or Ctrl-C."""
    from foretell.extras import require_extra  # noqa: PLC0415

    require_extra("ray")
    from foretell.cli.console import say  # noqa: PLC0415
    from foretell.scale.run import LOCAL, Cluster, run_server  # noqa: PLC0415

    options = {name: given[name] for name in ("max_replicas", "gpus", "device", "dtype", "threads", "packed")}
    options |= {"replicas": given["replicas"] or 1, "cpus": 1.0 if given["cpus"] is None else given["cpus"]}
    cluster = Cluster(given["ray"] or LOCAL, given["host"], given["port"], given["grace"])

    def greet(address: str, info: dict[str, Any]) -> None:
        offered = [one["name"] for one in info["recipes"]]
        say(f"serving {info['model']} at {address} with {options['replicas']} replicas", style="bold")
        say(f"recipe: {offered[0]} · offered: {', '.join(offered)}", style="dim")
        example = next((one["prompt"] for one in info["examples"]), "Say hello.")
        say(write_curl(address, info["model"], example, key=access.key is not None), style="")

    run_server(
        cluster,
        at_revision(given["model"], given["revision"]),
        options | {"recipes": recipes, "limits": limits, "access": access},
        greet=greet,
        wait=wait_for_signal,
        report=lambda line: say(line, style="dim"),
    )


def wait_for_signal() -> None:
    """Return at SIGTERM or Ctrl-C."""
    arrived = threading.Event()
    before = {one: signal.signal(one, lambda *_: arrived.set()) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        while not arrived.wait(1.0):  # signals are handled between the calls
            pass
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _limits(given: dict[str, Any]) -> Limits:
    from foretell.serve import Limits  # noqa: PLC0415

    names = ("max_batch", "max_waiting", "max_tokens", "timeout", "window")
    return Limits(**{name: given[name] for name in names})


def check_recipes(recipes: tuple[str, ...]) -> None:
    """Raise an error for a wrong recipe before the weights are loaded."""
    from foretell.engine.certificate import recipe_of  # noqa: PLC0415
    from foretell.recipes.presets import parse  # noqa: PLC0415

    for one in recipes:
        found = recipe_of(one)
        if isinstance(found, str):
            parse(found)


def _with_logs(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options with default files for logs, in the current folder, named after the model."""
    stem = Path(given["model"]).name.replace("@", "-")
    files = {"audit_log": (given["audit"], "audit"), "state": (given["risk"], "climb")}
    chosen = {
        name: Path(f"{stem}.{suffix}.jsonl")
        for name, (asked, suffix) in files.items()
        if given[name] is None and asked is not None and (name == "state" or given["risk"] is None)
    }
    return given | chosen | {"watch": False, "out": None}


@contextmanager
def _supervise(supervision: Any, engine: Engine, recipes: tuple[str, ...], limits: Limits) -> Iterator[Supervisor]:
    """Yield the supervisor of requests that name no recipe."""
    from foretell.engine.options import Options  # noqa: PLC0415

    options: dict[str, Any] = {"max_new_tokens": limits.window}
    if recipes and recipes[0].endswith(".json"):
        options["recipe"] = recipes[0]
    with supervision.open(engine, engine.template(**options), Options.of(options)) as supervisor:
        yield supervisor


def _hosts(given: dict[str, Any]) -> tuple[str, ...]:
    """Return the host names that are served; none, which means all, if the server listens on all networks."""
    named = tuple(one.lower() for one in given["allowed_host"] or ())
    if given["host"] in ANYWHERE and not named:
        return ()
    return (*LOOPBACK, given["host"].lower(), *named)


def listen(made: Starlette, host: str, port: int, grace: float, greet: Any) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish running requests."""
    import uvicorn  # noqa: PLC0415

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                greet(self.servers[0].sockets[0].getsockname()[1])

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Leave the loop at a signal, without raising it again: a drained server has done its work."""
            before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
            try:
                yield
            finally:
                for one, handler in before.items():
                    signal.signal(one, handler)

        def handle_exit(self, sig: int, frame: Any) -> None:
            made.state.service.draining = True
            super().handle_exit(sig, frame)

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("foretell.serve").setLevel(logging.INFO)
    shown = max(1, round(grace))
    config = uvicorn.Config(
        made,
        host,
        port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=shown,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
    )
    Server(config).run()


def _greet(made: Starlette, given: dict[str, Any], port: int, key: str | None) -> None:
    """Print the address, the model, the recipe, and a command that works."""
    from foretell.cli.console import say  # noqa: PLC0415
    from foretell.serve.examples import find_examples  # noqa: PLC0415

    service = made.state.service
    shown = "localhost" if given["host"] in ("127.0.0.1", *ANYWHERE) else given["host"]
    address = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}"
    default = service.offers.default
    supervised = service.supervisor is not None
    recipe = f"full at first; faster ones are earned with risk {given['risk']:g}" if given["risk"] else default.name
    say(f"serving {service.model} at {address}", style="bold")
    say(f"recipe: {recipe} · offered: {', '.join(service.offers.each)}", style="dim")
    if not (supervised or given["recipe"] or find_examples(service.engine)):
        say(HINT.format(given["model"]), style="dim")
    example = next((one.prompt for one in find_examples(service.engine)), "Say hello.")
    say(write_curl(address, service.model, example, key=key is not None), style="")


def write_curl(address: str, model: str, prompt: str, *, key: bool) -> str:
    """Return a command that sends a prompt to a server."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": prompt}]})
    secret = f' -H "Authorization: Bearer ${KEY}"' if key else ""
    return f"curl {address}/v1/chat/completions{secret} -d '{body}'"
