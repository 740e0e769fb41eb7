"""pytorch/examples time_sequence_prediction: LBFGS over the whole data set, no loader."""

import torch
from torch import nn, optim


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTMCell(1, 5)
        self.linear = nn.Linear(5, 1)

    def forward(self, series):
        outputs = []
        h_t = torch.zeros(series.size(0), 5)
        c_t = torch.zeros(series.size(0), 5)
        for input_t in series.split(1, dim=1):
            h_t, c_t = self.lstm(input_t, (h_t, c_t))
            outputs.append(self.linear(h_t))
        return torch.cat(outputs, dim=1)


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    phase = torch.arange(7.0).unsqueeze(1)
    data = torch.sin(torch.arange(9.0) / 2 + phase)
    source, target = data[:, :-1], data[:, 1:]
    seq = Sequence()
    criterion = nn.MSELoss()
    optimizer = optim.LBFGS(seq.parameters(), lr=0.8, max_iter=3)

    for i in range(3):

        def closure():
            optimizer.zero_grad()
            loss = criterion(seq(source), target)
            loss.backward()
            return loss

        print("STEP:", i, f"loss: {optimizer.step(closure).item():.4f}")
