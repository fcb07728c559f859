"""The client of plain.py with a mod; its training function is unchanged."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from model import Net, batches

from refiner.defenses import DPGaussian
from refiner.federation.flower import defense_mod

app = ClientApp()


@app.train(mods=[defense_mod(DPGaussian(clip=0.05, magnitude=0.01))])
def train(message: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss = torch.nn.functional.cross_entropy
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    count = 0
    for x, y in batches(context):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
        count += len(y)
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": count}),
    }
    return Message(RecordDict(content), reply_to=message)
