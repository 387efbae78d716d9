"""Use case `measure --endpoint`: a server that somebody else runs is loaded and shown in full; it is never stopped."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from optimizer.app.figures import Question, spoiled_by_client, with_curve, with_figures
from optimizer.app.live import LevelMeasured, LiveServer, Watchers, measure_live, measure_offline, sweep_live
from optimizer.app.measure import Watch, check_modes
from optimizer.app.plan import describe_workload
from optimizer.app.server_probe import ServedModel, api_key, base_url, choose_model, is_loopback, served_models
from optimizer.app.session import HostState, interruptible
from optimizer.app.traffic import AS_THE_WORKLOAD_SAYS, TrafficOptions, sweep_levels, with_traffic
from optimizer.config import load_workload
from optimizer.core.endpoint import EngineEndpoint
from optimizer.core.errors import HostError, InputError
from optimizer.core.measurement import Measurement
from optimizer.core.stop_reason import StopReason
from optimizer.load import LoadFailed, Workload
from optimizer.load.failure import ClientSpoiled
from optimizer.load.tokenizer import ModelTokenizer, load_tokenizer
from optimizer.metrics import Unreadable, read_metrics
from optimizer.objectives import OBJECTIVES, USUAL_RULES, check_slos, parse_slo, resolve_limits
from optimizer.report.measure_view import MeasureView
from optimizer.tuning.aim import Aim
from optimizer.tuning.decision import StopDecision

USUAL_WORKLOAD = "chat-shared-prefix"


@dataclass(frozen=True, slots=True)
class EndpointRequest:
    """The options of `measure --endpoint`.

    Attributes:
        endpoint: The server's address, as it was given.
        model: Served model name; the first that the server lists by default.
        workload: Built-in name or path of a workload file.
        slos: Limits in milliseconds.
        traffic: What the command line says of rate, number and time.
        sweep: Levels, `auto`, or None for one measurement.
        offline: Whether all requests are sent at once.
        api_key_env: The variable that holds the server's key.
        tokenizer: Folder of the model's tokenizer, where the workload needs one and the server's own is not at hand.
        seed: Of lengths and arrivals.
        anywhere: Whether a server that is not on this host may be loaded.
    """

    endpoint: str
    model: str | None = None
    workload: str = USUAL_WORKLOAD
    slos: tuple[str, ...] = ()
    traffic: TrafficOptions = AS_THE_WORKLOAD_SAYS
    sweep: str | None = None
    offline: bool = False
    api_key_env: str | None = None
    tokenizer: str | None = None
    seed: int = 0
    anywhere: bool = False


@dataclass(frozen=True, slots=True)
class EndpointOutcome:
    """What `measure --endpoint` came to.

    Attributes:
        view: What was measured, or seen before the server vanished.
        trouble: Why it is no measurement; None when it is one.
    """

    view: MeasureView
    trouble: HostError | None


@dataclass(slots=True)
class _Work:
    """One measurement, put together. `measured` holds the levels of a sweep so far."""

    request: EndpointRequest
    address: str
    key: str | None
    question: Question
    levels: tuple[float, ...]
    notes: list[str] = field(default_factory=list)
    measured: list[LevelMeasured] = field(default_factory=list)


def measure_endpoint(request: EndpointRequest, watch: Watch) -> EndpointOutcome:
    """Load the server, and show what came of it. Its prefix cache is not reset, and it is not stopped.

    Raises:
        InputError: Wrong options, or the server does not serve the model, or wants another key.
        HostError: No server answers, it is none of this kind, or it served nothing.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP; every connection is closed.
    """
    check_modes(request.sweep, offline=request.offline, slos=request.slos, traffic=request.traffic)
    address = base_url(request.endpoint)
    if not is_loopback(address) and not request.anywhere:
        raise InputError(
            f"--endpoint {address}: this server is not on this host, and load may harm whoever uses it",
            hint="add --yes if it is yours to load",
        )
    workload = with_traffic(load_workload(request.workload), request.traffic)
    slos = [parse_slo(text, origin="--slo") for text in request.slos]
    check_slos(slos, origin="--slo")
    relative = next((slo for slo in slos if slo.is_relative), None)
    if relative is not None:
        raise InputError(
            f"--slo {relative}: a server alone has no baseline to multiply",
            hint=f"state it in milliseconds, such as {relative.name}=800",
        )
    question = Question(workload, request.seed, resolve_limits(slos, {}), offline=request.offline)
    levels = () if request.sweep is None else sweep_levels(request.sweep, workload)
    work = _Work(request, address, api_key(request.api_key_env), question, levels)
    return asyncio.run(interruptible(_measured(work, watch), HostState(None, []), kept="connections are closed and "))


async def _measured(work: _Work, watch: Watch) -> EndpointOutcome:
    request = work.request
    model = choose_model(await served_models(work.address, work.key), request.model, work.address)
    endpoint = EngineEndpoint(work.address, model.name, work.key)
    server = LiveServer(endpoint, _tokenizer(request, work.question.workload, model), model.max_model_len)
    work.notes += ["the prefix cache was not reset: the server is not ours"]
    work.notes += await _metrics_note(endpoint)
    trouble: HostError | None = None
    measurement: Measurement | None = None
    try:
        measurement = await _loaded(server, work, Watchers(watch.say, watch.progress))
    except (LoadFailed, ClientSpoiled) as failed:
        trouble = await _trouble(work, failed.message, failed.evidence)
        if not work.measured:
            raise trouble from None
    last = work.measured[-1].measurement if measurement is None else measurement
    if trouble is None and last.load.stopped_by is StopReason.FAILURES:
        errors = tuple(dict.fromkeys(error for error in last.load.errors if error is not None))
        trouble = await _trouble(work, "nothing but failures came any more", errors[-1:])
    elif trouble is None and not last.load.ok.any():
        trouble = await _trouble(work, "no request succeeded", tuple(e for e in last.load.errors if e)[:1])
    complete = trouble is None
    if trouble is None and not work.measured and (why := spoiled_by_client(last, work.question)) is not None:
        trouble = HostError(why, hint="give this host less to do, or load the server from one with more cores")
    return EndpointOutcome(_view(work, model, last, complete=complete), trouble)


async def _loaded(server: LiveServer, work: _Work, watchers: Watchers) -> Measurement:
    request, question = work.request, work.question
    workload = question.workload
    spoiled = functools.partial(spoiled_by_client, question=question)
    if request.offline:
        requests = request.traffic.requests or workload.window.min_requests
        return await measure_offline(server, workload, request.seed, requests, watchers)
    if work.levels:
        keep = work.measured.append
        await sweep_live(server, workload, work.levels, request.seed, watchers, keep=keep, spoiled=spoiled)
        return work.measured[-1].measurement
    decide = None
    if question.limits and not request.traffic.fixes_length:
        aim = Aim(OBJECTIVES["throughput"], tuple(question.limits), rules=question.rules, whole=True)
        decide = functools.partial(StopDecision, aim)
    return await measure_live(server, workload, request.seed, watchers, decide=decide, spoiled=spoiled)


def _tokenizer(request: EndpointRequest, workload: Workload, model: ServedModel) -> ModelTokenizer | None:
    """The tokenizer of `--tokenizer`, or of the model's folder where the server names one on this host."""
    if not workload.needs_tokenizer:
        return None
    if request.tokenizer is None and (model.root is None or not Path(model.root).is_dir()):
        raise InputError(
            f"workload {workload.name} needs the tokenizer of {model.name}, and its folder is not known",
            hint="give --tokenizer FOLDER, which holds its tokenizer.json",
        )
    return load_tokenizer(request.tokenizer or model.root or "")


async def _metrics_note(endpoint: EngineEndpoint) -> list[str]:
    async with aiohttp.ClientSession() as session:
        try:
            await read_metrics(endpoint, session)
        except Unreadable as trouble:
            return [f"the server's /metrics does not answer ({trouble}), so what it says of itself is missing"]
    return []


async def _trouble(work: _Work, message: str, evidence: tuple[str, ...]) -> HostError:
    """What went wrong, told by whether the server still answers."""
    told = f"{message} [{evidence[0]}]" if evidence else message
    try:
        await served_models(work.address, work.key)
    except (HostError, InputError) as gone:
        return HostError(f"the server vanished: {told}; now: {gone.message}", hint=gone.hint)
    return HostError(f"{work.address}: {told}", hint="look into the server's own log")


def _view(work: _Work, model: ServedModel, last: Measurement, *, complete: bool) -> MeasureView:
    request, question = work.request, work.question
    base = MeasureView(
        subject=work.address,
        mode="offline" if request.offline else "online" if not work.levels else "sweep",
        simulated=False,
        complete=complete,
        engine=None,
        model=model.name,
        workload=describe_workload(question.workload),
        seed=request.seed,
        confidence=USUAL_RULES.confidence,
        notes=work.notes,
        folder=None,
    )
    if work.measured:
        return with_curve(base, work.measured, question)
    return with_figures(base, last, question)
