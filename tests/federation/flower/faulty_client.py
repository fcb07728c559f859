"""The library's client with faults, chosen by the file `fault` in its folder."""

import time

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord

from refiner.federation.flower.client import client_app
from refiner.federation.flower.client_secrets import client_folder


def inject_fault(message: Message, context: Context, call_next) -> Message:  # type: ignore[no-untyped-def]
    folder = client_folder(context)
    fault = (folder / "fault").read_text() if (folder / "fault").exists() else ""
    (folder / "asked").write_text(message.metadata.group_id)
    step: object = None
    if "request" in message.content:  # a step of secure aggregation
        step = message.content.config_records["request"]["step"]
        (folder / "step").write_text(f"{message.metadata.group_id} {step}")
        if fault == f"stop before {message.metadata.group_id} {step}":
            time.sleep(600)
    elif fault == "slow":
        time.sleep(600)
    reply: Message = call_next(message, context)
    if not reply.has_error() and fault == f"spoil {message.metadata.group_id} mask" and step == "mask":
        for arrays in reply.content.array_records.values():
            for name, array in arrays.items():
                noise = np.random.default_rng(0).integers(0, 256, array.numpy().size, dtype=np.uint8)
                arrays[name] = Array(noise)
    if reply.has_error() or "request" in message.content:
        return reply
    arrays, metrics = reply.content["arrays"], reply.content["metrics"]
    assert isinstance(arrays, ArrayRecord) and isinstance(metrics, MetricRecord)
    weight = arrays["head.weight"].numpy().copy()
    if fault == "nan":
        weight[0, 0] = np.nan
        arrays["head.weight"] = Array(weight)
    elif fault == "shape":
        arrays["head.weight"] = Array(weight[:, :-1])
    elif fault == "name":
        arrays["tail.weight"] = arrays.pop("head.weight")
    elif fault == "count":
        metrics["num-examples"] = 10**9
    return reply


app = client_app(mods=[inject_fault])
