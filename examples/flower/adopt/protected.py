"""The client of plain.py with Refiner; four lines differ."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from model import Net, batches

import refiner.federation.flower

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    defense = refiner.Refiner(secret=refiner.federation.flower.secret(context))
    loss = torch.nn.functional.cross_entropy
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    count = 0
    with refiner.federation.flower.defense_state(context, defense) as state:
        for x, y in batches(context):
            optimizer.zero_grad()
            refiner.backward(model, loss, x, y, defense, state=state)
            optimizer.step()
            count += len(y)
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": count}),
    }
    return Message(RecordDict(content), reply_to=message)
