"""A Flower client without a defence: it receives weights, trains, and returns its weights."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from model import Net, batches

app = ClientApp()


@app.train()
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
